"""How far the isolation of a request's devices is: wanted rules, existing rules, and the claims that hold or watch devices.

Owns that comparison. A device stands for its hardware: what overlaps it is isolated too, and it is in use if a claim holds any
part of it. Claims with administrative access are listed but do not block the work: monitoring has them on every device.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from draco.maintenance.selecting.matching import MaintenanceScope, MaintenanceSelection, has_begun, keeps_isolated
from draco.maintenance.taint_rules import isolated_board, isolates_as, maintained_device, overlapped, rule_for
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import DeviceMaintenance, MaintainedDevice
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.names import DeviceKey, read_partition_name

LISTED_DEVICES = 256
"""The most devices in a status (the schema has the same limit), those in use first; the counts are complete."""


class IsolationState(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted and existing isolation.

    `wanted` has the rule for each device, `in_place` the existing ones; `missing` are to be applied, `surplus` deleted. `held`
    and `watched` name the claims of each device, including doubtful devices.
    """

    wanted: Mapping[DeviceKey, DeviceTaintRule]
    in_place: Mapping[DeviceKey, DeviceTaintRule]
    missing: tuple[DeviceTaintRule, ...]
    surplus: tuple[DeviceTaintRule, ...]
    held: Mapping[DeviceKey, list[str]]
    watched: Mapping[DeviceKey, list[str]]

    @property
    def devices(self) -> list[DeviceKey]:
        """The devices to isolate."""
        return list(self.wanted)

    @property
    def concerned(self) -> list[DeviceKey]:
        """The same, and devices that may be parts of them."""
        return sorted({*self.wanted, *self.held})

    @property
    def blocking(self) -> int:
        """How many of the devices have a rule that keeps new claims off."""
        return sum(rule.spec.taint.effect in BLOCKING_EFFECTS for rule in self.in_place.values())

    @property
    def rule_names(self) -> dict[DeviceKey, str]:
        """The names of the existing rules."""
        return {device: rule.metadata.name for device, rule in self.in_place.items()}

    @property
    def watchers(self) -> list[str]:
        """The claims with administrative access."""
        return sorted({name for names in self.watched.values() for name in names})


def isolation_state_of(
    request: DeviceMaintenance,
    selection: MaintenanceSelection,
    scope: MaintenanceScope,
    rules: Iterable[DeviceTaintRule],
    claims: Iterable[ResourceClaim],
    *,
    own_claims: Collection[ObjectKey] = (),
    rules_served: bool = True,
    effect: str = "",
) -> IsolationState:
    """Compare existing with wanted isolation. `effect` overrides the effect of the request's taint; "" does not."""
    # Users remove annotations and rules, so the status is read too: it records what was isolated.
    rules = tuple(rules)
    listed = request.status.devices if has_begun(request) else ()
    known = {each.key: each for each in listed if each.uuid or each.rule}
    in_place: dict[DeviceKey, DeviceTaintRule] = {}
    for rule in rules if rules_served else _as_rules(request, scope, known, effect):
        device = maintained_device(rule)
        if device is None:
            continue
        in_place[device] = rule
        if keeps_isolated(request, rule):
            before = known.get(device) or MaintainedDevice(**device._asdict())
            noted = {"overlaps": overlapped(rule) or before.overlaps, "uuid": isolated_board(rule) or before.uuid}
            known[device] = msgspec.structs.replace(before, **noted)
    # A device whose slice is gone (agent down, node rebooting) is still under maintenance: its rule stays.
    known = {device: each for device, each in known.items() if _concerns(selection, scope, each)}
    fixed = selection.devices or frozenset()
    wanted = {
        device: _wanted(request, device, known.get(device), scope, effect)
        for device in sorted(scope.named | scope.overlapping.keys() | known.keys() | fixed)
    }
    in_place = {device: rule for device, rule in in_place.items() if device in wanted}
    names = {rule.metadata.name for rule in wanted.values()}
    others = [claim for claim in claims if claim.metadata.key not in own_claims]
    return IsolationState(
        wanted=wanted,
        in_place=in_place,
        missing=tuple(
            rule for device, rule in wanted.items() if device not in in_place or not isolates_as(in_place[device], rule)
        )
        if rules_served
        else (),
        surplus=tuple(rule for rule in rules if rule.metadata.name not in names),
        held=held_by((*wanted, *scope.doubtful), others),
        watched=_claims_by_device(wanted, others, lambda claim: claim.devices_watched),
    )


def replaced_boards(standing: IsolationState, scope: MaintenanceScope) -> dict[DeviceKey, tuple[str, str]]:
    """Devices whose name now stands for another GPU than when they were isolated, with both UUIDs."""
    return _changed({device: isolated_board(rule) for device, rule in standing.wanted.items()}, scope.boards)


def replaced_by(request: DeviceMaintenance, boards: Mapping[DeviceKey, str]) -> dict[DeviceKey, tuple[str, str]]:
    """The same for the devices that were asked for, from the request's status."""
    return _changed({each.key: each.uuid for each in request.status.devices if not each.overlaps}, boards)


def _changed(before: Mapping[DeviceKey, str], now: Mapping[DeviceKey, str]) -> dict[DeviceKey, tuple[str, str]]:
    pairs = {device: (uuid, now.get(device, "")) for device, uuid in before.items()}
    return {device: (was, is_) for device, (was, is_) in pairs.items() if was and is_ and was != is_}


def listed_devices(
    standing: IsolationState, selection: MaintenanceSelection, rule_names: Mapping[DeviceKey, str]
) -> list[MaintainedDevice]:
    """The devices for the status. Those of a fixed selection come first."""
    fixed = selection.devices or frozenset()
    kept = sorted(
        sorted(
            standing.concerned,
            key=lambda device: (device not in fixed, device not in standing.held, device),
        )[:LISTED_DEVICES]
    )
    return [
        MaintainedDevice(
            driver=device.driver,
            pool=device.pool,
            device=device.device,
            uuid=isolated_board(standing.wanted[device]) if device in standing.wanted else "",
            overlaps=overlapped(standing.wanted[device]) if device in standing.wanted else _doubted(device, fixed),
            rule=rule_names.get(device, ""),
            claims=standing.held.get(device, []),
            watched_by=standing.watched.get(device, []),
        )
        for device in kept
    ]


def _doubted(device: DeviceKey, fixed: Collection[DeviceKey]) -> str:
    """The fixed device of which this one may be a part. Without it, this one would count as asked for."""
    here = sorted(each for each in fixed if each[:2] == device[:2])
    part = read_partition_name(device.device)
    near = [each for each in here if part and each.device.startswith(part.parent)]
    return str((near or here)[0]) if here else ""


def held_by(devices: Iterable[DeviceKey], claims: Iterable[ResourceClaim]) -> dict[DeviceKey, list[str]]:
    """The held ones of these devices, each with its claims ("namespace/name", sorted)."""
    return _claims_by_device(devices, claims, lambda claim: claim.devices_held)


def _claims_by_device(
    devices: Iterable[DeviceKey],
    claims: Iterable[ResourceClaim],
    devices_of: Callable[[ResourceClaim], Iterable[DeviceKey]],
) -> dict[DeviceKey, list[str]]:
    asked, found = frozenset(devices), dict[DeviceKey, set[str]]()
    for claim in claims:
        for device in devices_of(claim):
            if device in asked:
                found.setdefault(device, set()).add(str(claim.metadata.key))
    return {device: sorted(names) for device, names in found.items()}


def _as_rules(
    request: DeviceMaintenance, scope: MaintenanceScope, known: Mapping[DeviceKey, MaintainedDevice], effect: str
) -> Iterable[DeviceTaintRule]:
    """The rules that would describe today's slices and status, for clusters without rules."""
    for device in scope.named | scope.overlapping.keys() | known.keys():
        yield _wanted(request, device, known.get(device), scope, effect)


def _concerns(selection: MaintenanceSelection, scope: MaintenanceScope, known: MaintainedDevice) -> bool:
    if known.key in scope.named or known.key in scope.overlapping:
        return True
    asked = known.key._replace(device=known.overlaps.rpartition("/")[2] or known.device)
    return known.key not in scope.others and selection.matches(asked)


def _wanted(
    request: DeviceMaintenance, device: DeviceKey, known: MaintainedDevice | None, scope: MaintenanceScope, effect: str
) -> DeviceTaintRule:
    """The rule for a device. It keeps the GPU recorded at isolation: that one is under maintenance."""
    overlaps, board = str(scope.overlapping.get(device, "")), scope.boards.get(device, "")
    if known is not None:
        overlaps = overlaps or ("" if device in scope.named else known.overlaps)
        board = known.uuid or board
    return rule_for(request, device, overlaps=overlaps, board=board, effect=effect)
