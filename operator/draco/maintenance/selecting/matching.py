"""Which devices a request for maintenance concerns: those it names, and all of the same hardware.

Owns the matching of a selection against published devices, for any driver, and when a selection is fixed. `selectors` evaluates
node, class and CEL; `allocation.hardware` says which devices share hardware.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.taint_rules import isolated_board, maintained_device, overlapped
from draco.resources.api.maintenance import OVER, DeviceMaintenance, MaintenancePhase, MaintenanceSelector
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey, gpu_name

_NO_BOARDS: Mapping[DeviceKey, str] = MappingProxyType({})
_NOTHING: Final = PoolHardware(())
_BEGUN: Final = frozenset(MaintenancePhase) - OVER - {MaintenancePhase.PENDING, MaintenancePhase.REHEARSED}


class MaintenanceSelection(msgspec.Struct, frozen=True, kw_only=True):
    """What a request selects: `devices` by name or, if None, all that match `selector`'s names, now or later."""

    selector: MaintenanceSelector
    devices: frozenset[DeviceKey] | None = None

    def matches(self, device: DeviceKey) -> bool:
        """Whether it selects this device."""
        return self.selector.matches(device) if self.devices is None else device in self.devices

    def may_match(self, pool: PoolKey) -> bool:
        """Whether it may select devices of the pool."""
        return self.selector.may_match(pool) if self.devices is None else pool in self._pools

    @property
    def by_device(self) -> bool:
        """Whether it selects single devices rather than whole pools."""
        return self.devices is not None or bool(self.selector.device)

    def names_in(self, pool: PoolKey) -> list[str]:
        """The selected devices of a pool; "" stands for all of them."""
        if self.devices is None:
            return [self.selector.device or ""] if self.selector.may_match(pool) else []
        return sorted(device.device for device in self.devices if device[:2] == pool)

    @property
    def _pools(self) -> frozenset[PoolKey]:
        return frozenset(device.pool_key for device in self.devices or ())


def is_exact(selector: MaintenanceSelector) -> bool:
    """Whether the selector uses names only. It is never fixed then: boards move, and partitions come and go."""
    return not (selector.node_name or selector.device_class_name or selector.selectors)


def has_begun(request: DeviceMaintenance) -> bool:
    """Whether its devices are isolated or about to be, also by an older operator."""
    status = request.status
    return status.phase not in OVER and (status.isolated_at is not None or status.phase in _BEGUN)


def unseen_rules(request: DeviceMaintenance) -> dict[DeviceKey, str]:
    """Rules that isolate devices according to the status. They may exist though the API server serves no rules now."""
    return {each.key: each.rule for each in request.status.devices if each.rule}


def keeps_isolated(request: DeviceMaintenance, rule: DeviceTaintRule) -> bool:
    """Whether a rule of the request isolates its device, or did until somebody weakened it, rather than only announcing.

    An announced device is not in maintenance. If it is gone when the request begins, no budget was asked for it.
    """
    return has_begun(request) or rule.spec.taint.effect in BLOCKING_EFFECTS


def isolated_boards(request: DeviceMaintenance, rules: Iterable[DeviceTaintRule]) -> dict[DeviceKey, str]:
    """Devices isolated by the request, with their GPUs' UUIDs then. Those without one of its `rules` are in its status."""
    boards = {each.key: each.uuid for each in request.status.devices if each.uuid} if has_begun(request) else {}
    isolating = (rule for rule in rules if keeps_isolated(request, rule))
    found = {device: isolated_board(rule) for rule in isolating if (device := maintained_device(rule))}
    return boards | {device: board or boards.get(device, "") for device, board in found.items()}


def fixed_selection(request: DeviceMaintenance, rules: Iterable[DeviceTaintRule] = ()) -> MaintenanceSelection | None:
    """The selection once the request has begun, or if it uses names only; else None. Its own `rules` replace a lost status."""
    selector = request.spec.device_selector
    if is_exact(selector):
        return MaintenanceSelection(selector=selector)
    fixed = {each.key for each in request.status.devices if not each.overlaps} if has_begun(request) else set()
    if not fixed and request.status.phase not in OVER:
        isolating = (each for each in rules if each.spec.taint.effect in BLOCKING_EFFECTS and not overlapped(each))
        fixed = {device for each in isolating if (device := maintained_device(each))}
    if not fixed and request.status.phase not in OVER:
        return None
    return MaintenanceSelection(selector=selector, devices=frozenset(fixed))


def incomplete_pools(
    selection: MaintenanceSelection, pools: Mapping[PoolKey, PoolHardware], held: Iterable[DeviceKey] = ()
) -> list[PoolKey]:
    """The pools of selected devices with missing slices, because a driver is replacing them.

    A selected pool that nobody publishes is incomplete too, if claims hold devices of it.
    """
    held_in = _by_pool(held)
    return [
        pool
        for pool, hardware in sorted(pools.items())
        if (
            any(selection.matches(DeviceKey(*pool, name)) for name in hardware.expected | hardware.implied)
            and not hardware.complete
        )
        or (not hardware.expected and not selection.by_device and any(map(selection.matches, held_in.get(pool, ()))))
    ]


def vanished(isolated: Mapping[DeviceKey, str], pools: Mapping[PoolKey, PoolHardware]) -> list[DeviceKey]:
    """The devices of `isolated` (each with its GPU's UUID) of whose GPU nothing is published any more, under any name."""
    found = []
    for device, uuid in sorted(isolated.items()):
        hardware = pools.get(device.pool_key, _NOTHING)
        gpu = gpu_name(device.device)
        alike = {device.device, gpu, *hardware.overlapping(gpu), *(hardware.of_board(uuid) if uuid else ())}
        if alike.isdisjoint(hardware.expected):
            found.append(device)
    return found


class MaintenanceScope(msgspec.Struct, frozen=True, kw_only=True):
    """What a request concerns.

    `named` match its selector; `overlapping` share hardware with a named device (the value). `doubtful` are held but not
    published any more, and may overlap: their size is unknown. `others` are all other devices published in the same pools.
    `boards` has the UUID of the physical GPU behind each device, where known.
    """

    named: frozenset[DeviceKey] = frozenset()
    overlapping: Mapping[DeviceKey, DeviceKey] = msgspec.field(default_factory=dict)
    doubtful: frozenset[DeviceKey] = frozenset()
    others: frozenset[DeviceKey] = frozenset()
    boards: Mapping[DeviceKey, str] = _NO_BOARDS


def scope_of(
    selection: MaintenanceSelection | MaintenanceSelector,
    pools: Mapping[PoolKey, PoolHardware],
    held: Iterable[DeviceKey] = (),
    isolated: Mapping[DeviceKey, str] = _NO_BOARDS,
) -> MaintenanceScope:
    """What a request with this selection concerns; a bare selector selects by its names.

    `held` are devices that claims hold, published or not; `isolated` are those that the request has isolated, with their GPUs at
    that time.
    """
    if isinstance(selection, MaintenanceSelector):
        selection = MaintenanceSelection(selector=selection)
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
        here = {device for device in published | held_here if selection.matches(device)}
        same: dict[DeviceKey, DeviceKey] = {}
        before = sorted(filter(selection.matches, isolated_in.get(pool, ())))
        if selection.by_device:
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
    """Other devices on the same hardware as these, each with the device that it overlaps."""
    found: dict[DeviceKey, DeviceKey] = {}
    for device in sorted(devices):
        for name in sorted(hardware.overlapping(device.device)):
            other = device._replace(device=name)
            if other not in devices:
                found.setdefault(other, devices[device] or device)
    return found


def _moved(hardware: PoolHardware, device: DeviceKey, uuid: str) -> set[DeviceKey]:
    """Today's names of an isolated GPU, or of its part that the device was, if the device's name now means something else."""
    if (not uuid and device.device in hardware.published) or (uuid and hardware.board(device.device) == uuid):
        return set()
    suffix = _suffix(device.device)
    suffixes = {"", suffix} if suffix else None
    names = hardware.of_board(uuid) if uuid else hardware.overlapping(device.device)
    known = {name for name in names if name in hardware.published and name != device.device}
    return {device._replace(device=name) for name in known if suffixes is None or _suffix(name) in suffixes}


def _suffix(device: str) -> str:
    """The part of its GPU that a device is: "" for the whole, else the partition."""
    return device.removeprefix(gpu_name(device))


def _by_pool(devices: Iterable[DeviceKey]) -> dict[PoolKey, set[DeviceKey]]:
    found: dict[PoolKey, set[DeviceKey]] = {}
    for device in devices:
        found.setdefault(device.pool_key, set()).add(device)
    return found
