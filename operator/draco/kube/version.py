"""Which Kubernetes this is.

Owns the reading of the server's version. It says which known bugs the scheduler may have, and nothing else: what a cluster can do
is found out by `discovery`, which looks at no version.
"""

import re

import msgspec

from draco.kube.connect.client import Client
from draco.kube.errors import ApiError


class _Version(msgspec.Struct):
    major: str = ""
    minor: str = ""


async def kubernetes_minor(client: Client) -> int | None:
    """The minor version of Kubernetes 1, as of the API server; None where it cannot be read."""
    try:
        told = msgspec.json.decode(await client.connection.request("GET", "/version"), type=_Version)
    except (ApiError, msgspec.DecodeError):
        return None
    digits = re.match(r"[0-9]+", told.minor)  # some providers write 36+
    return int(digits[0]) if digits and told.major == "1" else None
