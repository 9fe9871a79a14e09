"""Whether Draco evicts other pods for a waiting pod. `placing.preempting.victims` decides who may be evicted at all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.cli.explain.subjects import ExplainSubject
from draco.explanation.model import Cause, Explanation
from draco.maintenance.draining.disruption import covering
from draco.mig_policy.matching import preempting_policies
from draco.placing.preempting.victims import IMMUNE, Evictable, VictimInput, evictable, reserved_at
from draco.reservations.claims import reservation_key
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.texts import agreeing, are, counted, listed, them
from draco.whatif.world import World

_NOBODY: Final = "Draco evicts nobody for the pod"
_NEVER: Final = "Never"
_HELD: Final = frozenset({Cause.IN_USE, Cause.COUNTERS_SHORT, Cause.CAPACITY_SHORT})
"""Causes that another pod's leaving could remove."""


class ReservedUse(NamedTuple):
    """The priority at which a DeviceReservation keeps devices, its name, and the pods that use them."""

    priority: int
    reservation: str
    pods: Sequence[Pod]


class PreemptionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a waiting pod, and about pods with devices that Draco allocated.

    `leaving`: pods that are being deleted. `lower`: evictable pods of a lower priority. `guarded`: pods that only the
    PodDisruptionBudgets `budgets` protect. `kept`: pods of a lower priority that the DeviceReservations `reservations` protect,
    because their own priority, named there too, is not lower.
    """

    priority: int
    is_permitted: bool
    """Whether any MigPolicy permits preemption."""
    never: bool = False
    """Whether the pod's own preemptionPolicy is Never."""
    leaving: Sequence[str] = ()
    lower: Sequence[str] = ()
    guarded: Sequence[str] = ()
    budgets: Sequence[str] = ()
    kept: Sequence[str] = ()
    reservations: Sequence[str] = ()


class PossibleVictims:
    """Who has devices that Draco allocated and could leave; computed once for all explained pods."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def found(self) -> Evictable:
        """What may become free, for a pod of any priority."""
        groups: dict[GangKey, list[Pod]] = defaultdict(list)
        for pod in self.world.pods.values():
            if (gang := gang_of(pod)) is not None:
                groups[gang].append(pod)

        def together(pod: Pod) -> list[Pod]:
            gang = gang_of(pod)
            return groups[gang] if gang is not None else [pod]

        return evictable(
            VictimInput(
                now=datetime.now(UTC),
                claims=self._claims,
                permits=lambda _: True,
                pods_of=lambda key: self._users.get(key, []),
                together=together,
                reserved_at=self._reserved_at,
                budgets=self.world.budgets,
            )
        )

    @cached_property
    def reserved(self) -> list[ReservedUse]:
        """The users of devices that a reservation keeps."""
        return [
            ReservedUse(
                at,
                str(self._keeper(claim)),
                [pod for pod in self._users.get(claim.metadata.key, ()) if not pod.is_over],
            )
            for claim in self._claims
            if claim.status.reserved_for and (at := self._reserved_at(claim)) is not None
        ]

    @cached_property
    def _claims(self) -> list[ResourceClaim]:
        """The claims that Draco has allocated."""
        fleet = self.world.fleet
        return [
            each
            for each in fleet.claims.values()
            if each.status.allocation is not None and is_for_operator(each, fleet.classes)
        ]

    @cached_property
    def _reservations(self) -> Mapping[ObjectKey, DeviceReservation]:
        return {each.metadata.key: each for each in self.world.reservations}

    @cached_property
    def _taken(self) -> Mapping[str, Sequence[DeviceReservation]]:
        found: dict[str, list[DeviceReservation]] = defaultdict(list)
        for each in self.world.reservations:
            for one in each.status.takeovers:
                found[one.uid].append(each)
        return found

    def _reserved_at(self, claim: ResourceClaim) -> int | None:
        key = reservation_key(claim)
        own = self._reservations.get(key) if key is not None else None
        return reserved_at(claim, own, self._taken.get(claim.metadata.uid, ()))

    def _keeper(self, claim: ResourceClaim) -> ObjectKey:
        return reservation_key(claim) or self._taken[claim.metadata.uid][0].metadata.key

    @cached_property
    def leaving(self) -> set[ObjectKey]:
        """Pods that are being deleted."""
        return {user.metadata.key for key in self.found.leaving for user in self._users.get(key, ())}

    @cached_property
    def _users(self) -> Mapping[ObjectKey, Sequence[Pod]]:
        found: dict[ObjectKey, list[Pod]] = defaultdict(list)
        for pod in self.world.pods.values():
            for key in pod.claims:
                found[key].append(pod)
        return found


def with_preemption(victims: PossibleVictims, subject: ExplainSubject, explanation: Explanation) -> Explanation:
    """The explanation with the state of preemption, if Draco allocates and other pods have the devices."""
    is_held = any(count.cause in _HELD for request in explanation.requests for count in request.causes)
    if subject.pod is None or explanation.fits or not explanation.by_draco or not is_held:
        return explanation
    return msgspec.structs.replace(explanation, preemption=preemption_text(_facts(victims, subject.pod)))


def _facts(victims: PossibleVictims, pod: Pod) -> PreemptionFacts:
    world, found = victims.world, victims.found
    lower, guarded = (
        {key for each in kind if each.priority < pod.spec.priority for key in each.pods if key != pod.metadata.key}
        for kind in (found.victims, found.guarded)
    )
    budgets = {budget.metadata.key for key in guarded for budget in covering(world.pods[key], world.budgets)}
    kept = [
        (f"{each.reservation} (priority {each.priority})" if each.priority != IMMUNE else each.reservation, user)
        for each in victims.reserved
        for user in each.pods
        if user.spec.priority < pod.spec.priority <= each.priority and user.metadata.key != pod.metadata.key
    ]
    return PreemptionFacts(
        priority=pod.spec.priority,
        is_permitted=bool(preempting_policies(world.policies)),
        never=pod.spec.preemption_policy == _NEVER,
        leaving=_texts(victims.leaving),
        lower=_texts(lower),
        guarded=_texts(guarded),
        budgets=_texts(budgets),
        kept=_texts(user.metadata.key for _, user in kept),
        reservations=sorted({reservation for reservation, _ in kept}),
    )


def _texts(keys: Iterable[ObjectKey]) -> list[str]:
    return sorted(set(map(str, keys)))


def preemption_text(facts: PreemptionFacts) -> str:
    """The state of preemption; "" if it is off and turning it on would evict nobody."""
    if not facts.is_permitted:
        return "" if facts.never else _off(len(facts.lower))
    if facts.leaving:
        return _waiting(facts)
    if facts.never:
        return f"{_NOBODY}: its preemptionPolicy is Never"
    spared = "; ".join(filter(None, (_guarded(facts), _kept(facts))))
    if facts.lower:
        lower = f"Draco may evict pods of a priority below {facts.priority}: {listed(facts.lower)}"
        return f"{lower}, where their MigPolicy permits it{f'; {spared}' if spared else ''}"
    return f"{_NOBODY}: {spared or f'none that could leave has a priority below {facts.priority}'}"


def _off(lower: int) -> str:
    if not lower:
        return ""
    has = agreeing(lower, "has", "have")
    return f"{_NOBODY}: {counted(lower, 'pod')} of lower priority {has} devices, but no MigPolicy permits it"


def _waiting(facts: PreemptionFacts) -> str:
    leaving = len(facts.leaving)
    pods = f"{agreeing(leaving, 'pod', 'pods')} {listed(facts.leaving)}"
    said = f"{pods} {are(leaving)} being deleted: Draco waits for {them(leaving)}"
    suffice = agreeing(leaving, "that does", "these do")
    return said if facts.never else f"{said}, and evicts others only if {suffice} not suffice"


def _guarded(facts: PreemptionFacts) -> str:
    if not facts.guarded:
        return ""
    budgets = len(facts.budgets)
    budget = f"{agreeing(budgets, 'PodDisruptionBudget', 'PodDisruptionBudgets')} {listed(facts.budgets)}"
    return f"{budget} {agreeing(budgets, 'allows', 'allow')} no eviction of {listed(facts.guarded)}"


def _kept(facts: PreemptionFacts) -> str:
    if not facts.kept:
        return ""
    count = len(facts.reservations)
    keepers = f"{agreeing(count, 'DeviceReservation', 'DeviceReservations')} {listed(facts.reservations)}"
    use = agreeing(len(facts.kept), "uses", "use")
    return f"{keepers} {agreeing(count, 'keeps', 'keep')} what {listed(facts.kept)} {use}"
