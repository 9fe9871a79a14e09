"""Physical GPUs, as maintenance counts them: a whole GPU and all its partitions are one.

Owns what one is called, on which node and in which NVLink domain it is, and which of a pool are of a class. What is the same
hardware is `allocation.hardware`'s to say. A device of which that is not known counts alone.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.selecting.selectors import DeviceTest
from draco.resources.api.slices import Device, ResourceSlice, fabric_of
from draco.resources.names import PoolKey, read_partition_name


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


CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""On a node, by NVIDIA's feature discovery: the cluster and the clique of its GPUs."""
