"""`draco maintain status NAME --watch`: print each change of one request until it is over."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from draco.cli.input.words import limit_s
from draco.cli.output import CommandError, echo, visible, warn
from draco.kube.connect.client import Client
from draco.kube.connect.retry import TRANSIENT
from draco.kube.errors import Expired, NotFound
from draco.kube.watch.watching import Removal, StreamBroken, Upsert, watch
from draco.overview.maintenances import maintenance_view
from draco.resources.api.maintenance import OVER, DeviceMaintenance, MaintenancePhase
from draco.resources.kinds import DEVICE_MAINTENANCES

_ENDS: Final = OVER | {MaintenancePhase.FAILED}
_WATCH_S: Final = 240.0
_SILENT_S: Final = 90.0
"""The server sends a bookmark every minute."""
_AGAIN_S: Final = 1.0


async def follow(client: Client, request: DeviceMaintenance, limit: str) -> None:
    """Print each change of the request's phase and message, until it is Completed.

    `limit` is the longest time that may take. Raises CommandError if it is cancelled, fails, is deleted, or takes longer.
    """
    name, said = request.metadata.name, ""
    try:
        async with asyncio.timeout(limit_s(limit)):
            async for now in _versions(client, request):
                view = visible(maintenance_view(now, {}))
                if said != (said := f"{view.phase}: {view.message}" if view.message else view.phase):
                    echo(said)
                if now.status.phase in _ENDS and now.status.observed_generation == now.metadata.generation:
                    if now.status.phase is not MaintenancePhase.COMPLETED:
                        raise CommandError(f"{name} did not complete: it is {now.status.phase}.")
                    return
    except TimeoutError:
        raise CommandError(f"{name} is not completed after {limit}: {said}") from None
    raise CommandError(f"{name} was deleted: its devices return to service.")


async def _versions(client: Client, request: DeviceMaintenance) -> AsyncIterator[DeviceMaintenance]:
    """The request now, and each later version until it is deleted. Retries while the server is unreachable."""
    key, uid = request.metadata.key, request.metadata.uid
    away = False
    while True:
        try:
            now = await client.get(DEVICE_MAINTENANCES, key)
        except NotFound:
            return
        except TRANSIENT as error:
            if not away:
                warn([f"{error}; retrying until the server answers."])
            away = True
            await asyncio.sleep(_AGAIN_S)
            continue
        away = False
        if now.metadata.uid != uid:  # deleted and created again
            return
        yield now
        stream = watch(
            client,
            DEVICE_MAINTENANCES,
            namespace="",
            params={"fieldSelector": f"metadata.name={key.name}"},
            version=now.metadata.resource_version,
            server_timeout_s=_WATCH_S,
            idle_timeout_s=_SILENT_S,
        )
        try:
            async for steps in stream:
                for step in steps:
                    match step.event:
                        case Upsert(obj) if obj.metadata.uid == uid:
                            yield obj
                        case Upsert() | Removal():
                            return
        except (Expired, StreamBroken, *TRANSIENT):
            await asyncio.sleep(_AGAIN_S)  # then read the current version
        finally:
            await stream.aclose()
