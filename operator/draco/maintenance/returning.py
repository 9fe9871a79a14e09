"""How a request ends: its Jobs stop, its rules are deleted, and its status says how it ended.

Owns the plan that returns devices, which cannot be undone, and what remains in the final status. `plan` decides when to return.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draco.maintenance import wording
from draco.maintenance.isolating.isolation_state import replaced_by
from draco.maintenance.plan_output import MaintenancePlan
from draco.maintenance.readiness import condition, has_worked, worked_condition
from draco.maintenance.selecting.matching import has_begun, unseen_rules
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.resources.api.maintenance import (
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    OVER,
    REASON_RETURNING,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenancePhase,
)
from draco.resources.names import DeviceKey


def plan_return(request: DeviceMaintenance, snapshot: MaintenanceSnapshot) -> MaintenancePlan:
    """Return the devices: delete the Jobs, write the status, delete the rules, end the request."""
    before, spec = request.status, request.spec
    worked = has_worked(request, snapshot)
    if before.phase in OVER:
        final = before.phase
    elif spec.cancelled or not (spec.finished or worked):
        final = MaintenancePhase.CANCELLED
    else:
        final = MaintenancePhase.COMPLETED
    jobs = [name for each in (snapshot.work, snapshot.verification) if each for name in each.running]
    if jobs and before.phase not in OVER and not request.is_returning:
        return _plan_stop(request, snapshot, jobs)
    count = before.device_count or 0
    unseen = {} if snapshot.rules_served else unseen_rules(request)
    tainted = bool(snapshot.rules or snapshot.informed or unseen)
    if tainted:
        phase = before.phase or MaintenancePhase.PENDING
        if final is MaintenancePhase.COMPLETED and has_begun(request):  # a mere announcement was never out of service
            phase = MaintenancePhase.VERIFYING
        message = wording.giving_back(
            count or len(snapshot.rules), len(snapshot.rules), snapshot.informed, unseen=len(unseen)
        )
        devices, in_use, completed_at = before.devices, before.in_use, before.completed_at
    else:
        phase = final
        begun = has_begun(request) or before.phase in OVER
        message = _said_at_last(request, final, count if begun else 0, snapshot.scope.boards)
        devices = [msgspec.structs.replace(each, rule="", claims=[], watched_by=[]) for each in before.devices]
        in_use, completed_at = 0, before.completed_at or snapshot.now
    over = "Finished" if final is MaintenancePhase.COMPLETED else "Cancelled"
    isolated = condition(
        request,
        CONDITION_ISOLATED,
        "True" if tainted else "False",
        REASON_RETURNING if tainted else over,
        message,
        now=snapshot.now,
    )
    ready = condition(request, CONDITION_READY_FOR_WORK, "False", over, wording.over(final), now=snapshot.now)
    kept = [worked_condition(request, snapshot)] if worked else []
    status = DeviceMaintenanceStatus(
        phase=phase,
        observed_generation=request.metadata.generation,
        message=message,
        rehearsal=before.rehearsal,
        devices=devices,
        device_count=count,
        in_use=in_use,
        isolated_at=before.isolated_at,
        draining_at=before.draining_at,
        started_at=before.started_at,
        completed_at=completed_at,
        conditions=[isolated, ready, *kept],
    )
    return MaintenancePlan(
        request=request.metadata.name,
        status_first=tainted and not request.is_returning,
        delete=snapshot.rules,
        status=if_changed(request, status),
    )


def _plan_stop(request: DeviceMaintenance, snapshot: MaintenanceSnapshot, jobs: Sequence[str]) -> MaintenancePlan:
    message = wording.stopping(jobs)
    ready = condition(request, CONDITION_READY_FOR_WORK, "False", "StoppingJobs", message, now=snapshot.now)
    others = [each for each in request.status.conditions if each.type != CONDITION_READY_FOR_WORK]
    status = msgspec.structs.replace(
        request.status,
        phase=request.status.phase or MaintenancePhase.PENDING,
        observed_generation=request.metadata.generation,
        message=message,
        conditions=[*others[:1], ready, *others[1:]],
    )
    return MaintenancePlan(
        request=request.metadata.name, status=if_changed(request, status), status_first=True, stop_jobs=True
    )


def _said_at_last(
    request: DeviceMaintenance, final: MaintenancePhase, count: int, boards: Mapping[DeviceKey, str]
) -> str:
    if request.status.phase is final and request.status.completed_at is not None:
        return request.status.message
    if final is MaintenancePhase.COMPLETED:
        return f"{wording.given_back(count)}{wording.replaced(replaced_by(request, boards))}"
    return wording.cancelled(count, by_request=request.spec.cancelled)


def if_changed(request: DeviceMaintenance, status: DeviceMaintenanceStatus) -> DeviceMaintenanceStatus | None:
    """The status, or None if it is already written."""
    return None if status == request.status else status
