"""ResourceSlice: what a driver publishes, and which slices of a pool are current."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import NodeSelector, ObjectStruct
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import (
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_CLUSTER_UUID,
    ATTRIBUTE_PARENT_UUID,
    ATTRIBUTE_UUID,
    NVIDIA_DRIVER,
    DeviceKey,
    PoolKey,
    of_driver,
)


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
        """The value of the field that is set."""
        for value in (
            self.int_, self.bool_, self.string, self.version, self.ints, self.bools, self.strings, self.versions,
        ):  # fmt: skip
            if value is not None:
                return value
        return None


class CapacityRange(ApiStruct, frozen=True, kw_only=True):
    """Amounts that can be requested of a shared device, as quantities."""

    min: str
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(ApiStruct, frozen=True, kw_only=True):
    """Which amounts of a shareable capacity can be requested."""

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
    """Named counters shared by several devices of a pool."""

    name: str
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(ApiStruct, frozen=True, kw_only=True):
    """What one device consumes of a counter set."""

    counter_set: str
    counters: dict[str, Counter] = {}
    compatibility_groups: list[str] = []


class Device(ApiStruct, frozen=True, kw_only=True):
    """One device of a slice. Names without a domain belong to the driver's domain."""

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

    def gpu_uuid(self, driver: str) -> str:
        """The UUID of the GPU that it is or is a part of, by NVIDIA's names; "" if there is none."""
        return self.text(ATTRIBUTE_PARENT_UUID, driver) or self.text(ATTRIBUTE_UUID, driver)

    def text(self, name: str, driver: str) -> str:
        """An attribute as text, with its driver's domain or without; "" if there is none."""
        found = of_driver(self.attributes, name, driver)
        value = found.value if found is not None else None
        if isinstance(value, list):
            return " ".join(map(str, value))
        return "" if value is None else str(value)


def fabric_of(driver: str, device: Device) -> tuple[str, str] | None:
    """The NVLink fabric of a GPU: cluster and clique, by NVIDIA's names also from other drivers; None if it has none."""
    cluster, clique = (
        device.text(name, driver) or device.text(name, NVIDIA_DRIVER)
        for name in (ATTRIBUTE_CLUSTER_UUID, ATTRIBUTE_CLIQUE_ID)
    )
    return (cluster, clique) if cluster.strip("0-") and clique else None


class ResourcePool(ApiStruct, frozen=True, kw_only=True):
    """The pool of a slice. Only its newest generation counts, and only if complete."""

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

    @property
    def audience(self) -> str:
        """The nodes it is for, in words."""
        if self.node_name:
            return f"node {self.node_name}"
        return "all nodes" if self.all_nodes else "other nodes"


class ResourceSlice(ObjectStruct, frozen=True, kw_only=True):
    """A part of a pool, published by a driver."""

    spec: ResourceSliceSpec

    @property
    def pool(self) -> PoolKey:
        """The pool it is part of."""
        return PoolKey(self.spec.driver, self.spec.pool.name)


class Publication(msgspec.Struct, frozen=True):
    """Slices of one generation of a pool that a scheduler uses together."""

    slices: list[ResourceSlice]
    complete: bool


def publications(slices: Iterable[ResourceSlice]) -> dict[PoolKey, list[Publication]]:
    """Return the publications of each pool, as kube-scheduler sees them.

    A pool usually has one publication: all slices of its newest generation. But a node that sees a complete generation of its own
    ignores others, so a driver that publishes under the name of another node's pool, however new, adds a publication and hides
    none. With node selectors, this holds for nodes that match them all.
    """
    return {pool: _publications(parts) for pool, parts in by_pool(slices).items()}


def published_devices(slices: Iterable[ResourceSlice]) -> list[DeviceKey]:
    """The devices of current slices, sorted."""
    current = current_slices(slices).values()
    return sorted(
        {DeviceKey(*item.pool, each.name) for parts in current for item in parts for each in item.spec.devices}
    )


def current_slices(slices: Iterable[ResourceSlice]) -> dict[PoolKey, list[ResourceSlice]]:
    """Return the slices of all publications of each pool, complete or not."""
    return {
        pool: found[0].slices
        if len(found) == 1
        else list({id(one): one for each in found for one in each.slices}.values())
        for pool, found in publications(slices).items()
    }


def _publications(parts: list[ResourceSlice]) -> list[Publication]:
    if len(parts) == 1:
        return [Publication(parts, parts[0].spec.pool.resource_slice_count == 1)]
    parts.sort(key=lambda part: part.metadata.name)
    lots = taken_together([part.spec for part in parts])
    return [Publication([parts[place] for place in places], complete) for places, complete in lots]


def by_pool(slices: Iterable[ResourceSlice]) -> dict[PoolKey, list[ResourceSlice]]:
    """Return the slices by pool."""
    pools: dict[PoolKey, list[ResourceSlice]] = {}
    for item in slices:
        pools.setdefault(item.pool, []).append(item)
    return pools


def own_slices(slices: Iterable[ResourceSlice], node: str) -> list[ResourceSlice]:
    """Return the newest generation of slices for this node, from the slices of one pool."""
    own = [item for item in slices if item.spec.node_name == node]
    newest = max((item.spec.pool.generation for item in own), default=0)
    return [item for item in own if item.spec.pool.generation == newest]


def strangers(slices: Sequence[ResourceSlice]) -> list[ResourceSlice]:
    """Slices of a pool that are not for the node it is named after, if others are."""
    others = [item for item in slices if item.spec.node_name != item.spec.pool.name]
    return others if len(others) < len(slices) else []


def taken_together(specs: Sequence[ResourceSliceSpec]) -> list[tuple[list[int], bool]]:
    """Return the publications of a pool from its slices, sorted by name: indexes, and whether complete."""
    newest = max(spec.pool.generation for spec in specs)
    whole = [place for place, spec in enumerate(specs) if spec.pool.generation == newest]
    if len({spec.node_name for spec in specs}) == 1:
        return [(whole, specs[whole[0]].pool.resource_slice_count == len(whole))]
    lots: list[tuple[list[int], bool]] = []
    covered: set[int] = set()
    for reach in _reaches(specs):
        generation = max(specs[place].pool.generation for place in reach)
        lot = [place for place in reach if specs[place].pool.generation == generation]
        wanted = specs[lot[0]].pool.resource_slice_count
        if len(lot) != wanted and generation == newest:
            lot = (
                whole  # a node that sees part of a generation counts all its slices, unless there is a newer generation
            )
        if len(lot) == wanted and not covered.issuperset(lot):
            lots.append((lot, True))
            covered.update(lot)
    if rest := [place for place in whole if place not in covered]:
        lots.append((rest, False))
    return lots


def _reaches(specs: Sequence[ResourceSliceSpec]) -> Iterator[list[int]]:
    """The sets of slices that nodes may see: own slices and those for all nodes, with and without those that may match."""
    like: dict[object, list[int]] = {}
    for place, spec in enumerate(specs):
        where = spec.node_name or spec.all_nodes or str(spec.node_selector)
        like.setdefault(where, []).append(place)
    everywhere = like.pop(True, [])
    shared = [place for place, spec in enumerate(specs) if not spec.node_name]
    for own in like.values():
        yield sorted(own + everywhere)
        yield sorted({*own, *shared})
    if shared:
        yield shared
