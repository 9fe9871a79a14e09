"""Which physical GPUs new claims of a class can have, for all who say how many stay free.

Owns how the answer for devices, which is `allocation.fleet.supply`'s, becomes one for GPUs: a GPU is free if nothing is in the
way of it or of any part of it, and its allocator is the class's. The caller goes through the pools, and may let
others work in between.
"""

from collections.abc import Iterable

from draco.allocation.fleet.supply import Supply
from draco.allocation.ownership.claims import is_operators
from draco.maintenance.selecting.fleet import FleetPool, PhysicalGpu
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import GpuNode
from draco.resources.names import DeviceKey, PoolKey

_SICK = "Unhealthy"


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
