"""Physical GPUs, as maintenance counts them: a whole GPU and all its partitions are one.

Owns what one is called, on which node and in which NVLink domain it is, which of a pool are of a class, which of these new claims
can have, and whether a request takes most of them, for which it needs a permit. A GPU is free if nothing is in the way of it or
of any part of it, which is `allocation.fleet.supply`'s to say, and its allocator is the class's. What is the same hardware is
`allocation.hardware`'s to say. A device of which that is not known counts alone. The caller goes through the pools, and may let
others work in between.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.allocation.fleet.supply import Supply
from draco.allocation.ownership.claims import is_operators
from draco.maintenance.gate import SelectionProblem
from draco.maintenance.selecting.selectors import DeviceTest
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.slices import Device, ResourceSlice, fabric_of
from draco.resources.names import DeviceKey, PoolKey, read_partition_name
from draco.resources.texts import counted

_SICK = "Unhealthy"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""On a node, by NVIDIA's feature discovery: the cluster and the clique of its GPUs."""


class PhysicalGpu(NamedTuple):
    """A GPU of a pool, by its UUID, or by the name of the device that is all of it."""

    driver: str
    pool: str
    gpu: str

    @property
    def pool_key(self) -> PoolKey:
        """The pool that it is in."""
        return PoolKey(self.driver, self.pool)


class PublishedDevice(NamedTuple):
    """A device as it is published, the node that it is for ("" if there is not one), and the GPU that it is or is a part of."""

    device: Device
    node: str
    gpu: PhysicalGpu


class FleetPool:
    """The GPUs of one pool. While its driver replaces its slices one by one, those that are still to come count as they were."""

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
        """The GPU that a device is or was a part of; `uuid` is what was noted of it, should it be published no more."""
        return self._of.get(device) or PhysicalGpu(*self.key, uuid or _gpu_of(self.hardware, device))

    def of_class(self, test: DeviceTest) -> frozenset[PhysicalGpu]:
        """The GPUs of which a class has the whole or any part. Where its selectors fail nobody knows, so it has it."""
        return frozenset(each.gpu for each in self.devices if test.says(self.key.driver, each.device) is not False)


def _gpu_of(hardware: PoolHardware, device: str) -> str:
    if board := hardware.board(device):
        return board
    if part := read_partition_name(device):
        return part.parent
    wholes = [other for other in hardware.overlapping(device) if device in hardware.parts(other)]
    return min(wholes, default=device)


def nvlink_domain(published: PublishedDevice, node_labels: Mapping[str, str]) -> str:
    """The NVLink domain of a GPU; one that is in none is alone with its node."""
    if fabric := fabric_of(published.gpu.driver, published.device):
        return ".".join(fabric)
    return node_labels.get(CLIQUE_LABEL) or place(published)


def place(published: PublishedDevice) -> str:
    """The node of a GPU; what is for no single node is counted by its pool."""
    return published.node or published.gpu.pool


class FreeGpus:
    """GPUs by what is known of them. Those of pools that were not added are not free."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._free: set[PhysicalGpu] = set()
        self._handed_over: set[PhysicalGpu] = set()
        self._held: dict[PoolKey, list[DeviceKey]] = {}
        for held in supply.held:
            self._held.setdefault(held.pool_key, []).append(held)

    def add(self, pool: FleetPool) -> None:
        """Look at one more pool."""
        taken = set[PhysicalGpu]()
        published = set[str]()
        for each in pool.devices:
            key = DeviceKey(*pool.key, each.device.name)
            published.add(key.device)
            if self._supply.obstacles(key, each.device, each.node):
                taken.add(each.gpu)
            if self._supply.is_operators(key, each.device):
                self._handed_over.add(each.gpu)
        # A claim may have what is published no more, such as a partition of a GPU that is.
        taken.update(pool.gpu(held.device) for held in self._held.get(pool.key, ()) if held.device not in published)
        self._free |= pool.gpus.keys() - taken

    def of(self, members: frozenset[PhysicalGpu], device_class: DeviceClass) -> frozenset[PhysicalGpu]:
        """Those of the GPUs of a class that its claims can have."""
        free = members & self._free
        return free & self._handed_over if is_operators(device_class) else free - self._handed_over


def sick_devices(gpu_nodes: Iterable[GpuNode]) -> frozenset[DeviceKey]:
    """What agents report as sick."""
    return frozenset(
        DeviceKey(node.status.driver, node.metadata.name, gpu.device)
        for node in gpu_nodes
        for gpu in node.status.gpus
        if gpu.health == _SICK
    )


class ClassSupply(msgspec.Struct, frozen=True):
    """The physical GPUs of a class, and those of them that its claims can have now."""

    name: str
    gpus: frozenset[PhysicalGpu]
    free: frozenset[PhysicalGpu]


def takes_most(
    request: DeviceMaintenance, gpus: Collection[PhysicalGpu], classes: Iterable[ClassSupply]
) -> SelectionProblem | None:
    """Whether a request takes more than half of a class without being permitted to.

    One that names a single device takes what it says: nobody does that by mistake.
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
