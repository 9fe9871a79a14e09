"""The state machine of a maintenance request: Pending → Rehearsed → Isolated → Draining → InMaintenance → Verifying → Completed.

Owns the one function from a snapshot to a plan. Phases are recomputed from what exists: a claim that still lands on an isolated
device (its allocation was in flight when the taint was written) moves the request back from InMaintenance to Isolated, and after
a crash between any two writes the next plan sees everything. The status remembers only three things: that the devices are to be
isolated (`isolatedAt`), that Jobs have done the work, and that the devices are being returned, which cannot be undone.
"""

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from draco.maintenance import wording
from draco.maintenance.gate import COUNTING, POOL_INCOMPLETE, Waiting, time_left, what_holds_up
from draco.maintenance.isolating.isolation_state import (
    held_by,
    isolation_state_of,
    listed_devices,
    replaced_boards,
    replaced_by,
)
from draco.maintenance.plan_output import AdmissionWish, MaintenancePlan
from draco.maintenance.progress import DrainPlan, JobsState
from draco.maintenance.readiness import (
    WorkHindrances,
    condition,
    finished_condition,
    has_worked,
    isolated_condition,
    ready_condition,
    taken_by_another,
    worked_condition,
)
from draco.maintenance.returning import if_changed, plan_return
from draco.maintenance.selecting.matching import has_begun, unseen_rules
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import maintained_device
from draco.maintenance.working.verification import VerificationVerdict, verdict_of
from draco.resources.api.maintenance import (
    CONDITION_BLOCKED,
    CONDITION_FAILED,
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    CONDITION_VERIFIED,
    OVER,
    DeadlineAction,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenancePhase,
)
from draco.resources.api.meta import Condition, find_condition
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule

_LONGEST_WAIT = timedelta(hours=1)
"""Clocks can be set: however far away a moment is, the request is planned again after this time."""
_SOON = timedelta(seconds=1)


def plan_maintenance(
    request: DeviceMaintenance, snapshot: MaintenanceSnapshot, drain: DrainPlan | None = None
) -> MaintenancePlan:
    """What the request needs now. `drain` is how its devices become free, None if nobody is evicted."""
    if request.metadata.deletion_timestamp is not None:
        return plan_abandoned(request.metadata.name, snapshot.rules)
    begun = has_begun(request) or _isolates_already(request, snapshot)
    is_over = request.status.phase in OVER or request.is_returning or request.spec.cancelled
    if is_over or (request.spec.finished and not (begun and not _announces(request))):
        return plan_return(request, snapshot)
    if drain is not None and not snapshot.knows_paused:
        return MaintenancePlan(
            request=request.metadata.name, look_again=_SOON
        )  # a new leader has yet to learn which GPUs paused budgets are about
    if not begun:
        return _plan_start(request, snapshot, drain)
    wish = AdmissionWish.WITHDRAW if has_begun(request) else AdmissionWish.ASK
    return _plan_isolation(request, snapshot, drain, wish)


def _plan_start(request: DeviceMaintenance, snapshot: MaintenanceSnapshot, drain: DrainPlan | None) -> MaintenancePlan:
    """The plan before isolation: what holds the request up, then what the budgets answer."""
    if snapshot.informed and not snapshot.rules_served:
        # Left by a deleted request of the same name. Entries for agents carry the name, so they go first.
        return MaintenancePlan(request=request.metadata.name, admission=AdmissionWish.KEEP, look_again=_SOON)
    waiting = what_holds_up(
        request,
        snapshot.now,
        problem=snapshot.problem,
        found=snapshot.scope.named,
        beyond=snapshot.beyond,
        incomplete=snapshot.incomplete,
    )
    if waiting is not None and waiting.reason == "EffectNone" and _announces(request):
        return _plan_isolation(request, snapshot, drain, AdmissionWish.WITHDRAW)
    if waiting is not None:
        # It keeps its place in the queue while slices are missing.
        wish = AdmissionWish.KEEP if waiting.reason == POOL_INCOMPLETE else AdmissionWish.WITHDRAW
        return _plan_waiting(request, snapshot, waiting, wish)
    if snapshot.admission == COUNTING:
        return MaintenancePlan(request=request.metadata.name, admission=AdmissionWish.ASK, look_again=_SOON)
    if snapshot.admission is not None:
        return _plan_waiting(request, snapshot, snapshot.admission, AdmissionWish.ASK)
    return _plan_isolation(request, snapshot, drain, AdmissionWish.ASK)


def _announces(request: DeviceMaintenance) -> bool:
    return request.spec.taint.effect not in BLOCKING_EFFECTS


def plan_abandoned(request: str, rules: Iterable[DeviceTaintRule]) -> MaintenancePlan:
    """The plan for a deleted request: delete its rules."""
    return MaintenancePlan(request=request, delete=tuple(rules))


def _isolates_already(request: DeviceMaintenance, snapshot: MaintenanceSnapshot) -> bool:
    """Whether devices are isolated without the status saying so: an older operator did that, or somebody changed the status."""
    if not snapshot.rules_served:
        return bool(snapshot.informed) and request.status.phase is not None
    return any(rule.spec.taint.effect in BLOCKING_EFFECTS and maintained_device(rule) for rule in snapshot.rules)


def _plan_waiting(
    request: DeviceMaintenance, snapshot: MaintenanceSnapshot, waiting: Waiting, wish: AdmissionWish
) -> MaintenancePlan:
    """Nothing is tainted. Rules of a request that only announces are deleted."""
    devices = snapshot.scope.named | snapshot.scope.overlapping.keys()
    message = waiting.message
    status = DeviceMaintenanceStatus(
        phase=MaintenancePhase.REHEARSED if waiting.rehearsed else MaintenancePhase.PENDING,
        observed_generation=request.metadata.generation,
        message=message,
        rehearsal=snapshot.rehearsal,
        device_count=len(devices),
        in_use=len(held_by((*devices, *snapshot.scope.doubtful), snapshot.claims)),
        conditions=[
            condition(request, CONDITION_ISOLATED, "False", waiting.reason, message, now=snapshot.now),
            condition(
                request, CONDITION_READY_FOR_WORK, "False", "NotIsolated", wording.NOT_ISOLATED, now=snapshot.now
            ),
        ],
    )
    return MaintenancePlan(
        request=request.metadata.name,
        admission=wish,
        status_first=request.says(CONDITION_ISOLATED),
        delete=snapshot.rules,
        status=if_changed(request, status),
        look_again=_soonest(waiting.look_again),
    )


class _Outcome(msgspec.Struct, frozen=True):
    """The resulting phase and message. `failed` is the reason of the condition Failed."""

    phase: MaintenancePhase
    message: str
    failed: str = ""


def _plan_isolation(
    request: DeviceMaintenance, snapshot: MaintenanceSnapshot, drain: DrainPlan | None, wish: AdmissionWish
) -> MaintenancePlan:
    before, scope = request.status, snapshot.scope
    announces = _announces(request)
    empties = bool(drain and drain.no_execute) and not (announces or replaced_by(request, scope.boards))
    effect = "NoExecute" if empties else ""
    selection = snapshot.selected(request)
    standing = isolation_state_of(
        request,
        selection,
        scope,
        snapshot.rules,
        snapshot.claims,
        own_claims=snapshot.own_claims,
        rules_served=snapshot.rules_served,
        effect=effect,
    )
    isolated = isolated_condition(request, standing, snapshot)
    since = isolated.last_transition_time or snapshot.now
    settled_in = (
        max(since + snapshot.settle - snapshot.now, timedelta(0)) if isolated.status == "True" else timedelta(0)
    )
    worked = has_worked(request, snapshot)
    finished = request.spec.finished or worked
    findings = WorkHindrances(
        count=len(standing.concerned),
        held=standing.held,
        watchers=standing.watchers,
        replaced=replaced_boards(standing, scope),
        taken=taken_by_another(request, standing, snapshot.others),
        settled_in=settled_in,
    )
    ready = (
        finished_condition(request, snapshot)
        if finished
        else ready_condition(request, isolated, findings, snapshot, drain)
    )
    # Devices that are being returned are out of service while a taint is left, and are isolated again as before. A time in the
    # future is from a clock that was set back since: wait and deadline would begin only then.
    begun_at = min(before.isolated_at or snapshot.now, snapshot.now)
    isolated_at = begun_at if not announces or _isolates_already(request, snapshot) else None
    left = None
    if isolated_at is not None and not (announces or before.started_at or finished):
        left = time_left(request, isolated_at, snapshot.now)
    verdict = None
    if finished:
        verified = find_condition(before.conditions, CONDITION_VERIFIED)
        lasted = snapshot.now - ((verified and verified.last_transition_time) or snapshot.now)
        grace = snapshot.verify_grace - lasted
        verdict = verdict_of(request, snapshot.agents, snapshot.work, snapshot.verification, grace=grace)
        unsettled = lasted < snapshot.verify_settle
        if verdict.passed and not (verdict.settles and unsettled):
            return plan_return(request, snapshot)
    if left is not None and not left and ready.status != "True" and _cancels(request):
        return plan_return(request, snapshot)
    outcome = _judged(verdict) if verdict else _outcome(request, isolated, ready, left=left, snapshot=snapshot)
    started_at = before.started_at
    if outcome.phase is MaintenancePhase.IN_MAINTENANCE and started_at is None:
        started_at = snapshot.now
    draining = outcome.phase is MaintenancePhase.DRAINING
    conditions = [isolated, ready]
    if worked:
        conditions.append(worked_condition(request, snapshot))
    if verdict is not None:
        reason, said = verdict.reason or "Verifying", verdict.message or wording.VERIFYING
        conditions.append(condition(request, CONDITION_VERIFIED, "False", reason, said, now=snapshot.now))
    if blocked := _blocked(outcome, snapshot):
        conditions.append(condition(request, CONDITION_BLOCKED, "True", "JobsBlocked", blocked, now=snapshot.now))
    if outcome.failed:
        conditions.append(
            condition(request, CONDITION_FAILED, "True", outcome.failed, outcome.message, now=snapshot.now)
        )
    status = DeviceMaintenanceStatus(
        phase=outcome.phase,
        observed_generation=request.metadata.generation,
        message=outcome.message,
        rehearsal=before.rehearsal if has_begun(request) else snapshot.rehearsal,
        devices=listed_devices(
            standing, selection, standing.rule_names if snapshot.rules_served else unseen_rules(request)
        ),
        device_count=len(standing.devices),
        in_use=len(standing.held),
        isolated_at=isolated_at,
        draining_at=min(before.draining_at, snapshot.now) if before.draining_at else snapshot.now if draining else None,
        started_at=started_at,
        conditions=conditions,
    )
    was = before.phase
    return MaintenancePlan(
        request=request.metadata.name,
        admission=wish,
        status_first=(isolated_at is not None and before.isolated_at is None)
        or (isolated.status != "True" and request.says(CONDITION_ISOLATED))
        or (bool(effect) and not before.draining_at)
        or (request.says(CONDITION_READY_FOR_WORK) and _breaks_promise(request, standing.surplus)),
        apply=standing.missing,
        delete=standing.surplus,
        status=if_changed(request, status),
        look_again=_soonest(
            settled_in if settled_in and not standing.held else None,
            left,
            snapshot.verify_settle if verdict is not None and verdict.passed else None,
            verdict.look_again if verdict is not None else None,
            *(each.look_again for each in (drain, snapshot.work, snapshot.verification) if each),
            drain.waits_for if drain else None,
        ),
        drain=draining and was is MaintenancePhase.DRAINING,
        work=outcome.phase is was is MaintenancePhase.IN_MAINTENANCE and _is_incomplete(snapshot.work),
        verify=outcome.phase is was is MaintenancePhase.VERIFYING and _is_incomplete(snapshot.verification),
        stop_jobs=request.spec.finished and bool(snapshot.work and snapshot.work.running),
    )


def _breaks_promise(request: DeviceMaintenance, surplus: Iterable[DeviceTaintRule]) -> bool:
    """Whether any of these rules isolates a device that the status lists."""
    promised = {each.key for each in request.status.devices}
    return any(maintained_device(rule) in promised for rule in surplus)


def _outcome(
    request: DeviceMaintenance,
    isolated: Condition,
    ready: Condition,
    *,
    left: timedelta | None,
    snapshot: MaintenanceSnapshot,
) -> _Outcome:
    if isolated.reason in {"EffectNone", "DeviceTaintRuleNotServed", "NoDevices"}:
        return _Outcome(MaintenancePhase.PENDING, isolated.message)
    if snapshot.work and snapshot.work.failed:
        return _Outcome(MaintenancePhase.FAILED, wording.jobs_failed("work", snapshot.work.failed), "WorkFailed")
    if ready.status == "True":
        trouble = snapshot.work.trouble if snapshot.work else ""
        return _Outcome(MaintenancePhase.IN_MAINTENANCE, trouble or ready.message)
    if left is not None and not left:
        return _Outcome(MaintenancePhase.FAILED, wording.deadline_passed(request, ready.message), "DeadlinePassed")
    if isolated.status != "True":
        return _Outcome(MaintenancePhase.REHEARSED, isolated.message)
    return _Outcome(
        MaintenancePhase.DRAINING if ready.reason == "Draining" else MaintenancePhase.ISOLATED, ready.message
    )


def _judged(verdict: VerificationVerdict) -> _Outcome:
    if verdict.failed:
        return _Outcome(MaintenancePhase.FAILED, verdict.message, verdict.reason)
    return _Outcome(MaintenancePhase.VERIFYING, verdict.message or wording.VERIFYING)


def _blocked(outcome: _Outcome, snapshot: MaintenanceSnapshot) -> str:
    """Why Jobs that should run in this phase do not; "" if nothing blocks them."""
    jobs = {MaintenancePhase.IN_MAINTENANCE: snapshot.work, MaintenancePhase.VERIFYING: snapshot.verification}.get(
        outcome.phase
    )
    return jobs.trouble if jobs is not None else ""


def _is_incomplete(jobs: JobsState | None) -> bool:
    return jobs is not None and jobs.incomplete


def _cancels(request: DeviceMaintenance) -> bool:
    deadline = request.spec.deadline
    return deadline is not None and deadline.action is DeadlineAction.CANCEL


def _soonest(*times: timedelta | None) -> timedelta | None:
    found = [each for each in times if each]
    return min(*found, _LONGEST_WAIT) if found else None
