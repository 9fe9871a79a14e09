"""All that allocation depends on, kept up to date object by object.

Owns the bringing together of what is published (`inventory`), what is in use (`state`), and the nodes, classes and claims as they
are now. A Fleet that followed any number of changes answers as one that was built at once. Decides nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from draco.allocation.inventory import Inventory
from draco.allocation.state import AllocatedState
from draco.resources.claims import ResourceClaim
from draco.resources.classes import DeviceClass
from draco.resources.core import Node
from draco.resources.meta import ObjectKey
from draco.resources.names import DeviceKey
from draco.resources.slices import ResourceSlice
from draco.resources.taints import DeviceTaintRule


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

    def holders(self, device: DeviceKey) -> Sequence[ObjectKey]:
        """The claims that hold the device or a share of it, sorted. Administrative access holds nothing."""
        return self.state.holders(device)

    def put_slice(self, published: ResourceSlice) -> None:
        """Take a slice as it now is, by its name."""
        self.inventory.put_slice(published)

    def remove_slice(self, name: str) -> None:
        """Forget a slice; nothing happens if it is not known."""
        self.inventory.remove_slice(name)

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
        self._nodes[name] = node

    def remove_node(self, name: str) -> None:
        """Forget a node; nothing happens if it is not known."""
        if self._nodes.pop(name, None) is not None:
            del self._node_names[bisect_left(self._node_names, name)]

    def put_class(self, device_class: DeviceClass) -> None:
        """Take a device class as it now is, by its name."""
        self._classes[device_class.metadata.name] = device_class

    def remove_class(self, name: str) -> None:
        """Forget a device class; nothing happens if it is not known."""
        self._classes.pop(name, None)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Take a claim as it now is, allocated or not, by its namespace and name."""
        self.state.put_claim(claim)
        self._claims[claim.metadata.key] = claim

    def remove_claim(self, key: ObjectKey) -> None:
        """Forget a claim and free what it held; nothing happens if it is not known."""
        self.state.remove_claim(key)
        self._claims.pop(key, None)
