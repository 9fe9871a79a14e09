"""The operator's webhook on loopback, as the chart configures it: its certificate, and its configuration for the API server."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draco.resources.kinds import Kind
from draco_local.cluster.pki import Authority
from tests.component.chart.rendering import only, render

GATING: Kind[Any] = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    dict,
)


class LocalWebhook:
    """Webhook certificates for operators on loopback, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.certificates = folder / "webhook"
        self.certificates.mkdir()
        self._authority = Authority.create("webhook")
        credential = self._authority.issue("webhook", hosts=["127.0.0.1"])
        (self.certificates / "tls.crt").write_bytes(credential.certificate)
        (self.certificates / "tls.key").write_bytes(credential.key)

    def options(self, port: int) -> tuple[str, ...]:
        """The operator's options to serve the webhook at this port."""
        return ("--webhook-listen", f"127.0.0.1:{port}", "--webhook-certificates", str(self.certificates))

    def gating(self, name: str, ports: Sequence[int], namespaces: Sequence[str] = ()) -> dict[str, Any]:
        """As `gating`, with its own authority."""
        return gating(self._authority, name, ports, namespaces)


def gating(authority: Authority, name: str, ports: Sequence[int], namespaces: Sequence[str] = ()) -> dict[str, Any]:
    """The chart's MutatingWebhookConfiguration, once for each port; for all namespaces unless some are named."""
    made = only(render("--set", "operator.allocate=true,metrics.secure.enabled=false"), GATING.kind)
    (webhook,) = made["webhooks"]
    path = webhook["clientConfig"]["service"]["path"]
    bundle = base64.b64encode(authority.certificate).decode()
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    return {
        "apiVersion": GATING.api_version,
        "kind": GATING.kind,
        "metadata": {"name": name},
        "webhooks": [
            webhook
            | {"name": f"pods-{port}.draco.dev"}
            | {"clientConfig": {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}}
            | ({"namespaceSelector": {"matchExpressions": [chosen]}} if namespaces else {})
            for port in ports
        ],
    }
