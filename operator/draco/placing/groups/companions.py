"""Where claims of Draco's go whose pod has other claims, too, that kube-scheduler allocates: where there are devices for all.

Owns foreseeing these, which are the first that fit on the node, as `allocate` finds them, and keeping Draco's devices near them.
The node is chosen by what Draco allocates alone, as long as the others fit there. Evaluates what tenants write.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import would_get
from draco.placing.groups.group import allocated
from draco.placing.scoring.ranking import ALONE, RestOfGroup
from draco.placing.search.best import BestPlacement
from draco.placing.search.what_if import WhatIfPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node

_MAX_STEPS: Final = 50_000
"""Of `allocate`, for the others on one node."""


class PodPlacement(NamedTuple):
    """The place, if there is one, and what the others are to get there. `others_lack`: only for these there is nothing."""

    place: BestPlacement | None
    foreseen: Sequence[AllocationResult] = ()
    others_lack: bool = False


def best_together(
    fleet: Fleet,
    placer: WhatIfPlacer,
    claims: Sequence[ResourceClaim],
    nodes: Mapping[str, Node],
    *,
    beside: Sequence[ResourceClaim] = (),
    others: Sequence[ResourceClaim] = (),
    rest: RestOfGroup = ALONE,
) -> PodPlacement:
    """The best place on a node where kube-scheduler will find devices for the `others`, and near to those.

    Raises AllocationError, also where the others cannot be searched for and nothing fits.
    """
    found = placer.best(claims, nodes, beside=beside, rest=rest)
    if found is None or not others:
        return PodPlacement(found)
    left, failure = dict(nodes), None
    while found is not None:
        node = left.pop(found.node)
        try:
            foreseen = would_get(fleet, node, others, max_steps=_MAX_STEPS)
        except AllocationError as error:
            foreseen, failure = None, failure or error
        if foreseen is not None:
            known = [allocated(claim, result) for claim, result in zip(others, foreseen, strict=True)]
            near = placer.best(claims, {found.node: node}, beside=[*beside, *known])
            return PodPlacement(near or found, foreseen)
        found = placer.best(claims, left, beside=beside, rest=rest)
    if failure is not None:
        raise failure
    return PodPlacement(None, others_lack=True)
