"""Keeps the MPS of a node's GPUs and MIG devices as its prepared claims ask, and reports it.

Gives those back that no claim uses any more, restores what a reboot or a load of the driver took, and asks running daemons if
they are well. Owns the reconciler, woken by readings of the GPUs and by settled claims, and what is told of it. `mps` acts.
"""

import asyncio

import structlog

from draco.agent.claims.mps import MpsDaemons, MpsUnit, suits, unit_of
from draco.agent.hardware.compute_mode import ComputeModeRefused
from draco.agent.hardware.gpus import PlacementKey
from draco.agent.state.changes import ClaimSettled
from draco.agent.state.facts import GpuMps, NodeFacts
from draco.agent.state.node import NodeState
from draco.agent.threads import AgentThreads
from draco.kube.clock import Clock
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.names import GpuUuid

log = structlog.get_logger()

AGAIN_S = 1.0
LOOK_S = 10.0
"""How often the daemon of a claim is asked."""
KEPT_S = 60.0
"""How long a Prepare that failed keeps its daemon, which may only start slowly: kubelet tries again. Also how long no keeper
may run, as while it is replaced, before GPUs are published without MPS."""


class MpsUpkeep:
    """The reconciler: one GPU or MIG device at a time."""

    def __init__(self, daemons: MpsDaemons, state: NodeState, threads: AgentThreads, *, clock: Clock) -> None:
        self._daemons = daemons
        self._state = state
        self._threads = threads
        self._clock = clock
        self._problems: dict[MpsUnit, str] = {}
        self._protocols: dict[str, int] = {}  # by driver version
        self._able: dict[GpuUuid, float] = {}  # when a GPU last could have MPS
        self._unused: dict[MpsUnit, float] = {}  # since when something is left that no claim uses
        self._queue: WorkQueue[MpsUnit] = WorkQueue(clock=clock, base_s=AGAIN_S, cap_s=LOOK_S)

    def seen(self, _facts: NodeFacts) -> None:
        """The GPUs were read."""
        self._show()
        there = (gpu.uuid for gpu in self._state.facts.view.present)
        for unit in (*there, *self._daemons.units(), *self._daemons.unused()):
            if self._daemons.user(unit) is not None or not self._daemons.is_settled(unit):
                self._queue.add(unit)

    def claim_settled(self, change: ClaimSettled) -> None:
        """A claim was prepared or unprepared: what it had is of no use to a Prepare that failed."""
        for device in change.claim.devices:
            self._unused[unit_of(device)] = self._clock.monotonic() - KEPT_S
            self._queue.add(unit_of(device))

    async def run(self) -> None:
        """Reconcile until cancelled; the record has been read."""
        self.seen(self._state.facts)
        await run_workers(self._queue, self._reconcile, workers=1, log=log)

    async def _reconcile(self, unit: MpsUnit) -> float | None:
        gpu = _gpu_of(unit)
        if all(one.uuid != gpu for one in self._state.facts.view.present):
            await asyncio.to_thread(self._daemons.end_unused, unit)
            return None
        if self._daemons.is_awaited(unit):
            return LOOK_S
        if self._daemons.user(unit) is not None or self._daemons.is_settled(unit):
            self._unused.pop(unit, None)
        else:
            since_s = self._unused.setdefault(unit, self._clock.monotonic())
            if (left_s := since_s + KEPT_S - self._clock.monotonic()) > 0:
                return left_s
        problem, again_s = "", AGAIN_S
        try:
            if not self._daemons.is_settled(unit):
                problem = await self._threads.with_driver(lambda: self._settle(unit), {gpu})
        except ComputeModeRefused as error:
            problem, again_s = str(error), LOOK_S
        claim = self._daemons.user(unit)
        version = self._state.facts.view.driver_version
        if claim is not None and not self._protocols.get(version):
            self._protocols = {version: await asyncio.to_thread(self._daemons.protocol)}
        if not problem and claim is not None:
            problem = await asyncio.to_thread(self._daemons.problem, claim, unit)
        if problem:
            left = "it is still exclusive for MPS" if isinstance(unit, str) else "its MPS is not taken back yet"
            problem = f"{left if claim is None else 'its MPS is not as its claim asks'}, because {problem}"
        if problem and problem != self._problems.get(unit):
            log.warning("mps.trouble", gpu=gpu, place=_place(unit), error=problem)
        self._problems.pop(unit, None)
        if problem:
            self._problems[unit] = problem
        self._show()
        return again_s if problem else None

    def _settle(self, unit: MpsUnit) -> str:
        """Give a device what its claim asks for, or take back what none does; why that has to wait. Raises ComputeModeRefused."""
        if self._daemons.is_awaited(unit):
            return ""
        if (claim := self._daemons.user(unit)) is None:
            return self._daemons.take_back(unit)
        self._daemons.restore(claim)
        return ""

    def _show(self) -> None:
        now_s, shown, are_kept = self._clock.monotonic(), {}, self._daemons.are_kept()
        for gpu in self._state.facts.view.gpus:
            can = suits(gpu) if are_kept else False
            if can:
                self._able[gpu.uuid] = now_s
            elif can is False and now_s - self._able.get(gpu.uuid, -KEPT_S) < KEPT_S:
                can = True
            parts = {
                unit: said
                for unit, said in self._problems.items()
                if isinstance(unit, PlacementKey) and unit.gpu == gpu.uuid
            }
            found = self._problems.get(gpu.uuid) or next(
                (f"MIG device {_place(each)}: {parts[each]}" for each in sorted(parts)), ""
            )
            shown[gpu.uuid] = GpuMps(can, found, parts, self._protocols.get(self._state.facts.view.driver_version, 0))
        if shown != self._state.facts.mps:
            self._state.learn(mps=shown)


def _gpu_of(unit: MpsUnit) -> GpuUuid:
    return unit if isinstance(unit, str) else unit.gpu


def _place(unit: MpsUnit) -> str:
    return "" if isinstance(unit, str) else f"profile {unit.profile_id} at {unit.start}"
