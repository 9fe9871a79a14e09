"""The cluster as `draco reserve` meets it: the one write, what is read, and what is said where the server refuses.

Owns the translation of the API server's answers into sentences with a fix, and the waiting for a reservation to be ready.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from draco.cli.output import echo
from draco.cli.reserve.requests import ReserveError
from draco.kube.connect.client import Client, decode
from draco.kube.errors import AlreadyExists, Forbidden, NotFound, Unreachable
from draco.resources.api.meta import Condition, ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.texts import shown

_WAIT: Final = re.compile(r"(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?")
_LOOK_EVERY_S: Final = 0.5
_NOT_SERVED: Final = "the cluster does not know DeviceReservation: install Draco with charts/draco, or apply crds/."


def manifest(key: ObjectKey, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The reservation as it is written."""
    kind = DEVICE_RESERVATIONS
    metadata = {"name": key.name, "namespace": key.namespace}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": dict(spec)}


async def create(client: Client, key: ObjectKey, spec: Mapping[str, Any], *, dry_run: bool) -> DeviceReservation:
    """Create the reservation, every field of which the server has to know. Raises ReserveError."""
    kind = DEVICE_RESERVATIONS
    params = {"fieldManager": "draco", "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    path, body = kind.path(namespace=key.namespace), msgspec.json.encode(manifest(key, spec))
    try:
        return decode(kind, await client.connection.request("POST", path, params=params, body=body))
    except AlreadyExists:
        raise ReserveError(
            f"there is a reservation {key.name} in {key.namespace} already: take another name, or delete it with "
            f"`kubectl delete devicereservation {key.name} --namespace {key.namespace}`"
        ) from None
    except NotFound as error:
        raise ReserveError(_NOT_SERVED if "could not find" in str(error) else str(error)) from None
    except Forbidden as error:
        raise ReserveError(
            f"these credentials may not reserve in {key.namespace} ({error}). Have an administrator bind the ClusterRole edit or "
            "draco-devicereservations-edit to you in this namespace."
        ) from None


async def read(client: Client, namespace: str) -> list[DeviceReservation]:
    """The reservations of a namespace, of all for "". Raises ReserveError."""
    try:
        found = await client.list(DEVICE_RESERVATIONS, namespace=namespace)
    except NotFound:
        raise ReserveError(_NOT_SERVED) from None
    except Forbidden as error:
        raise ReserveError(f"these credentials may not list reservations there: {error}") from None
    return sorted(found, key=lambda each: each.metadata.key)


async def wait(client: Client, reservation: DeviceReservation, limit: str) -> None:
    """Say each change of its message until it is ready. Raises ReserveError when it ends, is deleted, or takes too long."""
    key, said = reservation.metadata.key, ""
    try:
        async with asyncio.timeout(_seconds(limit)):
            while True:
                try:
                    now = await client.get(DEVICE_RESERVATIONS, key)
                except NotFound:
                    raise ReserveError(f"{key.name} was deleted") from None
                except Unreachable:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    continue
                if now.metadata.uid != reservation.metadata.uid:
                    raise ReserveError(f"{key.name} was deleted, and is another one now")
                if now.status.message and said != (said := now.status.message):
                    echo(shown(said))
                if _holds(now, "Ready"):
                    return
                if _holds(now, "Expired"):
                    raise ReserveError(f"{key.name} ended before it was ready")
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        why = shown(said) or "no operator of Draco has said anything about it; `draco check` says why."
        raise ReserveError(f"{key.name} is not ready after {limit}: {why}") from None


def _holds(reservation: DeviceReservation, condition: str) -> bool:
    found: Condition | None = next((each for each in reservation.status.conditions if each.type == condition), None)
    return found is not None and found.status == "True" and found.observed_generation == reservation.metadata.generation


def _seconds(limit: str) -> float | None:
    """How long that is; None for 0s, which is no limit."""
    found = _WAIT.fullmatch(limit)
    if not limit or found is None:
        raise ReserveError(f"'{limit}' is not a duration for --timeout: write it such as 30s, 5m or 1h")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600.0 + minutes * 60.0 + seconds or None
