"""Whether others are evicted for a pod that waits: what is known of that in a cluster that was read once.

Owns the finding. Who may be evicted at all is `placing.victims`'s, and what is said of it `explanation.preempting`'s.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.cli.explain.subjects import ExplainSubject
from draco.explanation.model import Cause, Explanation
from draco.explanation.preempting import PreemptionFacts, preemption_text
from draco.maintenance.draining.disruption import covering
from draco.mig_policy.preempting import preempting_policies
from draco.placing.victims import VictimInput, evictable
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.meta import ObjectKey
from draco.whatif.world import World

_NEVER: Final = "Never"
_HELD: Final = frozenset({Cause.IN_USE, Cause.COUNTERS_SHORT, Cause.CAPACITY_SHORT})
"""What may be in the way of a device that somebody else's leaving could take away."""


def with_preemption(world: World, subject: ExplainSubject, explanation: Explanation) -> Explanation:
    """The explanation, with what becomes of preemption where Draco allocates and others have the devices."""
    is_held = any(count.cause in _HELD for request in explanation.requests for count in request.causes)
    if subject.pod is None or explanation.fits or not explanation.by_draco or not is_held:
        return explanation
    return msgspec.structs.replace(explanation, preemption=preemption_text(_facts(world, subject.pod)))


def _facts(world: World, pod: Pod) -> PreemptionFacts:
    users = _users(world)
    free, guarded = (evictable(_seen(world, users, budgets)) for budgets in ([], world.budgets))
    leaving = {user.metadata.key for key in free.leaving for user in users.get(key, ())}
    lower = {key for each in free.victims if each.priority < pod.spec.priority for key in each.pods} - {
        pod.metadata.key
    }
    may_leave = {key for each in guarded.victims for key in each.pods}
    kept = [world.pods[key] for key in lower - may_leave]
    budgets = {budget.metadata.key for each in kept for budget in covering(each, world.budgets)}
    return PreemptionFacts(
        priority=pod.spec.priority,
        is_permitted=bool(preempting_policies(world.policies)),
        never=pod.spec.preemption_policy == _NEVER,
        leaving=_texts(leaving),
        lower=_texts(lower & may_leave),
        guarded=_texts(lower - may_leave),
        budgets=_texts(budgets),
    )


def _seen(
    world: World, users: Mapping[ObjectKey, Sequence[Pod]], budgets: Sequence[PodDisruptionBudget]
) -> VictimInput:
    groups: dict[GangKey, list[Pod]] = defaultdict(list)
    for pod in world.pods.values():
        if (gang := gang_of(pod)) is not None:
            groups[gang].append(pod)

    def together(pod: Pod) -> list[Pod]:
        gang = gang_of(pod)
        return groups[gang] if gang is not None else [pod]

    return VictimInput(
        now=datetime.now(UTC),
        claims=[
            each
            for each in world.fleet.claims.values()
            if each.status.allocation is not None and is_for_operator(each, world.fleet.classes)
        ],
        permits=lambda _: True,
        pods_of=lambda key: users.get(key, []),
        together=together,
        budgets=budgets,
    )


def _users(world: World) -> Mapping[ObjectKey, Sequence[Pod]]:
    found: dict[ObjectKey, list[Pod]] = defaultdict(list)
    for pod in world.pods.values():
        for key in pod.claims:
            found[key].append(pod)
    return found


def _texts(keys: Iterable[ObjectKey]) -> list[str]:
    return sorted(map(str, keys))
