"""Which devices the claims of one pod get on one node, decided as kube-scheduler decides it.

Owns the order of the steps: gather the node's pools, read the claims, search, write down. The answer equals that of Kubernetes'
structured allocator (the incubating variant, the default of 1.36 and 1.37): same verdict, devices, order and kind of error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from draco.allocation.errors import NodeError
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.pools import PoolView
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.attempt import Attempt
from draco.allocation.search.requests import expand, matcher
from draco.allocation.search.results import result
from draco.allocation.search.search import Search
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.classes import DeviceClass
from draco.resources.api.core import Node

MAX_STEPS: Final = 2_000_000
"""Devices that one search looks at before it gives up: a few seconds."""


def allocate(
    inventory: Inventory,
    state: AllocatedState,
    node: Node,
    claims: Sequence[ResourceClaim],
    classes: Mapping[str, DeviceClass],
    *,
    share_ids: Iterator[str],
    max_steps: int = MAX_STEPS,
    views: Sequence[PoolView] | None = None,
) -> list[AllocationResult] | None:
    """One result for each claim, all or none: None if they do not fit on the node.

    `share_ids` gives a fresh identifier (a UUID) for each share of a device. `views` stands for the node's pools in place of what
    is published, for whoever asks what would be if. Raises NodeError if they do not fit and a pool of
    the node is invalid, and any other AllocationError if no node can be looked for until something is put right.
    """
    if views is None:
        views = inventory.views(node)
    match = matcher(inventory.selectors, node)
    expanded = [expand(claim, classes, views, match) for claim in claims]
    candidates = [candidate for view in views for candidate in view.candidates]
    attempt = Attempt(expanded, state, Counters(views, state))
    search = Search(expanded, candidates, attempt, max_steps=max_steps)
    if not search.run():
        invalid = [view for view in views if view.invalid]
        if invalid:
            reasons = "; ".join(f"{view.key}: {view.invalid}" for view in invalid)
            raise NodeError(f"invalid resource pools were encountered: {reasons}")
        return None
    chosen = search.chosen()
    return [
        result(
            claim,
            [alternatives[chosen[index, number]] for number, alternatives in enumerate(claim.requests)],
            attempt.trials[index],
            node,
            share_ids,
        )
        for index, claim in enumerate(expanded)
    ]
