"""Gives GPUs the time slices that prepared claims ask for, and takes them back.

Prepare sets the time slice before the claim's spec is written. It is on record before it is set, and until it is back at its
default, so no crash leaves one behind unknown. Unprepare must not wait for a program of the node: a reconciler, woken by the
release, takes the time slice back, as it takes back what a crash left. It sets wanted ones again after the driver was loaded
anew, and finds out once per driver version whether a GPU can have one, by setting the default where nothing else is set.

Owns when a time slice is set; `hardware.time_slicing` sets it. A partition has none.
"""

import asyncio
from collections.abc import Callable, Iterator

import msgspec
import structlog

from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.time_slicing import InMigMode, TimeSliceRefused, TimeSliceSetter
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import GpuTimeSlice, PreparationState, PreparedClaim, PreparedDevice
from draco.agent.state.changes import ClaimSettled
from draco.agent.state.facts import NodeFacts, TimeSlicing
from draco.agent.state.node import NodeState
from draco.agent.threads import AgentThreads
from draco.allocation.configurations import TimeSlice
from draco.kube.clock import Clock
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.names import GpuUuid

log = structlog.get_logger()

REFUSED_S = 60.0
"""Retry interval after a refusal: somebody has to install or repair something."""


class TimeSlices:
    """The time slices of one node's GPUs, and their record. `load` identifies the load of the driver.

    Its methods block; those that set one run in the driver's thread, with the GPU taken.
    """

    def __init__(
        self,
        record: Checkpoint,
        setter: TimeSliceSetter,
        *,
        driver_version: Callable[[], str],
        load: Callable[[], str],
    ) -> None:
        self._record = record
        self._setter = setter
        self._driver_version = driver_version
        self._load = load

    def give(self, claim: PreparedClaim) -> None:
        """Set the time slices that a claim asks for. Raises PrepareError."""
        for device, wanted in _asked(claim):
            if not wanted and not self._known(device.gpu).time_slice:
                continue
            try:
                self.set(device.gpu, wanted)
            except TimeSliceRefused as error:
                if wanted is not TimeSlice.DEFAULT:  # else the keeper takes back what is there
                    raise PrepareError(
                        f"Claim {claim} cannot be prepared: its configuration asks for time slices of {wanted} on "
                        f"{device.device}, and {error} Kubelet tries again."
                    ) from error

    def given(self, claim: PreparedClaim) -> None:
        """Check, without the hardware, that `give` has succeeded. Raises PrepareError."""
        for device, wanted in _asked(claim):
            if not self._is_set(device.gpu, wanted):
                raise PrepareError(
                    f"Claim {claim} cannot be prepared now: its configuration asks for time slices of {wanted} on "
                    f"{device.device}, and the driver does not answer. Kubelet tries again."
                )

    def supported(self, gpu: GpuUuid) -> bool | None:
        """Whether the time slice of a GPU can be set; None if unknown.

        Until a new driver is tried, it can what the last one could; what that refused is unknown, and stays so in MIG mode.
        """
        known = self._known(gpu)
        is_outdated = known.driver_version != self._driver_version()
        return None if is_outdated and not known.supported else known.supported

    def wanted(self, gpu: GpuUuid) -> TimeSlice:
        """What the last prepared claim that has the whole GPU asks for."""
        prepared = (one for one in self._record.claims.values() if one.state is PreparationState.PREPARED)
        asked = [wanted for claim in prepared for device, wanted in _asked(claim) if device.gpu == gpu]
        return asked[-1] if asked else TimeSlice.DEFAULT

    def is_settled(self, gpu: Gpu) -> bool:
        """Whether what is wanted is set, and it is known what can be."""
        wanted, known = self.wanted(gpu.uuid), self._known(gpu.uuid)
        if wanted is not TimeSlice.DEFAULT:
            return self._is_set(gpu.uuid, wanted)
        was_tried = known.supported is not None and known.driver_version == self._driver_version()
        return known.time_slice is TimeSlice.DEFAULT and (was_tried or gpu.mig_enabled)

    def set(self, gpu: GpuUuid, wanted: TimeSlice) -> None:
        """Set a time slice, on record before and after. Raises TimeSliceRefused."""
        if wanted is not TimeSlice.DEFAULT:
            self._record.change(slices=[msgspec.structs.replace(self._known(gpu), time_slice=wanted, load="")])
        version, load = self._driver_version(), self._load()
        try:
            self._setter.set(gpu, wanted)
        except TimeSliceRefused as error:
            if error.unsupported:
                self._record.change(slices=[GpuTimeSlice(gpu=gpu, driver_version=version, supported=False)])
            elif isinstance(error, InMigMode):
                ended = msgspec.structs.replace(self._known(gpu), time_slice=TimeSlice.DEFAULT, load="")
                self._record.change(slices=[ended])
            raise
        now = GpuTimeSlice(gpu=gpu, driver_version=version, supported=True, time_slice=wanted, load=load)
        self._record.change(slices=[now])

    def _is_set(self, gpu: GpuUuid, wanted: TimeSlice) -> bool:
        known = self._known(gpu)
        return wanted is TimeSlice.DEFAULT or (known.time_slice is wanted and known.load == self._load())

    def _known(self, gpu: GpuUuid) -> GpuTimeSlice:
        return self._record.slices.get(gpu) or GpuTimeSlice(gpu=gpu)


class TimeSliceKeeper:
    """The reconciler: one GPU at a time, woken by readings of the GPUs and by settled claims.

    `known` is set when every GPU was tried once.
    """

    def __init__(self, slices: TimeSlices, state: NodeState, threads: AgentThreads, *, clock: Clock) -> None:
        self.known = asyncio.Event()
        self._slices = slices
        self._state = state
        self._threads = threads
        self._problems: dict[GpuUuid, str] = {}  # those that another try may end
        self._queue: WorkQueue[GpuUuid] = WorkQueue(clock=clock, base_s=0.5, cap_s=REFUSED_S)

    def seen(self, _facts: NodeFacts) -> None:
        """The GPUs were read: the driver may have been loaded anew."""
        self._show()
        for gpu in self._untried():
            self._queue.add(gpu)

    def claim_settled(self, change: ClaimSettled) -> None:
        """A claim was prepared or unprepared."""
        for device, _ in _asked(change.claim):
            self._queue.add(device.gpu)

    async def run(self) -> None:
        """Reconcile until cancelled; the record has been read."""
        self.seen(self._state.facts)
        if not self._untried():
            self.known.set()
        await run_workers(self._queue, self._reconcile, workers=1, log=log)

    async def _reconcile(self, gpu: GpuUuid) -> float | None:
        seen = next((one for one in self._state.facts.view.present if one.uuid == gpu), None)
        problem = "" if seen is None else await self._threads.with_driver(lambda: self._settle(seen), {gpu})
        if problem and problem != self._problems.get(gpu):
            log.warning("time_slice.refused", gpu=gpu, error=problem)
        self._problems.pop(gpu, None)
        if problem:
            self._problems[gpu] = problem
        self._show()
        if not self._untried():
            self.known.set()
        return REFUSED_S if problem else None

    def _untried(self) -> list[GpuUuid]:
        """The GPUs with something to do, without those that are tried again later."""
        present = self._state.facts.view.present
        return [gpu.uuid for gpu in present if gpu.uuid not in self._problems and not self._slices.is_settled(gpu)]

    def _settle(self, gpu: Gpu) -> str:
        """Set what is wanted, or the default to find out whether it can be set. Why neither can be done, "" without a problem."""
        try:
            if not self._slices.is_settled(gpu):
                self._slices.set(gpu.uuid, self._slices.wanted(gpu.uuid))
        except TimeSliceRefused as error:
            return "" if error.unsupported or isinstance(error, InMigMode) else f"its time slice cannot be set: {error}"
        return ""

    def _show(self) -> None:
        gpus = [gpu.uuid for gpu in self._state.facts.view.gpus]
        shown = {uuid: TimeSlicing(self._slices.supported(uuid), self._problems.get(uuid, "")) for uuid in gpus}
        if shown != self._state.facts.time_slicing:
            self._state.learn(time_slicing=shown)


def _asked(claim: PreparedClaim) -> Iterator[tuple[PreparedDevice, TimeSlice]]:
    """The whole GPUs that a claim has, with their time slices. Administrative access changes nothing."""
    for device in claim.devices:
        if device.partition is None and not device.admin:
            yield device, device.time_slice
