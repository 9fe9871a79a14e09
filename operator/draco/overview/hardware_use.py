"""Whole GPUs and partitions: who uses which part of the same hardware, and which devices that makes unavailable.

Owns what claims on one device mean for overlapping devices, the sums over shared counters, and which devices a taint rule covers.
`allocation.fleet.hardware` decides which devices are the same hardware.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from draco.allocation.fleet.hardware import PoolHardware, amount_of
from draco.maintenance.rules import means
from draco.resources.api.slices import Device, ResourceSlice, by_pool
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey


class HardwareByPool:
    """The hardware of all pools, computed per pool on demand."""

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        self._slices = by_pool(slices)
        self._pools: dict[PoolKey, PoolHardware] = {}

    def of(self, device: DeviceKey) -> PoolHardware:
        """The hardware of the device's pool."""
        pool = device.pool_key
        if pool not in self._pools:
            self._pools[pool] = PoolHardware(self._slices.get(pool, ()))
        return self._pools[pool]

    def used(
        self, holders: Mapping[DeviceKey, Iterable[str]]
    ) -> tuple[Mapping[DeviceKey, list[str]], Collection[DeviceKey]]:
        """Devices with claims on their parts, and those claims; and devices that only overlap claimed devices."""
        by_parts: dict[DeviceKey, set[str]] = defaultdict(set)
        overlapped: set[DeviceKey] = set()
        for held, claims in holders.items():
            pool = self.of(held)
            for name in pool.overlapping(held.device):
                other = held._replace(device=name)
                # A device that is no longer published is known by name only; it was a partition.
                if held.device in pool.parts(name) or pool.published_as(held.device) is None:
                    by_parts[other].update(claims)
                else:
                    overlapped.add(other)
        return {key: sorted(claims) for key, claims in by_parts.items()}, overlapped

    def hits(self, rule: DeviceTaintRule, device: DeviceKey) -> bool:
        """Whether the rule selects the device, directly or as Draco extends it."""
        selector = rule.spec.device_selector
        if selector is None or (selector.pool not in {None, device.pool}):
            return False  # skip the pool's hardware, which is slow to compute
        return means(rule, self.of(device), device)


def short_of_counters(
    pools: Iterable[tuple[PoolKey, Sequence[ResourceSlice]]], held: Collection[DeviceKey]
) -> set[DeviceKey]:
    """The devices for which a counter has too little left, without those that are held."""
    found: set[DeviceKey] = set()
    for pool, slices in pools:
        drawing = [
            (key, device)
            for item in slices
            for device in item.spec.devices
            if device.consumes_counters
            for key in [DeviceKey(pool.driver, pool.pool, device.name)]
        ]
        used: Counter[tuple[str, str]] = Counter()
        for key, device in drawing:
            if key in held:
                used.update(dict(_draws(device)))
        if not used:
            continue
        left = {
            (each.name, name): amount_of(counter.value) - used[each.name, name]
            for item in slices
            for each in item.spec.shared_counters
            for name, counter in each.counters.items()
            if (each.name, name) in used
        }
        found.update(
            key
            for key, device in drawing
            if key not in held and any(amount > left.get(drawn, amount) for drawn, amount in _draws(device))
        )
    return found


def _draws(device: Device) -> Iterable[tuple[tuple[str, str], int]]:
    """How much a device draws from each counter (counter set, counter)."""
    for each in device.consumes_counters:
        for name, counter in each.counters.items():
            yield (each.counter_set, name), amount_of(counter.value)
