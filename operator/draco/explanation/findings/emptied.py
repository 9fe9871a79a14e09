"""What stays in the way when everybody else has left: what others hold hides a cause that no waiting mends.

Owns the small cluster of the nodes that have what is selected, with nothing in use, for whoever explains it. Where there are too
many of them, nothing is said.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import SHARED
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.allocate import would_get
from draco.explanation.selection import alternatives, selection
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice

MAX_NODES: Final = 200
"""Nodes that are asked about; an answer about some of more would be a guess."""
_MAX_ROWS: Final = MAX_NODES * 128
_MAX_STEPS: Final = 10_000
_ASKED: Final = 4
"""Nodes that are asked about one by one before: mostly the claims fit on the first, and there is nothing to explain."""


def emptied(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> Fleet | None:
    """The nodes that have what claims select, with nothing in use.

    None where the claims would fit on one of those that have most of it, and where there are too many nodes.
    """
    worth = _worth(fleet, claims, nodes)
    if not worth or len(worth) > MAX_NODES or not any(True for _ in fleet.state.devices()):
        return None
    names = [name for name, _ in worth.most_common()]
    if any(_fits(fleet, claims, nodes[name]) for name in names[:_ASKED]):
        return None
    return _only(fleet, names)


def _worth(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> "Counter[str]":
    """The nodes that have devices which are selected, with how many."""
    found: Counter[str] = Counter()
    for claim in claims:
        for request in claim.spec.devices.requests:
            for _, asked in alternatives(request):
                device_class = fleet.classes.get(asked.device_class_name)
                if device_class is None:
                    return Counter()
                marks = selection(fleet, claim, device_class, asked).end
                found.update(islice(fleet.inventory.nodes.of(marks), _MAX_ROWS))
    if SHARED in found:
        return Counter({name: found[name] for name in nodes})
    return Counter({name: number for name, number in found.items() if name in nodes})


def _fits(fleet: Fleet, claims: Sequence[ResourceClaim], node: Node) -> bool:
    """An error of the allocator is no cause that stays: it is told as it is."""
    try:
        return would_get(fleet, node, claims, max_steps=_MAX_STEPS, state=AllocatedState()) is not None
    except AllocationError:
        return True


def _only(fleet: Fleet, names: Sequence[str]) -> Fleet:
    """These nodes and what is published for them."""
    nodes = [fleet.nodes[name] for name in names]
    pools = {view.key for node in nodes for view in fleet.inventory.views(node)}
    entries = [entry for key in sorted(pools) if (pool := fleet.inventory.pool(key)) for entry in pool.entries]
    return Fleet.of(
        slices=[ResourceSlice(metadata=ObjectMeta(name=entry.name), spec=entry.spec) for entry in entries],
        rules=fleet.inventory.rules,
        nodes=nodes,
        classes=fleet.classes.values(),
    )
