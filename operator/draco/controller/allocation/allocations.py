"""Allocates the claims that are Draco's: as soon as they exist, or when their pods do.

Owns how long one tenant may keep the others waiting, and what is kept free for a group that has waited too long. What waits, and
in which order, is `waiting`'s; whose turn it is, `turns`'; who has waited too long, `overdue`'s. Where claims go is asked of the
workers, since what tenants write is evaluated there; how it is written is `writes`'s. There is one key: a decision follows the
other, so that each knows those before.

A group gets all that it needs or nothing. What a part of it has, because the operator died in between or a pod could not run
where its claim was, is given back if the rest finds no place: nobody holds devices while waiting for more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
from prometheus_client import Counter

from draco.controller.allocation.asking.basis import TIMES, WAKES, Basis, DecisionSources
from draco.controller.allocation.asking.foresight import Foresight
from draco.controller.allocation.asking.second_looks import SecondLooks
from draco.controller.allocation.asking.turns import Turns
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.allocation.queue.gang_terms import Gangs
from draco.controller.allocation.queue.group_notes import GroupNotes
from draco.controller.allocation.queue.overdue import OverdueGroups
from draco.controller.allocation.queue.refusals import NodeRefusals
from draco.controller.allocation.queue.waiting import WaitingGroup, WaitingGroups
from draco.controller.allocation.reclaiming.returns import AllocationReturns
from draco.controller.allocation.reclaiming.useless import UselessAllocations, cannot_start
from draco.controller.allocation.writing.writes import AllocationWrites
from draco.controller.limits.guard import LimitGuard
from draco.controller.mig.handover import HandoverReconciler
from draco.controller.reservations.held_back import HeldBackClaims
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
from draco.controller.workers.pool import WorkerPool
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.placing.groups.group import ClaimGroup, GroupPlacement, withheld
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey, PoolKey

log = structlog.get_logger(__name__)

KEY = ""

_GROUPS_AT_ONCE = 64
_WRITES_AT_ONCE = 32
_PATIENCE_S = 10.0
_PATIENCE_ALONE_S = 3.0
"""So long an answer is waited for: all other claims wait with it."""
_NOT_GIVEN_OUT = "draco-not-given-out"
_KEPT = "draco-kept"


class _Kept(msgspec.Struct, frozen=True):
    """What is kept free, and for which group: what it lacks, or what was given to these claims of it."""

    uid: str = ""
    devices: frozenset[DeviceKey] = frozenset()
    claims: frozenset[ObjectKey] = frozenset()


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
        guard: LimitGuard,
        clock: Clock,
        count: Counter,
        count_late: Counter,
        overdue_s: float,
        tell_after_s: float,
    ) -> None:
        self._view = view
        self._handover = handover
        self._workers = workers
        self._guard = guard
        self._clock = clock
        self._overdue = OverdueGroups(clock=clock, overdue_s=overdue_s)
        self.writes = AllocationWrites(client, view, events, clock=clock, count=count)
        self._returns = AllocationReturns(client, view, events, clock=clock)
        self._refusals = NodeRefusals(view, events, clock=clock, returned=self._returns.__contains__)
        self.gangs = Gangs(client, view, clock=clock)
        self.preemptions = Preemptions(client, view, handover, workers, self.gangs, clock=clock)
        self._waiting = WaitingGroups(view, self.gangs, self._refusals, self._is_in_flight)
        self._useless = UselessAllocations(
            view, self.gangs, in_flight=self._is_in_flight, refused=self.writes.is_refused
        )
        self._held_back = HeldBackClaims(view, clock=clock)
        self._turns = Turns(view, workers, self.preemptions, self._refusals, clock=clock)
        self._kept = _Kept()
        self._foresight = Foresight(workers, clock=clock)
        self._notes = GroupNotes(events, clock=clock, tell_after_s=tell_after_s)
        self._second_looks = SecondLooks(view, clock=clock, count=count_late)
        self._sources = DecisionSources(
            view=view,
            handover=handover,
            guard=guard,
            gangs=self.gangs,
            preemptions=self.preemptions,
            writes=self.writes,
            returns=self._returns,
            held_back=self._held_back,
        )
        self._looked_s = float("-inf")
        """When the look began that goes on, by the monotonic clock."""
        self._has_begun = False

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called when a claim may have to be allocated, or may be by now."""
        woken = self._second_looks.woken(lambda: wake(KEY))
        for source in WAKES.values():
            source(self._sources, woken)

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    async def reconcile(self, _: str) -> float | None:
        """Allocate what can be. Returns in how many seconds to look again."""
        self._begin()
        self._second_looks.begin()
        return self._second_looks.end(await self._look())

    async def _look(self) -> float:
        """Returns in how many seconds there is a reason to look again; infinite as long as nothing changes."""
        self._looked_s = self._clock.monotonic()
        self.writes.settle()
        self._returns.settle()
        await self._at_once(self.writes.again(key) for key in self.writes.unanswered())
        await self._at_once([self._returns.give_back(claim, why) for claim, why in self._useless.found()])
        taken = [each for each in due(self._view, self._may_be_given) if not self._is_written(each[0].metadata.key)]
        await self._at_once([self.writes.write(claim, result) for claim, result in taken])
        waiting = self._waiting_now()
        if await self.gangs.read():
            waiting = self._waiting_now()
        unread = self.gangs.unread
        self._overdue.look(waiting)
        self._forget_others({each.uid for each in waiting})
        groups = {each.uid: each for each in waiting if not each.unready and each.uid not in unread}
        pause_s = self._notes.tell_unready(waiting)
        if self._handover.owned:
            head, overdue_s = self._head(groups)
            pause_s = min(pause_s, overdue_s, await self._decide(groups, self._basis(head)))
        return min(pause_s, *(in_s(self._sources, self._looked_s) for in_s in TIMES.values()))

    async def _decide(self, groups: dict[str, WaitingGroup], basis: Basis) -> float:
        """Have groups get their devices. Returns in how many seconds to ask again, as far as nothing changes."""
        if not groups:
            return await self._look_ahead(basis)
        waits = self._turns.waits_s(groups, basis, lambda: self._second_looks.is_anything_free(self._handover.owned))
        now = {uid: each for uid, each in groups.items() if waits[uid] == 0.0}
        self._second_looks.due((uid for uid, each in now.items() if not self._turns.is_answered(each, basis)), basis)
        batch = self._batch(now)
        if not batch:
            return min(waits.values())
        batch = await self._not_limited(batch, basis)
        placements = await self._ask_protecting(batch, basis) if batch else None
        if placements is not None:
            await self._take_up(batch, placements, basis)
        return 0.0

    def _waiting_now(self) -> list[WaitingGroup]:
        """All groups as they are now, without what is held by now: claims may have come since."""
        self._held_back.look()
        return self._waiting.groups()

    def _begin(self) -> None:
        """Follow what is to be remembered: this replica leads. Another would for ever, and mistake the leader's writes."""
        if not self._has_begun:
            self._has_begun = True
            self._refusals.follow()
            self._useless.follow()

    def _is_in_flight(self, key: ObjectKey) -> bool:
        return self._is_written(key) or key in self._returns or key in self._held_back

    def _is_written(self, key: ObjectKey) -> bool:
        """Whether the claim's allocation is on its way, or is not to be written for now."""
        return key in self.writes or self.writes.is_refused(key) or self.writes.is_outdated(key)

    def _may_be_given(self, device: DeviceKey) -> bool:
        """Whether it is Draco's, and nobody is being given it."""
        is_on_its_way = any(device in each.devices_held for each in self.writes.claims)
        return self._handover.gives_out([device]) and not is_on_its_way

    def _forget_others(self, uids: set[str]) -> None:
        """Forget what is remembered of groups that do not wait any more."""
        self._turns.forget_others(uids)
        self._notes.forget_others(uids)
        # One that could not be written, as it is another by now, waits as before: what was made free for it stays its own.
        self.preemptions.forget_others(uids | self.preemptions.of_claims(self.writes.is_outdated))

    def _head(self, groups: dict[str, WaitingGroup]) -> tuple[str, float]:
        """The group for which devices are kept, should it find no place; or "".

        Returns also in how many seconds another is overdue that is not yet.
        """
        if any(map(self.writes.is_outdated, self._kept.claims)):
            return self._kept.uid, float("inf")  # it waits as before, and is asked about again in a moment
        head, overdue_s = self._overdue.head(groups, self._turns.may_find_place)
        if self._kept.uid != head:
            self._kept = _Kept()
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
            taken_over=frozenset(device for each in kept_claims(self._view) for device in each.devices_held),
            kept=self._kept.devices,
            head=head,
        )

    def _batch(self, due: dict[str, WaitingGroup]) -> dict[str, WaitingGroup]:
        """The oldest group with those of its namespace that come next: a batch is on one tenant's budget."""
        if not due:
            return {}
        oldest, first = next(iter(due.items()))
        if self._turns.is_alone(oldest):
            return {oldest: first}
        kept = self.preemptions.kept_from(first)
        batch: dict[str, WaitingGroup] = {}
        claims: set[ObjectKey] = set()
        for uid, each in due.items():
            own = {claim.metadata.key for claim in each.group.claims}
            # Groups whose pods name one claim are asked about one after the other: where the first gets it decides for the next.
            if each.namespace != first.namespace or self._turns.is_alone(uid) or claims & own:
                continue
            if self.preemptions.kept_from(each) == kept:
                batch[uid] = each
                claims |= own
            if len(batch) == _GROUPS_AT_ONCE:
                break
        return batch

    async def _ask_protecting(self, batch: dict[str, WaitingGroup], basis: Basis) -> list[GroupPlacement] | None:
        """As `_ask`. Meanwhile the claims get their finalizer, which is half of what is written of an allocation."""
        protecting = [self.writes.protect(claim) for each in batch.values() for claim in each.group.claims]
        async with asyncio.TaskGroup() as tasks:
            _start(tasks, protecting)  # first, as a write takes longer than an answer
            asked = tasks.create_task(self._ask(batch, basis))
        return asked.result()

    async def _ask(self, batch: dict[str, WaitingGroup], basis: Basis) -> list[GroupPlacement] | None:
        """A placement for each; None if together they cost too much: then each is asked about alone."""
        groups = [msgspec.structs.replace(each.group, is_overdue=uid == basis.head) for uid, each in batch.items()]
        question = PlaceClaims(groups, self._held_from(batch), self._spread())
        if (foreseen := self._foresight.answer(question, self._basis(basis.head))) is not None:
            return foreseen
        namespace, alone = next(iter(batch.values())).namespace, len(groups) == 1
        within_s = _PATIENCE_ALONE_S if alone else _PATIENCE_S
        answered = await self._workers.ask_within(question, namespace, QueuePriority.FIRST, within_s)
        match answered.answer if answered else None:
            case PlacementAnswer(placements=placements):
                if answered is not None:
                    self._turns.answered(batch, answered.cpu_s)
                    if any(each.results for each in placements):
                        self._foresight.expect(question, answered.cpu_s)
                return placements
            case OverBudget() | OutOfMemory() | Failed() as cause if alone:
                why = refusal(cause, claims_of(question), self._workers.long_cpu_s)
            case _:
                why = f"No answer was found within {within_s:g} s."
        self._turns.unanswered(batch, alone=alone)
        return [GroupPlacement([], why)] if alone else None

    async def _look_ahead(self, basis: Basis) -> float:
        """Ask ahead where a claim like the last one would go. Returns in how many seconds to look again."""
        if self.writes.claims:
            return float("inf")  # the watch wakes us when they are delivered
        return await self._foresight.look(self._held_from({}), self._spread(), basis)

    def _held_from(self, batch: dict[str, WaitingGroup]) -> list[ResourceClaim]:
        """Claims as they count, whatever the cluster says: what is on its way, and what is not for groups such as these."""
        first = next(iter(batch.values()), None)
        nominated = self.preemptions.claims(self.preemptions.kept_from(first)) if first else []
        return [*self.writes.claims, *self._not_given_out(batch), *kept_claims(self._view), *nominated]

    def _spread(self) -> list[PoolKey]:
        return sorted(self._handover.spread)

    def _not_given_out(self, batch: Iterable[str]) -> list[ResourceClaim]:
        """What is published as Draco's and is not to be given out, or not to these groups, as claims that have it all."""
        kept = () if self._kept.uid in batch else self._kept.devices
        named = {_NOT_GIVEN_OUT: self._handover.not_owned(), _KEPT: kept}
        return [withheld(name, devices) for name, devices in named.items() if devices]

    async def _not_limited(self, batch: dict[str, WaitingGroup], basis: Basis) -> dict[str, WaitingGroup]:
        """Without the groups that a limit forbids to take anything, whichever devices those are. They hold nothing meanwhile."""
        limits = self._guard.begin(self.writes.claims)
        whys = {uid: limits.foreseen(each.group) for uid, each in batch.items()}
        for uid, why in whys.items():
            if why:
                self._remember_no_place(batch[uid], GroupPlacement([], why, is_hopeless=True), basis)
        self._overdue.limited(uid for uid, why in whys.items() if why)
        self._overdue.permitted(uid for uid, why in whys.items() if not why)
        refused = [batch[uid] for uid, why in whys.items() if why]
        await self._at_once(
            [self._returns.give_back(claim, cannot_start(each.group.name)) for each in refused for claim in each.loose]
        )
        return {uid: each for uid, each in batch.items() if not whys[uid]}

    async def _take_up(self, batch: dict[str, WaitingGroup], placements: list[GroupPlacement], basis: Basis) -> None:
        writes: list[Coroutine[Any, Any, None]] = []
        without: list[WaitingGroup] = []
        limits, is_vain = self._guard.begin(self.writes.claims), False
        for (uid, waiting), found in zip(batch.items(), placements, strict=True):
            if is_vain and not found.results:
                continue  # what a place before it was to take may be just what it lacked: it is asked about again without that
            if any(waiting.priority is None or waiting.priority <= (each.priority or 0) for each in without):
                is_vain = True
                continue  # asked about again once it is known what is kept for the other
            devices = frozenset(
                one.key for results in found.results for each in results for one in each.devices.results
            )
            may_be = self._handover.gives_out(devices) and all(map(self.writes.may_write, waiting.group.claims))
            if found.results and not may_be:
                is_vain = True
                continue  # handed back, deleted or refused meanwhile: this result is worth nothing
            placement = limits.within(waiting.group, found)
            is_vain |= placement.results != found.results
            self._overdue.limited([uid] if found.results and not placement.results else [])
            if placement.results and uid == basis.head:
                claims = frozenset(each.metadata.key for each in waiting.group.claims)
                self._kept = _Kept(uid, devices, claims)
            elif self._kept.uid == uid or placement.kept:
                self._kept = _Kept(uid, frozenset(placement.kept)) if placement.kept else _Kept()
            if placement.results:
                if (before := self._turns.found_place(waiting, basis)) is not None:
                    self._second_looks.found(waiting.called, devices, before, basis)
                for member, results in zip(waiting.group.members, placement.results, strict=True):
                    if results:
                        pairs = zip(member.claims, results, strict=True)
                        writes += [self.writes.write(claim, result) for claim, result in pairs]
                continue
            self._remember_no_place(waiting, placement, basis)
            if not self._turns.is_alone(uid):
                why = cannot_start(waiting.group.name)
                writes += [self._returns.give_back(each, why) for each in waiting.loose]
                if not placement.is_hopeless and self.preemptions.may_plan(waiting):
                    without.append(waiting)
        await self._at_once(writes)
        await self._preempt(without)

    async def _preempt(self, without: Sequence[WaitingGroup]) -> None:
        """Make room for the first group for which that can be done."""
        for waiting in without:
            permitted = partial(self._is_within_limits, waiting.group)
            if await self.preemptions.plan(waiting, self._held_from({waiting.uid: waiting}), permitted):
                return

    def _is_within_limits(self, group: ClaimGroup, results: list[list[AllocationResult]]) -> bool:
        return bool(self._guard.begin(self.writes.claims).within(group, GroupPlacement(results)).results)

    def _remember_no_place(self, waiting: WaitingGroup, placement: GroupPlacement, basis: Basis) -> None:
        if self._turns.found_none(waiting, placement, basis, self._looked_s):
            claims = [str(each.metadata.key) for each in waiting.group.claims]
            log.info("allocation.no_place", claims=claims, why=placement.why_not)
        if waiting.group.name:
            self._notes.tell(waiting, placement.why_not)

    async def _at_once(self, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            _start(tasks, writes)


def _start(tasks: asyncio.TaskGroup, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Make the writes, so many at once."""
    limit = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def one(write: Coroutine[Any, Any, None]) -> None:
        async with limit:
            await write

    for each in writes:
        tasks.create_task(one(each))
