"""Everything that allocation depends on, updated object by object.

Owns the combination of published devices (`inventory`), their use (`state`), and the current nodes, classes and claims. A Fleet
that followed any number of changes gives the same answers as one built from scratch. Decides nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

from cachetools import LRUCache

from draco.allocation.fleet.capacity import arithmetic
from draco.allocation.fleet.counters import Counters, CounterUse, drawn
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.node_rows import SHARED as OF_NO_NODE
from draco.allocation.fleet.rowwise import BYTES, packed
from draco.allocation.fleet.state import AllocatedState
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey

FREE, HELD, SHARED = 0, 1, 2
"""How claims use a device: not at all, exclusively, or in shares."""
MAX_OF_NODES: Final = 8
"""Size of the cache of results about all nodes; each takes a megabyte in a cluster of ten thousand."""
_NOT_HELD: Final = bytes(mark != HELD for mark in range(BYTES))
_ZERO: Final = bytes(mark == 0 for mark in range(BYTES))


class Fleet:
    """The devices, nodes, classes and claims of one cluster. Not thread-safe."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.state = AllocatedState()
        self._nodes: dict[str, Node] = {}
        self._node_names: list[str] = []
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[ObjectKey, ResourceClaim] = {}
        self.nodes: Mapping[str, Node] = MappingProxyType(self._nodes)
        self.classes: Mapping[str, DeviceClass] = MappingProxyType(self._classes)
        self.claims: Mapping[ObjectKey, ResourceClaim] = MappingProxyType(self._claims)
        self.idle: dict[ObjectKey, None] = {}
        """Claims that are allocated but not reserved."""
        self.held = self.inventory.columns.new_marks()
        """By row: FREE, HELD or SHARED."""
        self.arithmetic = self.inventory.columns.new_marks()
        """By row: the Arithmetic of the device's capacities."""
        self.by_amount = self.inventory.columns.new_marks()
        """By row: 1 if requested amounts may matter: the device can be shared, or a capacity has a request policy."""
        self._short = self.inventory.columns.new_marks()
        self._uses = 0
        """Number of changes in use."""
        self._known_unused: tuple[tuple[int, int], tuple[int, int]] | None = None
        self._recount: set[PoolKey] = set()
        """Pools whose counters changed since `short` was computed."""
        self._drawn: dict[PoolKey, CounterUse] = {}
        self.of_nodes = LRUCache[Hashable, Any](MAX_OF_NODES)
        """Results that depend only on `nodes` and their key; cleared when a node changes."""

    @classmethod
    def of(
        cls,
        *,
        slices: Iterable[ResourceSlice] = (),
        rules: Iterable[DeviceTaintRule] = (),
        nodes: Iterable[Node] = (),
        classes: Iterable[DeviceClass] = (),
        claims: Iterable[ResourceClaim] = (),
    ) -> Self:
        """A fleet of these objects."""
        fleet = cls()
        for rule in rules:
            fleet.put_rule(rule)
        for published in slices:
            fleet.put_slice(published)
        for node in nodes:
            fleet.put_node(node)
        for device_class in classes:
            fleet.put_class(device_class)
        for claim in claims:
            fleet.put_claim(claim)
        return fleet

    @property
    def node_names(self) -> Sequence[str]:
        """The names of all nodes, sorted."""
        return self._node_names

    @property
    def short(self) -> bytes:
        """By row: 1 if the counters left do not suffice. Always 0 in pools of several nodes. Updated on access."""
        self._count_changed()
        return bytes(self._short)

    def settle(self) -> None:
        """Finish all incremental work, so that no copy of the fleet repeats it."""
        self._count_changed()
        self.inventory.settle()

    @property
    def nodeless(self) -> Sequence[str]:
        """The sorted names of nodes that do not exist although something is published for them."""
        return sorted(self.inventory.nodes.names - self._nodes.keys() - {OF_NO_NODE})

    @property
    def free(self) -> int:
        """The rows of devices that no claim holds exclusively, packed (see `rowwise.packed`)."""
        return self._unused[0]

    @property
    def enough(self) -> int:
        """The `free` rows with enough counters, packed."""
        return self._unused[1]

    @property
    def unheld(self) -> bytearray:
        """By row: 1 if no claim holds the device exclusively, also for rows without a device."""
        return self.held.translate(_NOT_HELD)

    @property
    def _unused(self) -> tuple[int, int]:
        short = self.short
        now = (self.inventory.columns.version, self._uses)
        if self._known_unused is None or self._known_unused[0] != now:
            free = packed(self.inventory.columns.live) & packed(self.unheld)
            self._known_unused = (now, (free, free & packed(short.translate(_ZERO))))
        return self._known_unused[1]

    def drawn(self, pool: PoolKey) -> CounterUse | None:
        """The counters of a plain pool; None for other pools and pools without counters."""
        self._count_changed()
        return self._drawn.get(pool)

    def holders(self, device: DeviceKey) -> Sequence[ObjectKey]:
        """The claims that hold the device or a share, sorted. Administrative access holds nothing."""
        return self.state.holders(device)

    def put_slice(self, published: ResourceSlice) -> None:
        """Add or replace a slice. Raises QuantityError, having changed nothing."""
        name = published.metadata.name
        before = self.inventory.pool_of(name)
        self.inventory.put_slice(published)
        self._recount.update(key for key in (before, published.pool) if key is not None)
        entry = self.inventory.slice(name)
        if entry is None:
            return
        for row, device in zip(entry.rows, entry.spec.devices, strict=True):
            self.arithmetic[row] = arithmetic(device)
            has_policy = any(each.request_policy is not None for each in device.capacity.values())
            self.by_amount[row] = has_policy or bool(device.allow_multiple_allocations)
            # Its use has not changed, so the device's rows in other slices are marked already.
            self.held[row] = self._use_of(DeviceKey(*published.pool, device.name))

    def remove_slice(self, name: str) -> None:
        """Remove a slice, if known."""
        key = self.inventory.pool_of(name)
        self.inventory.remove_slice(name)
        if key is not None:
            self._recount.add(key)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a taint rule."""
        self.inventory.put_rule(rule)

    def remove_rule(self, name: str) -> None:
        """Remove a taint rule, if known."""
        self.inventory.remove_rule(name)

    def put_node(self, node: Node) -> None:
        """Add or replace a node."""
        name = node.metadata.name
        if name not in self._nodes:
            insort(self._node_names, name)
        self.of_nodes.clear()
        self._nodes[name] = node

    def remove_node(self, name: str) -> None:
        """Remove a node, if known."""
        if self._nodes.pop(name, None) is not None:
            del self._node_names[bisect_left(self._node_names, name)]
            self.of_nodes.clear()

    def put_class(self, device_class: DeviceClass) -> None:
        """Add or replace a device class."""
        self._classes[device_class.metadata.name] = device_class

    def remove_class(self, name: str) -> None:
        """Remove a device class, if known."""
        self._classes.pop(name, None)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Add or replace a claim, allocated or not. Raises QuantityError, having changed nothing."""
        key = claim.metadata.key
        before = self.state.held_by(key)
        self.state.put_claim(claim)
        self._claims[key] = claim
        if claim.status.allocation is not None and not claim.status.reserved_for:
            self.idle[key] = None
        else:
            self.idle.pop(key, None)
        self._mark_all(before | self.state.held_by(key))

    def remove_claim(self, key: ObjectKey) -> None:
        """Remove a claim, if known, and free its devices."""
        before = self.state.held_by(key)
        self.state.remove_claim(key)
        self._claims.pop(key, None)
        self.idle.pop(key, None)
        self._mark_all(before)

    def _mark_all(self, devices: Iterable[DeviceKey]) -> None:
        for device in devices:
            self._mark(device)
            self._recount.add(device.pool_key)

    def _use_of(self, device: DeviceKey) -> int:
        return HELD if self.state.holds(device) else SHARED if self.state.shares(device) else FREE

    def _mark(self, device: DeviceKey) -> None:
        mark = self._use_of(device)
        self._uses += 1
        for row in self.inventory.rows(device):
            self.held[row] = mark

    def _count_changed(self) -> None:
        for key in self._recount:
            self._count_again(key)
        self._uses += len(self._recount)
        self._recount.clear()

    def _count_again(self, key: PoolKey) -> None:
        pool = self.inventory.pool(key)
        self._drawn.pop(key, None)
        if pool is None:
            return
        for entry in pool.entries:
            for row in entry.rows:
                self._short[row] = 0
        if not pool.has_counters or not pool.only_node:
            return
        view = pool.glance(Node(metadata=ObjectMeta(name=pool.only_node)))
        if view is None:
            return
        if pool.plain:
            self._drawn[key] = drawn(pool, view, self.state)
        counters = Counters([view], self.state)
        for candidate in view.candidates:
            device = candidate.device
            paid = bool(device.allow_multiple_allocations) and self.state.shares(candidate.key)
            self._short[candidate.row] = bool(device.consumes_counters) and not paid and not counters.suffice(candidate)
