"""Reads once which nodes of a fleet reach which pools.

Separates plain pools, which belong to one node (nearly all pools, cheap by the thousand), from those that need a view for each
kind of node. Judges nothing.
"""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import Likeness, NodeProfile, likeness
from draco.allocation.fleet.pools import Candidate, Charges, Pool, PoolView, SliceEntry, is_device_for
from draco.allocation.fleet.rowwise import Codes
from draco.resources.api.core import Node
from draco.resources.api.meta import NodeSelector, ObjectMeta
from draco.resources.api.slices import Device, ResourceSliceSpec
from draco.resources.names import DeviceKey, PoolKey


class VisiblePools(msgspec.Struct, frozen=True):
    """What one node, and every node like it, sees besides its plain pools."""

    views: Sequence[PoolView] = ()
    error: str = ""
    """Why the pools could not be read; "" if they could."""

    def candidates(self, node: Node) -> Iterable[tuple[PoolView, Candidate]]:
        """The devices that the node may reach."""
        for view in self.views:
            for candidate in view.candidates:
                if not candidate.spec.per_device_node_selection or is_device_for(candidate.device, node):
                    yield view, candidate


NOTHING = VisiblePools()
NO_VIEW = PoolView(key=PoolKey("", ""))
"""The view of devices in pools without counters; it holds nothing."""


class Reachability:
    """The pools of a fleet by who sees them.

    `others` are the pools that are not plain (see `Pool.plain`), `lost` the slices of plain pools whose node does not exist.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._other_keys = set(fleet.inventory.others)
        self.others: list[Pool] = list(fleet.inventory.others.values())
        self.lost: list[SliceEntry] = list(self._of_no_node())
        self._likeness = _Likeness(self.others)
        self._pools: dict[tuple[str | None, ...], VisiblePools] = {}

    def _of_no_node(self) -> Iterator[SliceEntry]:
        inventory = self._fleet.inventory
        for name in self._fleet.nodeless:
            entries = {entry.name: entry for entry in map(inventory.entry, inventory.nodes[name])}
            yield from (entry for entry in entries.values() if pool_key(entry) not in self._other_keys)

    def profiles(self, nodes: Iterable[str], column: Codes) -> Mapping[NodeProfile, list[str]]:
        """Nodes by the values of their devices in a column. Only valid if all pools are plain."""
        return self._fleet.inventory.nodes.profiles(column, nodes)

    def likenesses(self, nodes: Iterable[str], column: Codes) -> Mapping[Likeness, list[str]]:
        """Nodes by which of their devices have equal values in a column; each group keeps the order of nodes."""
        if not self._likeness.names:
            return self._fleet.inventory.nodes.likenesses(column, nodes)
        found: dict[Likeness, list[str]] = {}
        for node in nodes:
            found.setdefault(likeness(self.read(node, column)), []).append(node)
        return found

    def rows(self, node: str) -> Sequence[int]:
        """The rows of the devices in a node's plain pools."""
        rows = self._fleet.inventory.nodes[node]
        if node not in self._likeness.names:
            return rows
        return [row for row in rows if pool_key(self._fleet.inventory.entry(row)) not in self._other_keys]

    def read(self, node: str, column: Codes) -> NodeProfile:
        """The values of those rows in a column, in order."""
        if node not in self._likeness.names:
            return self._fleet.inventory.nodes.read(node, column)
        cells = [column[row] for row in self.rows(node)]
        return tuple(cells) if isinstance(column, array) else bytes(cells)

    def own(self, node: str) -> Iterator[tuple[PoolView, Candidate]]:
        """The devices in a node's plain pools, in the order of its rows."""
        inventory = self._fleet.inventory
        sources = map(inventory.columns.sources.__getitem__, self.rows(node))
        for entry in filter(None, map(inventory.slice, dict.fromkeys(sources))):
            pool = inventory.pool(pool_key(entry))
            view = NO_VIEW
            if pool is not None and pool.has_counters:
                view = pool.view(Node(metadata=ObjectMeta(name=node))) or NO_VIEW
            charges = {each.row: each.charges for each in view.candidates}
            for place, row in enumerate(entry.rows):
                yield view, candidate_of(entry, place, charges.get(row, ()))

    def drawn(self, node: str) -> Hashable:
        """Equal for nodes whose plain pools have as many devices, drawing from equal counters with equal amounts left."""
        fleet = self._fleet
        likeness: list[Hashable] = []
        for key in fleet.inventory.pools_on(node):
            pool = fleet.inventory.pool(key)
            if pool is None or key in self._other_keys:
                continue
            of_pool = fleet.drawn(key)
            likeness.append(
                sum(len(entry.rows) for entry in pool.plain)
                if of_pool is None
                else (id(of_pool.shape), id(of_pool.left))
            )
        return tuple(likeness)

    def pools(self, node: Node) -> VisiblePools:
        """What a node sees of pools that are not plain; the same object for equivalent nodes."""
        if not self.others:
            return NOTHING
        like = self._likeness.of(node)
        pools = self._pools.get(like)
        if pools is None:
            pools = self._pools[like] = self._look(node)
        return pools

    def _look(self, node: Node) -> VisiblePools:
        try:
            views = [view for view in self._fleet.inventory.views(node) if view.key in self._other_keys]
        except AllocationError as error:
            return VisiblePools(error=str(error))
        return VisiblePools(views) if views else NOTHING


class _Likeness:
    """What distinguishes nodes for these pools: labels and names in their node selectors."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self.names: set[str] = set()
        labels: set[str] = set()
        for pool in pools:
            for entry in pool.entries:
                selections: list[ResourceSliceSpec | Device] = [entry.spec, *entry.spec.devices]
                for where in selections:
                    if where.node_name:
                        self.names.add(where.node_name)
                    if where.node_selector is not None:
                        self._read(where.node_selector, labels)
        self._labels = sorted(labels)

    def _read(self, selector: NodeSelector, labels: set[str]) -> None:
        for term in selector.node_selector_terms:
            labels.update(each.key for each in term.match_expressions)
            for field in term.match_fields:
                self.names.update(field.values)

    def of(self, node: Node) -> tuple[str | None, ...]:
        """Equal for nodes that see the same pools."""
        name = node.metadata.name
        has = node.metadata.labels.get
        return (name if name in self.names else None, *[has(key) for key in self._labels])


def pool_key(entry: SliceEntry) -> PoolKey:
    """The pool of a slice."""
    return PoolKey(entry.spec.driver, entry.spec.pool.name)


def candidate_of(entry: SliceEntry, place: int, charges: Charges = ()) -> Candidate:
    """A device of a slice, with its charges on the pool's counters."""
    device = entry.spec.devices[place]
    key = DeviceKey(entry.spec.driver, entry.spec.pool.name, device.name)
    return Candidate(key, device, entry.rows[place], entry.spec, entry.taints[place], charges)
