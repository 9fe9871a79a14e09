"""Allocates the claims that are Draco's: as soon as they exist, or when their pod does.

Owns the order in which claims are served, and how long one tenant may keep the others waiting. Where claims go is asked of the
workers, since what tenants write is evaluated there; how it is written is `writes`'s. There is one key: one decision follows the
other, so that each knows those before it.

A claim whose pod is known goes where that pod may run, together with the pod's other claims of Draco's; a claim without a pod
goes where there is room, and so is reserved for the pod to come.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
import structlog
from prometheus_client import Counter

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.refusals import NodeRefusals
from draco.controller.allocation.writes import AllocationWrites
from draco.controller.mig.handover import HandoverReconciler
from draco.controller.view import UNALLOCATED, ClusterView
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import Failed, OutOfMemory, OverBudget, PlaceClaims, PlacementAnswer, refusal
from draco.controller.workers.pool import WorkerPool
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.placing.groups import ClaimGroup, GroupPlacement
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta

log = structlog.get_logger(__name__)

KEY = ""

_GROUPS_AT_ONCE = 32
_WRITES_AT_ONCE = 8
_AGAIN_S = 1.0
"""How soon a group that found no place is tried again after something has changed."""
_PATIENCE_S = 10.0
_PATIENCE_ALONE_S = 3.0
"""So long an answer is waited for: all other claims wait with it."""
_LONGEST_S = 60.0
"""How long a group that got no answer is left alone: a second at first, then twice as long each time, up to this."""
_NOT_GIVEN_OUT = "draco-not-given-out"

_Basis: TypeAlias = tuple[int, frozenset[GpuPlace]]
"""What a placement rests on: the version of the fleet, and the GPUs that may be given out."""


class _NoPlace(msgspec.Struct, frozen=True):
    """A group that found no place: what was known then (None: no change of it counts), when that was, and when to ask again."""

    basis: _Basis | None
    at_s: float
    again_s: float


class ClaimAllocations:
    """All claims that wait for Draco, oldest first, a batch of one namespace at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        handover: HandoverReconciler,
        workers: WorkerPool,
        events: EventRecorder,
        *,
        clock: Clock,
        count: Counter,
    ) -> None:
        self._view = view
        self._handover = handover
        self._workers = workers
        self._clock = clock
        self.writes = AllocationWrites(client, view, events, clock=clock, count=count)
        self._refusals = NodeRefusals(view, events, clock=clock)
        self._without_place: dict[str, _NoPlace] = {}  # by group
        self._alone: dict[str, int] = {}  # groups that are to be asked about alone, and how often there was no answer

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called when a claim may have to be allocated, or may be by now."""
        self._view.followed.subscribe(lambda: wake(KEY))
        self._view.pods.subscribe(lambda change: wake(KEY) if change.differs(_concern) else None)
        self._handover.when_owned(lambda: wake(KEY))

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    async def reconcile(self, _: str) -> float | None:
        """Allocate what can be. Returns in how many seconds to look again."""
        self.writes.settle()
        await self._at_once(self.writes.again(key) for key in self.writes.unanswered())
        groups = dict(self._groups())
        self._without_place = {uid: each for uid, each in self._without_place.items() if uid in groups}
        self._alone = {uid: times for uid, times in self._alone.items() if uid in groups}
        if not groups or not self._handover.owned:
            return _or_none(self.writes.next_s())
        if self.writes.refused_s:
            return self.writes.refused_s
        now_s, basis = self._clock.monotonic(), (self._view.followed.version, self._handover.owned)
        waits = {uid: self._waits_s(uid, group, basis, now_s) for uid, group in groups.items()}
        batch = self._batch({uid: group for uid, group in groups.items() if waits[uid] == 0.0})
        if not batch:
            return _or_none(min(*waits.values(), self.writes.next_s()))  # a change of what is known wakes us
        placements = await self._ask(batch)
        if placements is not None:
            await self._take_up(batch, placements, basis)
        return 0.0

    def _groups(self) -> Iterator[tuple[str, ClaimGroup]]:
        """What waits for Draco, oldest first."""
        classes = {each.metadata.name: each for each in self._view.classes.store.values()}
        mine = {
            claim.metadata.key: claim
            for claim in self._view.claims.store.by_index(UNALLOCATED, True)
            if claim.metadata.key not in self.writes and is_for_operator(claim, classes)
        }
        done: set[ObjectKey] = set()
        for key, claim in sorted(mine.items(), key=lambda one: (str(one[1].metadata.creation_timestamp), one[0])):
            if key in done:
                continue
            pod = self._pod_of(claim)
            if pod is None and any(owner.kind == "Pod" for owner in claim.metadata.owner_references):
                continue  # made for a pod that is not known yet, or needs it no more
            if pod is None:
                yield claim.metadata.uid, ClaimGroup([claim])
                continue
            if len(pod.claims) < len(pod.spec.resource_claims):
                continue  # the others are being made
            known = [found for each in pod.claims if (found := self._view.claims.store.get(each)) is not None]
            together = [mine[each.metadata.key] for each in known if each.metadata.key in mine]
            done |= {each.metadata.key for each in together}
            # One that is on its way decides where the others go, and counts once it has been delivered.
            if len(known) == len(pod.claims) and not any(each in self.writes for each in pod.claims):
                beside = [each for each in known if each.status.allocation]
                yield pod.metadata.uid, ClaimGroup(together, pod, beside, self._refusals.nodes(pod.metadata.uid))

    def _pod_of(self, claim: ResourceClaim) -> Pod | None:
        """The pod that decides where the claim goes: the oldest of those that wait for it."""
        pods = [each for each in self._view.pods_of(claim.metadata.key) if each.waits]
        return min(pods, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.key), default=None)

    def _waits_s(self, uid: str, group: ClaimGroup, basis: _Basis, now_s: float) -> float:
        """In how many seconds to ask about the group; infinite as long as nothing changes."""
        if not self._workers.may_ask(group.claims[0].metadata.namespace):
            return _AGAIN_S
        asked = self._without_place.get(uid)
        if asked is None:
            return 0.0
        changed_s = float("inf") if asked.basis in {None, basis} else asked.at_s + _AGAIN_S
        return max(0.0, min(changed_s, asked.again_s) - now_s)

    def _batch(self, due: dict[str, ClaimGroup]) -> dict[str, ClaimGroup]:
        """The oldest group with those of its namespace that come next: a batch is on one tenant's budget."""
        if not due:
            return {}
        oldest, first = next(iter(due.items()))
        if oldest in self._alone:
            return {oldest: first}
        namespace = first.claims[0].metadata.namespace
        same = [uid for uid, each in due.items() if each.claims[0].metadata.namespace == namespace]
        return {uid: due[uid] for uid in [each for each in same if each not in self._alone][:_GROUPS_AT_ONCE]}

    async def _ask(self, batch: dict[str, ClaimGroup]) -> list[GroupPlacement] | None:
        """A placement for each; None if together they cost too much: then each is asked about alone."""
        groups = list(batch.values())
        question = PlaceClaims(groups, [*self.writes.claims, *self._not_given_out()])
        namespace, alone = groups[0].claims[0].metadata.namespace, len(groups) == 1
        within_s = _PATIENCE_ALONE_S if alone else _PATIENCE_S
        answered = await self._workers.ask_within(question, namespace, QueuePriority.FIRST, within_s)
        match answered.answer if answered else None:
            case PlacementAnswer(placements=placements):
                self._alone = {uid: times for uid, times in self._alone.items() if uid not in batch}
                return placements
            case OverBudget() | OutOfMemory() | Failed() as cause if alone:
                why = refusal(cause, groups[0].claims, self._workers.long_cpu_s)
            case _:
                why = f"No answer was found within {within_s:g} s."
        for uid in batch:
            self._alone[uid] = self._alone.get(uid, 0) + alone
        return [GroupPlacement([], why)] if alone else None

    def _not_given_out(self) -> list[ResourceClaim]:
        """What is published as Draco's and is not to be given out, as a claim that has it all."""
        devices = self._handover.not_owned()
        if not devices:
            return []
        results = [
            DeviceRequestAllocationResult(request="", driver=each.driver, pool=each.pool, device=each.device)
            for each in devices
        ]
        taken = AllocationResult(devices=DeviceAllocationResult(results=results))
        meta = ObjectMeta(name=_NOT_GIVEN_OUT)
        return [ResourceClaim(metadata=meta, status=ResourceClaimStatus(allocation=taken))]

    async def _take_up(self, batch: dict[str, ClaimGroup], placements: list[GroupPlacement], basis: _Basis) -> None:
        now_s = self._clock.monotonic()
        writes = []
        for (uid, group), placement in zip(batch.items(), placements, strict=True):
            if placement.results:
                self._without_place.pop(uid, None)
                pairs = zip(group.claims, placement.results, strict=True)
                writes += [self.writes.write(claim, result) for claim, result in pairs]
                continue
            if uid not in self._without_place:
                claims = [str(each.metadata.key) for each in group.claims]
                log.info("allocation.no_place", claims=claims, why=placement.why_not)
            again_s = self._refusals.until_s(uid) if group.without else float("inf")
            if uid in self._alone:
                again_s = now_s + min(2.0 ** self._alone[uid], _LONGEST_S)
            self._without_place[uid] = _NoPlace(None if uid in self._alone else basis, now_s, again_s)
        await self._at_once(writes)

    async def _at_once(self, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
        limit = asyncio.Semaphore(_WRITES_AT_ONCE)

        async def one(write: Coroutine[Any, Any, None]) -> None:
            async with limit:
                await write

        async with asyncio.TaskGroup() as tasks:
            for each in writes:
                tasks.create_task(one(each))


def _or_none(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _concern(pod: Pod) -> object:
    return pod.waits, pod.claims
