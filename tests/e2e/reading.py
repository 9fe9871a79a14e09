"""Repeated requests of tests with a kubeconfig's credentials, over persistent connections.

What a user does, tests do with kubectl. But a kubectl process for every read and every test namespace would take a tenth of a
second of processor time, and as much of the server's for its handshake.
"""

import base64
import functools
import json
import ssl
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3
import yaml

_ACCOUNT_WITHIN_S = 60.0
_GROUPS = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Resource(NamedTuple):
    """A resource's API path."""

    prefix: str
    plural: str
    is_namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """The path of a collection or object; without a namespace, of all namespaces."""
        within = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{self.prefix}{within}/{self.plural}" + (f"/{name}" if name else "")


class Reader:
    """One cluster, as the current context of a kubeconfig with a client certificate reaches it."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.load(kubeconfig.read_text(encoding="utf-8"), yaml.CSafeLoader)
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        self.namespace: str = context.get("namespace", "default")
        self._server: str = cluster["server"]
        user = _named(config["users"], context["user"])["user"]
        parts = (cluster["certificate-authority-data"], user["client-certificate-data"], user["client-key-data"])
        self._pool = _connections(*map(str, parts))
        self._resources: dict[str, Resource] = {}

    def get(self, kind: str, name: str, *, namespace: str) -> dict[str, Any]:
        """One object. Otherwise an AssertionError has the server's answer."""
        found: dict[str, Any] = self._read(self._resource(kind).path(namespace, name))
        return found

    def list(self, kind: str, *, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """The objects of a kind, of all namespaces if `namespace` is empty."""
        fields = {"labelSelector": labels} if labels else None
        found: list[dict[str, Any]] = self._read(self._resource(kind).path(namespace), fields)["items"]
        return found

    def make_namespace(self, name: str) -> None:
        """A namespace in which pods can be made; an AssertionError if there is one of that name."""
        self._ask("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        deadline = time.monotonic() + _ACCOUNT_WITHIN_S
        while True:
            try:
                self._read(f"/api/v1/namespaces/{name}/serviceaccounts/default")
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def end_namespace(self, name: str) -> None:
        """Start to delete a namespace, its pods with a second of grace, and its claims.

        The namespace's own deletion would reach claims half a minute after the last pod.
        """
        self._ask("DELETE", f"/api/v1/namespaces/{name}")  # from now on nothing can be created in it
        self._ask("DELETE", f"/api/v1/namespaces/{name}/pods", body={"gracePeriodSeconds": 1})
        self._ask("DELETE", self._resource("resourceclaims").path(name))

    def _resource(self, kind: str) -> Resource:
        if kind not in self._resources:
            self._resources = self._served()
        assert kind in self._resources, f"{self._server} serves no {kind}"
        return self._resources[kind]

    def _served(self) -> dict[str, Resource]:
        """Resources by plural and singular name, alone and with their group. As with kubectl, the first one wins."""
        found: dict[str, Resource] = {}
        for root in ("/api", "/apis"):
            for group in self._read(root, accept=_GROUPS)["items"]:
                name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    prefix = "/".join(filter(None, (root, name, version["version"])))
                    for each in version.get("resources", ()):
                        resource = Resource(prefix, each["resource"], each["scope"] == "Namespaced")
                        for alias in (each["resource"], each["singularResource"]):
                            found.setdefault(alias, resource)
                            found.setdefault(f"{alias}.{name}", resource)
        return found

    def _read(self, path: str, fields: dict[str, str] | None = None, *, accept: str = "application/json") -> Any:
        return self._ask("GET", path if fields is None else f"{path}?{urlencode(fields)}", accept=accept)

    def _ask(self, method: str, path: str, *, body: object = None, accept: str = "application/json") -> Any:
        response = self._pool.request(
            method,
            self._server + path,
            body=None if body is None else json.dumps(body).encode(),
            headers={"Accept": accept, "Content-Type": "application/json"},
            timeout=30,
            retries=False,
        )
        assert response.status < HTTPStatus.BAD_REQUEST, f"{method} {path}: {response.status} {response.data.decode()}"
        return response.json()


@functools.cache
def reader(kubeconfig: Path) -> Reader:
    """The reader of a kubeconfig, which must not change afterwards."""
    return Reader(kubeconfig)


@functools.cache
def _connections(authority: str, certificate: str, key: str) -> urllib3.PoolManager:
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    with tempfile.NamedTemporaryFile() as file:  # the only form in which ssl takes a client certificate
        file.write(base64.b64decode(certificate) + base64.b64decode(key))
        file.flush()
        context.load_cert_chain(file.name)
    return urllib3.PoolManager(ssl_context=context)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in entries if each["name"] == name)
