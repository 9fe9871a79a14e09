"""The cluster as `draco maintain` reads and writes it. A write never overwrites a concurrent change."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from draco.cli import writing
from draco.cli.input import reading
from draco.cli.input.reading import Reader, operated, pods_and_budgets, without_kinds
from draco.cli.output import CommandError
from draco.kube.connect.client import Client
from draco.kube.discovery import Features
from draco.kube.errors import ApiError, Conflict, NotFound
from draco.maintenance.selecting.rehearsal import RehearsedObjects
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import (
    CLAIMS,
    DEVICE_CLASSES,
    DEVICE_MAINTENANCES,
    GPU_NODES,
    MAINTENANCE_BUDGETS,
    NODES,
    SLICES,
    Kind,
)
from draco.resources.texts import nearest

T = TypeVar("T")
_TRIES: Final = 5
_ROLE: Final = "draco-maintainer"


class MaintainedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What commands about requests read. `operated`: an operator leads; None if that may not be read."""

    client: Client
    reader: Reader
    requests: list[DeviceMaintenance]
    operated: bool | None
    taint_rules: Kind[DeviceTaintRule] | None

    def request(self, name: str) -> DeviceMaintenance:
        """The request of this name. Raises CommandError, which suggests similar names."""
        by_name = {each.metadata.name: each for each in self.requests}
        if name not in by_name:
            raise CommandError(f"there is no DeviceMaintenance {name}{nearest(name, by_name)}")
        return by_name[name]

    async def budgets(self) -> list[MaintenanceBudget]:
        """The MaintenanceBudgets; none if the cluster does not serve the kind."""
        return await self.reader.all_if_served(MAINTENANCE_BUDGETS, "budgets and pauses are not known") or []

    async def claims(self) -> list[ResourceClaim]:
        """The claims; none if they may not be read."""
        return await self.reader.all_if_allowed(CLAIMS, "which pods use devices is not known")

    async def slices(self) -> list[ResourceSlice]:
        """The published slices."""
        return await self.reader.all(SLICES)

    async def rehearsed(self, slices: Sequence[ResourceSlice]) -> RehearsedObjects:
        """The objects that a rehearsal counts."""
        async with asyncio.TaskGroup() as tasks:
            claims = tasks.create_task(self.claims())
            classes = tasks.create_task(self.reader.all(DEVICE_CLASSES))
            rules = tasks.create_task(self.reader.all(self.taint_rules)) if self.taint_rules else None
            nodes = tasks.create_task(self.reader.all_or_none(NODES, "which nodes take pods is not known"))
            gpu_nodes = tasks.create_task(self.reader.all_if_served(GPU_NODES, "which GPUs are sick is not known"))
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
            nodes=nodes.result(),
            gpu_nodes=gpu_nodes.result() or [],
        )


async def read_requests(client: Client, features: Features) -> MaintainedCluster:
    """Read the cluster's requests."""
    reader = Reader(client)
    try:
        requests = await reader.all(DEVICE_MAINTENANCES)
    except NotFound:
        raise without_kinds(client, DEVICE_MAINTENANCES) from None
    return MaintainedCluster(
        client=client,
        reader=reader,
        requests=requests,
        operated=await operated(client),
        taint_rules=features.taint_rules,
    )


on_cluster = reading.on_cluster(read_requests)
"""Turns an async function into a command, which gets the cluster before its options."""


async def create(client: Client, kind: Kind[T], name: str, spec: Mapping[str, Any], *, dry_run: bool = False) -> T:
    """Create an object of one of Draco's kinds, after the caller found its name free. Raises CommandError."""
    taken = "another client created it first; try again."
    return await writing.create(client, kind, ObjectKey("", name), spec, roles=_ROLE, taken=taken, dry_run=dry_run)


async def change(client: Client, kind: Kind[Any], key: ObjectKey, spec: Mapping[str, Any], generation: int) -> None:
    """Set fields of an object's spec, if its generation is still the one that was read. Raises CommandError.

    The operator's status writes do not change the generation, so they cause no refusal.
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
                body=msgspec.json.encode({"metadata": now.metadata.as_seen, "spec": dict(spec)}),
                content_type="application/merge-patch+json",
            )
        except Conflict:
            continue
        except NotFound:
            raise CommandError(f"{kind.kind} {key.name} was deleted meanwhile.") from None
        except ApiError as error:
            raise writing.refused(client, error, kind, "change", _ROLE) from error
        return
    raise CommandError(
        f"{kind.kind} {key.name} was changed by another client meanwhile: look at it again, and repeat the command."
    )
