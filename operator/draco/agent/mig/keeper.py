"""Keeps the node's GPUs divided as wanted: a work queue of GPUs, with backoff.

Owns following this node's GpuNode and the pace of retries. `last_spec` says what is wanted while the GpuNode does not; `layout`
does the work, in the thread that prepares claims, so that the two never interleave.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from draco.agent.hardware.gpus import GpuMigView, PlacementKey
from draco.agent.mig.last_spec import NOTHING, SpecMemory
from draco.agent.mig.layout import LayoutApplier
from draco.agent.state.changes import ClaimSettled, GpuWorkedOn, LeaseRenewed, PoliciesChanged, ReportDue
from draco.agent.state.facts import NodeFacts, WantedNode
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Backoff, persistently
from draco.kube.discovery import serves
from draco.kube.queue import WorkQueue, run_workers
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.draco import GpuNode, MigState
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import FORGET_GPU, GpuUuid

log = structlog.get_logger()

ABSENT_S = 60.0
UNWRITTEN_S = 30.0
"""Retry interval for recording what is wanted."""
OnGpu = Callable[[GpuUuid, Callable[[], str]], Awaitable[str]]
"""Runs work on a GPU in the thread that prepares partitions, while no claim of that GPU is worked on."""

_Facts = tuple[bool, bool, frozenset[PlacementKey]]
"""What others may change on a GPU: the MIG mode, a pending mode, and the instances."""


class MigKeeper:
    """Works on one GPU at a time. `recalled` is set when the last wanted state is known, `known` when the GpuNode was read.

    `divisions` returns the GPUs' current state. What is wanted, and the end of work on a GPU, are told to the node's state.
    """

    def __init__(
        self,
        client: Client,
        state: NodeState,
        *,
        node: str,
        memory: SpecMemory,
        layouts: LayoutApplier,
        divisions: Callable[[], Mapping[GpuUuid, GpuMigView]],
        on_gpu: OnGpu,
        clock: Clock,
    ) -> None:
        self.recalled = asyncio.Event()
        self.known = asyncio.Event()
        self._client = client
        self._state = state
        self._clock = clock
        self._node = node
        self._memory = memory
        self._layouts = layouts
        self._divisions = divisions
        self._on_gpu = on_gpu
        self._informer = Informer(client, GPU_NODES, field_selector=f"metadata.name={node}", clock=clock)
        self._queue: WorkQueue[GpuUuid] = WorkQueue(clock=clock, base_s=0.5, cap_s=30.0)
        self._backoffs: dict[GpuUuid, Backoff] = {}
        self._left: dict[GpuUuid, _Facts] = {}
        self._heard = asyncio.Event()

    def lease_renewed(self, _change: LeaseRenewed) -> None:
        """Report immediately if the operator called this agent lost, for example after a network outage."""
        found = self._informer.store.get(ObjectKey("", self._node))
        if found is not None and found.is_agent_lost:
            self._state.tell(ReportDue())

    async def run(self) -> None:
        """Work until cancelled."""
        self._informer.subscribe(self._changed_there)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="wanted")
            tasks.create_task(self._first(), name="wanted first")
            tasks.create_task(self._take_up(), name="wanted now")
            self.touch_all()
            await run_workers(self._queue, self._reconcile, workers=1, log=log)

    def seen(self, facts: NodeFacts) -> None:
        """Queue GPUs that have open work, are new, or differ from how the last work left them.

        A reset, a driver reload and a person with nvidia-smi change instances and MIG mode without notice, and a driver loaded
        late shows its GPUs long after the spec is known.
        """
        for gpu in facts.view.gpus:
            uuid = gpu.uuid
            division = self._divisions().get(uuid)
            if division is None:
                continue
            if self._left.get(uuid) != _facts(division):  # also if nobody has worked on it yet
                self._left[uuid] = _facts(division)
                self.touch(uuid)
            elif division.missing or division.state is MigState.DIRTY:
                self._wake(uuid)

    def claim_settled(self, change: ClaimSettled) -> None:
        """Queue the claim's GPUs: a layout may have waited for them."""
        for uuid in {device.gpu for device in change.claim.devices}:
            self.touch(uuid)

    def touch(self, uuid: GpuUuid) -> None:
        """Queue a GPU and reset its backoff: something that its layout waited for may have happened."""
        self._backoffs.pop(uuid, None)
        self._queue.add(uuid)

    def touch_all(self) -> None:
        """Queue every GPU."""
        for uuid in self._divisions():
            self.touch(uuid)

    async def _follow(self) -> None:
        """Follow the GpuNode once its kind is installed. Without the kind the last wanted state stays."""
        while not await persistently("wanted.unknown", lambda: serves(self._client, GPU_NODES), clock=self._clock):
            self._heard.set()
            await self._clock.sleep(ABSENT_S)
        await self._informer.run()

    async def _first(self) -> None:
        """Wake after the first sync: an absent GpuNode causes no change event, though it may have been there and reported."""
        await self._informer.synced.wait()
        if self._informer.store.get(ObjectKey("", self._node)) is None:
            self._state.tell(ReportDue())
        self._heard.set()

    def _changed_there(self, change: Change[GpuNode]) -> None:
        if change.after is None:
            self._state.tell(ReportDue())
        self._heard.set()

    async def _take_up(self) -> None:
        """Take over each change of what is wanted. It is recorded before anything acts on it."""
        await self._memory.recall()
        if self._memory.last.spec != NOTHING:
            self._want()
        self.recalled.set()
        while True:
            await wait_for(self._heard, self._clock, UNWRITTEN_S if self._memory.unwritten else None)
            self._heard.clear()
            found = self._informer.store.get(ObjectKey("", self._node))
            said = found.metadata.annotations.get(FORGET_GPU, "") if found else ""
            forgotten = frozenset(GpuUuid(one.strip()) for one in said.split(",") if one.strip())
            await self._memory.hear(found, forgotten)
            self._want(found.metadata.generation if found else 0, forgotten)
            self.known.set()

    def _want(self, generation: int = 0, forgotten: frozenset[GpuUuid] = frozenset()) -> None:
        """Replace what is wanted as a whole, so that no part is offered without the taints of another."""
        before = self._state.facts.wanted
        fresh = WantedNode.of(
            self._memory.last.spec,
            as_published=self._memory.last.published,
            generation=generation,
            forgotten=forgotten,
        )
        self._state.learn(wanted=fresh)
        if fresh.policies != before.policies:
            self._state.tell(PoliciesChanged())
        uuids = {*(fresh.gpus or ()), *(before.gpus or ()), *fresh.promised, *before.promised}
        if before.gpus is None:
            uuids |= self._divisions().keys()
        others = [uuid for uuid in uuids if not fresh.asks_the_same_of(uuid, before)]
        for uuid in others:
            self.touch(uuid)
        if generation != before.generation and not others:
            self._state.tell(ReportDue())

    def _wake(self, uuid: GpuUuid) -> None:
        if uuid not in self._backoffs:
            self._queue.add(uuid)

    async def _reconcile(self, uuid: GpuUuid) -> float | None:
        note = await self._worked_on(uuid) if uuid in self._divisions() else ""
        self._state.tell(GpuWorkedOn(uuid))
        division = self._divisions().get(uuid)
        if division is None:  # it has left the node, perhaps during the work
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
        """Work on a GPU; returns what is still to be done."""
        node = self._state.facts.wanted
        if node.gpus is None or node.as_published:
            return await self._on_gpu(uuid, lambda: self._layouts.keep(uuid))
        wanted, promised = node.gpus.get(uuid), node.promised.get(uuid, ())
        return await self._on_gpu(uuid, lambda: self._layouts.apply(uuid, wanted, promised))


def _facts(division: GpuMigView) -> _Facts:
    return division.enabled, division.pending, frozenset(one.key for one in division.instances)
