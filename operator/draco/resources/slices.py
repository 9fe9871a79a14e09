"""ResourceSlice: what a driver publishes.

Owns the structs of slices, devices, attributes, capacities and counters (resource.k8s.io/v1), and which slices of a pool are
current.
"""

from collections.abc import Iterable

import msgspec

from draco.resources.base import ApiStruct
from draco.resources.meta import NodeSelector, ObjectMeta
from draco.resources.names import PoolKey
from draco.resources.taints import DeviceTaint


class DeviceAttribute(ApiStruct, frozen=True, kw_only=True):
    """Exactly one field is set. The plural forms are list attributes (alpha in 1.36)."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: list[int] | None = None
    bools: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None

    @property
    def value(self) -> int | bool | str | list[int] | list[bool] | list[str] | None:
        """The one value that is set."""
        for value in (
            self.int_, self.bool_, self.string, self.version, self.ints, self.bools, self.strings, self.versions,
        ):  # fmt: skip
            if value is not None:
                return value
        return None


class CapacityRange(ApiStruct, frozen=True, kw_only=True):
    """Amounts a shared device can be asked for, as quantities."""

    min: str
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(ApiStruct, frozen=True, kw_only=True):
    """How a shareable capacity may be asked for."""

    default: str | None = None
    valid_values: list[str] = []
    valid_range: CapacityRange | None = None


class DeviceCapacity(ApiStruct, frozen=True, kw_only=True):
    """A quantity, kept as the text the driver wrote."""

    value: str
    request_policy: CapacityRequestPolicy | None = None


class Counter(ApiStruct, frozen=True, kw_only=True):
    """A quantity of a shared or consumed counter."""

    value: str


class CounterSet(ApiStruct, frozen=True, kw_only=True):
    """Named counters that several devices of a pool draw from."""

    name: str
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(ApiStruct, frozen=True, kw_only=True):
    """What one device takes from a counter set."""

    counter_set: str
    counters: dict[str, Counter] = {}
    compatibility_groups: list[str] = []


class Device(ApiStruct, frozen=True, kw_only=True):
    """One device of a slice. Attribute and capacity names without a domain belong to the driver's domain."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[DeviceCounterConsumption] = []
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[DeviceTaint] = []
    binds_to_node: bool | None = None
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    allow_multiple_allocations: bool | None = None


class ResourcePool(ApiStruct, frozen=True, kw_only=True):
    """Pool of a slice. Only the highest generation counts, and only when all its slices are there."""

    name: str
    generation: int = 0
    resource_slice_count: int


class ResourceSliceSpec(ApiStruct, frozen=True, kw_only=True):
    """Exactly one of node_name, node_selector, all_nodes, per_device_node_selection; devices or shared_counters, not both."""

    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class ResourceSlice(ApiStruct, frozen=True, kw_only=True):
    """A part of a pool, published by a driver."""

    spec: ResourceSliceSpec
    metadata: ObjectMeta = ObjectMeta()

    @property
    def pool(self) -> PoolKey:
        """The pool it is a part of."""
        return PoolKey(self.spec.driver, self.spec.pool.name)


def current_slices(slices: Iterable[ResourceSlice]) -> dict[PoolKey, list[ResourceSlice]]:
    """The slices that count: of each pool those of its highest generation, complete or not."""
    pools: dict[PoolKey, list[ResourceSlice]] = {}
    for item in slices:
        pool = item.pool
        parts = pools.get(pool)
        if parts is None or parts[0].spec.pool.generation < item.spec.pool.generation:
            pools[pool] = [item]
        elif parts[0].spec.pool.generation == item.spec.pool.generation:
            parts.append(item)
    return pools
