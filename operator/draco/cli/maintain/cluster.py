"""The cluster as `draco maintain` meets it: what it reads, its writes, and what is said where the server refuses one.

Owns the translation of the API server's answers into sentences with a fix. What is to be written is decided elsewhere.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from draco.cli.input.reading import ClusterReadError, Reader, pods_and_budgets, without_dra
from draco.cli.maintain.requests import MaintainError
from draco.kube.connect.client import Client, decode
from draco.kube.connect.kubeconfig import connect
from draco.kube.discovery import discover
from draco.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from draco.maintenance.selecting.rehearsal import RehearsedObjects
from draco.overview.installation import OPERATORS, leading
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice, current_slices
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, DEVICE_MAINTENANCES, LEASES, MAINTENANCE_BUDGETS, SLICES, Kind
from draco.resources.names import DeviceKey
from draco.resources.texts import nearest

T = TypeVar("T")
_TRIES: Final = 5
_UNKNOWN_FIELDS: Final = re.compile(r'unknown field "([^"]+)"')
NO_OPERATOR: Final = (
    "No operator of Draco leads in this cluster, so nothing happens to requests until one does: "
    "`draco check` says what is wrong."
)


class MaintainedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What was read for a command about requests. `operated`: an operator leads (None: that may not be read)."""

    client: Client
    reader: Reader
    requests: list[DeviceMaintenance]
    operated: bool | None
    taint_rules: Kind[DeviceTaintRule] | None

    def request(self, name: str) -> DeviceMaintenance:
        """The request of this name. Raises MaintainError with the nearest names."""
        by_name = {each.metadata.name: each for each in self.requests}
        if name not in by_name:
            raise MaintainError(f"there is no DeviceMaintenance {name}{nearest(name, by_name)}")
        return by_name[name]

    async def budgets(self) -> list[MaintenanceBudget]:
        """The MaintenanceBudgets; none where the cluster knows none."""
        return await self.reader.all_if_served(MAINTENANCE_BUDGETS, "budgets and pauses are not known") or []

    async def claims(self) -> list[ResourceClaim]:
        """The claims, as far as they may be read."""
        return await self.reader.all_if_allowed(CLAIMS, "which pods use devices is not known")

    async def slices(self) -> list[ResourceSlice]:
        """What is published."""
        return await self.reader.all(SLICES)

    async def rehearsed(self, slices: Sequence[ResourceSlice]) -> RehearsedObjects:
        """What a rehearsal is counted from."""
        async with asyncio.TaskGroup() as tasks:
            claims = tasks.create_task(self.claims())
            classes = tasks.create_task(self.reader.all(DEVICE_CLASSES))
            rules = tasks.create_task(self.reader.all(self.taint_rules)) if self.taint_rules else None
        pods, disruption_budgets = await pods_and_budgets(
            self.reader, [claim for claim in claims.result() if claim.status.allocation is not None]
        )
        return RehearsedObjects(
            slices=slices,
            claims=claims.result(),
            classes=classes.result(),
            pods=pods,
            disruption_budgets=disruption_budgets,
            rules=rules.result() if rules else [],
        )


def published(slices: Sequence[ResourceSlice]) -> list[DeviceKey]:
    """The devices that slices publish."""
    return sorted(
        {
            DeviceKey(*item.pool, device.name)
            for parts in current_slices(slices).values()
            for item in parts
            for device in item.spec.devices
        }
    )


def run(work: Callable[[MaintainedCluster], Coroutine[Any, Any, T]], kubeconfig: Path | None, context: str | None) -> T:
    """Read the requests of the cluster and do the work with them."""
    return asyncio.run(_with_cluster(work, kubeconfig, context))


async def _with_cluster(
    work: Callable[[MaintainedCluster], Coroutine[Any, Any, T]], kubeconfig: Path | None, context: str | None
) -> T:
    async with Client(await connect(kubeconfig, context)) as client:
        features = await discover(client)
        if not features.dra:
            raise without_dra(client)
        reader = Reader(client)
        try:
            requests = await reader.all(DEVICE_MAINTENANCES)
        except NotFound:
            raise ClusterReadError(
                f"{client.connection.server} does not know DeviceMaintenance: install Draco with charts/draco, or apply crds/."
            ) from None
        try:
            leases = await client.list(LEASES, field_selector=OPERATORS)
            operated = bool(leading(leases, datetime.now(UTC)))
        except ApiError:  # a warning is not worth more than what was asked for
            operated = None
        return await work(
            MaintainedCluster(
                client=client, reader=reader, requests=requests, operated=operated, taint_rules=features.taint_rules
            )
        )


async def create(client: Client, kind: Kind[T], name: str, spec: Mapping[str, Any], *, dry_run: bool = False) -> T:
    """Create an object of ours, every field of which the server has to know. Raises MaintainError."""
    manifest = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    params = {"fieldManager": "draco", "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    try:
        answer = await client.connection.request("POST", kind.path(), params=params, body=msgspec.json.encode(manifest))
    except AlreadyExists:
        raise MaintainError(f"there is a {kind.kind} {name} already: somebody was faster, try again.") from None
    except ApiError as error:
        raise _refused(error, kind, "create") from error
    return decode(kind, answer)


async def change(client: Client, kind: Kind[Any], key: ObjectKey, spec: Mapping[str, Any], generation: int) -> None:
    """Set fields of an object's spec, if it says what it said when it was looked at. Raises MaintainError.

    The operator writes statuses all the time, which is no reason to refuse; a spec of another generation is.
    """
    for _ in range(_TRIES):
        try:
            now = await client.get(kind, key)
            if now.metadata.generation != generation:
                break
            await client.connection.request(
                "PATCH",
                kind.path(key),
                params={"fieldManager": "draco", "fieldValidation": "Strict"},
                body=msgspec.json.encode(
                    {
                        "metadata": now.metadata.as_seen,
                        "spec": dict(spec),
                    }
                ),
                content_type="application/merge-patch+json",
            )
        except Conflict:
            continue
        except NotFound:
            raise MaintainError(f"{kind.kind} {key.name} was deleted meanwhile.") from None
        except ApiError as error:
            raise _refused(error, kind, "change") from error
        return
    raise MaintainError(
        f"{kind.kind} {key.name} was changed by somebody else meanwhile: look at it again, and repeat the command."
    )


def _refused(error: ApiError, kind: Kind[Any], what: str) -> ApiError | MaintainError:
    """What to say of a write that the server refused."""
    if isinstance(error, Forbidden):
        return MaintainError(
            f"these credentials may not {what} {kind.plural} ({error}). Have an administrator bind the ClusterRole "
            "draco-maintainer to you."
        )
    if unknown := _UNKNOWN_FIELDS.findall(str(error)):
        return MaintainError(
            f"this cluster's {kind.kind} does not know {', '.join(unknown)}: its CRD is of an older Draco. Apply crds/ and "
            "upgrade the operator, or leave out what it does not know."
        )
    if isinstance(error, NotFound):
        return MaintainError(
            f"the cluster does not know {kind.kind}: its Draco is older or only partly installed. Apply crds/ and upgrade it."
        )
    return error
