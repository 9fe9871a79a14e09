"""The cluster as `draco reserve` meets it: the one write, and what is read.

Owns the waiting for a reservation to be ready.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from draco.cli import writing
from draco.cli.input.reading import NO_OPERATOR, operated, without_kinds
from draco.cli.input.words import limit_s
from draco.cli.output import echo
from draco.cli.reserve.requests import ReserveError
from draco.kube.connect.client import Client
from draco.kube.connect.retry import TRANSIENT
from draco.kube.errors import Forbidden, NotFound
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.texts import shown

_LOOK_EVERY_S: Final = 0.5


async def create(client: Client, key: ObjectKey, spec: Mapping[str, Any], *, dry_run: bool) -> DeviceReservation:
    """Create the reservation. Raises WriteError."""
    return await writing.create(
        client,
        DEVICE_RESERVATIONS,
        key,
        spec,
        roles="edit or draco-devicereservations-edit in this namespace",
        taken="take another name, or delete it with "
        f"`kubectl delete devicereservation {key.name} --namespace {key.namespace}`",
        dry_run=dry_run,
    )


async def read(client: Client, namespace: str) -> list[DeviceReservation]:
    """The reservations of a namespace, of all for "". Raises ReserveError."""
    try:
        found = await client.list(DEVICE_RESERVATIONS, namespace=namespace)
    except NotFound:
        raise without_kinds(client, DEVICE_RESERVATIONS) from None
    except Forbidden as error:
        raise ReserveError(f"these credentials may not list reservations there: {error}") from None
    return sorted(found, key=lambda each: each.metadata.key)


async def wait(client: Client, reservation: DeviceReservation, limit: str) -> None:
    """Say each change of its message until it is ready. Raises ReserveError when it ends, is deleted, or takes too long."""
    key, said = reservation.metadata.key, ""
    if await operated(client) is False:
        echo(NO_OPERATOR, err=True)
    try:
        async with asyncio.timeout(limit_s(limit)):
            while True:
                try:
                    now = await client.get(DEVICE_RESERVATIONS, key)
                except NotFound:
                    raise ReserveError(f"{key.name} was deleted") from None
                except TRANSIENT:
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
    found = find_condition(reservation.status.conditions, condition)
    return found is not None and found.status == "True" and found.observed_generation == reservation.metadata.generation
