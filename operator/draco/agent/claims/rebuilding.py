"""Rebuilds a lost or incomplete record of prepared claims from claims, CDI specs and the GpuNode.

Owns which source is believed, and in which order. Pure. The sources of a claim, most trusted first:

- its CDI spec of this boot, whose annotations repeat the record; a spec that survived a reboot may be older than the record;
- the API server: allocated from our pool, and its spec is here or its status says that we made it ready. An allocated claim with
  neither was never given to kubelet;
- the same if its GPU is missing: its status, or a spec of an earlier boot, names the GPU;
- the record before the damage, unless kubelet denies that it holds the claim.

A source is not believed where it contradicts an earlier one: two claims never have one device. A surplus claim does little harm:
it is unprepared when kubelet does not know it. A missing claim could still have a running container.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from draco.agent.claims.memory_limits import Holding, MpsPlace, as_client, with_limit
from draco.agent.claims.plan import conflicts, intent_of
from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import Gpu, Instance, PlacementKey
from draco.agent.record.contents import (
    InstanceState,
    OwnedInstance,
    Partition,
    PreparationState,
    PreparedClaim,
    PreparedDevice,
    ShareLimit,
)
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.draco import GpuNode, InstanceUse, MemoryLimitBy
from draco.resources.api.meta import is_true
from draco.resources.names import ClaimUid, GpuUuid, read_partition_name
from draco.resources.quantity import Quantity

_MIG_UUID = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

NOT_THERE = -1
"""The minor number of a GPU whose place is unknown."""


def rebuilt(
    claims: Sequence[ResourceClaim],
    *,
    driver: str,
    pool: str,
    gpus: Mapping[str, Gpu],
    mps_place: MpsPlace,
    with_spec: Iterable[ClaimUid],
    by_spec: Iterable[PreparedClaim] = (),
    by_old_spec: Iterable[PreparedClaim] = (),
    before: Iterable[PreparedClaim] = (),
    kubelet_denies: Callable[[ClaimUid], bool] = lambda _: False,
) -> list[PreparedClaim]:
    """The claims of this node that were prepared or being released, each once.

    `claims` are the API server's; `with_spec` have a spec here. `by_spec` and `by_old_spec` come from specs of this boot and of
    an earlier one. `before` is the record before the damage. `kubelet_denies`: whether kubelet's readable record lacks a claim.
    `mps_place`: see MpsPlace.
    """
    specs = set(with_spec)
    prepared = [claim for claim in claims if claim.metadata.uid in specs or _reported_ready(claim, driver, pool)]
    old = {one.uid: one for one in by_old_spec}
    remembered = (one for one in before if one.state is not PreparationState.PREPARING and not kubelet_denies(one.uid))
    read = partial(_planned, driver=driver, pool=pool, gpus=gpus, mps_place=mps_place, old=old)
    found: dict[ClaimUid, PreparedClaim] = {}
    for one in (
        *by_spec,
        *(planned for claim in prepared if (planned := read(claim)) is not None),
        *remembered,
    ):
        if one.uid not in found and not _excluded(one, found.values()):
            found[one.uid] = one
    return list(found.values())


def _planned(
    claim: ResourceClaim,
    *,
    driver: str,
    pool: str,
    gpus: Mapping[str, Gpu],
    mps_place: MpsPlace,
    old: Mapping[ClaimUid, PreparedClaim],
) -> PreparedClaim | None:
    """The prepared claim of an allocation; None if it is another node's or driver's, or its GPUs are unknown."""
    said = {
        (one.device, one.share_id): known
        for one in claim.status.devices
        if (one.driver, one.pool) == (driver, pool) and (known := _said(one.data))
    }
    with suppress(PrepareError):
        intent = intent_of(claim, driver=driver, pool=pool, gpus=gpus, holding=Holding(mps_place=mps_place))
        limited = [_limited(one, said.get((one.device, one.share_id or None)), mps_place) for one in intent.devices]
        return msgspec.structs.replace(intent, state=PreparationState.PREPARED, devices=limited)
    results = [one for one in claim.results if one.driver == driver]
    if not results or any(one.pool != pool for one in results):
        return None
    devices = [_by_status(one, said.get((one.device, one.share_id)), mps_place) for one in results]
    if None not in devices:
        return PreparedClaim(
            uid=ClaimUid(claim.metadata.uid),
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            state=PreparationState.PREPARED,
            devices=[one for one in devices if one is not None],
        )
    spec = old.get(ClaimUid(claim.metadata.uid))
    named = Counter((one.device, one.share_id or "") for one in results)
    return spec if spec and named == Counter((one.device, one.share_id) for one in spec.devices) else None


class _Placed(msgspec.Struct):
    size: int


class _Identity(msgspec.Struct, rename="camel"):
    """The part of what `claim_status.identity` writes that is needed here."""

    uuid: str = ""
    parent_uuid: str = msgspec.field(default="", name="parentUUID")
    profile: str = ""
    placement: _Placed | None = None
    memory_limit: str = ""
    memory_limit_by: MemoryLimitBy = MemoryLimitBy.DRIVER
    memory_limit_library: str = ""

    def limiting(self, device: PreparedDevice, mps_place: MpsPlace) -> PreparedDevice:
        """The device with this limit."""
        limit = Quantity.read(self.memory_limit)
        mib = limit.value() >> 20 if limit is not None else 0
        if not mib or (self.memory_limit_by is MemoryLimitBy.LIBRARY and not self.memory_limit_library):
            return device
        by = self.memory_limit_by
        device = as_client(device, mps_place) if by is MemoryLimitBy.MPS else device
        return with_limit(device, ShareLimit(by=by, mib=mib, library=self.memory_limit_library))


def _said(data: object) -> _Identity | None:
    with suppress(msgspec.ValidationError):
        known = msgspec.convert(data, _Identity)
        return known if known.uuid or known.parent_uuid else None
    return None


def _limited(device: PreparedDevice, said: _Identity | None, mps_place: MpsPlace) -> PreparedDevice:
    """The device with the limit that its container got, whatever is enforced now."""
    return device if said is None else said.limiting(device, mps_place)


def _by_status(
    result: DeviceRequestAllocationResult, said: _Identity | None, mps_place: MpsPlace
) -> PreparedDevice | None:
    """A device whose GPU is missing, from its claim's status; None if the status does not identify it."""
    if said is None:
        return None
    name = read_partition_name(result.device)
    uuid, part = said.uuid, None
    if name is not None:
        if said.placement is None:
            return None
        uuid = said.parent_uuid
        part = Partition(profile_id=name.profile_id, start=name.start, size=said.placement.size, profile=said.profile)
    if not uuid:
        return None
    device = PreparedDevice(
        request=result.request.partition("/")[0],
        pool=result.pool,
        device=result.device,
        gpu=GpuUuid(uuid),
        minor=NOT_THERE,
        admin=bool(result.admin_access),
        share_id=result.share_id or "",
        consumed=result.consumed_capacity,
        partition=part,
    )
    return said.limiting(device, mps_place)


def forgotten(record: Iterable[PreparedClaim], by_spec: Iterable[PreparedClaim]) -> list[PreparedClaim]:
    """Claims with a spec but no record. A claim is recorded before its spec is written, so the record lost them."""
    known = {claim.uid: claim for claim in record}
    found: dict[ClaimUid, PreparedClaim] = {}
    for one in by_spec:
        if one.uid not in known and not _excluded(one, [*known.values(), *found.values()]):
            found[one.uid] = one
    return list(found.values())


def _excluded(claim: PreparedClaim, others: Iterable[PreparedClaim]) -> bool:
    """Whether another claim has one of its devices. Specs do not tell how programs share a device."""
    return any(not each.exclusion.settings for each in conflicts(claim, others))


def instances_of(claims: Iterable[PreparedClaim], *, boot_id: str) -> list[OwnedInstance]:
    """The instances of claims, from their specs of this boot."""
    return [
        _made(device.gpu, part, part.uuid, boot_id)
        for claim in claims
        for device in claim.devices
        if (part := device.partition) is not None and part.uuid
    ]


def merged_instances(*sources: Iterable[OwnedInstance]) -> list[OwnedInstance]:
    """One instance per placement, from the last source that has it."""
    found: dict[PlacementKey, OwnedInstance] = {one.key: one for source in sources for one in source}
    return list(found.values())


def instance_uuids(
    claims: Iterable[ResourceClaim], node: GpuNode | None, specs: Iterable[str], *, driver: str, pool: str
) -> set[str]:
    """MIG UUIDs of our instances as far as published: in claim statuses, our GpuNode and CDI specs."""
    found = {uuid for text in specs for uuid in _MIG_UUID.findall(text)}
    for claim in claims:
        for device in claim.status.devices:
            if device.driver == driver and device.pool == pool and isinstance(device.data, dict):
                found.add(str(device.data.get("uuid", "")))
    for gpu in node.status.gpus if node else ():
        found |= {one.uuid for one in (gpu.mig.instances if gpu.mig else ()) if one.use is not InstanceUse.FOREIGN}
    return found - {""}


def adopted(observed: Iterable[Instance], uuids: Collection[str], *, boot_id: str) -> list[OwnedInstance]:
    """The existing instances that are provably ours. Without proof an instance counts as foreign."""
    return [_made(one.gpu, one, one.uuid, boot_id) for one in observed if one.uuid is not None and one.uuid in uuids]


def _made(gpu: GpuUuid, one: Instance | Partition, uuid: str, boot_id: str) -> OwnedInstance:
    return OwnedInstance(
        gpu=gpu,
        profile_id=one.profile_id,
        start=one.start,
        size=one.size,
        state=InstanceState.MADE,
        boot_id=boot_id,
        gi=one.gi,
        ci=one.ci,
        uuid=uuid,
    )


def _reported_ready(claim: ResourceClaim, driver: str, pool: str) -> bool:
    return any(
        is_true(device.conditions, "Ready")
        for device in claim.status.devices
        if device.driver == driver and device.pool == pool
    )
