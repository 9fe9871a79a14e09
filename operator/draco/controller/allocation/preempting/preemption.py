"""Makes room for groups of higher priority, where the GPUs' MigPolicy permits it: nominates devices, chooses victims.

A group without a place is nominated for devices that others hold: their pods are evicted by the Eviction API, unused reserved
devices are taken back, and no group of the same or lower priority gets these devices until the nominee has them. Owns the
nominations, which are in memory only: a new process sees the pods that are already leaving, and evicts no others if these
suffice. `placing` decides who may be a victim and picks the victims; `evicting` evicts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import structlog

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.view import BY_TAKER, ClusterView
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import PlanPreemption, PreemptionAnswer
from draco.controller.workers.pool import Workers
from draco.kube.connect.retry import doubling_s
from draco.kube.listeners import Listeners
from draco.placing.groups.group import placeholder
from draco.placing.preempting.victim_selection import PreemptionInput, PreemptionPlan
from draco.placing.preempting.victims import Evictable, Victim, VictimInput, evictable, reserved_at
from draco.reservations.claims import reservation_key
from draco.resources.api.claims import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.meta import ObjectKey

log = structlog.get_logger(__name__)

_NOMINATED = "draco-nominated"
_PATIENCE_S = 5.0
_FIRST_S, _LONGEST_S = 5.0, 60.0
"""Backoff before planning again for a group after no pod could leave for it, or an eviction was refused."""
_AGAIN_S = 1.0
"""How soon to plan again while pods are evicted for another group."""
_LEAVING_S = 5.0
"""How soon to plan again for a group that only waits for pods that are leaving anyway."""
_ACCEPTED_S = 30.0
"""How long an evicted pod may take to show as terminating."""


class Nomination(msgspec.Struct):
    """A group and the devices kept for it. `asked` are pods still to be evicted; `going` are evicted pods, by UID, with the time.

    `unused` are reservation claims to take back yet. `counted` is the priority at which each pod or claim leaves, by UID: a
    group's or a reservation's. `others` are pods of a lower priority that also hold devices: the victims must go only if these
    stay.
    """

    waiting: WaitingGroup
    priority: int
    results: list[DeviceRequestAllocationResult]
    asked: list[Pod] = []
    unused: list[ResourceClaim] = []
    counted: Mapping[str, int] = {}
    others: dict[str, ObjectKey] = {}
    going: dict[str, tuple[ObjectKey, float]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether pods are still to be evicted or devices to be taken back."""
        return bool(self.asked or self.unused)

    @property
    def claim(self) -> ResourceClaim:
        """The kept devices as a claim that holds them."""
        return placeholder(f"{_NOMINATED}-{self.waiting.uid}", self.results)


class Preemptions:
    """Nominations by group. A group whose evictions fail is retried with backoff."""

    def __init__(self, view: ClusterView, handover: HandoverReconciler, workers: Workers, gangs: Gangs) -> None:
        self._view = view
        self._handover = handover
        self._workers = workers
        self._gangs = gangs
        self._nominations: dict[str, Nomination] = {}
        self._next_s: dict[str, float] = {}
        self._timed: set[str] = set()  # planned for again even if nothing changes
        self._tries: dict[str, int] = {}
        self._spared_until_s: dict[str, float] = {}  # by the UID of a pod whose eviction was refused
        self.listeners = Listeners[[str]]()
        """Called with a group's UID when its kept devices change or its pods can be evicted."""
        self.version = 0
        """Grows with every change of the nominations."""

    def of(self, uid: str) -> Nomination | None:
        """The group's nomination, or None."""
        return self._nominations.get(uid)

    def of_claims(self, is_among: Callable[[ObjectKey], bool]) -> set[str]:
        """Nominated groups that have one of these claims."""
        return {
            uid
            for uid, each in self._nominations.items()
            if any(is_among(claim.metadata.key) for claim in each.waiting.group.claims)
        }

    @property
    def pending(self) -> set[str]:
        """Groups with pods still to be evicted or devices to be taken back."""
        return {uid for uid, each in self._nominations.items() if each.is_pending}

    def kept_from(self, waiting: WaitingGroup) -> frozenset[str]:
        """Groups whose kept devices this group must not get: all but those of a lower priority than its pods."""
        return frozenset(
            uid
            for uid, each in self._nominations.items()
            if uid != waiting.uid and (waiting.priority is None or waiting.priority <= each.priority)
        )

    def claims(self, uids: Collection[str]) -> list[ResourceClaim]:
        """The kept devices of these groups, as claims that hold them."""
        return [each.claim for uid, each in self._nominations.items() if uid in uids]

    def forget_others(self, uids: Collection[str]) -> None:
        """Forget groups that no longer wait."""
        for uid in self._nominations.keys() - set(uids):
            self.drop(uid)
        self._next_s = {uid: each for uid, each in self._next_s.items() if uid in uids}
        self._timed &= set(uids)
        self._tries = {uid: each for uid, each in self._tries.items() if uid in uids}
        now_s = self._view.clock.monotonic()
        self._spared_until_s = {uid: until_s for uid, until_s in self._spared_until_s.items() if until_s > now_s}

    def drop(self, uid: str) -> None:
        """End the group's nomination."""
        if self._nominations.pop(uid, None) is not None:
            self._changed(uid)

    @property
    def permitted(self) -> bool:
        """Whether any policy permits evictions."""
        return bool(self._handover.preemptible)

    def due_s(self, waiting: WaitingGroup) -> float:
        """Seconds until the group is due without a change. Infinite if nobody can leave for it: asking would delay all others."""
        is_due = waiting.uid in self._timed and self.is_entitled(waiting)
        return max(0.0, self._rest_s(waiting.uid)) if is_due else float("inf")

    def is_entitled(self, waiting: WaitingGroup) -> bool:
        """Whether pods may be evicted for the group."""
        # If its pods were refused on the nodes they got, they do not lack devices.
        is_refused = any(member.without for member in waiting.group.members)
        return self.permitted and waiting.may_preempt and not is_refused

    def _rest_s(self, uid: str) -> float:
        now_s, nomination = self._view.clock.monotonic(), self._nominations.get(uid)
        return max(self._next_s.get(uid, now_s) - now_s, self._leaving_s(nomination) if nomination else 0.0)

    async def plan(
        self,
        waiting: WaitingGroup,
        held: Sequence[ResourceClaim],
        permitted: Callable[[list[list[AllocationResult]]], bool],
    ) -> bool:
        """Find victims for a group without a place, unless it was planned for just now. Return whether it is nominated now.

        `held` are claims to count in addition to the cluster's; `permitted` tells whether limits allow the place.
        """
        uid, priority = waiting.uid, waiting.priority
        if self._rest_s(uid) > 0.0:
            self._timed.add(uid)  # the change that woke this round may let pods leave: look when the pause ends
            return False
        if priority is None or self.pending - {uid}:
            self._wait(uid, _AGAIN_S)
            return False
        seen = evictable(self._seen())
        below = [each for each in seen.victims if each.priority < priority]
        lower = {key for each in below for key in each.pods}
        if not below and not seen.leaving_for(priority):
            self._next_s[uid] = self._view.clock.monotonic() + _AGAIN_S
            self._timed.discard(uid)
            self.drop(uid)
            return False
        holding = {pod.metadata.uid: key for key in lower if (pod := self._view.pods.store.get(key)) is not None}
        found = self._evictable(waiting, priority, holding)
        leaving = found.leaving_for(priority)
        plan = await self._planned(waiting, priority, found, held) if leaving or found.victims else None
        if plan is None or not permitted(plan.results):
            self.postpone(uid)
            self.drop(uid)
            return False
        self._nominate(waiting, priority, plan, [found.victims[number] for number in plan.victims], holding)
        return True

    def postpone(self, uid: str) -> None:
        """Plan for the group later, since nobody can leave for it now."""
        tries = self._tries[uid] = self._tries.get(uid, 0) + 1
        self._wait(uid, doubling_s(_FIRST_S, tries - 1, _LONGEST_S))

    def reconsider(self, uid: str) -> None:
        """Plan for the group again because other pods leave than expected. Its kept devices stay."""
        nomination = self._nominations.get(uid)
        if nomination is not None:
            nomination.asked, nomination.unused = [], []
            self._wait(uid, _AGAIN_S)
            self.listeners.tell(uid)

    def spare(self, pods: Iterable[Pod]) -> None:
        """Do not choose these pods for a while: their eviction was refused."""
        until_s = self._view.clock.monotonic() + _LONGEST_S
        self._spared_until_s.update((each.metadata.uid, until_s) for each in pods)

    def evicted(self, uid: str, going: Iterable[Pod], *, has_taken: bool = False) -> None:
        """Record that `going` terminate for the group. If it `has_taken` back reserved devices, they are kept in any case."""
        nomination = self._nominations.get(uid)
        if nomination is None:
            return
        now_s = self._view.clock.monotonic()
        nomination.asked, nomination.unused = [], []
        nomination.going |= {each.metadata.uid: (each.metadata.key, now_s) for each in going}
        if not nomination.going and not has_taken:
            self.drop(uid)

    def _nominate(
        self,
        waiting: WaitingGroup,
        priority: int,
        plan: PreemptionPlan,
        victims: Sequence[Victim],
        holding: Mapping[str, ObjectKey],
    ) -> None:
        uid, before = waiting.uid, self._nominations.get(waiting.uid)
        results = [
            one
            for member in plan.results
            for result in member
            for one in result.devices.results
            if not one.admin_access
        ]
        pods = list(filter(None, (self._view.pods.store.get(key) for each in victims for key in each.pods)))
        unused = [each for each in victims if not each.pods]
        taken = list(filter(None, (self._view.claims.store.get(key) for each in unused for key in each.claims)))
        by_key = {key: each.priority for each in victims for key in (each.pods or each.claims)}
        counted = {
            meta.uid: by_key[meta.key] for meta in (*(pod.metadata for pod in pods), *(one.metadata for one in taken))
        }
        others = {uid: key for uid, key in holding.items() if uid not in {each.metadata.uid for each in pods}}
        going = dict(before.going) if before else {}
        nomination = Nomination(waiting, priority, results, pods, taken, counted, others, going)
        self._nominations[uid] = nomination
        self._wait(uid, _LEAVING_S)
        had = (before.priority, [each.key for each in before.results]) if before is not None else None
        if had != (priority, [each.key for each in results]):
            devices = [f"{each.pool}/{each.device}" for each in results]
            evict = [str(each.metadata.key) for each in nomination.asked]
            take = [str(each.metadata.key) for each in nomination.unused]
            log.info(
                "preemption.nominated", group=waiting.called, priority=priority, devices=devices, evict=evict, take=take
            )
            self._changed(uid)
        elif nomination.is_pending:
            self.listeners.tell(uid)

    async def _planned(
        self, waiting: WaitingGroup, priority: int, found: Evictable, held: Sequence[ResourceClaim]
    ) -> PreemptionPlan | None:
        names = {key.namespace for each in found.victims for key in each.pods}
        allowed = [(each.metadata.key, each.status.disruptions_allowed) for each in self._view.budgets_in(names)]
        group = msgspec.structs.replace(waiting.group, is_overdue=False)
        wanted = PreemptionInput(group, priority, found.leaving_for(priority), found.victims, allowed)
        question = PlanPreemption(wanted, [*held], sorted(self._handover.spread))
        answered = await self._workers.ask_within(question, waiting.namespace, QueuePriority.FIRST, _PATIENCE_S)
        match answered.answer if answered else None:
            case PreemptionAnswer(plan=plan):
                return plan
            case cause:
                log.info("preemption.not_found", group=waiting.called, why=type(cause).__name__)
                return None

    def _evictable(self, waiting: WaitingGroup, priority: int, holding: Mapping[str, ObjectKey]) -> Evictable:
        """What may become free for the group. No pods while budgets are unknown: an eviction could be refused after others."""
        now_s, unknown = self._view.clock.monotonic(), self._view.disruption_budgets.forbidden
        spared = {uid for uid in holding if unknown or self._spared_until_s.get(uid, now_s) > now_s}
        budgets = self._view.budgets_in({key.namespace for key in holding.values()})
        found = evictable(self._seen(budgets, spared))
        own = {each.metadata.key for each in waiting.group.placed}
        own |= {each.metadata.key for member in waiting.group.members for each in member.beside}
        victims = [each for each in found.victims if each.priority < priority and not own.intersection(each.claims)]
        return msgspec.structs.replace(found, victims=victims, guarded=[])

    def _seen(self, budgets: Sequence[PodDisruptionBudget] = (), spared: Collection[str] = ()) -> VictimInput:
        classes, preemptible = self._view.classes_by_name, self._handover.preemptible
        gangs: dict[GangKey, list[Pod]] = {}

        def together(pod: Pod) -> list[Pod]:
            gang = gang_of(pod)
            if gang is None:
                return [pod]
            if gang not in gangs:
                gangs[gang] = self._gangs.pods(gang) if self._gangs.terms(gang) is not None else []
            return gangs[gang] or [pod]

        def priority_of(pod: Pod) -> int:
            gang = gang_of(pod)
            return (
                self._gangs.priority(gang)
                if gang is not None and pod in together(pod) and gangs[gang]
                else pod.spec.priority
            )

        return VictimInput(
            now=self._view.clock.now(),
            claims=[
                each
                for each in self._view.claims.store.values()
                if each.status.allocation is not None and is_for_operator(each, classes)
            ],
            permits=lambda claim: all(GpuPlace.of(each) in preemptible for each in claim.devices_held),
            pods_of=self._view.pods_of,
            together=together,
            priority_of=priority_of,
            reserved_at=self._reserved_at,
            budgets=budgets,
            spared=spared,
        )

    def _reserved_at(self, claim: ResourceClaim) -> int | None:
        """The priority of the claim's reservation; None without one, and the highest of all if it is not known yet."""
        key, reservations = reservation_key(claim), self._view.reservations.store
        own = reservations.get(key) if key is not None else None
        return reserved_at(claim, own, reservations.by_index(BY_TAKER, claim.metadata.uid))

    def _leaving_s(self, nomination: Nomination) -> float:
        """How long to wait for evicted pods, or for those still to be evicted."""
        if nomination.is_pending:
            return 1.0
        now_s, rest_s = self._view.clock.monotonic(), 0.0
        for uid, (key, at_s) in nomination.going.items():
            pod = self._view.pods.store.get(key)
            if pod is None or pod.metadata.uid != uid:
                continue
            deleted = pod.metadata.deletion_timestamp
            # The deletion timestamp includes the grace period.
            left_s = at_s - now_s if deleted is None else (deleted - self._view.clock.now()).total_seconds()
            rest_s = max(rest_s, left_s + _ACCEPTED_S)
        return rest_s

    def _wait(self, uid: str, seconds: float) -> None:
        self._next_s[uid] = self._view.clock.monotonic() + seconds
        self._timed.add(uid)

    def _changed(self, uid: str) -> None:
        self.version += 1
        self.listeners.tell(uid)
