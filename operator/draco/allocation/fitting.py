"""Which node is the first where claims fit.

Owns the order of nodes and what an error on one of them means for the others. Asks `allocate` about each; decides nothing of
devices.
"""

from collections.abc import Iterable, Iterator, Sequence

from draco.allocation.allocate import MAX_STEPS, allocate
from draco.allocation.errors import NodeError
from draco.allocation.fleet import Fleet
from draco.resources.claims import AllocationResult, ResourceClaim
from draco.resources.core import Node


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
    then gives up on the pod. Raises AllocationError.
    """
    if nodes is None:
        nodes = [fleet.nodes[name] for name in fleet.node_names]
    for node in nodes:
        try:
            results = allocate(
                fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=share_ids, max_steps=max_steps
            )
        except NodeError:
            continue
        if results is not None:
            return node, results
    return None
