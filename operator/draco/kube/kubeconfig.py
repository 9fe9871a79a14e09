"""From a kubeconfig to a connection.

Owns reading and merging kubeconfig files and the plain ways to authenticate (client certificate, token, token file). Exec
plugins and auth providers are the business of kubernetes_asyncio, which is imported here, nowhere else, and only when the
chosen user needs it: it takes 2 s and 60 MiB. TLS verification cannot be switched off.
"""

import asyncio
import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from draco.kube.connection import Connection, Credentials, FixedToken, NoToken, TokenFile, trust
from draco.kube.errors import KubeconfigError, Unauthorized
from draco.kube.incluster import connect_in_cluster, runs_in_cluster

PLUGIN_TIMEOUT_S = 60.0
_TOKEN_CHECK_S = 30.0


async def connect(kubeconfig: Path | None = None, context: str | None = None) -> Connection:
    """Connect as the user of a kubeconfig's context (the current one by default).

    Without `kubeconfig`: the files that KUBECONFIG lists, else ~/.kube/config, else the pod's service account when this runs
    in a pod. Raises KubeconfigError. Nothing is sent to the API server yet.
    """
    paths = _paths(kubeconfig)
    present = [path for path in paths if path.is_file()]
    if not present:
        if kubeconfig is None and context is None and runs_in_cluster():
            return connect_in_cluster()
        raise KubeconfigError(
            f"no kubeconfig at {', '.join(str(path) for path in paths)}: "
            "name one with --kubeconfig or KUBECONFIG, or start a cluster with `draco cluster up`"
        )
    chosen = _choose(present, context)
    tls = _tls(chosen)
    credentials = await _credentials(chosen, present, tls)
    return Connection(
        chosen.server,
        tls=tls,
        credentials=credentials,
        tls_server_name=str(chosen.cluster.get("tls-server-name") or ""),
        proxy=str(chosen.cluster.get("proxy-url") or ""),
    )


def current_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace of a kubeconfig's context, which kubectl takes where none is given: "default" unless it names one.

    Raises KubeconfigError.
    """
    present = [path for path in _paths(kubeconfig) if path.is_file()]
    return _choose(present, context).namespace if present else "default"


class _Entry(NamedTuple):
    value: dict[str, Any]
    folder: Path
    """Where relative paths in it start: the folder of the file it came from."""


class _Choice(NamedTuple):
    context: str
    server: str
    cluster: dict[str, Any]
    cluster_folder: Path
    user: dict[str, Any]
    user_folder: Path
    namespace: str


def _paths(kubeconfig: Path | None) -> list[Path]:
    if kubeconfig is not None:
        return [kubeconfig.expanduser()]
    listed = os.environ.get("KUBECONFIG", "")
    if listed:
        return [Path(part).expanduser() for part in listed.split(os.pathsep) if part]
    return [Path.home() / ".kube" / "config"]


def _choose(paths: list[Path], context: str | None) -> _Choice:
    """Merge the files as kubectl does (the first file that names something wins) and resolve one context."""
    tables: dict[str, dict[str, _Entry]] = {"contexts": {}, "clusters": {}, "users": {}}
    current = ""
    for path in paths:
        document = _load(path)
        current = current or str(document.get("current-context") or "")
        for table, entries in tables.items():
            for item in document.get(table) or []:
                value = item.get(table.removesuffix("s")) if isinstance(item, dict) else None
                if not isinstance(value, dict) or "name" not in item:
                    raise KubeconfigError(
                        f"{path} is not a kubeconfig: an entry of {table!r} has no name or no content"
                    )
                entries.setdefault(str(item["name"]), _Entry(value, path.parent))
    name = context or current
    where = ", ".join(str(path) for path in paths)
    if not name:
        raise KubeconfigError(f"{where} has no current-context: choose one with `kubectl config use-context`")
    if name not in tables["contexts"]:
        known = ", ".join(sorted(tables["contexts"])) or "none"
        raise KubeconfigError(f"{where} has no context {name!r} (there is: {known})")
    chosen = tables["contexts"][name].value
    cluster = tables["clusters"].get(str(chosen.get("cluster") or ""))
    if cluster is None or not cluster.value.get("server"):
        raise KubeconfigError(f"context {name!r} of {where} names no cluster with a server")
    user = tables["users"].get(str(chosen.get("user") or ""))
    if user is None and chosen.get("user"):
        raise KubeconfigError(f"context {name!r} of {where} names the user {chosen['user']!r}, who is not in it")
    return _Choice(
        context=name,
        server=str(cluster.value["server"]),
        cluster=cluster.value,
        cluster_folder=cluster.folder,
        user=user.value if user else {},
        user_folder=user.folder if user else Path(),
        namespace=str(chosen.get("namespace") or "default"),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeconfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path} is not a kubeconfig: it is not YAML") from error
    if not isinstance(document, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig: it is {'empty' if document is None else 'not a mapping'}")
    return document


def _tls(choice: _Choice) -> ssl.SSLContext | None:
    if not choice.server.startswith("https:"):
        return None
    if choice.cluster.get("insecure-skip-tls-verify"):
        raise KubeconfigError(
            f"context {choice.context!r} switches off TLS verification, which Draco does not do: "
            "put the cluster's certificate-authority into the kubeconfig instead"
        )
    ca = _content(choice.cluster, "certificate-authority", choice.cluster_folder)
    certificate = _content(choice.user, "client-certificate", choice.user_folder)
    key = _content(choice.user, "client-key", choice.user_folder)
    try:
        tls = trust(ca.decode() if ca else None)
        if certificate and key:
            _present(tls, certificate, key)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise KubeconfigError(
            f"a certificate or key of context {choice.context!r} is not valid PEM: {error}"
        ) from error
    return tls


def _content(entry: Mapping[str, Any], field: str, folder: Path) -> bytes:
    """What `field` names (a file) or `field`-data holds (base64); the latter wins, as in kubectl."""
    data = entry.get(f"{field}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error as error:
            raise KubeconfigError(f"{field}-data in the kubeconfig is not base64") from error
    name = entry.get(field)
    if not name:
        return b""
    path = folder / str(name)
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"cannot read the {field} that the kubeconfig names, {path}: {error.strerror}") from error


def _present(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # Python reads client certificates from files only; the key is on disk for that moment, readable by us alone.
    with tempfile.NamedTemporaryFile() as pem:
        pem.write(certificate + b"\n" + key)
        pem.flush()
        tls.load_cert_chain(pem.name)


async def _credentials(choice: _Choice, paths: list[Path], tls: ssl.SSLContext | None) -> Credentials:
    if "exec" in choice.user or "auth-provider" in choice.user:
        plugin = PluginCredentials(paths, choice.context, tls)
        await plugin.load()
        return plugin
    if choice.user.get("tokenFile"):
        return TokenFile(choice.user_folder / str(choice.user["tokenFile"]))
    if choice.user.get("token"):
        return FixedToken(str(choice.user["token"]))
    return NoToken()


class PluginCredentials:
    """Credentials from an exec plugin or an auth provider, obtained and refreshed by kubernetes_asyncio.

    A token is renewed before it expires, and once after the server refused it. Many requests share one renewal.
    """

    def __init__(self, paths: list[Path], context: str, tls: ssl.SSLContext | None) -> None:
        self._paths = paths
        self._context = context
        self._tls = tls
        self._loader: Any = None
        self._configuration: Any = None
        self._checked = 0.0
        self._header = ""
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Run the plugin for the first time. Raises KubeconfigError with what it said."""
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - 2 s, and most users need none of it
        from kubernetes_asyncio.config import ConfigException  # noqa: PLC0415 - the same
        from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger  # noqa: PLC0415 - the same

        try:
            merged = KubeConfigMerger(os.pathsep.join(str(path) for path in self._paths))
            self._loader = KubeConfigLoader(
                config_dict=merged.config,
                config_base_path=None,
                active_context=self._context,
                config_persister=merged.save_changes,
            )
            self._configuration = Configuration()
            async with asyncio.timeout(PLUGIN_TIMEOUT_S):
                await self._obtain()
        except (ConfigException, OSError, ValueError, KeyError, TimeoutError) as error:
            raise KubeconfigError(
                f"the credential plugin of context {self._context!r} failed: {_words(error)}"
            ) from error

    async def authorization(self) -> str:
        """The current token, renewed when it is about to expire."""
        if asyncio.get_running_loop().time() - self._checked > _TOKEN_CHECK_S and self._knows_expiry():
            async with self._lock:
                await self._obtain_or_keep()
        return self._header

    async def renew(self, rejected: str) -> str:
        """Ask the plugin again, unless another request already did since `rejected` was sent."""
        async with self._lock:
            if self._header == rejected:
                if hasattr(self._loader, "exec_plugin_expiry"):
                    del self._loader.exec_plugin_expiry  # else it returns the refused token until that time
                await self._obtain_or_keep()
        return self._header

    def _knows_expiry(self) -> bool:
        return self._loader.provider is not None or hasattr(self._loader, "exec_plugin_expiry")

    async def _obtain_or_keep(self) -> None:
        from kubernetes_asyncio.config import ConfigException  # noqa: PLC0415 - loaded long ago when we get here

        try:
            async with asyncio.timeout(PLUGIN_TIMEOUT_S):
                await self._obtain()
        except (ConfigException, OSError, ValueError, KeyError, TimeoutError) as error:
            raise Unauthorized(
                401, "PluginFailed", f"the credential plugin of context {self._context!r} failed: {_words(error)}"
            ) from error

    async def _obtain(self) -> None:
        # A plugin may answer with a certificate instead of a token; drop the last one so that a new one is taken up.
        self._loader.__dict__.pop("cert_file", None)
        await self._loader.load_and_set(self._configuration)
        self._checked = asyncio.get_running_loop().time()
        self._header = self._configuration.api_key.get("BearerToken", "")
        if self._tls is not None and self._configuration.cert_file and self._configuration.key_file:
            self._tls.load_cert_chain(self._configuration.cert_file, self._configuration.key_file)


def _words(error: Exception) -> str:
    return str(error) or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__)
