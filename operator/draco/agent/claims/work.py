"""Runs Prepare and Unprepare in threads, so that only work that needs NVML waits for it.

Unpreparing whole GPUs needs no NVML. Preparing whole GPUs needs it only to check that they are undivided; if NVML hangs in a call
about another GPU, the last reading counts, since nobody replaces a driver or a board during a call. Work that creates or destroys
instances waits. Owns the choice of thread and the exclusion: one piece of work at a time per claim, and per GPU except for
Unprepare. `preparer` does the work.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from draco.agent.claims.preparer import ClaimPreparer, DaemonNotReady
from draco.agent.errors import PrepareError, StillPrepared
from draco.agent.hardware.gpus import Gpu, PlacementKey
from draco.agent.hardware.nvml import NvmlCall
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.holders import HoldingProcess
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.state.changes import ClaimInTheWay
from draco.agent.state.node import NodeState
from draco.agent.threads import AgentThreads
from draco.kube.clock import Clock
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from draco.resources.api.meta import ObjectMeta
from draco.resources.names import ClaimUid, GpuUuid, gpu_name, read_partition_name

DAEMON_S: Final = 20.0
"""How long Prepare waits for an MPS daemon, well below kubelet's deadline."""
DAEMON_LOOK_S: Final = 0.2


class ClaimWork:
    """The work on one node's claims. A claim that blocks another is told to the state."""

    def __init__(
        self,
        preparer: ClaimPreparer,
        record: Checkpoint,
        instances: ClaimInstances,
        threads: AgentThreads,
        state: NodeState,
        *,
        driver: str,
        clock: Clock,
    ) -> None:
        self._preparer = preparer
        self._record = record
        self._instances = instances
        self._threads = threads
        self._state = state
        self._driver = driver
        self._clock = clock

    async def prepare(self, claim: ResourceClaim) -> PreparedClaim:
        """Prepare an allocated claim. Raises PrepareError."""
        uid = ClaimUid(claim.metadata.uid)
        names = {uid, *self._gpus_of(claim)}
        divides = any(map(read_partition_name, self._devices(claim)))
        way = self._with_driver if divides or self._has_parts(uid) else self._as_a_whole
        try:
            return await way(claim, names)
        except StillPrepared as refusal:
            self._state.tell(ClaimInTheWay(refusal.holder))
            raise

    def on_record(self, uid: ClaimUid) -> ResourceClaim | None:
        """A prepared claim with its recorded devices, for when the API server cannot be asked; None if it is not prepared."""
        known = self._record.claims.get(uid)
        if known is None or known.state is not PreparationState.PREPARED:
            return None
        results = [
            DeviceRequestAllocationResult(
                request=one.request,
                driver=self._driver,
                pool=one.pool,
                device=one.device,
                share_id=one.share_id or None,
            )
            for one in known.devices
        ]
        return ResourceClaim(
            metadata=ObjectMeta(name=known.name, namespace=known.namespace, uid=known.uid),
            status=ResourceClaimStatus(allocation=AllocationResult(devices=DeviceAllocationResult(results=results))),
        )

    async def _with_driver(self, claim: ResourceClaim, names: Collection[str]) -> PreparedClaim:
        """Prepare partitions, which needs NVML. Daemons are waited for without it."""
        self._refuse_parts(str(claim.metadata.key), "prepared")
        deadline_s = self._clock.monotonic() + DAEMON_S
        begun: DaemonNotReady | None = None
        created: list[PlacementKey] = []
        try:
            while True:
                try:
                    return await self._threads.with_driver(
                        lambda: self._preparer.prepare(claim, self._gpus(claim)), names
                    )
                except DaemonNotReady as waiting:
                    begun = waiting
                    created += waiting.created
                await self._until_ready(begun.claim, deadline_s)
        except BaseException:
            if begun is not None:
                tried = begun.claim
                await self._threads.with_driver(lambda: self._preparer.give_up(tried, created), names)
            raise

    async def _until_ready(self, claim: PreparedClaim, deadline_s: float) -> None:
        """Wait for a claim's daemons. Raises PrepareError at the deadline."""
        while why := await asyncio.to_thread(self._preparer.lacking, claim):
            self._check_deadline(claim, why, deadline_s)
            await self._clock.sleep(DAEMON_LOOK_S)

    def _check_deadline(self, claim: PreparedClaim, why: str, deadline_s: float) -> None:
        if self._clock.monotonic() > deadline_s:
            raise PrepareError(f"Claim {claim} cannot be prepared now: {why} Kubelet tries again.")

    async def _as_a_whole(self, claim: ResourceClaim, names: Collection[str]) -> PreparedClaim:
        """Prepare whole GPUs: NVML ends their MIG mode if it answers; the rest does not need it."""
        await self._take(names, str(claim.metadata.key), "prepared")
        try:
            if not await self._cleared(claim):
                self._refuse_hanging(claim)
        except BaseException:
            self._threads.give_back(names)
            raise
        return await self._threads.on_record(lambda: self._preparer.prepare_unasked(claim, self._gpus(claim)), names)

    async def _cleared(self, claim: ResourceClaim) -> bool:
        """Whether NVML answered, and the claim's GPUs are ready. Waits for daemons. Raises PrepareError."""
        deadline_s = self._clock.monotonic() + DAEMON_S
        while True:
            if (cleared := await self._clear(claim)) is None:
                return False
            if not self._preparer.waits(cleared):
                return True
            if not (why := await asyncio.to_thread(self._preparer.lacking, cleared)):
                return True
            self._check_deadline(cleared, why, deadline_s)
            await self._clock.sleep(DAEMON_LOOK_S)

    async def _clear(self, claim: ResourceClaim) -> PreparedClaim | None:
        found: list[PreparedClaim] = []
        await self._threads.ask(lambda: found.append(self._preparer.clear(claim, self._gpus(claim))))
        return found[0] if found else None

    async def unprepare(self, uid: ClaimUid) -> PreparedClaim | None:
        """Unprepare a claim; returns it, None if it was unknown. Raises PrepareError if it cannot be done now."""
        if self._has_parts(uid):
            self._refuse_parts(str(self._record.claims[uid]), "unprepared")
            return await self._threads.with_driver(lambda: self._release(uid), {uid})
        await self._take({uid}, str(self._record.claims.get(uid) or uid), "unprepared")
        if self._has_parts(uid):  # prepared just now
            self._threads.give_back({uid})
            return await self.unprepare(uid)
        return await self._threads.on_record(lambda: self._release(uid), {uid})

    def _release(self, uid: ClaimUid) -> PreparedClaim | None:
        """Unprepare the claim in this thread, and tell of it: it may be released in part, or after the caller gave up waiting."""
        known = self._record.claims.get(uid)
        try:
            return self._preparer.unprepare(uid)
        finally:
            if known is not None and self._record.claims.get(uid) != known:
                self._state.claim_changed(known)

    async def running(self, claim: PreparedClaim) -> Sequence[HoldingProcess] | None:
        """The processes on a claim's devices; None while NVML does not answer."""
        found: list[HoldingProcess] = []
        asked = await self._threads.ask(lambda: found.extend(self._instances.processes_of(claim)))
        return found if asked else None

    async def _take(self, names: Collection[str], claim: str, what: str) -> None:
        """Take names. Raises PrepareError if work that waits for a hanging call holds them."""
        if (call := await self._threads.take(names)) is not None:
            raise PrepareError(_unanswered(claim, what, call))

    def _refuse_parts(self, claim: str, what: str) -> None:
        view = self._state.facts.view
        if view.hang is not None and view.hang.function:
            raise PrepareError(f"Claim {claim} cannot be {what} now: {view.fault} Kubelet tries again.")

    def _refuse_hanging(self, claim: ResourceClaim) -> None:
        known = self._record.claims.get(ClaimUid(claim.metadata.uid))
        call = self._threads.hanging
        if call is None or (known is not None and known.state is PreparationState.PREPARED):
            return
        if not call.gpu or call.gpu in self._gpus_of(claim):
            raise PrepareError(_unanswered(str(claim.metadata.key), "prepared", call))

    def _gpus(self, claim: ResourceClaim) -> Mapping[str, Gpu]:
        """The GPUs when the work runs: a fault may have come while it waited."""
        view = self._state.facts.view
        if view.driver is None:
            raise PrepareError(f"Claim {claim.metadata.key} cannot be prepared: {view.fault}")
        return view.by_device

    def _gpus_of(self, claim: ResourceClaim) -> set[GpuUuid]:
        """The GPUs in a claim's allocation and in its record."""
        by_device = self._state.facts.view.by_device
        known = self._record.claims.get(ClaimUid(claim.metadata.uid))
        found = {device.gpu for device in known.devices} if known is not None else set()
        for device in self._devices(claim):
            with suppress(KeyError):
                found.add(by_device[gpu_name(device)].uuid)
        return found

    def _devices(self, claim: ResourceClaim) -> list[str]:
        return [one.device for one in claim.results if one.driver == self._driver]

    def _has_parts(self, uid: ClaimUid) -> bool:
        known = self._record.claims.get(uid)
        return known is not None and any(device.partition is not None for device in known.devices)


def _unanswered(claim: str, what: str, call: NvmlCall) -> str:
    return f"Claim {claim} cannot be {what} now: {call} does not answer. Kubelet tries again."
