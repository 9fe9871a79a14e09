"""Prepares and unprepares claims: from an allocated claim to a recorded one with its CDI spec, and back.

Each is read → plan → apply: `plan` decides from the record and the GPUs, then the plan is carried out. Owns the order of the
steps. Does not read the API server: the caller passes the claim. All methods block on the disk, and on NVML where instances are
made. `work` ensures that no two calls concern one claim, or prepare claims of one GPU, at the same time.

The order makes every crash harmless. Prepare: record the intent, write the spec, record the claim as prepared. An intent found at
start is undone, since kubelet never got an answer. Unprepare: remove the spec, then the record. A recorded claim found without
its spec gets it back, since kubelet will unprepare again. Instances of partitions are created between intent and spec and
destroyed between spec and record, in recorded steps (`mig.claim_instances`). Time slices and MPS are given before the spec is
written, and taken back after the record (`time_slices`, `mps`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import msgspec

from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.memory_limits import UNLIMITED, Holding
from draco.agent.claims.mps import MpsDaemons
from draco.agent.claims.plan import ClaimPlan, FirstPrepare, PartlyReleased, RepeatedPrepare, plan_prepare
from draco.agent.claims.presence import NodeHardware, as_it_is, gpus_of, moved
from draco.agent.claims.time_slices import TimeSlices
from draco.agent.containers.common_edits import LimitImpossible
from draco.agent.errors import DeviceMissing, PrepareError
from draco.agent.files import advice
from draco.agent.hardware.capabilities import CapabilityUnknown
from draco.agent.hardware.device_nodes import DeviceNodeMissing
from draco.agent.hardware.gpus import Gpu, PlacementKey
from draco.agent.hardware.nvml_errors import NvmlError
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.ownership import references
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import ATTRIBUTE_MPS, ClaimUid, GpuUuid, read_partition_name


class DaemonNotReady(PrepareError):
    """A claim waits for its MPS daemons. It is `claim`, with its instances, of which `created` were made for it just now."""

    def __init__(self, sentence: str, *, claim: PreparedClaim) -> None:
        super().__init__(sentence)
        self.claim = claim
        self.created: Sequence[PlacementKey] = ()


def node_hardware(gpus: Iterable[Gpu], cdi: CdiFolder, instances: ClaimInstances) -> NodeHardware:
    """What exists: these GPUs, our instances as last read, and the driver's capability numbers."""
    return NodeHardware(
        gpus={gpu.uuid: gpu for gpu in gpus},
        instances=instances.observed(),
        numbers=cdi.node.reported_once(),
    )


class GpuChecks(NamedTuple):
    """How to check that a claim's GPUs have not moved, and that whole GPUs are undivided and shared as it asks."""

    verify: Callable[[PreparedClaim, Mapping[GpuUuid, Gpu]], None]
    whole: Callable[[PreparedClaim], None]
    shared: Callable[[PreparedClaim], None]


def _unchecked(_claim: PreparedClaim, _gpus: object = None) -> None:
    """No check, because NVML is not asked."""


class ClaimPreparer:
    """Prepares and unprepares the claims of one node. `leftovers`: see `plan.plan_prepare`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        cdi: CdiFolder,
        *,
        driver: str,
        pool: str,
        instances: ClaimInstances,
        time_slices: TimeSlices,
        mps: MpsDaemons,
        holding: Holding = UNLIMITED,
        leftovers: Callable[[], Mapping[ClaimUid, str]] = dict,
    ) -> None:
        self._instances = instances
        self._time_slices = time_slices
        self._mps = mps
        self._holding = holding._replace(mps_place=mps.place)
        self._asking = GpuChecks(instances.verify, instances.whole, self._share_now)
        self._not_asking = GpuChecks(_unchecked, instances.seen_whole, self._is_shared)
        self._checkpoint = checkpoint
        self._cdi = cdi
        self._driver = driver
        self._pool = pool
        self._leftovers = leftovers

    # Kubelet's calls. Each may raise PrepareError.

    def prepare(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """Prepare an allocated claim; an already prepared one is repaired.

        Raises DaemonNotReady if that has to wait for an MPS daemon. The instances of a new claim stay, as its intent does:
        another attempt continues from there, or `give_up` undoes them.
        """
        with self._lock(read_partition_name(result.device) is not None for result in claim.results):
            return self._prepare(claim, gpus, self._asking)

    def clear(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """End MIG mode on a claim's whole GPUs, and share them as it asks, so that it can be prepared without NVML.

        Returns the claim; it can be prepared when `lacking` finds nothing.
        """
        plan = self._plan(claim, gpus)
        try:
            gpus_of(plan.claim, _by_uuid(gpus))
            self._asking.verify(plan.claim, _by_uuid(gpus))
            self._asking.whole(plan.claim)
            with _on_disk(plan.claim, "prepared"):
                self._share(plan.claim)
        except DeviceMissing:
            if isinstance(plan, RepeatedPrepare):
                self._withdraw(plan.claim)
            raise
        return plan.claim

    def lacking(self, claim: PreparedClaim) -> str:
        """What a cleared claim still waits for, as a sentence; "" for nothing. In any thread."""
        return self._mps.look(claim)

    def waits(self, claim: PreparedClaim) -> bool:
        """Whether a cleared claim may have to wait."""
        return self._mps.concerns(claim)

    def prepare_unasked(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """Prepare a claim of whole GPUs without NVML, relying on `clear` or the last reading."""
        with self._checkpoint.lock:
            return self._prepare(claim, gpus, self._not_asking)

    def give_up(self, claim: PreparedClaim, created: Iterable[PlacementKey]) -> None:
        """Undo the attempts to prepare a claim, for which these instances were made. It may have been unprepared meanwhile."""
        with self._instances.lock:
            known = self._checkpoint.claims.get(claim.uid)
            if known is None or known.state is PreparationState.PREPARING:
                needed = references(each for uid, each in self._checkpoint.claims.items() if uid != claim.uid)
                self._undo(claim, [key for key in dict.fromkeys(created) if key not in needed])

    def unprepare(self, uid: ClaimUid) -> PreparedClaim | None:
        """Unprepare a claim; returns it, None if it was unknown, which is no error."""
        known = self._checkpoint.claims.get(uid)
        divided = known is not None and _divided(known)
        with self._lock([True]) if divided else self._checkpoint.lock:
            with _on_disk(known or uid, "unprepared"):
                self._cdi.remove(uid)
                if known is not None and divided:
                    self._instances.release(known)
                elif known is not None:
                    self._checkpoint.drop(uid)
            return known

    # Carrying out a plan

    def _prepare(self, claim: ResourceClaim, gpus: Mapping[str, Gpu], checks: GpuChecks) -> PreparedClaim:
        plan = self._plan(claim, gpus)
        if isinstance(plan, PartlyReleased):
            if not self._taken_back(plan.claim):
                self.unprepare(plan.claim.uid)
            plan = self._plan(claim, gpus)
        carry_out = self._first_time if isinstance(plan, FirstPrepare) else self._again
        return carry_out(plan.claim, gpus, checks)

    def _taken_back(self, claim: PreparedClaim) -> bool:
        """Return its instances to a claim that kubelet unprepared under its own processes; whether it has all again."""
        try:
            with _on_disk(claim, "prepared"):
                return self._instances.take_back(claim)
        except NvmlError as error:
            raise PrepareError(f"Claim {claim} cannot be prepared: {error} Kubelet tries again.") from error

    def _plan(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> ClaimPlan:
        return plan_prepare(
            claim,
            self._checkpoint.claims,
            driver=self._driver,
            pool=self._pool,
            gpus=gpus,
            leftovers=self._leftovers(),
            can=self._can,
            holding=self._holding,
        )

    def _can(self, gpu: GpuUuid, attribute: str) -> bool | None:
        return self._holding.has_mps(gpu) if attribute == ATTRIBUTE_MPS else self._time_slices.supported(gpu)

    def _first_time(self, intent: PreparedClaim, gpus: Mapping[str, Gpu], checks: GpuChecks) -> PreparedClaim:
        """Record the intent, make what it needs, check the hardware, write the spec, record the claim. Undo all on a refusal."""
        self._refuse_without_driver(intent)
        created = self._acquire(intent)
        try:
            with _on_disk(intent, "prepared"):
                checks.verify(intent, _by_uuid(gpus))
                checks.whole(intent)
                numbered = self._numbered(intent, gpus)
                self._wait_for_daemons(numbered, checks)
                prepared = msgspec.structs.replace(numbered, state=PreparationState.PREPARED)
                with _cannot_be_prepared(prepared):
                    self._cdi.write(prepared)
                self._checkpoint.put(prepared)
        except DaemonNotReady as waiting:
            if not _divided(intent):
                self._undo(intent, created)
            waiting.created = created
            raise
        except PrepareError:
            self._undo(intent, created)
            raise
        if _divided(prepared):
            self._instances.shown()
        return prepared

    def _again(self, known: PreparedClaim, gpus: Mapping[str, Gpu], checks: GpuChecks) -> PreparedClaim:
        """Recreate what was lost, check the hardware, and renew the spec; remove the spec if a device is gone."""
        try:
            gpus_of(known, _by_uuid(gpus))
            checks.verify(known, _by_uuid(gpus))
            hindrances = self._restore(known)
            checks.whole(known)
            known = self._checkpoint.claims[known.uid]
            now = self._seen(known, gpus, hindrances)
            with _on_disk(known, "prepared"):
                checks.shared(now)
            self._respec(known, now)
        except (DeviceMissing, CapabilityUnknown):
            self._withdraw(known)
            raise
        except (DeviceNodeMissing, LimitImpossible) as error:
            self._withdraw(known)
            raise PrepareError(f"Claim {known} cannot be prepared: {error}") from error
        if has_moved := moved(known, now):
            raise PrepareError(f"Claim {known} was prepared before its GPU moved: {has_moved} Kubelet tries again.")
        return now

    # Steps

    def _wait_for_daemons(self, intent: PreparedClaim, checks: GpuChecks) -> None:
        try:
            checks.shared(intent)
        except DaemonNotReady:
            if _divided(intent):
                # Others must leave its instances alone.
                self._checkpoint.put(msgspec.structs.replace(intent, waits=True))
                self._instances.shown()
            raise

    def _share(self, claim: PreparedClaim) -> None:
        self._time_slices.give(claim)
        self._mps.give(claim)

    def _share_now(self, claim: PreparedClaim) -> None:
        self._share(claim)
        if self._mps.concerns(claim) and (why := self._mps.look_aside(claim)):
            raise DaemonNotReady(f"Claim {claim} cannot be prepared now: {why} Kubelet tries again.", claim=claim)

    def _is_shared(self, claim: PreparedClaim) -> None:
        self._time_slices.given(claim)
        self._mps.given(claim)

    def _acquire(self, intent: PreparedClaim) -> list[PlacementKey]:
        if _divided(intent):
            return self._instances.acquire(intent)
        with _on_disk(intent, "recorded"):
            self._checkpoint.intend(intent)
        return []

    def _numbered(self, claim: PreparedClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        with _cannot_be_prepared(claim):
            return as_it_is(claim, node_hardware(gpus.values(), self._cdi, self._instances))

    def _restore(self, known: PreparedClaim) -> list[str]:
        gpus = {device.gpu for device in known.devices if device.partition is not None}
        with _on_disk(known, "prepared"):
            return self._instances.restore(gpus)

    def _seen(self, known: PreparedClaim, gpus: Mapping[str, Gpu], hindrances: Iterable[str]) -> PreparedClaim:
        try:
            return as_it_is(known, node_hardware(gpus.values(), self._cdi, self._instances))
        except DeviceMissing as error:
            raise DeviceMissing(f"{error} {' '.join(hindrances)}".strip()) from error

    def _respec(self, known: PreparedClaim, now: PreparedClaim) -> None:
        """Update record and spec of a prepared claim. No outdated spec remains, even on a failure."""
        with _on_disk(known, "prepared"):
            if now != known:
                self._cdi.remove(known.uid)
                self._checkpoint.put(now)
            if not self._cdi.is_current(now):
                self._refuse_without_driver(now)
                self._cdi.write(now)

    def _refuse_without_driver(self, claim: PreparedClaim) -> None:
        if lacking := self._cdi.common.lacking() or self._cdi.common.without_cuda():
            raise PrepareError(f"Claim {claim} cannot be prepared: {lacking}")

    def _withdraw(self, claim: PreparedClaim) -> None:
        """Remove a spec whose device is gone: its numbers may open somebody else's device at any time."""
        with _on_disk(claim, "taken back"):
            self._cdi.remove(claim.uid)

    def _undo(self, intent: PreparedClaim, created: list[PlacementKey]) -> None:
        """Undo a failed Prepare. What the disk refuses to undo is undone at the next start."""
        try:
            self._cdi.remove(intent.uid)
            if not created:
                self._checkpoint.drop(intent.uid)
        except OSError:
            return
        finally:
            self._mps.drop(intent)
            if created:
                self._instances.undo(intent, created)

    def _lock(self, partitions: Iterable[bool]) -> AbstractContextManager[object]:
        """The instances' lock if the claim has partitions; claims of whole GPUs ask NVML only for the mode."""
        return self._instances.lock if any(partitions) else nullcontext()


def _divided(claim: PreparedClaim) -> bool:
    return any(device.partition is not None for device in claim.devices)


def _by_uuid(gpus: Mapping[str, Gpu]) -> dict[GpuUuid, Gpu]:
    return {gpu.uuid: gpu for gpu in gpus.values()}


@contextmanager
def _cannot_be_prepared(claim: PreparedClaim) -> Iterator[None]:
    """Say of a PrepareError that the claim cannot be prepared for it."""
    try:
        yield
    except PrepareError as error:
        raise PrepareError(f"Claim {claim} cannot be prepared: {error}") from error


@contextmanager
def _on_disk(claim: PreparedClaim | ClaimUid, what: str) -> Iterator[None]:
    """Raise PrepareError for an OSError; `what` is the step, such as "prepared"."""
    try:
        yield
    except OSError as error:
        raise PrepareError(f"Claim {claim} cannot be {what}: {advice(error)}; kubelet tries again.") from error
