"""The state machine of a maintenance request: Pending → Isolated → InMaintenance → Completed.

Owns the one function from what is seen to what is to be done. Phases are recomputed from what is there, never remembered: a
claim that still lands on an isolated device (its allocation was on its way when the taint was written) brings the request back
from InMaintenance to Isolated, and an operator that died between any two writes leaves nothing that the next plan does not see.

A device stands for its hardware: what overlaps it is isolated with it, and is in use if a claim holds any part. Claims with
administrative access only look on: monitoring has them on every device for ever, so they are named and do not hold up the work.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from draco.maintenance import wording
from draco.maintenance.matching import MaintenanceScope
from draco.maintenance.rules import isolated_board, isolates_as, maintained_device, overlapped, rule_for
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import (
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintainedDevice,
    MaintenancePhase,
    MaintenanceSelector,
)
from draco.resources.api.meta import Condition, ObjectKey, timed
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.names import DeviceKey
from draco.resources.texts import listed

CONDITION_ISOLATED = "Isolated"
CONDITION_READY_FOR_WORK = "ReadyForWork"
LISTED_DEVICES = 256
"""The status lists no more devices than this (the schema says the same), those in use first; the counts are always whole."""


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a plan is made.

    `scope` is what the request concerns, `rules` are the rules of this request, `others` further requests, `claims` at least
    those that hold or watch one of its devices. `tolerant` are claims that wait and may be allocated one in spite of the taint.
    `unheeded` are devices that agents are still to publish with the taint. `settle` is how long devices stay isolated and free
    before work may start: a scheduler learns of a taint a moment late.

    Where no rules are served (`rules_served`), what agents publish is all that isolates a device: `beyond` are devices that none
    would taint, `informed` are the nodes whose GpuNode has the request.
    """

    now: datetime
    scope: MaintenanceScope = MaintenanceScope()
    rules: tuple[DeviceTaintRule, ...] = ()
    others: tuple[DeviceMaintenance, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    tolerant: tuple[ObjectKey, ...] = ()
    rules_served: bool = True
    unheeded: tuple[DeviceKey, ...] = ()
    beyond: tuple[DeviceKey, ...] = ()
    informed: tuple[str, ...] = ()
    settle: timedelta = timedelta(seconds=2)


class MaintenancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, in this order: rules to apply, rules to delete, the status.

    `status_first`: the status takes back what it said before, so it comes before all else. Else an operator that died in between
    would leave devices called settled that were isolated just now, or ready for work that are given back. `status` is `None` when
    it is already as it should be. `look_again` is when time alone may change the plan.
    """

    request: str
    status_first: bool = False
    apply: tuple[DeviceTaintRule, ...] = ()
    delete: tuple[DeviceTaintRule, ...] = ()
    status: DeviceMaintenanceStatus | None = None
    look_again: timedelta | None = None

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.apply or self.delete or self.status)

    def __str__(self) -> str:
        steps = [
            f"{verb} {_describe_all(rules)}"
            for verb, rules in (("apply", self.apply), ("delete", self.delete))
            if rules
        ]
        if self.status is not None:
            steps.append(f"set status {self.status.phase}: {self.status.message}")
        return f"maintenance {self.request}: " + ("; ".join(steps) or "nothing to do")


def plan_maintenance(request: DeviceMaintenance, seen: PlanInput) -> MaintenancePlan:
    """What the request needs now."""
    if request.metadata.deletion_timestamp is not None:
        return plan_abandoned(request.metadata.name, seen.rules)
    if request.spec.finished:
        return _plan_return(request, seen)
    return _plan_isolation(request, seen)


def plan_abandoned(request: str, rules: Iterable[DeviceTaintRule]) -> MaintenancePlan:
    """What is left to do for a request that is gone: take its rules away."""
    return MaintenancePlan(request=request, delete=tuple(rules))


def says(request: DeviceMaintenance, type_: str) -> bool:
    """Whether the status has this condition as true."""
    return any(each.type == type_ and each.status == "True" for each in request.status.conditions)


def _claims_by_device(
    devices: Iterable[DeviceKey],
    claims: Iterable[ResourceClaim],
    devices_of: Callable[[ResourceClaim], Iterable[DeviceKey]],
) -> dict[DeviceKey, list[str]]:
    """Claims ("namespace/name", sorted) that have each device."""
    found: dict[DeviceKey, set[str]] = {device: set() for device in devices}
    for claim in claims:
        for device in devices_of(claim):
            if device in found:
                found[device].add(str(claim.metadata.key))
    return {device: sorted(names) for device, names in found.items() if names}


def _plan_isolation(request: DeviceMaintenance, seen: PlanInput) -> MaintenancePlan:
    scope = seen.scope
    # Users take annotations off rules, and rules away: the status knows as well what was isolated.
    known = {each.key: each for each in request.status.devices if each.uuid or each.rule}
    in_place: dict[DeviceKey, DeviceTaintRule] = {}
    for rule in seen.rules if seen.rules_served else _as_rules(request, scope, known):
        device = maintained_device(rule)
        if device is not None:
            before = known.get(device) or MaintainedDevice(**device._asdict())
            noted = {"overlaps": overlapped(rule) or before.overlaps, "uuid": isolated_board(rule) or before.uuid}
            known[device] = msgspec.structs.replace(before, **noted)
            in_place[device] = rule
    # A device whose slice is gone (its agent is down, its node reboots) is no less under maintenance: its rule stays.
    known = {device: each for device, each in known.items() if _concerns(request.spec.device_selector, scope, each)}
    in_place = {device: rule for device, rule in in_place.items() if device in known}
    wanted = {
        device: _wanted(request, device, known.get(device), scope)
        for device in sorted(scope.named | scope.overlapping.keys() | known.keys())
    }
    devices = list(wanted)
    names = {rule.metadata.name for rule in wanted.values()}
    missing = tuple(
        rule for device, rule in wanted.items() if device not in in_place or not isolates_as(in_place[device], rule)
    )
    surplus = tuple(rule for rule in seen.rules if rule.metadata.name not in names)
    held = _claims_by_device((*devices, *scope.doubtful), seen.claims, lambda claim: claim.devices_held)
    watched = _claims_by_device(devices, seen.claims, lambda claim: claim.devices_watched)
    listed = sorted({*devices, *held})

    isolated = _isolated(request, devices, in_place, seen)
    since = isolated.last_transition_time or seen.now
    settled_in = max(since + seen.settle - seen.now, timedelta(0)) if isolated.status == "True" else timedelta(0)
    ready = _ready_for_work(
        request,
        isolated,
        _Findings(
            count=len(listed),
            held=held,
            watchers=sorted({name for names in watched.values() for name in names}),
            replaced=_replaced(wanted, scope),
            taken=_taken(request, wanted, seen.others),
            settled_in=settled_in,
        ),
        seen,
    )
    if isolated.status != "True":
        phase, message = MaintenancePhase.PENDING, isolated.message
    elif ready.status != "True":
        phase, message = MaintenancePhase.ISOLATED, ready.message
    else:
        phase, message = MaintenancePhase.IN_MAINTENANCE, ready.message
    started_at = request.status.started_at
    if phase is MaintenancePhase.IN_MAINTENANCE and started_at is None:
        started_at = seen.now
    status = DeviceMaintenanceStatus(
        phase=phase,
        observed_generation=request.metadata.generation,
        message=message,
        devices=_listed(listed, wanted, in_place if seen.rules_served else {}, held, watched),
        device_count=len(devices),
        in_use=len(held),
        started_at=started_at,
        conditions=[isolated, ready],
    )
    return MaintenancePlan(
        request=request.metadata.name,
        status_first=isolated.status != "True" and says(request, CONDITION_ISOLATED),
        apply=missing if seen.rules_served else (),
        delete=surplus,
        status=_if_changed(request, status),
        look_again=settled_in if settled_in and not held else None,
    )


def _plan_return(request: DeviceMaintenance, seen: PlanInput) -> MaintenancePlan:
    before = request.status
    count = before.device_count or 0
    tainted = bool(seen.rules or seen.informed)
    if tainted:
        phase = before.phase or MaintenancePhase.PENDING
        message = wording.giving_back(count or len(seen.rules), len(seen.rules), seen.informed)
        devices, in_use, completed_at = before.devices, before.in_use, before.completed_at
    else:
        phase = MaintenancePhase.COMPLETED
        message = wording.given_back(count)
        devices = [msgspec.structs.replace(each, rule="", claims=[], watched_by=[]) for each in before.devices]
        in_use, completed_at = 0, before.completed_at or seen.now
    isolated = _condition(
        request, CONDITION_ISOLATED, "True" if tainted else "False", "Finished", message, now=seen.now
    )
    ready = _condition(request, CONDITION_READY_FOR_WORK, "False", "Finished", "The request is finished.", now=seen.now)
    status = DeviceMaintenanceStatus(
        phase=phase,
        observed_generation=request.metadata.generation,
        message=message,
        devices=devices,
        device_count=count,
        in_use=in_use,
        started_at=before.started_at,
        completed_at=completed_at,
        conditions=[isolated, ready],
    )
    return MaintenancePlan(
        request=request.metadata.name,
        status_first=says(request, CONDITION_READY_FOR_WORK),
        delete=seen.rules,
        status=_if_changed(request, status),
        look_again=None,
    )


def _as_rules(
    request: DeviceMaintenance, scope: MaintenanceScope, known: Mapping[DeviceKey, MaintainedDevice]
) -> Iterable[DeviceTaintRule]:
    """The rules that would say what slices and the status say: of what is there, and of what was isolated before."""
    for device in scope.named | scope.overlapping.keys() | known.keys():
        yield _wanted(request, device, known.get(device), scope)


def _concerns(selector: MaintenanceSelector, scope: MaintenanceScope, known: MaintainedDevice) -> bool:
    """Whether a device that was isolated is still one that the request concerns."""
    if known.key in scope.named or known.key in scope.overlapping:
        return True
    asked = known.key._replace(device=known.overlaps.rpartition("/")[2] or known.device)
    return known.key not in scope.others and selector.matches(asked)


def _wanted(
    request: DeviceMaintenance, device: DeviceKey, known: MaintainedDevice | None, scope: MaintenanceScope
) -> DeviceTaintRule:
    """The rule for a device. It keeps what was noted down of the GPU: that is the one under maintenance."""
    overlaps, board = str(scope.overlapping.get(device, "")), scope.boards.get(device, "")
    if known is not None:
        overlaps = overlaps or ("" if device in scope.named else known.overlaps)
        board = known.uuid or board
    return rule_for(request, device, overlaps=overlaps, board=board)


def _replaced(wanted: Mapping[DeviceKey, DeviceTaintRule], scope: MaintenanceScope) -> dict[DeviceKey, tuple[str, str]]:
    """Devices whose name stands for another GPU now than when they were isolated: the two UUIDs."""
    boards = {device: (isolated_board(rule), scope.boards.get(device, "")) for device, rule in wanted.items()}
    return {device: (before, now) for device, (before, now) in boards.items() if before and now and before != now}


def _taken(
    request: DeviceMaintenance, wanted: Mapping[DeviceKey, DeviceTaintRule], others: Iterable[DeviceMaintenance]
) -> tuple[DeviceKey, str] | None:
    """A device that another request works on first, and its name: one that was told to start keeps it, else the older has it.

    Two partitions of one GPU are two devices, though each request isolates the whole GPU as well.
    """
    ready = says(request, CONDITION_READY_FOR_WORK)
    for other in sorted(others, key=_age):
        waits = not ready and not other.spec.finished and other.spec.taint.effect in BLOCKING_EFFECTS
        if says(other, CONDITION_READY_FOR_WORK) or (waits and _age(other) < _age(request)):
            for each in other.status.devices:
                if (rule := wanted.get(each.key)) and not (each.overlaps and overlapped(rule)):
                    return each.key, other.metadata.name
    return None


def _age(request: DeviceMaintenance) -> tuple[bool, float, str]:
    created = request.metadata.creation_timestamp
    return created is None, created.timestamp() if created else 0.0, request.metadata.uid


def _isolated(
    request: DeviceMaintenance, devices: list[DeviceKey], in_place: Mapping[DeviceKey, DeviceTaintRule], seen: PlanInput
) -> Condition:
    unheeded = () if seen.rules_served else seen.unheeded
    done = sum(device in in_place and in_place[device].spec.taint.effect in BLOCKING_EFFECTS for device in devices)
    done -= len(unheeded)
    if seen.beyond:
        status, reason, message = "False", "DeviceTaintRuleNotServed", wording.rules_not_served(seen.beyond)
    elif not devices:
        named = _names(request.spec.device_selector)
        status, reason = "False", "NoDevices"
        message = f"No published device has {named}; compare the names with `kubectl get resourceslices -o yaml`."
    elif request.spec.taint.effect not in BLOCKING_EFFECTS:
        status, reason = "False", "EffectNone"
        message = (
            f"The taint's effect is {request.spec.taint.effect}, so new claims may still take the devices; "
            "set spec.taint.effect to NoSchedule to isolate them."
        )
    elif done < len(devices):
        status, reason = "False", "Isolating"
        message = wording.isolating(done, len(devices), unheeded)
    else:
        status, reason = "True", "Isolated"
        message = wording.isolated(done, by_rules=seen.rules_served)
    return _condition(request, CONDITION_ISOLATED, status, reason, message, now=seen.now)


class _Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the way of work on `count` devices; `replaced` has the GPUs before and now, `taken` who works on one."""

    count: int
    held: Mapping[DeviceKey, list[str]]
    watchers: list[str]
    replaced: Mapping[DeviceKey, tuple[str, str]]
    taken: tuple[DeviceKey, str] | None
    settled_in: timedelta


def _ready_for_work(request: DeviceMaintenance, isolated: Condition, found: _Findings, seen: PlanInput) -> Condition:
    count = found.count
    if isolated.status != "True":
        status, reason, message = "False", "NotIsolated", "Not every device is isolated yet."
    elif found.held:
        status, reason, message = "False", "InUse", wording.in_use(found.held, count)
    elif found.replaced:
        status, reason, message = "False", "OtherGpu", wording.other_gpu(found.replaced)
    elif found.taken:
        status, reason, message = "False", "OtherRequest", wording.taken(*found.taken)
    elif seen.tolerant:
        status, reason, message = "False", "Obtainable", wording.obtainable(request, seen.tolerant, count)
    elif seen.unheeded:
        status, reason, message = "False", "Publishing", wording.unheeded(seen.unheeded, count)
    elif found.settled_in:
        status, reason = "False", "Settling"
        message = wording.settling(count)
    else:
        status, reason = "True", "Free"
        message = wording.free(count, found.watchers)
    return _condition(request, CONDITION_READY_FOR_WORK, status, reason, message, now=seen.now)


def _listed(
    devices: list[DeviceKey],
    wanted: Mapping[DeviceKey, DeviceTaintRule],
    in_place: Mapping[DeviceKey, DeviceTaintRule],
    held: Mapping[DeviceKey, list[str]],
    watched: Mapping[DeviceKey, list[str]],
) -> list[MaintainedDevice]:
    kept = sorted(sorted(devices, key=lambda device: (device not in held, device))[:LISTED_DEVICES])
    return [
        MaintainedDevice(
            driver=device.driver,
            pool=device.pool,
            device=device.device,
            uuid=isolated_board(wanted[device]) if device in wanted else "",
            overlaps=overlapped(wanted[device]) if device in wanted else "",
            rule=in_place[device].metadata.name if device in in_place else "",
            claims=held.get(device, []),
            watched_by=watched.get(device, []),
        )
        for device in kept
    ]


def _condition(
    request: DeviceMaintenance, type_: str, status: str, reason: str, message: str, *, now: datetime
) -> Condition:
    wanted = Condition(type=type_, status=status, reason=reason, message=message)
    return timed(wanted, request.status.conditions, now, generation=request.metadata.generation)


def _if_changed(request: DeviceMaintenance, status: DeviceMaintenanceStatus) -> DeviceMaintenanceStatus | None:
    return None if status == request.status else status


def _describe_all(rules: Sequence[DeviceTaintRule]) -> str:
    return listed(map(_describe, rules), rest="more rules")


def _describe(rule: DeviceTaintRule) -> str:
    device = maintained_device(rule)
    taint = rule.spec.taint
    return f"rule {rule.metadata.name} ({taint.key}:{taint.effect} on {device or 'an unknown device'})"


def _names(selector: MaintenanceSelector) -> str:
    fields = {"driver": selector.driver, "pool": selector.pool, "device": selector.device}
    return ", ".join(f"{field} {value}" for field, value in fields.items() if value)
