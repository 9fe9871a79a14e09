"""Searches places for groups of claims: group after group, each on the first node by name that its pod may run on.

The fleet is left as it was found: what was placed counts for the groups that come after, and is the asker's to write and to say
again. Evaluates what tenants write, so it belongs into a worker.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from uuid import uuid4

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import as_allocated, as_searched
from draco.allocation.search.allocate import first_fitting
from draco.explanation.findings.allocated import reaching
from draco.explanation.findings.placement import nodes_for
from draco.placing.groups import ClaimGroup, GroupPlacement, allocated
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError


def place(fleet: Fleet, groups: Sequence[ClaimGroup], held: Sequence[ResourceClaim]) -> list[GroupPlacement]:
    """A placement for each group, as if those before it were allocated already."""
    share_ids = (str(uuid4()) for _ in count())
    placements = []
    with _as_if(fleet, held) as put:
        for group in groups:
            placement = _placed(fleet, group, share_ids)
            for claim, result in zip(group.claims, placement.results, strict=False):
                put(allocated(claim, result))
            placements.append(placement)
    return placements


def _placed(fleet: Fleet, group: ClaimGroup, share_ids: Iterator[str]) -> GroupPlacement:
    try:
        nodes = _nodes(fleet, group)
        found = first_fitting(fleet, [as_searched(each) for each in group.claims], nodes, share_ids=share_ids)
    except DracoError as error:
        return GroupPlacement([], str(error))
    if found is None:
        return GroupPlacement([], f"No device that Draco allocates is free for it on any of {len(nodes)} nodes.")
    return GroupPlacement([as_allocated(each) for each in found[1]])


def _nodes(fleet: Fleet, group: ClaimGroup) -> list[Node]:
    """The nodes that may be taken, by name."""
    nodes: Mapping[str, Node] = nodes_for(fleet, group.pod).open
    if group.beside:
        nodes = reaching(group.beside, nodes)
    return [nodes[name] for name in sorted(nodes.keys() - set(group.without))]


@contextmanager
def _as_if(fleet: Fleet, claims: Sequence[ResourceClaim]) -> Iterator[Callable[[ResourceClaim], None]]:
    """Have claims count as given, and afterwards as before."""
    before: dict[ObjectKey, ResourceClaim | None] = {}

    def put(claim: ResourceClaim) -> None:
        before.setdefault(claim.metadata.key, fleet.claims.get(claim.metadata.key))
        fleet.put_claim(claim)

    try:
        for claim in claims:
            put(claim)
        yield put
    finally:
        for key, known in before.items():
            if known is None:
                fleet.remove_claim(key)
            else:
                fleet.put_claim(known)
