"""GPUs as devices, and devices as the ResourceSlices of one pool.

Owns NVIDIA's names for whole GPUs, the limits of a slice, and the decision what to write if the API server has something else.
Pure: reads nothing, writes nothing.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from draco.agent.hardware.gpus import DriverInfo, Gpu, device_name
from draco.resources.api.meta import ObjectMeta, OwnerReference
from draco.resources.api.slices import (
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from draco.resources.names import (
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_CLUSTER_UUID,
    ATTRIBUTE_MEMORY_LIMIT,
    LONGEST_NAME,
    STANDARD_NUMA_NODE,
    STANDARD_PCI_BUS_ID,
    STANDARD_PCIE_ROOT,
)
from draco.resources.quantity import Format, Quantity
from draco.resources.semver import SemVer
from draco.resources.texts import shown

T = TypeVar("T")

DEVICES_PER_SLICE = 128
TAINTED_DEVICES_PER_SLICE = 64
"""Limits of the API: the lower one holds for a slice in which any device has taints, counters or list attributes."""
COUNTER_SETS_PER_SLICE = 8
STRING_LIMIT = 64


def memory(gpu: Gpu) -> str:
    """A GPU's memory as a canonical quantity, such as 81559Mi; "" if unknown."""
    return "" if gpu.memory_bytes is None else str(Quantity.of(gpu.memory_bytes, Format.BINARY_SI))


def version(text: str) -> str | None:
    """A driver's version as a semantic one: 580.65.06 becomes 580.65.6, 12.8 becomes 12.8.0. None if it is invalid."""
    parsed = SemVer.read(text, loosely=True)
    return str(parsed) if parsed is not None and len(str(parsed)) <= STRING_LIMIT else None


def unpublishable(driver: DriverInfo) -> list[str]:
    """Why the driver's versions are not published, as sentences."""
    told = {"driverVersion": driver.driver_version, "cudaDriverVersion": driver.cuda_driver_version}
    unread = {one.name for one in driver.unread}
    return [
        f"published without {name}: {shown(text) or 'an empty text'} is no version of three numbers, such as 580.95.5; a "
        f'selector that reads {name} fails on this node\'s devices unless it asks first whether "{name}" is in their attributes.'
        for name, text in told.items()
        if name not in unread and version(text) is None
    ]


def device(gpu: Gpu, driver: DriverInfo) -> Device:
    """A whole GPU as a device. Unknown facts are left out, so a selector that needs one does not match by accident."""
    strings = {
        "type": "gpu",
        "uuid": gpu.uuid,
        "productName": gpu.product_name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "addressingMode": gpu.addressing_mode,
        STANDARD_PCI_BUS_ID: gpu.pci_bus_id,
        STANDARD_PCIE_ROOT: gpu.pcie_root,
        ATTRIBUTE_MEMORY_LIMIT: gpu.memory_limit,
        ATTRIBUTE_CLUSTER_UUID: gpu.fabric and gpu.fabric.cluster,
    }
    versions = {
        "cudaComputeCapability": version(gpu.cuda_compute_capability),
        "driverVersion": version(driver.driver_version),
        "cudaDriverVersion": version(driver.cuda_driver_version),
    }
    attributes = {name: DeviceAttribute(string=_cut(value)) for name, value in strings.items() if value}
    attributes |= {name: DeviceAttribute(version=value) for name, value in versions.items() if value}
    if gpu.numa_node is not None:
        attributes[STANDARD_NUMA_NODE] = DeviceAttribute(int_=gpu.numa_node)
    if gpu.fabric is not None:
        attributes[ATTRIBUTE_CLIQUE_ID] = DeviceAttribute(int_=gpu.fabric.clique)
    capacity = {"memory": DeviceCapacity(value=amount)} if (amount := memory(gpu)) else {}
    return Device(name=device_name(gpu), attributes=attributes, capacity=capacity)


def _cut(text: str) -> str:
    """The text cut to an attribute's limit, which is in bytes."""
    return text.encode(errors="replace")[:STRING_LIMIT].decode(errors="ignore")


class Content(msgspec.Struct, frozen=True):
    """The content of one slice of the pool: devices, or the counters that devices of other slices consume."""

    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


def split(published: Sequence[Device], counters: Sequence[CounterSet] = ()) -> list[Content]:
    """Counters, then devices, in as few slices as the limits allow, in order. Without devices, one empty slice."""
    limit = TAINTED_DEVICES_PER_SLICE if any(_counts_double(one) for one in published) else DEVICES_PER_SLICE
    contents = [Content(shared_counters=chunk) for chunk in _chunks(counters, COUNTER_SETS_PER_SLICE)]
    contents += [Content(devices=chunk) for chunk in _chunks(published, limit)]
    return contents or [Content()]


def _chunks(items: Sequence[T], size: int) -> list[list[T]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _counts_double(one: Device) -> bool:
    lists = (
        value
        for attribute in one.attributes.values()
        for value in (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    )
    return bool(one.taints or one.consumes_counters or any(value is not None for value in lists))


def slice_name(node: str, driver: str, index: int) -> str:
    """The name of the pool's slice number `index`: stable, and its list order is the order of devices."""
    name = f"{node}-{driver}-{index:03d}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(f"{node} {driver}".encode()).hexdigest()[:16]
    return f"{node[: LONGEST_NAME - 21].rstrip('.-')}-{digest}-{index:03d}"


class Publisher(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of slices. The pool has the node's name; `uid` is the Node object's, which owns them."""

    node: str
    uid: str
    driver: str

    @property
    def owner(self) -> OwnerReference:
        """The Node: its slices are deleted with it."""
        return OwnerReference(api_version="v1", kind="Node", name=self.node, uid=self.uid, controller=True)


class SlicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, in this order: replace, create, delete."""

    generation: int
    replace: list[ResourceSlice] = []
    create: list[ResourceSlice] = []
    delete: list[ResourceSlice] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.replace or self.create or self.delete)

    def __str__(self) -> str:
        return (
            f"generation {self.generation}: replace {len(self.replace)}, create {len(self.create)}, "
            f"delete {len(self.delete)}"
        )


SameContent = Callable[[ResourceSlice, Content], bool]


def content(one: ResourceSlice) -> Content:
    """The content of a slice."""
    return Content(one.spec.devices, one.spec.shared_counters)


def same_content(observed: ResourceSlice, wanted: Content) -> bool:
    """Whether a slice has the wanted content, whatever the times of its taints."""
    return observed.spec.shared_counters == wanted.shared_counters and [
        _without_times(one) for one in observed.spec.devices
    ] == [_without_times(one) for one in wanted.devices]


def _without_times(one: Device) -> Device:
    if not one.taints:
        return one
    return msgspec.structs.replace(
        one, taints=[msgspec.structs.replace(taint, time_added=None) for taint in one.taints]
    )


def plan(
    wanted: Sequence[Device],
    observed: Sequence[ResourceSlice],
    *,
    by: Publisher,
    counters: Sequence[CounterSet] = (),
    last_generation: int = 0,
    same: SameContent = same_content,
) -> SlicePlan:
    """What to write so that the pool has the devices `wanted` and the counters that they consume.

    `observed` are the driver's slices of this node, including those of other writers. The generation grows when the devices, or
    their distribution over slices, differ from the newest observed ones; it stays if slices are only missing or owned by an
    earlier Node of the same name. Slices with other names, left by another installation of the driver, are superseded by a higher
    generation and deleted.
    """
    chunks = split(wanted, counters)
    names = [slice_name(by.node, by.driver, index) for index in range(len(chunks))]
    pool = [one for one in observed if one.spec.pool.name == by.node]
    by_name = {one.metadata.name: one for one in pool}
    newest = max((one.spec.pool.generation for one in pool), default=0)
    unchanged = all(
        _is_part(one, dict(zip(names, chunks, strict=True)), same) for one in pool if one.spec.pool.generation == newest
    )
    generation = max(newest or last_generation, 1) if unchanged else max(newest, last_generation) + 1
    replace: list[ResourceSlice] = []
    create: list[ResourceSlice] = []
    taken = {one.metadata.name for one in observed if one.spec.pool.name != by.node}
    for name, chunk in zip(names, chunks, strict=True):
        fresh = _slice(name, chunk, by, generation, len(chunks))
        old = by_name.get(name)
        if old is None:
            if (
                name not in taken
            ):  # else that slice is deleted first, as a pool's name cannot be changed; this one is made next
                create.append(fresh)
        elif (
            old.spec.pool != fresh.spec.pool
            or not same(old, chunk)
            or [owner.uid for owner in old.metadata.owner_references] != [by.uid]
        ):
            version_seen = old.metadata.resource_version
            metadata = msgspec.structs.replace(fresh.metadata, uid=old.metadata.uid, resource_version=version_seen)
            replace.append(msgspec.structs.replace(fresh, metadata=metadata))
    kept = set(names)
    delete = [one for one in observed if one.metadata.name not in kept or one.spec.pool.name != by.node]
    return SlicePlan(generation=generation, replace=replace, create=create, delete=delete)


def _is_part(one: ResourceSlice, wanted: dict[str, Content], same: SameContent) -> bool:
    chunk = wanted.get(one.metadata.name)
    return chunk is not None and one.spec.pool.resource_slice_count == len(wanted) and same(one, chunk)


def _slice(name: str, chunk: Content, by: Publisher, generation: int, count: int) -> ResourceSlice:
    return ResourceSlice(
        metadata=ObjectMeta(name=name, owner_references=[by.owner]),
        spec=ResourceSliceSpec(
            driver=by.driver,
            pool=ResourcePool(name=by.node, generation=generation, resource_slice_count=count),
            node_name=by.node,
            devices=chunk.devices,
            shared_counters=chunk.shared_counters,
        ),
    )
