"""Keeps the node's GPUs divided as wanted: schedules the work on each GPU, and its retries.

Owns following this node's GpuNode and the pace of retries. What is wanted while the GpuNode does not say it is `last_spec`'s; the
work itself is `layout`'s, done where claims are prepared, so that the two never meet halfway.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from draco.agent.hardware.gpus import GpuMigView, PlacementKey
from draco.agent.hardware.monitor import HardwareView
from draco.agent.mig.last_spec import SpecMemory
from draco.agent.mig.layout import LayoutApplier
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Backoff, persistently
from draco.kube.discovery import serves
from draco.kube.queue import WorkQueue, run_workers
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.draco import (
    GpuNode,
    GpuNodeSpec,
    IsolatedGpu,
    MigState,
    PromisedDevice,
    RepairedGpu,
    WantedGpu,
)
from draco.resources.api.health import FaultOverride
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import FORGET_GPU, GpuUuid

log = structlog.get_logger()

ABSENT_S = 60.0
UNWRITTEN_S = 30.0
"""How soon to try again to record what is wanted."""
OnGpu = Callable[[GpuUuid, Callable[[], str]], Awaitable[str]]
"""Runs work on a GPU where claims of partitions are prepared, and while no claim of that GPU is."""

_Facts = tuple[bool, bool, frozenset[PlacementKey]]
"""What of a GPU others may change: the MIG mode, whether another one is pending, and which instances there are."""


class MigKeeper:
    """Works on one GPU after the other. `recalled` is set once it is known what was wanted last, `known` once GpuNodes were read.

    `wanted` is None until either says something. `as_published`: it was read off slices, so nothing is made or destroyed by it.
    `promised` is what claims have been allocated beside that, `forgotten` are GPUs that a person says are gone for good;
    `generation` is that of the GpuNode that says so.
    `divisions` tells how the GPUs stand; `changed` is called after every work on one, `report` when somebody deleted the GpuNode
    or wrote into it what asks for no work, `isolation` when `isolated`, what is under maintenance, `operator_allocated`, which
    GPUs Draco allocates, `health`, what policies make of faults, or `repaired`, what their Jobs have repaired, has changed.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: str,
        memory: SpecMemory,
        layouts: LayoutApplier,
        divisions: Callable[[], Mapping[GpuUuid, GpuMigView]],
        on_gpu: OnGpu,
        changed: Callable[[GpuUuid], Awaitable[None]],
        report: Callable[[], None] = lambda: None,
        isolation: Callable[[], None] = lambda: None,
        clock: Clock,
    ) -> None:
        self.wanted: Mapping[GpuUuid, WantedGpu] | None = None
        self.promised: Mapping[GpuUuid, Sequence[PromisedDevice]] = {}
        self.isolated: Sequence[IsolatedGpu] = []
        self.operator_allocated: Sequence[str] = []
        self.health: Sequence[FaultOverride] = []
        self.repaired: Sequence[RepairedGpu] = []
        self.forgotten: frozenset[GpuUuid] = frozenset()
        self.generation = 0
        self.as_published = False
        self.recalled = asyncio.Event()
        self.known = asyncio.Event()
        self._client = client
        self._clock = clock
        self._node = node
        self._memory = memory
        self._layouts = layouts
        self._divisions = divisions
        self._on_gpu = on_gpu
        self._changed = changed
        self._report = report
        self._isolation = isolation
        self._informer = Informer(client, GPU_NODES, field_selector=f"metadata.name={node}", clock=clock)
        self._queue: WorkQueue[GpuUuid] = WorkQueue(clock=clock, base_s=0.5, cap_s=30.0)
        self._backoffs: dict[GpuUuid, Backoff] = {}
        self._left: dict[GpuUuid, _Facts] = {}
        self._heard = asyncio.Event()

    @property
    def is_called_lost(self) -> bool:
        """Whether the GpuNode says that its agent is lost."""
        found = self._informer.store.get(ObjectKey("", self._node))
        return found is not None and found.is_agent_lost

    async def run(self) -> None:
        """Work until cancelled."""
        self._informer.subscribe(self._changed_there)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="wanted")
            tasks.create_task(self._first(), name="wanted first")
            tasks.create_task(self._take_up(), name="wanted now")
            self.touch_all()
            await run_workers(self._queue, self._reconcile, workers=1, log=log)

    def seen(self, view: HardwareView) -> None:
        """The GPUs were read. Work on those on which something is open, that are new, or not as the last work left them.

        A reset, a reload of the driver and a person with nvidia-smi take instances and the MIG mode without telling anybody, and
        a driver that is loaded late shows its GPUs when it has long been known what is wanted of them.
        """
        for located in view.gpus:
            uuid = located.gpu.uuid
            division = self._divisions().get(uuid)
            if division is None:
                continue
            if self._left.get(uuid) != _facts(division):  # or nobody has worked on it since it came
                self._left[uuid] = _facts(division)
                self.touch(uuid)
            elif division.missing or division.state is MigState.DIRTY:
                self._wake(uuid)

    def touch(self, uuid: GpuUuid) -> None:
        """Something that a GPU's layout may have waited for has happened."""
        self._backoffs.pop(uuid, None)
        self._queue.add(uuid)

    def touch_all(self) -> None:
        """Look at every GPU."""
        for uuid in self._divisions():
            self.touch(uuid)

    async def _follow(self) -> None:
        """Follow the GpuNode, once there is such a kind. Without it nothing else is wanted than before."""
        while not await persistently("wanted.unknown", lambda: serves(self._client, GPU_NODES), clock=self._clock):
            self._heard.set()
            await self._clock.sleep(ABSENT_S)
        await self._informer.run()

    async def _first(self) -> None:
        """Nothing may be wanted: then there is no change that would tell."""
        await self._informer.synced.wait()
        self._heard.set()

    def _changed_there(self, change: Change[GpuNode]) -> None:
        if change.after is None:
            self._report()
        self._heard.set()

    async def _take_up(self) -> None:
        """Take up what is wanted whenever something is heard of it. It is on record before anything is done by it."""
        await self._memory.recall()
        if self._memory.last.spec != GpuNodeSpec():
            self._want(self._memory.last.spec)
        self.recalled.set()
        while True:
            await wait_for(self._heard, self._clock, UNWRITTEN_S if self._memory.unwritten else None)
            self._heard.clear()
            found = self._informer.store.get(ObjectKey("", self._node))
            said = found.metadata.annotations.get(FORGET_GPU, "") if found else ""
            self.forgotten = frozenset(GpuUuid(one.strip()) for one in said.split(",") if one.strip())
            await self._memory.hear(found, self.forgotten)
            self._want(self._memory.last.spec, found.metadata.generation if found else 0)
            self.known.set()

    def _want(self, spec: GpuNodeSpec, generation: int = 0) -> None:
        """From now on this is wanted, all of it at once: nothing is ever offered by one part without the taints of another."""
        seen, self.generation = self.generation, generation
        self.as_published = self._memory.last.published
        fresh = {GpuUuid(one.uuid): one for one in spec.gpus}
        before, self.wanted = self.wanted, fresh
        kept, self.promised = self.promised, _by_gpu(spec.promised)
        isolated, self.isolated = self.isolated, spec.isolated
        allocated, self.operator_allocated = self.operator_allocated, spec.operator_allocated
        health, self.health = self.health, spec.health
        repaired, self.repaired = self.repaired, spec.repaired
        told = self.isolated, self.operator_allocated, self.health, self.repaired
        if (isolated, allocated, health, repaired) != told:
            self._isolation()
        uuids = {*fresh, *(before or {}), *self.promised, *kept, *(() if before is not None else self._divisions())}
        others = [
            uuid
            for uuid in uuids
            if before is None or before.get(uuid) != fresh.get(uuid) or kept.get(uuid) != self.promised.get(uuid)
        ]
        for uuid in others:
            self.touch(uuid)
        if seen != generation and not others:
            self._report()

    def _wake(self, uuid: GpuUuid) -> None:
        if uuid not in self._backoffs:
            self._queue.add(uuid)

    async def _reconcile(self, uuid: GpuUuid) -> float | None:
        note = await self._worked_on(uuid) if uuid in self._divisions() else ""
        await self._changed(uuid)
        division = self._divisions().get(uuid)
        if division is None:  # it has left the node, perhaps meanwhile
            self._backoffs.pop(uuid, None)
            self._left.pop(uuid, None)
            return None
        self._left[uuid] = _facts(division)
        if not note and division.state is not MigState.DIRTY and not division.missing:
            self._backoffs.pop(uuid, None)
            return None
        backoff = self._backoffs.setdefault(uuid, Backoff(self._clock, base_s=1.0, cap_s=30.0))
        return backoff.next()

    async def _worked_on(self, uuid: GpuUuid) -> str:
        """What is still to be done on a GPU, after the work on it."""
        if self.wanted is None or self.as_published:
            return await self._on_gpu(uuid, lambda: self._layouts.keep(uuid))
        wanted, promised = self.wanted.get(uuid), self.promised.get(uuid, ())
        return await self._on_gpu(uuid, lambda: self._layouts.apply(uuid, wanted, promised))


def _facts(division: GpuMigView) -> _Facts:
    return division.enabled, division.pending, frozenset(one.key for one in division.instances)


def _by_gpu(devices: Iterable[PromisedDevice]) -> dict[GpuUuid, list[PromisedDevice]]:
    found: dict[GpuUuid, list[PromisedDevice]] = {}
    for each in devices:
        found.setdefault(GpuUuid(each.uuid), []).append(each)
    return found
