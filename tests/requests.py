"""Plain requests to a test's API server, apart from the client under test."""

import json
import ssl
import urllib.request
from typing import Any

from draco_local.cluster.controlplane import ControlPlane


def call(plane: ControlPlane, method: str, path: str, body: object = None) -> dict[str, Any]:
    """One plain request as administrator, answered in full. PATCH is server-side apply."""
    context = ssl.create_default_context(cafile=str(plane.pki / "ca.crt"))
    context.load_cert_chain(plane.pki / "admin.crt", plane.pki / "admin.key")
    request = urllib.request.Request(
        plane.server + path,
        method=method,
        data=None if body is None else json.dumps(body, separators=(",", ":")).encode(),  # as programs write it
        headers={"Content-Type": "application/apply-patch+yaml" if method == "PATCH" else "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
        return answer
