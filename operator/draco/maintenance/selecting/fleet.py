"""Physical GPUs, as maintenance counts them: a whole GPU and all its partitions are one.

Owns the name of a GPU, its node and NVLink domain, the GPUs of a class and those that new claims can have, and whether a request
takes most of a class, for which it needs a permit. A GPU is free if `allocation.fleet.supply` finds no obstacle for it or any
part of it, and its allocator is the class's. `allocation.hardware` says which devices share hardware; a device without that
knowledge counts alone. The caller iterates over pools, and may yield in between.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.allocation.fleet.supply import Supply
from draco.allocation.ownership.claims import is_operators
from draco.cel import DeviceTest
from draco.maintenance.gate import SelectionProblem
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.slices import Device, ResourceSlice, fabric_of
from draco.resources.names import DeviceKey, PoolKey, read_partition_name
from draco.resources.texts import counted

_SICK = "Unhealthy"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""A node label of NVIDIA's feature discovery: the cluster and the clique of its GPUs."""


class PhysicalGpu(NamedTuple):
    """A GPU of a pool, by its UUID, or by the name of the device that is the whole GPU."""

    driver: str
    pool: str
    gpu: str

    @property
    def pool_key(self) -> PoolKey:
        """Its pool."""
        return PoolKey(self.driver, self.pool)


class PublishedDevice(NamedTuple):
    """A published device, its node ("" if it is not for one node), and the GPU that it is or is a part of."""

    device: Device
    node: str
    gpu: PhysicalGpu


class FleetPool:
    """The GPUs of one pool. While its driver replaces slices one by one, devices of missing slices count as before."""

    def __init__(self, pool: PoolKey, slices: Iterable[ResourceSlice]) -> None:
        found = list(slices)
        self.key = pool
        self.hardware = hardware = PoolHardware(found)
        names = {name: PhysicalGpu(*pool, _gpu_of(hardware, name)) for name in hardware.expected}
        nodes = {
            device.name: item.spec.node_name or device.node_name or "" for item in found for device in item.spec.devices
        }
        self.devices = [
            PublishedDevice(device, nodes.get(name, ""), gpu)
            for name, gpu in sorted(names.items())
            if (device := hardware.published_as(name)) is not None
        ]
        self._of = names
        self.gpus: dict[PhysicalGpu, PublishedDevice] = {}
        for each in self.devices:
            self.gpus.setdefault(each.gpu, each)

    def gpu(self, device: str, uuid: str = "") -> PhysicalGpu:
        """The GPU that a device is or was a part of; `uuid` is the recorded one, used if the device is not published any more."""
        return self._of.get(device) or PhysicalGpu(*self.key, uuid or _gpu_of(self.hardware, device))

    def of_class(self, test: DeviceTest) -> frozenset[PhysicalGpu]:
        """The GPUs of which a class has any part. A GPU on which its selectors fail counts as one of the class."""
        return frozenset(each.gpu for each in self.devices if test.says(self.key.driver, each.device) is not False)


def _gpu_of(hardware: PoolHardware, device: str) -> str:
    if board := hardware.board(device):
        return board
    if part := read_partition_name(device):
        return part.parent
    wholes = [other for other in hardware.overlapping(device) if device in hardware.parts(other)]
    return min(wholes, default=device)


def nvlink_domain(published: PublishedDevice, node_labels: Mapping[str, str]) -> str:
    """The NVLink domain of a GPU; without one, its node."""
    if fabric := fabric_of(published.gpu.driver, published.device):
        return ".".join(fabric)
    return node_labels.get(CLIQUE_LABEL) or place(published)


def place(published: PublishedDevice) -> str:
    """The node of a GPU, or its pool if it is not for one node."""
    return published.node or published.gpu.pool


class FreeGpus:
    """Which GPUs are free. GPUs of pools that were not added are not."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._free: set[PhysicalGpu] = set()
        self._handed_over: set[PhysicalGpu] = set()
        self._held: dict[PoolKey, list[DeviceKey]] = {}
        for held in supply.held:
            self._held.setdefault(held.pool_key, []).append(held)

    def add(self, pool: FleetPool) -> None:
        """Add one pool."""
        taken = set[PhysicalGpu]()
        published = set[str]()
        for each in pool.devices:
            key = DeviceKey(*pool.key, each.device.name)
            published.add(key.device)
            if self._supply.obstacles(key, each.device, each.node):
                taken.add(each.gpu)
            if self._supply.is_operators(key, each.device):
                self._handed_over.add(each.gpu)
        # A claim may hold a device that is not published any more, such as a partition of a published GPU.
        taken.update(pool.gpu(held.device) for held in self._held.get(pool.key, ()) if held.device not in published)
        self._free |= pool.gpus.keys() - taken

    def of(self, members: frozenset[PhysicalGpu], device_class: DeviceClass) -> frozenset[PhysicalGpu]:
        """The GPUs of a class that its claims can have."""
        free = members & self._free
        return free & self._handed_over if is_operators(device_class) else free - self._handed_over


def sick_devices(gpu_nodes: Iterable[GpuNode]) -> frozenset[DeviceKey]:
    """The devices that agents report as sick."""
    return frozenset(
        DeviceKey(node.status.driver, node.metadata.name, gpu.device)
        for node in gpu_nodes
        for gpu in node.status.gpus
        if gpu.health == _SICK
    )


class ClassSupply(msgspec.Struct, frozen=True):
    """The physical GPUs of a class, and those that its claims can have now."""

    name: str
    gpus: frozenset[PhysicalGpu]
    free: frozenset[PhysicalGpu]


def takes_most(
    request: DeviceMaintenance, gpus: Collection[PhysicalGpu], classes: Iterable[ClassSupply]
) -> SelectionProblem | None:
    """The problem of a request that takes more than half of a class without permission; None otherwise.

    A request that names a single device is never refused: nobody does that by mistake.
    """
    selector = request.spec.device_selector
    if request.spec.allow_most_of_class or (selector.pool and selector.device):
        return None
    for each in sorted(classes, key=lambda each: each.name):
        taken = len(each.gpus.intersection(gpus))
        if 2 * taken > len(each.gpus):
            said = (
                f"This takes {taken} of {counted(len(each.gpus), 'GPU')} of DeviceClass {each.name}, which is more than half: "
                "ask for fewer, or set spec.allowMostOfClass to true."
            )
            return SelectionProblem("MostOfClass", said)
    return None
