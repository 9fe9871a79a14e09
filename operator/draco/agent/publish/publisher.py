"""Writes the node's ResourceSlices to the API server and keeps them up to date.

Owns the writes to ResourceSlices. Level-triggered: a change of the hardware, of a slice by anybody, or of the Node only wakes it.
Kubelet deletes a node's slices when it starts and when the driver was away; they are then written again.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from draco.agent.publish import slices
from draco.agent.publish.slices import Content
from draco.agent.state.facts import PublishedPool
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Invalid, NotFound
from draco.kube.queue import WorkQueue, run_workers
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import CounterSet, Device, ResourceSlice, own_slices
from draco.resources.api.taints import BLOCKING_EFFECTS
from draco.resources.kinds import NODES, SLICES

log = structlog.get_logger()

NODE_MISSING_S = 5.0
RECHECK_S = 300.0
"""Resync interval: a Node recreated under its name does not touch the slices immediately."""
GONE_S = 0.2
"""Retry delay after a slice was deleted meanwhile, as by a starting kubelet; by then the watch shows which."""
UNSEEN_S = 5.0
"""How long to wait for a write of ours to come back through the watch."""


class SlicePublisher:
    """Keeps one node's slices. The published pool, or the reason for none, is told to the state."""

    def __init__(self, client: Client, state: NodeState, *, node: str, driver: str, clock: Clock) -> None:
        self._client = client
        self._state = state
        self._node = node
        self._driver = driver
        self._clock = clock
        self._informer = Informer(
            client,
            SLICES,
            field_selector=f"spec.nodeName={node},spec.driver={driver}",
            clock=clock,
        )
        self._queue: WorkQueue[str] = WorkQueue(clock=clock, cap_s=60.0)
        self._wanted: tuple[list[Device], list[CounterSet]] | None = None
        self._written: tuple[list[Device], list[CounterSet]] | None = None
        self._announces = True  # the cluster accepts taints with effect None
        self._generation = 0
        self._unseen: dict[ObjectKey, int] = {}  # resource versions of our writes that the watch has not shown yet
        self._unseen_until = 0.0
        self._kept: dict[ObjectKey, tuple[Content, Content]] = {}  # what was asked, and what the server stored

    def want(self, devices: Sequence[Device], counters: Sequence[CounterSet] = ()) -> None:
        """Set the devices and counters to publish. Nothing is written before the first call."""
        wanted = (list(devices), list(counters))
        if wanted != self._wanted:
            self._wanted = wanted
            self._queue.add(self._node)

    def conflict_seen(self, _change: object) -> None:
        """Write nothing while the node belongs to another plugin; the slices stay."""
        self._queue.add(self._node)

    def features_seen(self, _change: object) -> None:
        """Send every field again: the cluster may now keep fields that it dropped before."""
        self._kept.clear()
        self._announces = True
        self._queue.add(self._node)

    async def before(self) -> list[Device]:
        """What the node's slices have, once they are known."""
        await self._informer.synced.wait()
        slices_now = own_slices(self._informer.store.values(), self._node)
        return [device for one in slices_now for device in one.spec.devices]

    @property
    def is_written(self) -> bool:
        """Whether the API server has what should be published now."""
        return self._written is self._wanted

    @property
    def generation(self) -> int:
        """The pool's generation as of the last write."""
        return self._generation

    @property
    def unserved_s(self) -> float:
        """How long the cluster has not served ResourceSlices; 0 if it does."""
        return self._informer.unserved_s

    async def run(self) -> None:
        """Publish until cancelled. The slices stay: running pods keep their devices."""
        self._informer.subscribe(self._seen)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run(), name="slices")
            await self._informer.synced.wait()
            self._queue.add(self._node)
            await run_workers(self._queue, self._reconcile, workers=1, log=log)

    def _seen(self, change: Change[ResourceSlice]) -> None:
        awaited = self._unseen.get(change.key)
        if awaited is not None and (change.after is None or int(change.after.metadata.resource_version) >= awaited):
            del self._unseen[change.key]
        self._queue.add(self._node)

    async def _reconcile(self, _node: str) -> float | None:
        if why := self._state.facts.gives_way_to:
            self._tell(None, why)
            return None
        if self._wanted is None:
            return None
        if self._unseen and self._clock.monotonic() < self._unseen_until:
            return UNSEEN_S  # the store is older than our writes
        self._unseen.clear()
        try:
            node = await self._client.get(NODES, ObjectKey("", self._node))
        except NotFound:
            self._tell(None, f"Node {self._node} does not exist, so its devices are not published.")
            return NODE_MISSING_S
        wanted = devices, counters = self._wanted
        if not self._announces:
            devices = [_without_notes(one) for one in devices]
        plan = slices.plan(
            devices,
            self._informer.store.values(),
            counters=counters,
            by=slices.Publisher(node=self._node, uid=node.metadata.uid, driver=self._driver),
            last_generation=self._generation,
            same=self._same,
        )
        if not plan.empty:
            try:
                await self._write(plan)
            except Invalid as error:
                # Kubernetes 1.34 rejects a slice with a taint of effect None: retried without such taints.
                if self._announces and devices != [_without_notes(one) for one in devices]:
                    log.warning("slices.notes_left_out", error=str(error))
                    self._announces = False
                raise
            except NotFound:
                return GONE_S
            except ApiError as error:  # logged where it is retried
                if self._state.facts.published is None:
                    self._say(None, f"The slices cannot be written: {error}.")
                raise
            log.info("slices.published", plan=str(plan), devices=len(devices))
        self._generation, self._written = plan.generation, wanted
        self._tell(PublishedPool(plan.generation, len(devices)), "")
        return RECHECK_S

    async def _write(self, plan: slices.SlicePlan) -> None:
        self._unseen_until = self._clock.monotonic() + UNSEEN_S
        for one in plan.replace:
            self._wrote(one, await self._client.replace(SLICES, one.metadata.key, one))
        for one in plan.create:
            self._wrote(one, await self._client.create(SLICES, one))
        for one in plan.delete:
            try:
                await self._client.delete(SLICES, one.metadata.key, uid=one.metadata.uid)
            except NotFound:
                continue

    def _wrote(self, asked: ResourceSlice, answer: ResourceSlice) -> None:
        key = answer.metadata.key
        known = self._informer.store.get(key)
        if known is None or int(known.metadata.resource_version) < int(answer.metadata.resource_version):
            self._unseen[key] = int(answer.metadata.resource_version)
        if slices.same_content(answer, slices.content(asked)):
            self._kept.pop(key, None)
        else:
            # A disabled feature gate drops fields. Asking again does not help: what the server stores is accepted.
            log.warning("slices.fields_dropped", slice=key.name)
            self._kept[key] = (slices.content(asked), slices.content(answer))

    def _same(self, observed: ResourceSlice, wanted: Content) -> bool:
        if slices.same_content(observed, wanted):
            return True
        asked, kept = self._kept.get(observed.metadata.key, (None, wanted))
        return asked == wanted and slices.same_content(observed, kept)

    def _tell(self, published: PublishedPool | None, problem: str) -> None:
        if problem and problem != self._state.facts.problem:
            log.warning("slices.not_published", problem=problem)
        self._say(published, problem)

    def _say(self, published: PublishedPool | None, problem: str) -> None:
        facts = self._state.facts
        if (published, problem) != (facts.published, facts.problem):
            self._state.learn(published=published, problem=problem)


def _without_notes(device: Device) -> Device:
    kept = [one for one in device.taints if one.effect in BLOCKING_EFFECTS]
    return device if kept == device.taints else msgspec.structs.replace(device, taints=kept)
