"""All that allocation depends on, kept up to date object by object.

Owns the bringing together of what is published (`inventory`), what is in use (`state`), and the nodes, classes and claims as they
are now. A Fleet that followed any number of changes answers as one that was built at once. Decides nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
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
"""What claims have of a device: nothing, all of it, or shares."""
MAX_OF_NODES: Final = 8
"""Answers about all nodes that are kept: each takes a megabyte in a cluster of ten thousand."""
_NOT_HELD: Final = bytes(mark != HELD for mark in range(BYTES))
_ZERO: Final = bytes(mark == 0 for mark in range(BYTES))


class Fleet:
    """The devices, nodes, classes and claims of one cluster. Not for several threads."""

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
        """Claims that are allocated but reserved for nobody."""
        self.held = self.inventory.columns.new_marks()
        """By row: FREE, HELD or SHARED."""
        self.arithmetic = self.inventory.columns.new_marks()
        """By row: the Arithmetic of the device's capacities."""
        self.limited = self.inventory.columns.new_marks()
        """By row: 1 where a capacity says how much of it may be asked for."""
        self._short = self.inventory.columns.new_marks()
        self._uses = 0
        """How often what is in use has changed."""
        self._known_unused: tuple[tuple[int, int], tuple[int, int]] | None = None
        self._recount: set[PoolKey] = set()
        """Pools whose counters changed since `short` was worked out."""
        self._drawn: dict[PoolKey, CounterUse] = {}
        self.of_nodes = LRUCache[Hashable, Any](MAX_OF_NODES)
        """What was worked out of `nodes` and nothing else but what it is kept by; forgotten when a node changes."""
        self._nodeless: set[str] = set()
        self._moved: set[str] = set()
        """The names of nodes that came or went since `nodeless` was worked out."""

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
        """By row: 1 where what devices in use leave of the shared counters does not suffice for the device.

        Brought up to date when asked for. Always 0 in pools that several nodes share, where it may depend on the node.
        """
        self.recount(len(self._recount))
        return bytes(self._short)

    def recount(self, most: int) -> bool:
        """Bring so many pools of `short` up to date at most. Returns whether all are.

        For who must not keep others waiting: thousands of pools may be due, all of them after the start.
        """
        for key in list(islice(self._recount, most)):
            self._uses += 1
            self._count_again(key)
            self._recount.discard(key)
        return not self._recount

    def settle(self) -> None:
        """Bring up to date at once whatever is worked out piece by piece, so that no copy of the fleet has to."""
        self.recount(len(self._recount))
        self.inventory.settle()
        _ = self.nodeless

    @property
    def nodeless(self) -> Sequence[str]:
        """The names, sorted, for which something is published though there is no such node. Worked out when asked for."""
        names = self.inventory.nodes.names
        for name in self.inventory.nodes.touched() | self._moved:
            if name in names and name not in self._nodes and name != OF_NO_NODE:
                self._nodeless.add(name)
            else:
                self._nodeless.discard(name)
        self._moved.clear()
        return sorted(self._nodeless)

    @property
    def free(self) -> int:
        """The rows of devices that no claim has to itself, packed (see `rowwise.packed`)."""
        return self._unused[0]

    @property
    def enough(self) -> int:
        """Those of them for which the counters suffice."""
        return self._unused[1]

    @property
    def _unused(self) -> tuple[int, int]:
        short = self.short
        now = (self.inventory.columns.version, self._uses)
        if self._known_unused is None or self._known_unused[0] != now:
            free = packed(self.inventory.columns.live) & packed(self.held.translate(_NOT_HELD))
            self._known_unused = (now, (free, free & packed(short.translate(_ZERO))))
        return self._known_unused[1]

    def drawn(self, pool: PoolKey) -> CounterUse | None:
        """What the counters of a plain pool are for its devices; None for other pools, and without counters."""
        self.recount(len(self._recount))
        return self._drawn.get(pool)

    def holders(self, device: DeviceKey) -> Sequence[ObjectKey]:
        """The claims that hold the device or a share of it, sorted. Administrative access holds nothing."""
        return self.state.holders(device)

    def put_slice(self, published: ResourceSlice) -> None:
        """Take a slice as it now is, by its name. Raises QuantityError, having changed nothing."""
        name = published.metadata.name
        before = self.inventory.pool_of(name)
        self.inventory.put_slice(published)
        self._recount.update(key for key in (before, published.pool) if key is not None)
        entry = self.inventory.slice(name)
        if entry is None:
            return
        for row, device in zip(entry.rows, entry.spec.devices, strict=True):
            self.arithmetic[row] = arithmetic(device)
            self.limited[row] = any(each.request_policy is not None for each in device.capacity.values())
            # What is in use has not changed, so the device's rows in other slices have their mark already.
            self.held[row] = self._use_of(DeviceKey(*published.pool, device.name))

    def remove_slice(self, name: str) -> None:
        """Forget a slice; nothing happens if it is not known."""
        key = self.inventory.pool_of(name)
        self.inventory.remove_slice(name)
        if key is not None:
            self._recount.add(key)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Take a taint rule as it now is, by its name."""
        self.inventory.put_rule(rule)

    def remove_rule(self, name: str) -> None:
        """Forget a taint rule; nothing happens if it is not known."""
        self.inventory.remove_rule(name)

    def put_node(self, node: Node) -> None:
        """Take a node as it now is, by its name."""
        name = node.metadata.name
        if name not in self._nodes:
            insort(self._node_names, name)
            self._moved.add(name)
        self.of_nodes.clear()
        self._nodes[name] = node

    def remove_node(self, name: str) -> None:
        """Forget a node; nothing happens if it is not known."""
        if self._nodes.pop(name, None) is not None:
            del self._node_names[bisect_left(self._node_names, name)]
            self._moved.add(name)
            self.of_nodes.clear()

    def put_class(self, device_class: DeviceClass) -> None:
        """Take a device class as it now is, by its name."""
        self._classes[device_class.metadata.name] = device_class

    def remove_class(self, name: str) -> None:
        """Forget a device class; nothing happens if it is not known."""
        self._classes.pop(name, None)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Take a claim as it now is, allocated or not. Raises QuantityError, having changed nothing."""
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
        """Forget a claim and free what it held; nothing happens if it is not known."""
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
