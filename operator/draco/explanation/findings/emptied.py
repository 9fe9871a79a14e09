"""Finds causes that would remain if nothing were in use: devices in use can hide a cause that waiting does not cure.

Owns a small fleet of the nodes with selected devices, with nothing in use, for the caller to explain. None if there are too many.
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
from draco.explanation.selection import selection
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice

MAX_NODES: Final = 200
"""Most nodes; an answer about only some of more nodes would be a guess."""
_MAX_ROWS: Final = MAX_NODES * 128
_MAX_STEPS: Final = 10_000
_ASKED: Final = 4
"""Nodes that are tried one by one first: mostly the claims fit on one, and there is nothing to explain."""


def emptied(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> Fleet | None:
    """The nodes with devices that the claims select, with nothing in use.

    None if the claims would fit on one of the nodes with most of those devices, or if there are too many nodes.
    """
    worth = _worth(fleet, claims, nodes)
    if not worth or len(worth) > MAX_NODES or not any(True for _ in fleet.state.devices()):
        return None
    names = [name for name, _ in worth.most_common()]
    if any(_fits(fleet, claims, nodes[name]) for name in names[:_ASKED]):
        return None
    return _only(fleet, names)


def _worth(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> "Counter[str]":
    """The number of selected devices per node that has any."""
    found: Counter[str] = Counter()
    for claim in claims:
        for request in claim.spec.devices.requests:
            for _, asked in request.alternatives:
                device_class = fleet.classes.get(asked.device_class_name)
                if device_class is None:
                    return Counter()
                marks = selection(fleet, claim, device_class, asked).end
                found.update(islice(fleet.inventory.nodes.of(marks), _MAX_ROWS))
    if SHARED in found:
        return Counter({name: found[name] for name in nodes})
    return Counter({name: number for name, number in found.items() if name in nodes})


def _fits(fleet: Fleet, claims: Sequence[ResourceClaim], node: Node) -> bool:
    """Whether they fit with nothing in use. True if the allocator fails: its error is reported elsewhere."""
    try:
        return would_get(fleet, node, claims, max_steps=_MAX_STEPS, state=AllocatedState()) is not None
    except AllocationError:
        return True


def _only(fleet: Fleet, names: Sequence[str]) -> Fleet:
    """A fleet of these nodes and what is published for them."""
    nodes = [fleet.nodes[name] for name in names]
    pools = {view.key for node in nodes for view in fleet.inventory.views(node)}
    entries = [entry for key in sorted(pools) if (pool := fleet.inventory.pool(key)) for entry in pool.entries]
    return Fleet.of(
        slices=[ResourceSlice(metadata=ObjectMeta(name=entry.name), spec=entry.spec) for entry in entries],
        rules=fleet.inventory.rules,
        nodes=nodes,
        classes=fleet.classes.values(),
    )
