"""Which node is the first where claims fit.

Owns the order of nodes and what an error on one of them means for the others. Asks `allocate` about each node that may be it;
decides nothing of devices.
"""

from collections.abc import Iterable, Iterator, Sequence

from draco.allocation.errors import NodeError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import MAX_STEPS, allocate
from draco.allocation.search.candidates import candidates
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node


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
