"""Scraping metrics over TLS: a client that acts like Prometheus, and service accounts with and without the right."""

import ssl
import uuid
from pathlib import Path

import aiohttp

from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.pki import Authority
from tests.requests import call

HOST = "draco-operator-metrics.draco-system.svc"


class Scraper:
    """Scrapes as Prometheus does: by address, with a token, checking the certificate against a given name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.authority = Authority.create("metrics")

    def show(self, authority: Authority) -> None:
        """Give the endpoint a certificate of this authority."""
        issued = authority.issue("metrics", hosts=[HOST])
        (self.folder / "tls.crt").write_bytes(issued.certificate)
        (self.folder / "tls.key").write_bytes(issued.key)

    async def scrape(
        self, token: str = "", *, path: str = "/metrics", trusts: Authority | None = None
    ) -> tuple[int, str]:
        """Status and text; (0, reason) if TLS fails."""
        tls = ssl.create_default_context(cadata=(trusts or self.authority).certificate.decode())
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.get(
                    f"https://127.0.0.1:{self.port}{path}", ssl=tls, server_hostname=HOST, headers=headers
                ) as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientError as error:
            return 0, str(error)


def accounts_in(api_server: ControlPlane, namespace: str) -> dict[str, str]:
    """Tokens of two service accounts; one may get /metrics."""
    tokens = {}
    for name in ("prometheus", "tenant"):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        call(api_server, "POST", path, {"metadata": {"name": name}})
        tokens[name] = call(api_server, "POST", f"{path}/{name}/token", {"spec": {}})["status"]["token"]
    role = f"metrics-{uuid.uuid4().hex[:8]}"
    roles = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    call(api_server, "POST", f"{roles}/clusterroles", {"metadata": {"name": role}, "rules": rules})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}],
    }
    call(api_server, "POST", f"{roles}/clusterrolebindings", binding)
    return tokens
