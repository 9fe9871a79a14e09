"""Whole GPUs and partitions: who uses which part of the same hardware, and which devices that makes unavailable.

Owns what claims on one device mean for overlapping devices, and which devices a taint rule covers. `allocation.fleet.hardware`
decides which devices are the same hardware, and which counters suffice.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.taint_rules import means
from draco.resources.api.slices import ResourceSlice, by_pool
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey


class HardwareByPool:
    """The hardware of all pools, computed per pool on demand."""

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        self._slices = by_pool(slices)
        self._pools: dict[PoolKey, PoolHardware] = {}

    def of(self, pool: PoolKey) -> PoolHardware:
        """The hardware of one pool."""
        if pool not in self._pools:
            self._pools[pool] = PoolHardware(self._slices.get(pool, ()))
        return self._pools[pool]

    def used(
        self, holders: Mapping[DeviceKey, Iterable[str]]
    ) -> tuple[Mapping[DeviceKey, list[str]], Collection[DeviceKey]]:
        """Devices with claims on their parts, and those claims; and other devices that claims on their hardware block."""
        by_parts: dict[DeviceKey, set[str]] = defaultdict(set)
        blocked: set[DeviceKey] = set()
        in_pools: dict[PoolKey, list[str]] = defaultdict(list)
        for held, claims in holders.items():
            in_pools[held.pool_key].append(held.device)
            pool = self.of(held.pool_key)
            for name in pool.overlapping(held.device):
                other = held._replace(device=name)
                # A device that is no longer published is known by name only; it was a partition.
                if held.device in pool.parts(name) or pool.published_as(held.device) is None:
                    by_parts[other].update(claims)
                else:
                    blocked.add(other)
        for key, names in in_pools.items():
            blocked.update(DeviceKey(*key, name) for name in self.of(key).short(names))
        return {key: sorted(claims) for key, claims in by_parts.items()}, blocked

    def hits(self, rule: DeviceTaintRule, device: DeviceKey) -> bool:
        """Whether the rule selects the device, directly or as Draco extends it."""
        selector = rule.spec.device_selector
        if selector is None or (selector.pool not in {None, device.pool}):
            return False  # skip the pool's hardware, which is slow to compute
        return means(rule, self.of(device.pool_key), device)
