"""Whole GPUs and partitions on the screen of `draco status`: who uses what of one piece of hardware.

Owns what claims on one device say of the others that are the same hardware, and what a taint rule means for them. What is the
same hardware is `allocation.hardware`'s to say.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.rules import extended_device
from draco.resources.api.slices import ResourceSlice, by_pool
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey


class UsedHardware(msgspec.Struct, frozen=True):
    """What claims on other devices mean for a device: names of those on parts of it, and whether others merely overlap it."""

    by_parts: Mapping[DeviceKey, list[str]]
    overlapped: frozenset[DeviceKey]


class HardwareByPool:
    """The hardware of all pools, worked out pool by pool when asked for."""

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        self._slices = by_pool(slices)
        self._pools: dict[PoolKey, PoolHardware] = {}

    def of(self, device: DeviceKey) -> PoolHardware:
        """That of the device's pool."""
        pool = PoolKey(device.driver, device.pool)
        if pool not in self._pools:
            self._pools[pool] = PoolHardware(self._slices.get(pool, ()))
        return self._pools[pool]

    def used(self, holders: Mapping[DeviceKey, Iterable[str]]) -> UsedHardware:
        """What is used through other devices, from the claims on each device."""
        by_parts: dict[DeviceKey, set[str]] = defaultdict(set)
        overlapped: set[DeviceKey] = set()
        for held, claims in holders.items():
            pool = self.of(held)
            for name in pool.overlapping(held.device):
                other = held._replace(device=name)
                # Of one that is published no more only its name is known, and that it was a part.
                if held.device in pool.parts(name) or pool.published_as(held.device) is None:
                    by_parts[other].update(claims)
                else:
                    overlapped.add(other)
        return UsedHardware({key: sorted(claims) for key, claims in by_parts.items()}, frozenset(overlapped))

    def hits(self, rule: DeviceTaintRule, device: DeviceKey) -> bool:
        """Whether the rule means the device: it names it, or Draco extends it to that."""
        selector = rule.spec.device_selector
        if selector is None:
            return False
        if selector.matches(device):
            return True
        named = extended_device(rule)
        return named is not None and named[:2] == device[:2] and self.of(device).overlap(device.device, named.device)
