"""Whether others are evicted for a pod that waits: what is known of that in a cluster that was read once.

Owns the finding. Who may be evicted at all is `placing.victims`'s, and what is said of it `explanation.preempting`'s.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.cli.explain.subjects import ExplainSubject
from draco.explanation.model import Cause, Explanation
from draco.explanation.preempting import PreemptionFacts, preemption_text
from draco.maintenance.draining.disruption import covering
from draco.mig_policy.matching import preempting_policies
from draco.placing.preempting.victims import Evictable, VictimInput, evictable
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.whatif.world import World

_NEVER: Final = "Never"
_HELD: Final = frozenset({Cause.IN_USE, Cause.COUNTERS_SHORT, Cause.CAPACITY_SHORT})
"""What may be in the way of a device that somebody else's leaving could take away."""


class PossibleVictims:
    """Who has devices that Draco allocated and could leave: found out once for all pods that are asked about."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def found(self) -> Evictable:
        """What may become free for a pod of whichever priority."""
        groups: dict[GangKey, list[Pod]] = defaultdict(list)
        for pod in self.world.pods.values():
            if (gang := gang_of(pod)) is not None:
                groups[gang].append(pod)

        def together(pod: Pod) -> list[Pod]:
            gang = gang_of(pod)
            return groups[gang] if gang is not None else [pod]

        fleet = self.world.fleet
        return evictable(
            VictimInput(
                now=datetime.now(UTC),
                claims=[
                    each
                    for each in fleet.claims.values()
                    if each.status.allocation is not None and is_for_operator(each, fleet.classes)
                ],
                permits=lambda _: True,
                pods_of=lambda key: self._users.get(key, []),
                together=together,
                budgets=self.world.budgets,
            )
        )

    @cached_property
    def leaving(self) -> set[ObjectKey]:
        """The pods that are on their way out."""
        return {user.metadata.key for key in self.found.leaving for user in self._users.get(key, ())}

    @cached_property
    def _users(self) -> Mapping[ObjectKey, Sequence[Pod]]:
        found: dict[ObjectKey, list[Pod]] = defaultdict(list)
        for pod in self.world.pods.values():
            for key in pod.claims:
                found[key].append(pod)
        return found


def with_preemption(victims: PossibleVictims, subject: ExplainSubject, explanation: Explanation) -> Explanation:
    """The explanation, with what becomes of preemption where Draco allocates and others have the devices."""
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
    return PreemptionFacts(
        priority=pod.spec.priority,
        is_permitted=bool(preempting_policies(world.policies)),
        never=pod.spec.preemption_policy == _NEVER,
        leaving=_texts(victims.leaving),
        lower=_texts(lower),
        guarded=_texts(guarded),
        budgets=_texts(budgets),
    )


def _texts(keys: Iterable[ObjectKey]) -> list[str]:
    return sorted(map(str, keys))
