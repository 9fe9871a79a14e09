"""Connects with the credentials of a kubeconfig or pod: kubernetes_asyncio reads them and authenticates.

Owns the conversion of the library's configuration into a `Connection`, and the error sentences. All corrections of the library's
differences from kubectl, or from what Draco promises, are here; docs/design/0002-client-library.md lists them. Only `kubeconfig`
imports this, late: the library takes half a second to load.
"""

import asyncio
import base64
import binascii
import contextlib
import os
import ssl
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, kube_config
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader
from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from draco.kube.connect.connection import Connection, TokenFile, trust
from draco.kube.connect.incluster import SERVICE_ACCOUNT
from draco.kube.errors import KubeconfigError, Unauthorized

PLUGIN_TIMEOUT_S = 60.0
_TOKEN_CHECK_S = 30.0
_FAILURES = (ConfigException, OSError, ValueError, KeyError, TimeoutError)
"""The library's errors for unusable credentials."""

_key_files = threading.Lock()
"""Held while certificates and keys are in the library's temporary files, whose table is process-wide."""


def connect_in_pod(environ: Mapping[str, str] = os.environ, *, mount: Path = SERVICE_ACCOUNT) -> Connection:
    """Connect as the pod's service account. Raises KubeconfigError."""
    configuration = Configuration()
    token, ca = mount / "token", mount / "ca.crt"
    try:
        InClusterConfigLoader(str(token), str(ca), environ=dict(environ)).load_and_set(configuration)
        tls = trust(configuration.ssl_ca_cert)
    except (ConfigException, OSError) as error:  # includes SSLError
        raise KubeconfigError(
            f"cannot connect as this pod's service account ({_words(error)}): look at {token} and {ca}, and set "
            "automountServiceAccountToken on the pod"
        ) from error
    # The library reads the token once a minute; a refused one must be replaced immediately.
    return Connection(str(configuration.host), tls=tls, credentials=TokenFile(token))


async def connect_as(paths: Sequence[Path], context: str | None) -> Connection:
    """Connect as the user of a context (default: the current one) of these merged files. Raises KubeconfigError."""
    files = _Files(paths)
    where = ", ".join(str(path) for path in paths)
    # kubectl takes the first that is set, the library the last.
    name = context or next(filter(None, (each.get("current-context") for each in files.config_files.values())), "")
    if not name:
        raise KubeconfigError(f"{where} has no current-context: choose one with `kubectl config use-context`")
    contexts = files.entries("context")
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise KubeconfigError(f"{where} has no context {name!r} (there is: {known})")
    chosen = contexts[name].value
    cluster = files.entries("cluster").get(str(chosen.get("cluster") or ""))
    if cluster is None or not cluster.value.get("server"):
        raise KubeconfigError(f"context {name!r} of {where} names no cluster with a server")
    if not _is_address(server := str(cluster.value["server"])):
        raise KubeconfigError(
            f"context {name!r} of {where} names the server {server!r}: write its address, such as https://10.0.0.1:6443"
        )
    user = files.entries("user").get(str(chosen.get("user") or ""))
    if user is None and chosen.get("user"):
        raise KubeconfigError(f"context {name!r} of {where} names the user {chosen['user']!r}, which is not in it")
    user = user or _Entry({}, Path())
    if cluster.value.get("insecure-skip-tls-verify") and str(cluster.value["server"]).startswith("https:"):
        raise KubeconfigError(
            f"context {name!r} switches off TLS verification, which Draco does not do: "
            "put the cluster's certificate-authority into the kubeconfig instead"
        )
    token_file = user.value.get("tokenFile")
    # The library would read the file only once, and prefer a token beside it; kubectl does neither.
    unread = ("token", "tokenFile") if token_file else ()
    login = Login(name, _resolved(name, cluster, user, unread), files)
    tls = await login.connect()
    return Connection(
        str(login.configuration.host),
        tls=tls,
        credentials=TokenFile(user.folder / str(token_file)) if token_file else login,
        tls_server_name=login.configuration.tls_server_name or "",
        proxy=login.configuration.proxy or "",
        namespace=str(chosen.get("namespace") or "default"),
    )


def _is_address(server: str) -> bool:
    """Whether it is a valid URL to connect to."""
    try:
        url = urlsplit(server)
        return url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # invalid port or brackets
        return False


class _Entry(NamedTuple):
    value: dict[str, Any]
    folder: Path
    """Base of its relative paths: the folder of its file."""


class _Files(KubeConfigMerger):
    """Kubeconfigs merged by the library; the error for an invalid one names it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(os.pathsep.join(str(path) for path in paths))
        if self.config_merged is None:
            raise KubeconfigError(f"{paths[0]} has {os.pathsep!r} in its name, which separates paths: rename it")

    def load_config(self, path: str) -> None:
        """Read one file. Raises KubeconfigError."""
        try:
            super().load_config(path)
        except OSError as error:
            raise KubeconfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise KubeconfigError(f"{path} is not a kubeconfig: it is not YAML") from error
        except (AttributeError, KeyError, TypeError) as error:
            raise KubeconfigError(f"{path} is not a kubeconfig: {_fault(Path(path))}") from error
        for kind in ("context", "cluster", "user"):
            for item in self.config_files[path].get(f"{kind}s") or []:
                if not isinstance(item, dict) or "name" not in item or not isinstance(item.get(kind), dict):
                    raise KubeconfigError(
                        f"{path} is not a kubeconfig: an entry of '{kind}s' has no name or no content"
                    )

    def entries(self, kind: str) -> dict[str, _Entry]:
        """All entries of a kind, by name."""
        assert self.config_merged is not None  # noqa: S101 - otherwise this object would not exist
        nodes = self.config_merged.value[f"{kind}s"]
        return {str(node["name"]): _Entry(node.value[kind], Path(node.path).parent) for node in nodes}


def _fault(path: Path) -> str:
    match yaml.safe_load(path.read_text()):
        case None:
            return "it is empty"
        case dict():
            return "one of 'contexts', 'clusters' and 'users' is not a list of named entries"
    return "it is not a mapping"


def _resolved(context: str, cluster: _Entry, user: _Entry, unread: Sequence[str]) -> dict[str, Any]:
    """A kubeconfig with this context only, absolute paths, and all its files checked to be readable."""
    settled = {}
    for kind, entry, fields in (
        ("cluster", cluster, ("certificate-authority",)),
        ("user", user, ("client-certificate", "client-key")),
    ):
        paths = {
            field: path
            for field in fields
            if (path := _readable(entry, field)) and not entry.value.get(f"{field}-data")
        }
        settled[kind] = {name: value for name, value in entry.value.items() if name not in unread} | paths
    return {
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "clusters": [{"name": context, "cluster": settled["cluster"]}],
        "users": [{"name": context, "user": settled["user"]}],
    }


def _readable(entry: _Entry, field: str) -> str:
    """The file in `field`, "" for none. Inline data in `field`-data must be base64. Raises KubeconfigError."""
    if data := entry.value.get(f"{field}-data"):
        try:
            base64.b64decode("".join(str(data).split()), validate=True)
        except binascii.Error as error:
            raise KubeconfigError(f"{field}-data in the kubeconfig is not base64") from error
        return ""
    if not (name := entry.value.get(field)):
        return ""
    path = entry.folder / str(name)
    try:
        path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"cannot read the {field} that the kubeconfig names, {path}: {error.strerror}") from error
    return str(path)


class Login:
    """The Authorization header of a context's user, obtained by the library.

    A token of an exec plugin or auth provider is renewed before it expires, and once after the server refused it. Concurrent
    requests share one renewal.
    """

    def __init__(self, context: str, resolved: dict[str, Any], files: KubeConfigMerger) -> None:
        self.configuration = Configuration()
        self._context = context
        user = resolved["users"][0]["user"]
        self._provided = "exec" in user or "auth-provider" in user
        self._loader: Any = KubeConfigLoader(resolved, context, config_persister=files.save_changes)
        self._tls: ssl.SSLContext | None = None
        self._checked = 0.0
        self._header = ""
        self._lock = asyncio.Lock()

    async def connect(self) -> ssl.SSLContext:
        """Obtain credentials for the first time; return the TLS that shows them. Raises KubeconfigError."""
        try:
            return await self._obtain()
        except ssl.SSLError as error:
            raise KubeconfigError(
                f"a certificate or key of context {self._context!r} is not valid PEM: {error}"
            ) from error
        except _FAILURES as error:
            what = "the credential plugin" if self._provided else "the user"
            raise KubeconfigError(f"{what} of context {self._context!r} failed: {_words(error)}") from error

    async def authorization(self) -> str:
        """The current token, renewed if it is about to expire."""
        if asyncio.get_running_loop().time() - self._checked > _TOKEN_CHECK_S and self._knows_expiry():
            async with self._lock:
                await self._obtain_or_refuse()
        return self._header

    async def renew(self, rejected: str) -> str:
        """Ask the plugin again, unless another request has already done so since `rejected` was sent."""
        async with self._lock:
            if self._provided and self._header == rejected:
                # Otherwise the library returns the refused token until it expires.
                self._loader.__dict__.pop("exec_plugin_expiry", None)
                await self._obtain_or_refuse()
        return self._header

    def _knows_expiry(self) -> bool:
        # The library considers a plugin's token without an expiry as expired.
        return self._loader.provider is not None or hasattr(self._loader, "exec_plugin_expiry")

    async def _obtain_or_refuse(self) -> None:
        try:
            await self._obtain()
        except _FAILURES as error:
            raise Unauthorized(
                401, "PluginFailed", f"the credential plugin of context {self._context!r} failed: {_words(error)}"
            ) from error

    async def _obtain(self) -> ssl.SSLContext:
        async with _key_files_to_itself(), asyncio.timeout(PLUGIN_TIMEOUT_S):
            # A plugin may return a certificate instead of a token; drop the last one so that a new one is used.
            self._loader.__dict__.pop("cert_file", None)
            await self._loader.load_and_set(self.configuration)
            tls = self._tls = self._tls or trust(self.configuration.ssl_ca_cert)
            if self.configuration.cert_file:  # requests in flight finish with the old certificate
                tls.load_cert_chain(self.configuration.cert_file, self.configuration.key_file)
        self._checked = asyncio.get_running_loop().time()
        self._header = self.configuration.api_key.get("BearerToken", "")
        return tls


@contextlib.asynccontextmanager
async def _key_files_to_itself() -> AsyncIterator[None]:
    """Lock out other loops of this process while the library writes keys into files; at the end the files are removed."""
    while not _key_files.acquire(blocking=False):  # noqa: ASYNC110 - the holder is another loop, in another thread
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        kube_config._cleanup_temp_files()
        _key_files.release()


def _words(error: Exception) -> str:
    return str(error) or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
