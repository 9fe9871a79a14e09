"""Plain requests to a test's API server, apart from the client under test."""

import functools
import json
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import urllib3

from draco_local.cluster.controlplane import ControlPlane

CONTENT_TYPES = {"PATCH": "application/apply-patch+yaml"}
ONLY_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for lists of which only the metadata matters."""


class RefusedError(Exception):
    """The API server answered with an error, whose HTTP status is `code`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def call(
    plane: ControlPlane,
    method: str,
    path: str,
    body: object = None,
    *,
    accept: str = "application/json",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """One plain request as administrator, answered in full. PATCH is server-side apply unless `headers` say otherwise.

    Raises RefusedError.
    """
    response = _connections(plane.server, plane.pki).request(
        method,
        plane.server + path,
        body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),  # as programs write it
        headers={
            "Content-Type": CONTENT_TYPES.get(method, "application/json"),
            "Accept": accept,
            **headers,
        },
        timeout=30,
        retries=False,
    )
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise RefusedError(response.status, response.data.decode())
    answer: dict[str, Any] = response.json()
    return answer


@functools.cache
def _connections(server: str, pki: Path) -> urllib3.PoolManager:
    """Reused connections to one server: a handshake takes longer than most requests."""
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return urllib3.PoolManager(ssl_context=context)
