"""Allocates Draco's claims, as soon as they exist or when their pods do.

There is one key, so rounds run one after the other and each sees the effects of earlier ones. A round: follow up on earlier
writes; read the waiting groups (`queue`); order them into a batch of one tenant (`asking.schedule`); ask the workers for
placements, since they evaluate what tenants write; plan (`rounds`, pure); apply, which writes (`writing`) and remembers. Then
make room for the first group without a place, if preemption is possible (`preempting`).

Owns these steps, how long one tenant may block the others, and what is kept free for an overdue group.

A group gets all its devices or none. A partial allocation (the operator died halfway, or a pod could not run where its claim was
allocated) is given back if the rest finds no place, so no group holds devices while it waits for more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
from prometheus_client import Counter

from draco.controller.allocation.asking.basis import Basis
from draco.controller.allocation.asking.foresight import Foresight
from draco.controller.allocation.asking.schedule import AskingSchedule
from draco.controller.allocation.asking.second_looks import SecondLooks
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.allocation.queue.group_notes import GroupNotes
from draco.controller.allocation.queue.overdue import OverdueGroups
from draco.controller.allocation.queue.refusals import NodeRefusals
from draco.controller.allocation.queue.waiting import WaitingGroups
from draco.controller.allocation.reclaiming.returns import AllocationReturns
from draco.controller.allocation.reclaiming.useless import UselessAllocations
from draco.controller.allocation.rounds import (
    AllocationSnapshot,
    AnsweredGroup,
    Batch,
    Kept,
    Round,
    RoundInput,
    plan_round,
)
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.allocation.wakes import TIMES, WAKES, DecisionSources
from draco.controller.allocation.writing.writes import AllocationWrites
from draco.controller.limits.enforcement import LimitGuard, LimitRound
from draco.controller.reservations.held_back_claims import HeldBackClaims
from draco.controller.reservations.takeovers import due, kept_claims
from draco.controller.view import ClusterView
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import (
    Failed,
    OutOfMemory,
    OverBudget,
    PlaceClaims,
    PlacementAnswer,
    claims_of,
    refusal,
)
from draco.controller.workers.pool import Workers
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.placing.groups.group import ClaimGroup, GroupPlacement, withheld
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey

log = structlog.get_logger(__name__)

KEY = ""

_WRITES_AT_ONCE = 32
_PATIENCE_S = 10.0
_PATIENCE_ALONE_S = 3.0
"""Timeout for an answer about one group; all other claims wait meanwhile."""
_NOT_GIVEN_OUT = "draco-not-given-out"
_KEPT = "draco-kept"


class ClaimAllocations:
    """Reconciles all waiting claims, oldest first, one batch of one namespace at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        handover: HandoverReconciler,
        workers: Workers,
        events: EventRecorder,
        *,
        guard: LimitGuard,
        count: Counter,
        count_late: Counter,
        overdue_s: float,
        tell_after_s: float,
    ) -> None:
        self._view = view
        self._handover = handover
        self._workers = workers
        self._guard = guard
        self._overdue = OverdueGroups(clock=view.clock, overdue_s=overdue_s)
        self.writes = AllocationWrites(client, view, events, count=count)
        self._returns = AllocationReturns(client, view, events)
        self._refusals = NodeRefusals(view, events, returned=self._returns.__contains__)
        self.gangs = Gangs(view)
        self.preemptions = Preemptions(view, handover, workers, self.gangs)
        self._waiting = WaitingGroups(view, self.gangs, self._refusals, self._is_in_flight)
        self._useless = UselessAllocations(
            view, self.gangs, in_flight=self._is_in_flight, refused=self.writes.is_refused
        )
        self._held_back = HeldBackClaims(view)
        self._schedule = AskingSchedule(
            view, workers, preempts_in_s=self.preemptions.due_s, refused_until_s=self._refusals.until_s
        )
        self._kept = Kept()
        self._foresight = Foresight(workers, clock=view.clock)
        self._notes = GroupNotes(events, clock=view.clock, tell_after_s=tell_after_s)
        self._second_looks = SecondLooks(view, count=count_late)
        self._sources = DecisionSources(
            view=view,
            handover=handover,
            guard=guard,
            preemptions=self.preemptions,
            writes=self.writes,
            returns=self._returns,
            held_back=self._held_back,
        )
        self._looked_s = float("-inf")
        """Monotonic time at which the current look began."""
        self._has_begun = False

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` when a claim may need an allocation, or when one may have become possible."""
        woken = self._second_looks.woken(lambda: wake(KEY))
        for source in WAKES.values():
            source(self._sources, woken)

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    async def reconcile(self, _: str) -> float | None:
        """Run one look; return seconds until the next, or None."""
        self._begin()
        self._second_looks.begin()
        return self._second_looks.end(await self._look())

    async def _look(self) -> float:
        """Return seconds until there is a reason to look again; infinite if only a change can give one."""
        self._looked_s = self._view.clock.monotonic()
        await self._follow_up()
        snapshot = self._read()
        again_s = self._notes.tell_unready(snapshot.waiting)
        if self._handover.owned:
            again_s = min(again_s, snapshot.again_s, await self._decide(snapshot))
        return min(again_s, *(in_s(self._sources, self._looked_s) for in_s in TIMES.values()))

    async def _follow_up(self) -> None:
        """Do what depends on claims alone: retry unanswered writes, give back, hand over from reservations."""
        self.writes.settle()
        self._returns.settle()
        await self._at_once(self.writes.again(key) for key in self.writes.unanswered())
        await self._at_once([self._returns.give_back(claim, why) for claim, why in self._useless.found()])
        may_be_given = due(self._view, lambda device: self._handover.gives_out([device]), self.writes.claims)
        taken = [each for each in may_be_given if not self._is_written(each[0].metadata.key)]
        await self._at_once([self.writes.write(claim, result) for claim, result in taken])

    def _read(self) -> AllocationSnapshot:
        """Read the waiting groups, after updating `HeldBackClaims` for claims that arrived since."""
        self._held_back.look()
        waiting = self._waiting.groups()
        self._overdue.look(waiting)
        self._forget_others({each.uid for each in waiting})
        groups = {each.uid: each for each in waiting if not each.unready}
        head, overdue_s = self._head(groups)
        return AllocationSnapshot(waiting, groups, self._basis(head), overdue_s)

    async def _decide(self, snapshot: AllocationSnapshot) -> float:
        """Run one round. Return seconds until the next is due if nothing changes."""
        basis = snapshot.basis
        if not snapshot.groups:
            return await self._look_ahead(basis)
        batch, again_s = self._order(snapshot)
        if batch is None:
            return again_s
        answered = await self._answers(batch.groups, basis)
        limits = self._guard.begin(self.writes.claims)
        planned = plan_round(batch.limited, answered, self._round_input(basis.head, limits))
        limits.tell()
        await self._apply(planned, basis)
        await self._make_room(planned.make_room)
        return 0.0

    def _order(self, snapshot: AllocationSnapshot) -> tuple[Batch | None, float]:
        """Choose the next batch. Without one, return None and the seconds until one is due."""
        groups, basis = snapshot.groups, snapshot.basis
        waits = self._schedule.waits_s(groups, basis, lambda: self._second_looks.is_anything_free(self._handover.owned))
        now = {uid: each for uid, each in groups.items() if waits[uid] == 0.0}
        self._second_looks.due((uid for uid, each in now.items() if not self._schedule.is_answered(each, basis)), basis)
        batch = self._schedule.batch(now, self.preemptions.kept_from)
        if not batch:
            return None, min(waits.values())
        limits = self._guard.begin(self.writes.claims)
        whys = {uid: why for uid, each in batch.items() if (why := limits.foreseen(each.group))}
        limits.tell()
        self._overdue.permitted(batch.keys() - whys.keys())
        limited = [AnsweredGroup(batch[uid], GroupPlacement([], why, is_hopeless=True)) for uid, why in whys.items()]
        return Batch({uid: each for uid, each in batch.items() if uid not in whys}, limited), 0.0

    def _round_input(self, head: str, limits: LimitRound) -> RoundInput:
        return RoundInput(
            head=head,
            kept=self._kept,
            limits=limits,
            may_get=self._may_get,
            is_alone=self._schedule.is_alone,
            may_preempt=self.preemptions.is_entitled,
        )

    def _may_get(self, waiting: WaitingGroup, devices: frozenset[DeviceKey]) -> bool:
        """Whether no device was handed back and no claim deleted or refused in the meantime."""
        return self._handover.gives_out(devices) and all(map(self.writes.may_write, waiting.group.claims))

    async def _apply(self, planned: Round, basis: Basis) -> None:
        """Remember, report and write the results of the round."""
        self._kept = planned.kept
        self._overdue.limited(planned.limited)
        for each in planned.without_place:
            self._remember_no_place(each, basis)
        for each in planned.allocate:
            if (before := self._schedule.found_place(each.waiting, basis)) is not None:
                self._second_looks.found(each.waiting.called, each.devices, before, basis)
        writes = [self.writes.write(*pair) for each in planned.allocate for pair in each.allocations]
        await self._at_once(writes + [self._returns.give_back(claim, why) for claim, why in planned.give_back])

    def _begin(self) -> None:
        """Start recording. Only on the leader: others would never forget, and would mistake the leader's writes for refusals."""
        if not self._has_begun:
            self._has_begun = True
            self._refusals.follow()
            self._useless.follow()

    def _is_in_flight(self, key: ObjectKey) -> bool:
        return self._is_written(key) or key in self._returns or key in self._held_back

    def _is_written(self, key: ObjectKey) -> bool:
        """Whether a write of the claim's allocation is in flight, or must not be tried yet."""
        return key in self.writes or self.writes.is_refused(key) or self.writes.is_outdated(key)

    def _forget_others(self, uids: set[str]) -> None:
        self._schedule.forget_others(uids)
        self._notes.forget_others(uids)
        # A group whose write failed with a conflict still waits: it keeps the devices that were freed for it.
        self.preemptions.forget_others(uids | self.preemptions.of_claims(self.writes.is_outdated))

    def _head(self, groups: dict[str, WaitingGroup]) -> tuple[str, float]:
        """The UID of the group to keep devices for if it finds no place, or ""; and seconds until another becomes overdue."""
        if any(map(self.writes.is_outdated, self._kept.claims)):
            return self._kept.uid, float("inf")  # it still waits, and is asked about again in a moment
        head, overdue_s = self._overdue.head(groups, self._schedule.may_find_place)
        if self._kept.uid != head:
            self._kept = Kept()
        return head, overdue_s

    def _basis(self, head: str) -> Basis:
        return Basis(
            fleet=self._view.followed.version,
            limits=self._guard.version,
            nominations=self.preemptions.version,
            writes=self.writes.ended,
            owned=self._handover.owned,
            withheld=self._handover.withheld,
            preemptible=self._handover.preemptible,
            spread=self._handover.spread,
            taken_over=frozenset((one.key, one.share_id) for each in kept_claims(self._view) for one in each.results),
            kept=self._kept.devices,
            head=head,
        )

    async def _answers(self, batch: Mapping[str, WaitingGroup], basis: Basis) -> list[AnsweredGroup]:
        """Ask the workers, and meanwhile add finalizers, which is half the writing. Empty if there was no answer."""
        if not batch:
            return []
        protecting = [self.writes.protect(claim) for each in batch.values() for claim in each.group.claims]
        async with asyncio.TaskGroup() as tasks:
            _start(tasks, protecting)  # first, since a write takes longer than an answer
            asked = tasks.create_task(self._ask(batch, basis))
        placements = asked.result()
        return (
            [] if placements is None else list(map(AnsweredGroup._make, zip(batch.values(), placements, strict=True)))
        )

    async def _ask(self, batch: Mapping[str, WaitingGroup], basis: Basis) -> list[GroupPlacement] | None:
        """One placement per group, or None if the batch cost too much; each group is then asked about alone."""
        groups = [msgspec.structs.replace(each.group, is_overdue=uid == basis.head) for uid, each in batch.items()]
        question = PlaceClaims(groups, self._held_from(batch), sorted(self._handover.spread))
        if (foreseen := self._foresight.answer(question, self._basis(basis.head))) is not None:
            return foreseen
        namespace, alone = next(iter(batch.values())).namespace, len(groups) == 1
        within_s = _PATIENCE_ALONE_S if alone else _PATIENCE_S
        answered = await self._workers.ask_within(question, namespace, QueuePriority.FIRST, within_s)
        match answered.answer if answered else None:
            case PlacementAnswer(placements=placements):
                if answered is not None:
                    self._schedule.answered(batch, answered.cpu_s)
                    if any(each.results for each in placements):
                        self._foresight.expect(question, answered.cpu_s)
                return placements
            case OverBudget() | OutOfMemory() | Failed() as cause if alone:
                why = refusal(cause, claims_of(question), self._workers.long_cpu_s)
            case _:
                why = f"No answer was found within {within_s:g} s."
        self._schedule.unanswered(batch, alone=alone)
        return [GroupPlacement([], why)] if alone else None

    async def _look_ahead(self, basis: Basis) -> float:
        """Ask where a claim like the last one would go. Return seconds until the next look."""
        if self.writes.claims:
            return float("inf")  # the watch wakes us when they are delivered
        return await self._foresight.look(self._held_from({}), sorted(self._handover.spread), basis)

    def _held_from(self, batch: Mapping[str, WaitingGroup]) -> list[ResourceClaim]:
        """Claims that the question adds to the cluster's: writes in flight, and devices withheld from this batch."""
        first = next(iter(batch.values()), None)
        nominated = self.preemptions.claims(self.preemptions.kept_from(first)) if first else []
        return [*self.writes.claims, *self._not_given_out(batch), *kept_claims(self._view), *nominated]

    def _not_given_out(self, batch: Iterable[str]) -> list[ResourceClaim]:
        """Draco's published devices that are withheld from everyone, or from this batch, as claims that hold them."""
        kept = () if self._kept.uid in batch else self._kept.devices
        named = {_NOT_GIVEN_OUT: self._handover.not_owned(), _KEPT: kept}
        return [withheld(name, devices) for name, devices in named.items() if devices]

    async def _make_room(self, without: Sequence[WaitingGroup]) -> None:
        for waiting in without:
            permitted = partial(self._is_within_limits, waiting.group)
            if await self.preemptions.plan(waiting, self._held_from({waiting.uid: waiting}), permitted):
                return

    def _is_within_limits(self, group: ClaimGroup, results: list[list[AllocationResult]]) -> bool:
        limits = self._guard.begin(self.writes.claims)
        is_within = bool(limits.within(group, GroupPlacement(results)).results)
        limits.tell()
        return is_within

    def _remember_no_place(self, answered: AnsweredGroup, basis: Basis) -> None:
        waiting, placement = answered
        if self._schedule.found_none(waiting, placement, basis, self._looked_s):
            claims = [str(each.metadata.key) for each in waiting.group.claims]
            log.info("allocation.no_place", claims=claims, why=placement.why_not)
        if waiting.group.name:
            self._notes.tell(waiting, placement.why_not)

    async def _at_once(self, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            _start(tasks, writes)


def _start(tasks: asyncio.TaskGroup, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Start the writes, at most `_WRITES_AT_ONCE` in parallel."""
    limit = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def one(write: Coroutine[Any, Any, None]) -> None:
        async with limit:
            await write

    for each in writes:
        tasks.create_task(one(each))
