"""Plans what Prepare does for a claim, or why it must refuse, from its allocation, the record and the GPUs.

Owns reading the allocation, and that no device is given to two claims that exclude each other (`allocation.exclusion`). Pure.
`preparer` carries the plan out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from draco.agent.claims.memory_limits import UNLIMITED, Holding, MpsPlace, limited, unlimitable
from draco.agent.claims.presence import gpus_of
from draco.agent.errors import PrepareError, StillPrepared
from draco.agent.hardware.gpus import Gpu
from draco.agent.record.contents import ClaimPod, DeviceMps, Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.allocation import configurations
from draco.allocation.exclusion import ClaimedDevice, DeviceSettings, Exclusion, exclusion
from draco.allocation.mps import MpsLimitsError, MpsSettings
from draco.health.judgement import blocking
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import ClaimUid, GpuUuid, PartitionName, gpu_name, read_partition_name
from draco.resources.texts import are, sentence


class FirstPrepare(msgspec.Struct, frozen=True):
    """First Prepare: record `claim` as an intent, then make everything it needs."""

    claim: PreparedClaim


class RepeatedPrepare(msgspec.Struct, frozen=True):
    """Repeated Prepare of a recorded claim, after kubelet restarted or lost the answer: repair what it has."""

    claim: PreparedClaim


class PartlyReleased(msgspec.Struct, frozen=True):
    """Prepare of a claim that kubelet unprepared while `claim` still has instances: release those first."""

    claim: PreparedClaim


ClaimPlan = FirstPrepare | RepeatedPrepare | PartlyReleased


Abilities = Callable[[GpuUuid, str], bool | None]
"""Whether a GPU can be shared in the way of which an attribute tells; None if unknown."""


def _unknown(_: GpuUuid, _attribute: str) -> bool | None:
    return None


def plan_prepare(
    claim: ResourceClaim,
    record: Mapping[ClaimUid, PreparedClaim],
    *,
    driver: str,
    pool: str,
    gpus: Mapping[str, Gpu],
    leftovers: Mapping[ClaimUid, str] = MappingProxyType({}),
    can: Abilities = _unknown,
    holding: Holding = UNLIMITED,
) -> ClaimPlan:
    """The plan for an allocated claim. Raises StillPrepared if another claim has a device, PrepareError for any other refusal.

    `gpus`: this node's, by published name. `leftovers`: why recorded claims cannot be used any more, as the end of a sentence.
    `can`: how a GPU can be shared. `holding`: what this node holds shares to their memory with, and where its MPS daemons are.
    """
    known = record.get(ClaimUid(claim.metadata.uid))
    if known is not None and known.state is PreparationState.PREPARED:
        _check_unchanged(known, claim, driver)
        if refusal := joining(known, gpus):  # for example after a boot
            raise PrepareError(refusal)
        return RepeatedPrepare(known)
    if known is not None and known.state is PreparationState.RELEASING:
        return PartlyReleased(known)
    # A leftover intent does not count.
    intent = intent_of(claim, driver=driver, pool=pool, gpus=gpus, can=can, holding=holding)
    if (found := next(conflicts(intent, record.values(), leftovers), None)) is not None:
        raise PrepareError(found.why) if found.holder is None else StillPrepared(found.why, holder=found.holder)
    by_uuid = {gpu.uuid: gpu for gpu in gpus.values()}
    refusals = (sick(intent, gpus), joining(intent, gpus), unlimitable(intent, by_uuid))
    if refusal := next(filter(None, refusals), ""):
        raise PrepareError(refusal)
    gpus_of(intent, by_uuid)
    return FirstPrepare(intent)


def _check_unchanged(known: PreparedClaim, claim: ResourceClaim, driver: str) -> None:
    allocated = {(one.pool, one.device, one.share_id or "") for one in claim.results if one.driver == driver}
    held = {(device.pool, device.device, device.share_id) for device in known.devices}
    if allocated != held:
        have = ", ".join(sorted({device.device for device in known.devices}))
        raise PrepareError(
            f"Claim {known} is prepared with {have}, but that is no longer its allocation; it can be prepared again "
            "when kubelet has unprepared it."
        )


def intent_of(
    claim: ResourceClaim,
    *,
    driver: str,
    pool: str,
    gpus: Mapping[str, Gpu],
    can: Abilities = _unknown,
    holding: Holding = UNLIMITED,
) -> PreparedClaim:
    """The claim as an intent, with `driver`'s devices. `gpus`: this node's, by published name. Raises PrepareError."""
    name = str(claim.metadata.key)
    allocation = claim.status.allocation
    if allocation is None:
        raise PrepareError(f"Claim {name} is not allocated; kubelet asks again when it is.")
    results = [result for result in allocation.devices.results if result.driver == driver]
    if not results:
        raise PrepareError(f"Claim {name} has no device of driver {driver}; another driver has to prepare it.")
    devices = [_device(claim, result, pool, gpus) for result in results]
    found = {one.device: one.gpu for one in devices}
    refusal = configurations.refused(claim, driver, lambda result, way: can(found[result.device], way))
    if refusal is not None:
        fix = refusal.remedy_once_allocated
        raise PrepareError(f"Claim {name} cannot be prepared: {sentence(str(refusal))} {fix[0].upper()}{fix[1:]}.")
    return PreparedClaim(
        uid=ClaimUid(claim.metadata.uid),
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=PreparationState.PREPARING,
        devices=[limited(name, one, driver, holding) for one in _shared(claim, results, devices, holding.mps_place)],
        pods=tuple(ClaimPod(name=one.name, uid=one.uid) for one in claim.status.reserved_for if one.is_pod),
    )


def _shared(
    claim: ResourceClaim,
    results: Sequence[DeviceRequestAllocationResult],
    devices: Sequence[PreparedDevice],
    mps_place: MpsPlace,
) -> list[PreparedDevice]:
    """The devices with what the claim's configurations ask of them. Raises PrepareError."""
    asked = [configurations.mps_settings(claim, result) for result in results]
    shared = []
    for device, result, mps in zip(devices, results, asked, strict=True):
        if mps is None:
            slice_ = configurations.time_slice(claim, result) if device.partition is None else device.time_slice
            shared.append(msgspec.structs.replace(device, time_slice=slice_))
        else:
            number, settings = mps
            alike = (one for one, each in zip(devices, asked, strict=True) if each and each[0] == number)
            together = sorted({_limited_as(one) for one in alike})
            try:
                limits = dict(zip(together, settings.limits(together), strict=True))
            except MpsLimitsError as error:
                raise PrepareError(
                    f"Claim {claim.metadata.key} cannot be prepared: {error}. Correct it in a new claim."
                ) from error
            gpus = [device.gpu] if device.key is not None else [GpuUuid(each) for each in together]
            name, folder = mps_place(gpus if device.key is None else [device.key])
            place = DeviceMps(
                daemon=name,
                folder=folder,
                gpus=tuple(gpus),
                percentage=settings.percentage,
                limit_mib=limits[_limited_as(device)],
                multi_user=settings.multi_user,
            )
            shared.append(msgspec.structs.replace(device, mps=place))
    return shared


def _limited_as(device: PreparedDevice) -> str:
    """What the limits of a configuration call a device: by UUID a whole GPU, and a MIG device by its name."""
    return device.gpu if device.key is None else device.device


def _device(
    claim: ResourceClaim, result: DeviceRequestAllocationResult, pool: str, gpus: Mapping[str, Gpu]
) -> PreparedDevice:
    name = str(claim.metadata.key)
    if result.pool != pool:
        raise PrepareError(
            f"Claim {name} was allocated {result.device} of pool {result.pool}, but this node's pool is {pool}; "
            "the pod cannot run here."
        )
    part = read_partition_name(result.device)
    gpu = gpus.get(gpu_name(result.device))
    if gpu is None:
        present = ", ".join(sorted(gpus)) or "none"
        raise PrepareError(
            f"Claim {name} was allocated {result.device}, which this node does not have (it has: {present}); "
            "delete all pods that use the claim, so that it is allocated again."
        )
    return PreparedDevice(
        request=result.request.partition("/")[0],
        pool=result.pool,
        device=result.device,
        gpu=gpu.uuid,
        minor=gpu.minor,
        pci_bus_id=gpu.pci_bus_id,
        admin=bool(result.admin_access),
        share_id=result.share_id or "",
        consumed=result.consumed_capacity,
        partition=None if part is None else _partition(name, result.device, gpu, part),
    )


def _partition(name: str, device: str, gpu: Gpu, part: PartitionName) -> Partition:
    profile = gpu.board.by_id(part.profile_id) if gpu.board else None
    if profile is None or part.start not in profile.starts:
        raise PrepareError(
            f"Claim {name} was allocated {device}, but GPU {part.parent} ({gpu.product_name}) has no such MIG partition; "
            "delete all pods that use the claim, so that it is allocated again."
        )
    return Partition(profile_id=profile.id, start=part.start, size=profile.size, profile=profile.name)


class ClaimConflict(NamedTuple):
    """Why a claim cannot have its devices, as a sentence, and the claim that holds them, None if it is the claim itself."""

    why: str
    holder: ClaimUid | None
    exclusion: Exclusion


def conflicts(
    claim: PreparedClaim, others: Iterable[PreparedClaim], leftovers: Mapping[ClaimUid, str] = MappingProxyType({})
) -> Iterator[ClaimConflict]:
    """The conflicts with claims that hold one of these devices.

    Claims that kubelet unprepared are checked later, when their remaining instances must give way.
    Schedulers never allocate a device twice to one claim, but anybody who may write allocations can.
    """
    uses = [_use(each) for each in claim.devices]
    for one, two in combinations(uses, 2):
        is_double = one.device == two.device and not (one.is_share and two.is_share)
        if not is_double and (found := exclusion(one, two)) is not None:
            yield ClaimConflict(found.in_itself(str(claim)), None, found)
    for other in others:
        if other.uid == claim.uid or other.state is not PreparationState.PREPARED:
            continue
        for wanted, held in product(uses, map(_use, other.devices)):
            if (found := exclusion(wanted, held)) is not None:
                why = found.by(str(claim), str(other), other.uid, leftovers.get(other.uid, ""))
                yield ClaimConflict(why, other.uid, found)


def _use(device: PreparedDevice) -> ClaimedDevice:
    settings = DeviceSettings(device.time_slice)
    if (mps := device.mps) is not None:
        asked = MpsSettings(percentage=mps.percentage, limit_mib=mps.limit_mib, multi_user=mps.multi_user)
        settings = DeviceSettings(mps=asked, together=mps.gpus)
    return ClaimedDevice(
        gpu=device.gpu,
        device=device.device,
        units=None if device.partition is None else device.partition.mask,
        is_share=bool(device.share_id),
        is_admin=device.admin,
        settings=settings,
    )


def sick(claim: PreparedClaim, gpus: Mapping[str, Gpu]) -> str:
    """Which of the claim's GPUs take no new work, and why; "" if all do. Faults do not block administrative access."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus.values()}
    ill = [
        f"{one.device} ({why})"
        for one in claim.devices
        if not one.admin and one.gpu in by_uuid and (why := _sickness(by_uuid[one.gpu], one))
    ]
    if not ill:
        return ""
    return (
        f"Claim {claim} was allocated a device that takes no new work: {'; '.join(ill)}; delete all pods that use the claim, so "
        "that it is allocated again, elsewhere."
    )


def joining(claim: PreparedClaim, gpus: Mapping[str, Gpu]) -> str:
    """Which whole GPUs of the claim have not joined their NVLink fabric yet, as a sentence; "" if none."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus.values()}
    late = [
        one.device
        for one in claim.devices
        if one.partition is None and not one.admin and one.gpu in by_uuid and by_uuid[one.gpu].joining
    ]
    if not late:
        return ""
    return (
        f"Claim {claim} cannot be prepared yet: {', '.join(late)} {are(len(late))} still being registered with the NVLink "
        "fabric, and CUDA fails there until that is done; kubelet tries again."
    )


def _sickness(gpu: Gpu, device: PreparedDevice) -> str:
    """What keeps new work off a device: a fault of its GPU, or of an instance that overlaps it."""
    worst = blocking(gpu.faults, None if device.partition is None else device.partition.mask)
    return "" if worst is None else f"{worst.status.name}: {worst.status.message}"
