"""Which devices the claims of one pod get on one node, as kube-scheduler decides it, and which node is the first where they fit.

Owns the order of the steps: gather the node's pools, read the claims, search, write down; the order of nodes, and what an error
on one of them means for the others. The answer for a node equals that of Kubernetes' structured allocator (the incubating
variant, the default of 1.36 and 1.37): same verdict, devices, order and kind of error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from draco.allocation.errors import NodeError
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.pools import PoolView
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.attempt import Attempt
from draco.allocation.search.candidates import candidates
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


def first_fitting(
    fleet: Fleet,
    claims: Sequence[ResourceClaim],
    nodes: Iterable[Node] | None = None,
    *,
    share_ids: Iterator[str],
    max_steps: int = MAX_STEPS,
) -> tuple[Node, list[AllocationResult]] | None:
    """The first of the nodes (all, by name, unless given) on which the claims fit together, with a result for each claim.

    An error of one node only rules that node out. Any other one that is met before a node fits is raised, as kube-scheduler
    then gives up on the pod. Raises AllocationError; SearchTooLong only of a node that has enough devices to choose from.
    """
    for node in _to_ask(fleet, claims, nodes):
        try:
            results = allocate(
                fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=share_ids, max_steps=max_steps
            )
        except NodeError:
            continue
        if results is not None:
            return node, results
    return None


def _to_ask(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Iterable[Node] | None) -> Iterable[Node]:
    """The nodes in their order, less those that are out at first sight."""
    given = None if nodes is None else list(nodes)
    if not (fleet.nodes if given is None else given):
        return ()
    worth = candidates(fleet, claims)
    if given is None:
        names = fleet.node_names if worth is None else worth.among(fleet.node_names)
        return (fleet.nodes[name] for name in names)
    return given if worth is None else (node for node in given if node.metadata.name in worth)
