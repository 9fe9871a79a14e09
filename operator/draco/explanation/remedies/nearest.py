"""Finds the nearest misses: single changes that would let the claims of a pod fit, each confirmed by the allocator."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from draco.allocation.errors import SearchTooLong
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import select
from draco.explanation.model import ChangeKind, NearestMiss
from draco.explanation.remedies.changes import SuggestedChange
from draco.explanation.remedies.claim_changes import (
    dropped_constraints,
    guarded_selectors,
    lowered_capacities,
    lowered_counts,
    other_classes,
    relaxed_selectors,
)
from draco.explanation.remedies.supply_changes import freed_claims, lifted_taints, opened_nodes, repaired_pools
from draco.explanation.remedies.trials import Trials
from draco.explanation.selection import count
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod

MAX_CHANGES: Final = 5
_OF_ONE_KIND: Final = 2
_FEW: Final = 16
"""Up to this number of nodes, all are tried; in larger clusters only likely ones."""
_STEPS: Final = 100_000
"""Most devices that a search looks at to find out whether the claims fit unchanged."""
_SIZES: Final = list(ChangeKind)
_Kind = Callable[[Trials], Iterator[SuggestedChange]]
_REPAIRS: Final[tuple[_Kind, ...]] = (other_classes, guarded_selectors)
"""Repairs that must come before anything else can help."""
_CHANGES: Final[tuple[_Kind, ...]] = (
    lifted_taints,
    opened_nodes,
    repaired_pools,
    freed_claims,
    lowered_counts,
    lowered_capacities,
    relaxed_selectors,
    dropped_constraints,
)


def nearest_misses(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None = None) -> list[NearestMiss]:
    """The smallest single changes with which the unallocated claims would fit together on a node that `pod` may use.

    Empty if no known single change helps, and usually if the claims fit already.
    """
    return [change.miss for change in nearest_changes(fleet, claims, pod)]


def nearest_changes(fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None = None) -> list[SuggestedChange]:
    """The same, with the changes themselves."""
    trials = Trials(fleet, claims, pod)
    if not trials.claims or _may_fit(trials):
        return []
    kinds = _REPAIRS if _is_broken(trials) else _CHANGES
    found = [change for kind in kinds for change in islice(kind(trials), _OF_ONE_KIND)]
    return sorted(found, key=lambda change: _SIZES.index(change.miss.kind))[:MAX_CHANGES]


def _is_broken(trials: Trials) -> bool:
    """Whether a class is missing, or a selector fails on an available device or does not compile."""
    requests = [request for claim in trials.claims for request in claim.spec.devices.requests]
    if len(trials.requests) < sum(max(1, len(request.first_available)) for request in requests):
        return True
    steps = [step for request in trials.requests for step in request.selection.steps]
    return any(step.error is not None or count(select([step.failed, trials.unheld])) for step in steps)


def _may_fit(trials: Trials) -> bool:
    """Whether the claims fit unchanged on a likely node, or finding out takes too long."""
    nodes = trials.likely_nodes()
    if len(trials.fleet.nodes) <= _FEW:
        nodes = [node for node in trials.fleet.nodes.values() if trials.may_go(node)]
    try:
        return any(trials.found(node, max_steps=_STEPS) is not None for node in nodes)
    except SearchTooLong:
        return True
