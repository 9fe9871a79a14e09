"""The state machine of a maintenance request: Pending → Isolated → InMaintenance → Completed.

Owns the one function from what is seen to what is to be done. Phases are recomputed from what is there, never remembered: a
claim that still lands on an isolated device (its allocation was on its way when the taint was written) brings the request back
from InMaintenance to Isolated, and an operator that died between any two writes leaves nothing that the next plan does not see.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from draco.maintenance.rules import isolates_as, maintained_device, rule_for
from draco.resources.claims import ResourceClaim
from draco.resources.draco import (
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintainedDevice,
    MaintenancePhase,
    MaintenanceSelector,
)
from draco.resources.meta import Condition
from draco.resources.names import DeviceKey
from draco.resources.taints import BLOCKING_EFFECTS, DeviceTaintRule

CONDITION_ISOLATED = "Isolated"
CONDITION_READY_FOR_WORK = "ReadyForWork"
LISTED_DEVICES = 256
"""The status lists no more devices than this (the schema says the same), those in use first; the counts are always whole."""

_NAMED_IN_MESSAGES = 3


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a plan is made.

    `published` are the devices in slices that the selector matches, `rules` the rules of this request, `claims` at least those
    that hold one of its devices. `unavailable` says why no rule can be written and what to do, "" when rules can be written.
    `settle` is how long devices stay isolated and free before work may start: a scheduler learns of a taint a moment late.
    """

    now: datetime
    published: frozenset[DeviceKey] = frozenset()
    rules: tuple[DeviceTaintRule, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    unavailable: str = ""
    settle: timedelta = timedelta(seconds=2)


class MaintenancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, in this order: rules to apply, rules to delete, the status.

    `status` is `None` when it is already as it should be. `look_again` is when time alone may change the plan.
    """

    request: str
    apply: tuple[DeviceTaintRule, ...] = ()
    delete: tuple[DeviceTaintRule, ...] = ()
    status: DeviceMaintenanceStatus | None = None
    look_again: timedelta | None = None

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.apply or self.delete or self.status)

    def __str__(self) -> str:
        steps = [f"apply {_describe(rule)}" for rule in self.apply]
        steps += [f"delete {_describe(rule)}" for rule in self.delete]
        if self.status is not None:
            steps.append(f"set status {self.status.phase}: {self.status.message}")
        return f"maintenance {self.request}: " + ("; ".join(steps) or "nothing to do")


def plan_maintenance(request: DeviceMaintenance, seen: Seen) -> MaintenancePlan:
    """What the request needs now."""
    if request.metadata.deletion_timestamp is not None:
        return plan_abandoned(request.metadata.name, seen.rules)
    if request.spec.finished:
        return _plan_return(request, seen)
    return _plan_isolation(request, seen)


def plan_abandoned(request: str, rules: Iterable[DeviceTaintRule]) -> MaintenancePlan:
    """What is left to do for a request that is gone: take its rules away."""
    return MaintenancePlan(request=request, delete=tuple(rules))


def holders(devices: Iterable[DeviceKey], claims: Iterable[ResourceClaim]) -> dict[DeviceKey, list[str]]:
    """Claims ("namespace/name", sorted) that hold each device."""
    held: dict[DeviceKey, set[str]] = {device: set() for device in devices}
    for claim in claims:
        for device in claim.devices_held:
            if device in held:
                held[device].add(str(claim.metadata.key))
    return {device: sorted(names) for device, names in held.items() if names}


def _plan_isolation(request: DeviceMaintenance, seen: Seen) -> MaintenancePlan:
    selector = request.spec.device_selector
    in_place: dict[DeviceKey, DeviceTaintRule] = {}
    for rule in seen.rules:
        device = maintained_device(rule)
        if device is not None and selector.matches(device):
            in_place[device] = rule
    # A device whose slice is gone (its agent is down, its node reboots) is no less under maintenance: its rule stays.
    devices = sorted(seen.published | in_place.keys())
    wanted = {device: rule_for(request, device) for device in devices}
    names = {rule.metadata.name for rule in wanted.values()}
    missing = tuple(
        rule for device, rule in wanted.items() if device not in in_place or not isolates_as(in_place[device], rule)
    )
    surplus = tuple(rule for rule in seen.rules if rule.metadata.name not in names)
    held = holders(devices, seen.claims)

    isolated = _isolated(request, devices, in_place, seen)
    since = isolated.last_transition_time or seen.now
    settled_in = max(since + seen.settle - seen.now, timedelta(0)) if isolated.status == "True" else timedelta(0)
    ready = _ready_for_work(request, isolated, held, settled_in=settled_in, count=len(devices), now=seen.now)
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
        devices=_listed(devices, in_place, held),
        device_count=len(devices),
        in_use=len(held),
        started_at=started_at,
        conditions=[isolated, ready],
    )
    return MaintenancePlan(
        request=request.metadata.name,
        apply=() if seen.unavailable else missing,
        delete=surplus,
        status=_if_changed(request, status),
        look_again=settled_in if settled_in and not held else None,
    )


def _plan_return(request: DeviceMaintenance, seen: Seen) -> MaintenancePlan:
    before = request.status
    count = before.device_count or 0
    if seen.rules:
        phase = before.phase or MaintenancePhase.PENDING
        message = (
            f"Giving back {_devices(count or len(seen.rules))}: {_count(len(seen.rules), 'taint rule')} left to delete."
        )
        devices, in_use, completed_at = before.devices, before.in_use, before.completed_at
    else:
        phase = MaintenancePhase.COMPLETED
        message = f"{_devices(count)} {_were(count)} given back." if count else "Finished; no device had been isolated."
        devices = [MaintainedDevice(driver=d.driver, pool=d.pool, device=d.device) for d in before.devices]
        in_use, completed_at = 0, before.completed_at or seen.now
    isolated = _condition(
        request, CONDITION_ISOLATED, "True" if seen.rules else "False", "Finished", message, now=seen.now
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
        request=request.metadata.name, delete=seen.rules, status=_if_changed(request, status), look_again=None
    )


def _isolated(
    request: DeviceMaintenance, devices: list[DeviceKey], in_place: Mapping[DeviceKey, DeviceTaintRule], seen: Seen
) -> Condition:
    done = sum(device in in_place and in_place[device].spec.taint.effect in BLOCKING_EFFECTS for device in devices)
    if seen.unavailable:
        status, reason, message = "False", "DeviceTaintRuleNotServed", seen.unavailable
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
        message = f"{done} of {_devices(len(devices))} {_are(done or len(devices))} isolated."
    else:
        status, reason = "True", "Isolated"
        message = f"{_devices(done)} {_are(done)} isolated by an exact taint rule each."
    return _condition(request, CONDITION_ISOLATED, status, reason, message, now=seen.now)


def _ready_for_work(
    request: DeviceMaintenance,
    isolated: Condition,
    held: Mapping[DeviceKey, list[str]],
    *,
    settled_in: timedelta,
    count: int,
    now: datetime,
) -> Condition:
    if isolated.status != "True":
        status, reason, message = "False", "NotIsolated", "Not every device is isolated yet."
    elif held:
        status, reason, message = "False", "InUse", _in_use(held, count)
    elif settled_in:
        status, reason = "False", "Settling"
        message = f"{_devices(count)} {_are(count)} isolated and free; waiting for allocations that were on their way."
    else:
        status, reason = "True", "Free"
        message = f"{_devices(count)} {_are(count)} isolated and no claim holds {_them(count)}: work can start."
    return _condition(request, CONDITION_READY_FOR_WORK, status, reason, message, now=now)


def _in_use(held: Mapping[DeviceKey, list[str]], count: int) -> str:
    examples = [
        f"{device.device} of {device.pool} by {', '.join(names[:_NAMED_IN_MESSAGES])}"
        for device, names in sorted(held.items())[:_NAMED_IN_MESSAGES]
    ]
    more = f" and {len(held) - len(examples)} more" if len(held) > len(examples) else ""
    return f"{len(held)} of {_devices(count)} {_are(len(held))} still in use: {'; '.join(examples)}{more}."


def _listed(
    devices: list[DeviceKey], in_place: Mapping[DeviceKey, DeviceTaintRule], held: Mapping[DeviceKey, list[str]]
) -> list[MaintainedDevice]:
    kept = sorted(sorted(devices, key=lambda device: (device not in held, device))[:LISTED_DEVICES])
    return [
        MaintainedDevice(
            driver=device.driver,
            pool=device.pool,
            device=device.device,
            rule=in_place[device].metadata.name if device in in_place else "",
            claims=held.get(device, []),
        )
        for device in kept
    ]


def _condition(
    request: DeviceMaintenance, type_: str, status: str, reason: str, message: str, *, now: datetime
) -> Condition:
    before = next((c for c in request.status.conditions if c.type == type_), None)
    unchanged = before is not None and before.status == status and before.last_transition_time is not None
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        observed_generation=request.metadata.generation,
        last_transition_time=before.last_transition_time if before is not None and unchanged else now,
    )


def _if_changed(request: DeviceMaintenance, status: DeviceMaintenanceStatus) -> DeviceMaintenanceStatus | None:
    return None if status == request.status else status


def _describe(rule: DeviceTaintRule) -> str:
    device = maintained_device(rule)
    taint = rule.spec.taint
    return f"rule {rule.metadata.name} ({taint.key}:{taint.effect} on {device or 'an unknown device'})"


def _names(selector: MaintenanceSelector) -> str:
    fields = {"driver": selector.driver, "pool": selector.pool, "device": selector.device}
    return ", ".join(f"{field} {value}" for field, value in fields.items() if value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _devices(number: int) -> str:
    return _count(number, "device")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _them(number: int) -> str:
    return "it" if number == 1 else "them"
