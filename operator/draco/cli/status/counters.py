"""Which devices nobody can have because others use up what they draw from, such as partitions of one GPU.

Owns the sums over shared counters. Pure: what is published and held in, devices out.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from draco.resources.api.slices import Device, ResourceSlice
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.quantity import Quantity, QuantityError


def short_of_counters(
    pools: Iterable[tuple[PoolKey, Sequence[ResourceSlice]]], held: Collection[DeviceKey]
) -> set[DeviceKey]:
    """The devices for which too little is left of a counter, those that are held left out."""
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
            (each.name, name): _amount(counter.value) - used[each.name, name]
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
    """What a device takes of which counter of which set."""
    for each in device.consumes_counters:
        for name, counter in each.counters.items():
            yield (each.counter_set, name), _amount(counter.value)


@lru_cache(maxsize=4096)
def _amount(text: str) -> int:
    """A quantity as a number to add up; none for what the API server would not have taken."""
    try:
        return Quantity.parse(text).nanos
    except QuantityError:
        return 0
