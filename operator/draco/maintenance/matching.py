"""Which devices a request for maintenance names.

Owns the matching of a selector against published devices, by exact names and for any driver.
"""

from collections.abc import Iterable, Iterator

from draco.resources.draco import MaintenanceSelector
from draco.resources.names import DeviceKey
from draco.resources.slices import ResourceSlice, current_slices


def devices_in(slices: Iterable[ResourceSlice]) -> Iterator[DeviceKey]:
    """Devices of the newest generation of each pool, complete or not: one being published is as real as one that is."""
    for pool, parts in current_slices(slices).items():
        for part in parts:
            for device in part.spec.devices:
                yield DeviceKey(pool.driver, pool.pool, device.name)


def matching_devices(selector: MaintenanceSelector, slices: Iterable[ResourceSlice]) -> frozenset[DeviceKey]:
    """Published devices that the selector names."""
    return frozenset(device for device in devices_in(slices) if selector.matches(device))
