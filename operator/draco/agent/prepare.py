"""Preparing claims and giving them up: from an allocated claim to a recorded one with its CDI spec, and back.

Owns the order of the steps, and that no device is given to two claims. Reads no API server: a claim comes in as it was read.
All methods block on the disk, and on NVML where instances are made. No two are called at a time that are about one claim, or that
prepare claims of one GPU: `claim_work` sees to that.

The order makes every crash harmless. Preparing: intent on record, spec written, claim on record as prepared; an intent found at
start is undone, since kubelet was never told. Giving up: spec removed, then the record; a claim found on record without its
spec gets it back, since kubelet will ask again. Where partitions are in a claim, their instances are made between intent and
spec, and destroyed between spec and record, in steps that are on record too (`claim_instances`).
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from draco.agent.capabilities import CapabilityUnknown
from draco.agent.cdi import CdiFolder
from draco.agent.checkpoint import Checkpoint, ClaimState, Partition, PreparedClaim, PreparedDevice
from draco.agent.claim_instances import Acquired, ClaimInstances
from draco.agent.errors import PrepareError
from draco.agent.gpus import Gpu
from draco.agent.presence import Ground, NotThere, as_it_is, gpus_of, moved
from draco.resources.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import ClaimUid, GpuUuid
from draco.resources.partition_names import PartitionName, read_partition_name


def plan(claim: ResourceClaim, *, driver: str, pool: str, gpus: Mapping[str, Gpu]) -> PreparedClaim:
    """The claim as an intent: the devices of `driver` in its allocation. PrepareError says why it cannot be had.

    `gpus` are this node's, by the device names they are published under.
    """
    name = str(claim.metadata.key)
    allocation = claim.status.allocation
    if allocation is None:
        raise PrepareError(f"Claim {name} is not allocated; kubelet asks again when it is.")
    results = [result for result in allocation.devices.results if result.driver == driver]
    if not results:
        raise PrepareError(f"Claim {name} has no device of driver {driver}; another driver has to prepare it.")
    for config in allocation.devices.config:
        if config.opaque is not None and config.opaque.driver == driver:
            _check_parameters(name, config.opaque.parameters)
    return PreparedClaim(
        uid=ClaimUid(claim.metadata.uid),
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=ClaimState.PREPARING,
        devices=[_device(name, result, pool, gpus) for result in results],
    )


def _device(name: str, result: DeviceRequestAllocationResult, pool: str, gpus: Mapping[str, Gpu]) -> PreparedDevice:
    if result.pool != pool:
        raise PrepareError(
            f"Claim {name} was allocated {result.device} of pool {result.pool}, but this node's pool is {pool}; "
            "the pod cannot run here."
        )
    part = read_partition_name(result.device)
    gpu = gpus.get(result.device if part is None else part.parent)
    if gpu is None:
        present = ", ".join(sorted(gpus)) or "none"
        raise PrepareError(
            f"Claim {name} was allocated {result.device}, which this node does not have (it has: {present}); "
            "delete the pod so that the claim is allocated again."
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
        partition=None if part is None else _partition(name, result.device, gpu, part),
    )


def _partition(name: str, device: str, gpu: Gpu, part: PartitionName) -> Partition:
    profile = gpu.board.by_id(part.profile_id) if gpu.board else None
    if profile is None or part.start not in profile.starts:
        raise PrepareError(
            f"Claim {name} was allocated {device}, but GPU {part.parent} ({gpu.product_name}) cannot be divided so; delete "
            "the pod so that the claim is allocated again."
        )
    return Partition(profile_id=profile.id, start=part.start, size=profile.size, profile=profile.name)


def _check_parameters(name: str, parameters: Any) -> None:
    """Accept a configuration that asks for what a device does anyway; refuse what would be ignored silently."""
    content = parameters if isinstance(parameters, dict) else {}
    sharing = content.get("sharing") or {}
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval", "Default")
    plain = not sharing or (sharing.get("strategy") == "TimeSlicing" and interval == "Default")
    if content.get("kind") in ("GpuConfig", "MigDeviceConfig") and plain:
        return
    what = f"{content.get('kind', 'parameters without a kind')} {sharing or ''}".strip()
    raise PrepareError(
        f"Claim {name} configures its devices with {what}, which this agent does not support; remove that configuration "
        "from the claim or its DeviceClass."
    )


def conflict(claim: PreparedClaim, others: Iterable[PreparedClaim]) -> str:
    """Who already holds what the claim was allocated, as a sentence; "" when nobody does.

    A whole GPU and its partitions exclude each other, and so do partitions that share units. Administrative access never
    conflicts, but a partition cannot be where another stands, nor in a GPU that somebody has whole. An intent that was left over
    holds nothing, and what a claim that kubelet gave up still has shows when its instances are to give way.

    No scheduler allocates hardware twice to one claim, but whoever may write allocations can.
    """
    for one, two in combinations(claim.devices, 2):
        if one.device != two.device and _excludes(one, two):
            return (
                f"Claim {claim} was allocated both {one.device} and {two.device}, which have hardware in common; delete the "
                "pod so that the claim is allocated again."
            )
    for other in others:
        if other.uid == claim.uid or other.state is not ClaimState.PREPARED:
            continue
        for held in other.devices:
            wanted = next((device for device in claim.devices if _excludes(device, held)), None)
            if wanted is not None:
                what = "which is" if held.device == wanted.device else f"but {held.device} is"
                return (
                    f"Claim {claim} was allocated {wanted.device}, {what} still prepared for claim {other} "
                    f"(uid {other.uid}); it can be prepared when kubelet has given that one up."
                )
    return ""


def sick(claim: PreparedClaim, gpus: Mapping[str, Gpu]) -> str:
    """Which of the claim's GPUs take no new work, and why, as a sentence; "" when all do.

    Who has administrative access comes to look at a GPU, not to compute on it: to such a claim no fault is an obstacle.
    """
    faults = {gpu.uuid: gpu.fault for gpu in gpus.values() if gpu.fault is not None}
    ill = [
        f"{one.device} ({faults[one.gpu].name}: {faults[one.gpu].message})"
        for one in claim.devices
        if one.gpu in faults and not one.admin
    ]
    if not ill:
        return ""
    return (
        f"Claim {claim} was allocated what takes no new work: {'; '.join(ill)}; delete the pod so that the claim is allocated "
        "again, elsewhere."
    )


def _excludes(wanted: PreparedDevice, held: PreparedDevice) -> bool:
    if wanted.gpu != held.gpu:
        return False
    if wanted.partition is None and held.partition is None:
        return not wanted.admin and not held.admin
    if wanted.partition is None or held.partition is None:
        # Whoever only looks at a partition has it made nevertheless, and with it the GPU divided.
        return not (wanted if wanted.partition is None else held).admin
    if wanted.key == held.key:
        return not wanted.admin and not held.admin
    return bool(wanted.partition.mask & held.partition.mask)


def ground(gpus: Iterable[Gpu], cdi: CdiFolder, instances: ClaimInstances | None) -> Ground:
    """What is there: these GPUs, our instances as they were seen last, and what the driver says opens them."""
    return Ground(
        gpus={gpu.uuid: gpu for gpu in gpus},
        instances={} if instances is None else instances.observed(),
        numbers=cdi.capabilities.told_once(),
    )


class Checks(NamedTuple):
    """How it is made sure that the GPUs of a claim are where they are said to be, and undivided where it has all of them."""

    verify: Callable[[PreparedClaim, Mapping[GpuUuid, Gpu]], None]
    whole: Callable[[PreparedClaim], None]


def _unchecked(_claim: PreparedClaim, _gpus: object = None) -> None:
    """There is nothing to ask, or nobody."""


class ClaimDesk:
    """The claims of one node: prepares them and gives them up. Without `instances` only claims of whole GPUs."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cdi: CdiFolder,
        *,
        driver: str,
        pool: str,
        instances: ClaimInstances | None = None,
    ) -> None:
        self._instances = instances
        self._asking = Checks(_unchecked, _unchecked)
        self._not_asking = self._asking
        if instances is not None:
            self._asking = Checks(instances.verify, instances.whole)
            self._not_asking = Checks(_unchecked, instances.seen_whole)
        self._checkpoint = checkpoint
        self._cdi = cdi
        self._driver = driver
        self._pool = pool

    def prepare(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """Prepare an allocated claim; a claim that is prepared already is returned as it is. Raises PrepareError."""
        results = claim.status.allocation.devices.results if claim.status.allocation else []
        with self._lock(read_partition_name(result.device) is not None for result in results):
            return self._prepare(claim, gpus, self._asking)

    def clear(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> None:
        """Make the GPUs of a claim of whole GPUs undivided, so that it can be prepared without NVML. Raises PrepareError."""
        known = self._checkpoint.claims.get(ClaimUid(claim.metadata.uid))
        if known is None or known.state is not ClaimState.PREPARED:
            known = None
        wanted = self._intent(claim, gpus) if known is None else known
        try:
            gpus_of(wanted, _by_uuid(gpus))
            self._asking.verify(wanted, _by_uuid(gpus))
            self._asking.whole(wanted)
        except NotThere:
            if known is not None:
                self._withdraw(known)
            raise

    def prepare_unasked(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """Prepare a claim of whole GPUs without NVML: where they are, and undivided, is known from `clear` or the last look."""
        with self._checkpoint.lock:
            return self._prepare(claim, gpus, self._not_asking)

    def _prepare(self, claim: ResourceClaim, gpus: Mapping[str, Gpu], checks: Checks) -> PreparedClaim:
        known = self._checkpoint.claims.get(ClaimUid(claim.metadata.uid))
        if known is not None and known.state is ClaimState.PREPARED:
            return self._again(known, claim, gpus, checks)
        if known is not None and known.state is ClaimState.RELEASING:
            self.unprepare(known.uid)
        return self._finish(self._acquire(self._intent(claim, gpus), gpus, checks), gpus)

    def _intent(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """A new claim, if it can be had."""
        intent = plan(claim, driver=self._driver, pool=self._pool, gpus=gpus)
        refusal = conflict(intent, self._checkpoint.claims.values()) or sick(intent, gpus)
        if refusal:
            raise PrepareError(refusal)
        gpus_of(intent, _by_uuid(gpus))
        return intent

    def _acquire(self, intent: PreparedClaim, gpus: Mapping[str, Gpu], checks: Checks) -> Acquired:
        """The intent on record, and with it whatever has to be made or moved for it."""
        if self._instances is not None and any(device.partition is not None for device in intent.devices):
            acquired = self._instances.acquire(intent)
        else:
            try:
                self._checkpoint.intend(intent)
            except OSError as error:
                raise PrepareError(_disk(intent, "recorded", error)) from error
            acquired = Acquired(intent, ())
        try:
            checks.verify(intent, _by_uuid(gpus))
            checks.whole(intent)
        except PrepareError:
            self._undo(acquired)
            raise
        return acquired

    def _finish(self, acquired: Acquired, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        prepared = msgspec.structs.replace(acquired.claim, state=ClaimState.PREPARED)
        try:
            prepared = as_it_is(prepared, ground(gpus.values(), self._cdi, self._instances))
            self._cdi.write(prepared)
            self._checkpoint.put(prepared)
        except OSError as error:
            self._undo(acquired)
            raise PrepareError(_disk(prepared, "prepared", error)) from error
        except PrepareError as error:
            self._undo(acquired)
            raise PrepareError(f"Claim {prepared} cannot be prepared: {error}") from error
        if self._instances is not None and any(device.partition is not None for device in prepared.devices):
            self._instances.shown()
        return prepared

    def _lock(self, partitions: Iterable[bool]) -> AbstractContextManager[object]:
        """Claims of whole GPUs ask NVML for the mode only; nothing else of theirs waits for it."""
        return self._instances.lock if self._instances is not None and any(partitions) else nullcontext()

    def _again(
        self, known: PreparedClaim, claim: ResourceClaim, gpus: Mapping[str, Gpu], checks: Checks
    ) -> PreparedClaim:
        """Kubelet asks again, after a restart or a lost answer."""
        allocation = claim.status.allocation
        results = allocation.devices.results if allocation else []
        allocated = {(one.pool, one.device) for one in results if one.driver == self._driver}
        held = {(device.pool, device.device) for device in known.devices}
        if allocated != held:
            have = ", ".join(sorted(device for _, device in held))
            raise PrepareError(
                f"Claim {known} is prepared with {have}, but that is no longer its allocation; it can be prepared again "
                "when kubelet has given it up."
            )
        try:
            return self._as_it_is_now(known, gpus, checks)
        except (NotThere, CapabilityUnknown):
            self._withdraw(known)
            raise

    def _as_it_is_now(self, known: PreparedClaim, gpus: Mapping[str, Gpu], checks: Checks) -> PreparedClaim:
        """The claim with its spec, if all that it has is there. NotThere when it is not; other PrepareErrors say what else."""
        gpus_of(known, _by_uuid(gpus))
        checks.verify(known, _by_uuid(gpus))
        hindrances = self._with_instances(known)
        checks.whole(known)
        known = self._checkpoint.claims[known.uid]
        try:
            now = as_it_is(known, ground(gpus.values(), self._cdi, self._instances))
        except NotThere as error:
            raise NotThere(f"{error} {' '.join(hindrances)}".strip()) from error
        has_moved = moved(known, now)
        try:
            if now != known:
                self._cdi.remove(known.uid)
                self._checkpoint.put(now)
            if not self._cdi.is_current(now):
                self._cdi.write(now)
        except OSError as error:
            raise PrepareError(_disk(known, "prepared", error)) from error
        if has_moved:
            raise PrepareError(f"Claim {known} was prepared for where its GPU was: {has_moved} Kubelet tries again.")
        return now

    def _with_instances(self, known: PreparedClaim) -> list[str]:
        """Make again what the claim has lost since it was prepared; what hinders."""
        gpus = {device.gpu for device in known.devices if device.partition is not None}
        if self._instances is None or not gpus:
            return []
        try:
            return self._instances.restore(gpus)
        except OSError as error:
            raise PrepareError(_disk(known, "prepared", error)) from error

    def _withdraw(self, claim: PreparedClaim) -> None:
        """What opened a device that is gone may open somebody else's at any time."""
        try:
            self._cdi.remove(claim.uid)
        except OSError as error:
            raise PrepareError(_disk(claim, "taken back", error)) from error

    def _undo(self, acquired: Acquired) -> None:
        """Leave nothing of a failed prepare. What the disk does not even let us undo is undone at the next start."""
        try:
            self._cdi.remove(acquired.claim.uid)
            if not acquired.created:
                self._checkpoint.drop(acquired.claim.uid)
        except OSError:
            return
        finally:
            if acquired.created and self._instances is not None:
                self._instances.undo(acquired.claim, acquired.created)

    def unprepare(self, uid: ClaimUid) -> PreparedClaim | None:
        """Give a claim up; returns what it was, None when it was not known, which is fine. Raises PrepareError."""
        known = self._checkpoint.claims.get(uid)
        divided = known is not None and any(device.partition is not None for device in known.devices)
        with self._lock([True]) if divided else self._checkpoint.lock:
            try:
                self._cdi.remove(uid)
                if known is not None and divided and self._instances is not None:
                    self._instances.release(known)
                elif known is not None:
                    self._checkpoint.drop(uid)
            except OSError as error:
                raise PrepareError(_disk(known or uid, "given up", error)) from error
            return known


def _by_uuid(gpus: Mapping[str, Gpu]) -> dict[GpuUuid, Gpu]:
    return {gpu.uuid: gpu for gpu in gpus.values()}


def _disk(claim: PreparedClaim | ClaimUid, what: str, error: OSError) -> str:
    return (
        f"Claim {claim} cannot be {what}: {error.strerror} ({error.filename}); make room or fix the folder, "
        "kubelet tries again."
    )
