"""Which devices a request for maintenance concerns: those it names, and all that are the same hardware.

Owns the matching of a selector against published devices, by exact names and for any driver. What is the same hardware is
`allocation.hardware`'s to say.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.resources.api.maintenance import MaintenanceSelector
from draco.resources.names import DeviceKey, PoolKey, read_partition_name

_NO_BOARDS: Mapping[DeviceKey, str] = MappingProxyType({})


class MaintenanceScope(msgspec.Struct, frozen=True, kw_only=True):
    """What a request concerns.

    `named` are the devices that its selector names, `overlapping` others that are the same hardware (each with the named one that
    it shares it with). `doubtful` are held, published no more, and may be: nobody says how large they were. `others` are all the
    other devices published in the same pools. `boards` has the UUID of the physical GPU behind each device, where it is known.
    """

    named: frozenset[DeviceKey] = frozenset()
    overlapping: Mapping[DeviceKey, DeviceKey] = msgspec.field(default_factory=dict)
    doubtful: frozenset[DeviceKey] = frozenset()
    others: frozenset[DeviceKey] = frozenset()
    boards: Mapping[DeviceKey, str] = _NO_BOARDS


def scope_of(
    selector: MaintenanceSelector,
    pools: Mapping[PoolKey, PoolHardware],
    held: Iterable[DeviceKey] = (),
    isolated: Mapping[DeviceKey, str] = _NO_BOARDS,
) -> MaintenanceScope:
    """What a request with this selector concerns.

    `held` are devices that claims hold, also such as are published no more; `isolated` are those that the request has isolated
    already, with the GPUs that they were.
    """
    named: set[DeviceKey] = set()
    overlapping: dict[DeviceKey, DeviceKey] = {}
    doubtful: set[DeviceKey] = set()
    others: set[DeviceKey] = set()
    boards: dict[DeviceKey, str] = {}
    held_in = _by_pool(held)
    isolated_in = _by_pool(isolated)
    for pool, hardware in pools.items():
        published = {DeviceKey(*pool, name) for name in hardware.published | hardware.implied}
        held_here = held_in.get(pool, set())
        here = {device for device in published | held_here if selector.matches(device)}
        same: dict[DeviceKey, DeviceKey] = {}
        before = sorted(filter(selector.matches, isolated_in.get(pool, ())))
        if selector.device:
            for device in before:
                same.update(dict.fromkeys(_moved(hardware, device, isolated[device]) - here, device))
            same = _overlapping(hardware, dict.fromkeys(here) | same) | same
        for lost in held_here - published - here - same.keys():
            for device in sorted({*here, *before}):
                if hardware.overlap(lost.device, device.device):
                    same[lost] = device
                elif hardware.may_overlap(lost.device, device.device):
                    doubtful.add(lost)
        named |= here
        overlapping |= same
        others |= published - here - same.keys()
        boards |= {device: uuid for device in (*here, *same) if (uuid := hardware.board(device.device))}
    return MaintenanceScope(
        named=frozenset(named),
        overlapping=overlapping,
        doubtful=frozenset(doubtful - overlapping.keys()),
        others=frozenset(others),
        boards=boards,
    )


def _overlapping(hardware: PoolHardware, devices: Mapping[DeviceKey, DeviceKey | None]) -> dict[DeviceKey, DeviceKey]:
    """What else is the same hardware as these, each with the device of which it is."""
    found: dict[DeviceKey, DeviceKey] = {}
    for device in sorted(devices):
        for name in sorted(hardware.overlapping(device.device)):
            other = device._replace(device=name)
            if other not in devices:
                found.setdefault(other, devices[device] or device)
    return found


def _moved(hardware: PoolHardware, device: DeviceKey, uuid: str) -> set[DeviceKey]:
    """The names by which the GPU goes now, or has in it what the device was, if it is not what it was when it was isolated."""
    if (not uuid and device.device in hardware.published) or (uuid and hardware.board(device.device) == uuid):
        return set()
    part = read_partition_name(device.device)
    suffixes = {"", device.device.removeprefix(part.parent)} if part else None
    names = hardware.of_board(uuid) if uuid else hardware.overlapping(device.device)
    known = {name for name in names if name in hardware.published and name != device.device}
    return {device._replace(device=name) for name in known if suffixes is None or _suffix(name) in suffixes}


def _suffix(device: str) -> str:
    """What a device is of its GPU: "" for the whole, else which partition."""
    part = read_partition_name(device)
    return device.removeprefix(part.parent) if part else ""


def _by_pool(devices: Iterable[DeviceKey]) -> dict[PoolKey, set[DeviceKey]]:
    found: dict[PoolKey, set[DeviceKey]] = {}
    for device in devices:
        found.setdefault(PoolKey(device.driver, device.pool), set()).add(device)
    return found
