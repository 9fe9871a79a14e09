"""Whether a request's devices are isolated, and whether work on them may start, with the first hindrance.

Owns the conditions Isolated and ReadyForWork of a request that has begun, and the order of hindrances. `plan` chooses the phase.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from draco.maintenance import wording
from draco.maintenance.isolating.isolation_state import IsolationState
from draco.maintenance.progress import DrainPlan
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import overlapped
from draco.resources.api.maintenance import (
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    CONDITION_WORKED,
    REASON_OTHER_GPU,
    DeviceMaintenance,
    MaintenancePhase,
)
from draco.resources.api.meta import Condition, timed
from draco.resources.api.taints import BLOCKING_EFFECTS
from draco.resources.names import DeviceKey


class WorkHindrances(msgspec.Struct, frozen=True, kw_only=True):
    """What prevents work on `count` devices; `replaced` has the UUIDs before and now, `taken` a device and its other request."""

    count: int
    held: Mapping[DeviceKey, list[str]]
    watchers: list[str]
    replaced: Mapping[DeviceKey, tuple[str, str]]
    taken: tuple[DeviceKey, str] | None
    settled_in: timedelta


def isolated_condition(
    request: DeviceMaintenance, standing: IsolationState, snapshot: MaintenanceSnapshot
) -> Condition:
    """Whether each device has its taint."""
    devices = standing.devices
    unheeded = () if snapshot.rules_served else snapshot.unheeded
    done = standing.blocking - len(unheeded)
    if snapshot.beyond:
        status, reason, message = "False", "DeviceTaintRuleNotServed", wording.rules_not_served(snapshot.beyond)
    elif not devices:
        status, reason, message = "False", "NoDevices", wording.no_devices(request.spec.device_selector)
    elif request.spec.taint.effect not in BLOCKING_EFFECTS:
        status, reason, message = "False", "EffectNone", wording.only_announced(request.spec.taint.effect)
    elif done < len(devices):
        status, reason = "False", "Isolating"
        message = wording.isolating(done, len(devices), unheeded)
    else:
        status, reason = "True", "Isolated"
        message = wording.isolated(done, by_rules=snapshot.rules_served)
    return condition(request, CONDITION_ISOLATED, status, reason, message, now=snapshot.now)


def finished_condition(request: DeviceMaintenance, snapshot: MaintenanceSnapshot) -> Condition:
    """The condition ReadyForWork of a finished request: no work may start."""
    message = wording.over(MaintenancePhase.COMPLETED)
    return condition(request, CONDITION_READY_FOR_WORK, "False", "Finished", message, now=snapshot.now)


def ready_condition(
    request: DeviceMaintenance,
    isolated: Condition,
    found: WorkHindrances,
    snapshot: MaintenanceSnapshot,
    drain: DrainPlan | None,
) -> Condition:
    """Whether work may start; if not, the first hindrance."""
    count = found.count
    if isolated.status != "True":
        status, reason, message = "False", "NotIsolated", wording.NOT_ISOLATED
    elif found.replaced:  # before all else: holders of today's board have nothing to do with this request
        status, reason, message = "False", REASON_OTHER_GPU, wording.other_gpu(found.replaced)
    elif found.held:
        status, reason = "False", "Draining" if drain and drain.begun else "InUse"
        message = (drain and drain.message) or wording.in_use(found.held, count)
    elif found.taken:
        status, reason, message = "False", "OtherRequest", wording.taken(*found.taken)
    elif snapshot.tolerant:
        status, reason, message = "False", "Obtainable", wording.obtainable(request, snapshot.tolerant, count)
    elif snapshot.unheeded:
        status, reason, message = "False", "Publishing", wording.unheeded(snapshot.unheeded, count)
    elif found.settled_in:
        status, reason = "False", "Settling"
        message = wording.settling(count)
    elif snapshot.vanished:
        status, reason = "True", "NotPublished"
        message = wording.not_published(snapshot.vanished, count)
    else:
        status, reason = "True", "Free"
        message = wording.free(count, found.watchers)
    return condition(request, CONDITION_READY_FOR_WORK, status, reason, message, now=snapshot.now)


def taken_by_another(
    request: DeviceMaintenance, standing: IsolationState, others: Iterable[DeviceMaintenance]
) -> tuple[DeviceKey, str] | None:
    """A device that another request works on first, with that request's name; None if there is none.

    A request that was told to start keeps the device; otherwise the older one has it. Two partitions of one GPU are two devices,
    though each request also isolates the whole GPU.
    """
    ready = request.says(CONDITION_READY_FOR_WORK)
    for other in sorted(others, key=age_of):
        waits = not ready and not other.spec.finished and other.spec.taint.effect in BLOCKING_EFFECTS
        if other.says(CONDITION_READY_FOR_WORK) or (waits and age_of(other) < age_of(request)):
            for each in other.status.devices:
                if (rule := standing.wanted.get(each.key)) and not (each.overlaps and overlapped(rule)):
                    return each.key, other.metadata.name
    return None


def age_of(request: DeviceMaintenance) -> tuple[bool, float, str]:
    """Sort key: the oldest request first."""
    created = request.metadata.creation_timestamp
    return created is None, created.timestamp() if created else 0.0, request.metadata.uid


def has_worked(request: DeviceMaintenance, snapshot: MaintenanceSnapshot) -> bool:
    """Whether all Jobs that do the work have succeeded, now or according to the status."""
    return request.says(CONDITION_WORKED) or bool(snapshot.work and snapshot.work.done)


def worked_condition(request: DeviceMaintenance, snapshot: MaintenanceSnapshot) -> Condition:
    """The condition Worked."""
    return condition(request, CONDITION_WORKED, "True", "JobsSucceeded", wording.WORKED, now=snapshot.now)


def condition(
    request: DeviceMaintenance, type_: str, status: str, reason: str, message: str, *, now: datetime
) -> Condition:
    """A condition with its transition time."""
    wanted = Condition(type=type_, status=status, reason=reason, message=message)
    return timed(wanted, request.status.conditions, now, generation=request.metadata.generation)
