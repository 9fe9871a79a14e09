"""Which devices a request for maintenance names.

Owns the matching of a selector against published devices, by exact names and for any driver.
"""

from collections.abc import Iterable, Iterator

from draco.resources.draco import MaintenanceSelector
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.slices import ResourceSlice


def devices_in(slices: Iterable[ResourceSlice]) -> Iterator[DeviceKey]:
    """Devices of the newest generation of each pool, complete or not: one being published is as real as one that is."""
    newest: dict[PoolKey, int] = {}
    kept = list(slices)
    for item in kept:
        pool = PoolKey(item.spec.driver, item.spec.pool.name)
        newest[pool] = max(item.spec.pool.generation, newest.get(pool, 0))
    for item in kept:
        pool = PoolKey(item.spec.driver, item.spec.pool.name)
        if item.spec.pool.generation == newest[pool]:
            for device in item.spec.devices:
                yield DeviceKey(pool.driver, pool.pool, device.name)


def matches(selector: MaintenanceSelector, device: DeviceKey) -> bool:
    """Whether every field that is set agrees. A selector without any field matches nothing."""
    wanted = (selector.driver, selector.pool, selector.device)
    if not any(wanted):
        return False
    return all(not want or want == have for want, have in zip(wanted, device, strict=True))


def matching_devices(selector: MaintenanceSelector, slices: Iterable[ResourceSlice]) -> frozenset[DeviceKey]:
    """Published devices that the selector names."""
    return frozenset(device for device in devices_in(slices) if matches(selector, device))
