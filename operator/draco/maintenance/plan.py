"""The state machine of a maintenance request: Pending → Rehearsed → Isolated → Draining → InMaintenance → Verifying → Completed.

Owns the one function from what is seen to what is to be done; `phases` has the same as a table. Phases are recomputed from what
is there, not remembered: a claim that still lands on an isolated device (its allocation was on its way when the taint was
written) brings the request back from InMaintenance to Isolated, and an operator that died between any two writes leaves nothing
that the next plan does not see. Three things are remembered, in the status: that the devices are to be isolated (`isolatedAt`),
that the work has been done by Jobs, and that the devices are being given back, which is not called off.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import msgspec

from draco.maintenance import wording
from draco.maintenance.conditions import REASON_RETURNING, condition_of, is_returning, says
from draco.maintenance.gate import Waiting, what_holds_up
from draco.maintenance.isolating.standing import held_by, listed_devices, replaced_boards, standing_of
from draco.maintenance.plan_input import PlanInput
from draco.maintenance.progress import JobsState
from draco.maintenance.readiness import (
    WorkHindrances,
    condition,
    finished_condition,
    isolated_condition,
    ready_condition,
    taken_by_another,
)
from draco.maintenance.rules import maintained_device
from draco.maintenance.schedule import time_left
from draco.maintenance.selecting.matching import has_begun
from draco.maintenance.working.verification import VerificationVerdict, verdict_of
from draco.resources.api.maintenance import (
    CONDITION_BLOCKED,
    CONDITION_FAILED,
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    CONDITION_VERIFIED,
    CONDITION_WORKED,
    OVER,
    DeadlineAction,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenancePhase,
)
from draco.resources.api.meta import Condition
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.names import DeviceKey
from draco.resources.texts import listed

_LONGEST_WAIT = timedelta(hours=1)
"""Clocks are set: however far away a moment is, it is looked again after this."""
_SOON = timedelta(seconds=1)


class MaintenancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write, in this order: rules to apply, rules to delete, the status.

    `status_first`: the status takes back what it said before, or says that the devices are to be isolated, so it comes before all
    else. Else an operator that died in between would leave devices called settled that were isolated just now, ready for work
    that are given back, or out of service that no budget knows of. `status` is `None` when it is already as it should be.
    `look_again` is when time alone may change the plan.

    Pods may be evicted while `drain` is set, Jobs made while `work` or `verify` is: each only once the status says so. With
    `stop_jobs` the request's Jobs are to be deleted.
    """

    request: str
    status_first: bool = False
    apply: tuple[DeviceTaintRule, ...] = ()
    delete: tuple[DeviceTaintRule, ...] = ()
    status: DeviceMaintenanceStatus | None = None
    look_again: timedelta | None = None
    drain: bool = False
    work: bool = False
    verify: bool = False
    stop_jobs: bool = False

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.apply or self.delete or self.status or self.stop_jobs)

    def __str__(self) -> str:
        steps = [
            f"{verb} {_describe_all(rules)}"
            for verb, rules in (("apply", self.apply), ("delete", self.delete))
            if rules
        ]
        if self.status is not None:
            steps.append(f"set status {self.status.phase}: {self.status.message}")
        if self.stop_jobs:
            steps.append("delete its Jobs")
        return f"maintenance {self.request}: " + ("; ".join(steps) or "nothing to do")


def plan_maintenance(request: DeviceMaintenance, seen: PlanInput) -> MaintenancePlan:
    """What the request needs now."""
    if request.metadata.deletion_timestamp is not None:
        return plan_abandoned(request.metadata.name, seen.rules)
    if request.status.phase in OVER or is_returning(request) or request.spec.cancelled:
        return _plan_return(request, seen)
    begun = has_begun(request) or _isolates_already(request, seen)
    announces = request.spec.taint.effect not in BLOCKING_EFFECTS
    if request.spec.finished and not (begun and not announces):
        return _plan_return(request, seen)
    if not begun:
        if seen.informed and not seen.rules_served:
            # Of one that was deleted and had its name. Agents are told by names, so they hear of that one's end first.
            return MaintenancePlan(request=request.metadata.name, look_again=_SOON)
        waiting = held_up(request, seen)
        if waiting is not None and not (announces and waiting.reason == "EffectNone"):
            return _plan_waiting(request, seen, waiting)
    return _plan_isolation(request, seen)


def held_up(request: DeviceMaintenance, seen: PlanInput) -> Waiting | None:
    """What is in the way of isolating the request's devices; None if nothing is."""
    return what_holds_up(
        request,
        seen.now,
        problem=seen.problem,
        found=seen.scope.named,
        beyond=seen.beyond,
        admission=seen.admission,
        incomplete=seen.incomplete,
    )


def plan_abandoned(request: str, rules: Iterable[DeviceTaintRule]) -> MaintenancePlan:
    """What is left to do for a request that is gone: take its rules away."""
    return MaintenancePlan(request=request, delete=tuple(rules))


def _isolates_already(request: DeviceMaintenance, seen: PlanInput) -> bool:
    """Whether devices are isolated though the status does not say so: an older operator did that, or somebody changed it."""
    if not seen.rules_served:
        return bool(seen.informed) and request.status.phase is not None
    return any(rule.spec.taint.effect in BLOCKING_EFFECTS and maintained_device(rule) for rule in seen.rules)


def _plan_waiting(request: DeviceMaintenance, seen: PlanInput, waiting: Waiting) -> MaintenancePlan:
    """Nothing is tainted. What was, of a request that only announces something, is taken back."""
    devices = seen.scope.named | seen.scope.overlapping.keys()
    message = waiting.message
    status = DeviceMaintenanceStatus(
        phase=MaintenancePhase.REHEARSED if waiting.rehearsed else MaintenancePhase.PENDING,
        observed_generation=request.metadata.generation,
        message=message,
        rehearsal=seen.rehearsal,
        device_count=len(devices),
        in_use=len(held_by((*devices, *seen.scope.doubtful), seen.claims)),
        conditions=[
            condition(request, CONDITION_ISOLATED, "False", waiting.reason, message, now=seen.now),
            condition(request, CONDITION_READY_FOR_WORK, "False", "NotIsolated", wording.NOT_ISOLATED, now=seen.now),
        ],
    )
    return MaintenancePlan(
        request=request.metadata.name,
        status_first=says(request, CONDITION_ISOLATED),
        delete=seen.rules,
        status=_if_changed(request, status),
        look_again=_soonest(waiting.look_again),
    )


class _Outcome(msgspec.Struct, frozen=True):
    """The phase that follows from all that, and the sentence. `failed` is the reason for the condition Failed."""

    phase: MaintenancePhase
    message: str
    failed: str = ""


def _plan_isolation(request: DeviceMaintenance, seen: PlanInput) -> MaintenancePlan:
    before, scope = request.status, seen.scope
    announces = request.spec.taint.effect not in BLOCKING_EFFECTS
    empties = bool(seen.drain and seen.drain.no_execute) and not (announces or _replaced(request, scope.boards))
    effect = "NoExecute" if empties else ""
    selection = seen.selected(request)
    standing = standing_of(
        request,
        selection,
        scope,
        seen.rules,
        seen.claims,
        own_claims=seen.own_claims,
        rules_served=seen.rules_served,
        effect=effect,
    )
    isolated = isolated_condition(request, standing, seen)
    since = isolated.last_transition_time or seen.now
    settled_in = max(since + seen.settle - seen.now, timedelta(0)) if isolated.status == "True" else timedelta(0)
    worked = says(request, CONDITION_WORKED) or bool(seen.work and seen.work.done)
    finished = request.spec.finished or worked
    findings = WorkHindrances(
        count=len(standing.concerned),
        held=standing.held,
        watchers=standing.watchers,
        replaced=replaced_boards(standing, scope),
        taken=taken_by_another(request, standing, seen.others),
        settled_in=settled_in,
    )
    ready = finished_condition(request, seen) if finished else ready_condition(request, isolated, findings, seen)
    # What is to be given back is out of service as long as a taint is left, and is taken again as what it was.
    # A time that is yet to come is of a clock that was set back since: wait and deadline would begin only then.
    begun_at = min(before.isolated_at or seen.now, seen.now)
    isolated_at = begun_at if not announces or _isolates_already(request, seen) else None
    left = None
    if isolated_at is not None and not (announces or before.started_at or finished):
        left = time_left(request, isolated_at, seen.now)
    verdict = None
    if finished:
        verified = condition_of(request, CONDITION_VERIFIED)
        lasted = seen.now - ((verified and verified.last_transition_time) or seen.now)
        grace = seen.verify_grace - lasted
        verdict = verdict_of(request, seen.agents, seen.work, seen.verification, grace=grace)
        unsettled = lasted < seen.verify_settle
        if verdict.passed and not (verdict.settles and unsettled):
            return _plan_return(request, seen)
    if left is not None and not left and ready.status != "True" and _cancels(request):
        return _plan_return(request, seen)
    outcome = _judged(verdict) if verdict else _outcome(request, isolated, ready, left=left, seen=seen)
    started_at = before.started_at
    if outcome.phase is MaintenancePhase.IN_MAINTENANCE and started_at is None:
        started_at = seen.now
    draining = outcome.phase is MaintenancePhase.DRAINING
    conditions = [isolated, ready]
    if worked:
        conditions.append(_worked(request, seen))
    if verdict is not None:
        reason, said = verdict.reason or "Verifying", verdict.message or wording.VERIFYING
        conditions.append(condition(request, CONDITION_VERIFIED, "False", reason, said, now=seen.now))
    if blocked := _blocked(outcome, seen):
        conditions.append(condition(request, CONDITION_BLOCKED, "True", "JobsBlocked", blocked, now=seen.now))
    if outcome.failed:
        conditions.append(condition(request, CONDITION_FAILED, "True", outcome.failed, outcome.message, now=seen.now))
    status = DeviceMaintenanceStatus(
        phase=outcome.phase,
        observed_generation=request.metadata.generation,
        message=outcome.message,
        rehearsal=before.rehearsal if has_begun(request) else seen.rehearsal,
        devices=listed_devices(standing, selection, with_rules=seen.rules_served),
        device_count=len(standing.devices),
        in_use=len(standing.held),
        isolated_at=isolated_at,
        draining_at=min(before.draining_at, seen.now) if before.draining_at else seen.now if draining else None,
        started_at=started_at,
        conditions=conditions,
    )
    was = before.phase
    return MaintenancePlan(
        request=request.metadata.name,
        status_first=(isolated_at is not None and before.isolated_at is None)
        or (isolated.status != "True" and says(request, CONDITION_ISOLATED))
        or (bool(effect) and not before.draining_at)
        or (says(request, CONDITION_READY_FOR_WORK) and _breaks_promise(request, standing.surplus)),
        apply=standing.missing,
        delete=standing.surplus,
        status=_if_changed(request, status),
        look_again=_soonest(
            settled_in if settled_in and not standing.held else None,
            left,
            seen.verify_settle if verdict is not None and verdict.passed else None,
            verdict.look_again if verdict is not None else None,
            *(each.look_again for each in (seen.drain, seen.work, seen.verification) if each),
            seen.drain.waits_for if seen.drain else None,
        ),
        drain=draining and was is MaintenancePhase.DRAINING,
        work=outcome.phase is was is MaintenancePhase.IN_MAINTENANCE and _is_incomplete(seen.work),
        verify=outcome.phase is was is MaintenancePhase.VERIFYING and _is_incomplete(seen.verification),
        stop_jobs=request.spec.finished and bool(seen.work and seen.work.running),
    )


def _breaks_promise(request: DeviceMaintenance, surplus: Iterable[DeviceTaintRule]) -> bool:
    """Whether any of these rules isolates a device that the status names."""
    promised = {each.key for each in request.status.devices}
    return any(maintained_device(rule) in promised for rule in surplus)


def _outcome(
    request: DeviceMaintenance, isolated: Condition, ready: Condition, *, left: timedelta | None, seen: PlanInput
) -> _Outcome:
    """The phase of a request whose devices are isolated, or are being so, and that is not finished."""
    if isolated.reason in {"EffectNone", "DeviceTaintRuleNotServed", "NoDevices"}:
        return _Outcome(MaintenancePhase.PENDING, isolated.message)
    if seen.work and seen.work.failed:
        return _Outcome(MaintenancePhase.FAILED, wording.jobs_failed("work", seen.work.failed), "WorkFailed")
    if ready.status == "True":
        trouble = seen.work.trouble if seen.work else ""
        return _Outcome(MaintenancePhase.IN_MAINTENANCE, trouble or ready.message)
    if left is not None and not left:
        return _Outcome(MaintenancePhase.FAILED, wording.deadline_passed(request, ready.message), "DeadlinePassed")
    if isolated.status != "True":
        return _Outcome(MaintenancePhase.REHEARSED, isolated.message)
    return _Outcome(
        MaintenancePhase.DRAINING if ready.reason == "Draining" else MaintenancePhase.ISOLATED, ready.message
    )


def _judged(verdict: VerificationVerdict) -> _Outcome:
    """The phase of one that is finished."""
    if verdict.failed:
        return _Outcome(MaintenancePhase.FAILED, verdict.message, verdict.reason)
    return _Outcome(MaintenancePhase.VERIFYING, verdict.message or wording.VERIFYING)


def _blocked(outcome: _Outcome, seen: PlanInput) -> str:
    """Why Jobs that are to be at work in this phase are not; "" if nothing is in their way."""
    jobs = {MaintenancePhase.IN_MAINTENANCE: seen.work, MaintenancePhase.VERIFYING: seen.verification}.get(
        outcome.phase
    )
    return jobs.trouble if jobs is not None else ""


def _is_incomplete(jobs: JobsState | None) -> bool:
    return jobs is not None and jobs.incomplete


def _worked(request: DeviceMaintenance, seen: PlanInput) -> Condition:
    return condition(request, CONDITION_WORKED, "True", "JobsSucceeded", wording.WORKED, now=seen.now)


def _cancels(request: DeviceMaintenance) -> bool:
    """Whether a deadline that is past gives the devices back."""
    deadline = request.spec.deadline
    return deadline is not None and deadline.action is DeadlineAction.CANCEL


def _plan_return(request: DeviceMaintenance, seen: PlanInput) -> MaintenancePlan:
    before, spec = request.status, request.spec
    worked = says(request, CONDITION_WORKED) or bool(seen.work and seen.work.done)
    if before.phase in OVER:
        final = before.phase
    elif spec.cancelled or not (spec.finished or worked):
        final = MaintenancePhase.CANCELLED
    else:
        final = MaintenancePhase.COMPLETED
    jobs = [name for each in (seen.work, seen.verification) if each for name in each.running]
    if jobs and before.phase not in OVER and not is_returning(request):
        return _plan_stop(request, seen, jobs)
    count = before.device_count or 0
    tainted = bool(seen.rules or seen.informed)
    if tainted:
        phase = before.phase or MaintenancePhase.PENDING
        if final is MaintenancePhase.COMPLETED and has_begun(request):  # what only announced was not out of service
            phase = MaintenancePhase.VERIFYING
        message = wording.giving_back(count or len(seen.rules), len(seen.rules), seen.informed)
        devices, in_use, completed_at = before.devices, before.in_use, before.completed_at
    else:
        phase = final
        begun = has_begun(request) or before.phase in OVER
        message = _said_at_last(request, final, count if begun else 0, seen.scope.boards)
        devices = [msgspec.structs.replace(each, rule="", claims=[], watched_by=[]) for each in before.devices]
        in_use, completed_at = 0, before.completed_at or seen.now
    over = "Finished" if final is MaintenancePhase.COMPLETED else "Cancelled"
    isolated = condition(
        request,
        CONDITION_ISOLATED,
        "True" if tainted else "False",
        REASON_RETURNING if tainted else over,
        message,
        now=seen.now,
    )
    ready = condition(request, CONDITION_READY_FOR_WORK, "False", over, wording.over(final), now=seen.now)
    kept = [_worked(request, seen)] if worked else []
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
        status_first=tainted and not is_returning(request),
        delete=seen.rules,
        status=_if_changed(request, status),
    )


def _plan_stop(request: DeviceMaintenance, seen: PlanInput, jobs: Sequence[str]) -> MaintenancePlan:
    """The Jobs still work on devices that are to be given back: they go first."""
    message = wording.stopping(jobs)
    ready = condition(request, CONDITION_READY_FOR_WORK, "False", "StoppingJobs", message, now=seen.now)
    others = [each for each in request.status.conditions if each.type != CONDITION_READY_FOR_WORK]
    status = msgspec.structs.replace(
        request.status,
        phase=request.status.phase or MaintenancePhase.PENDING,
        observed_generation=request.metadata.generation,
        message=message,
        conditions=[*others[:1], ready, *others[1:]],
    )
    return MaintenancePlan(
        request=request.metadata.name, status=_if_changed(request, status), status_first=True, stop_jobs=True
    )


def _said_at_last(
    request: DeviceMaintenance, final: MaintenancePhase, count: int, boards: Mapping[DeviceKey, str]
) -> str:
    if request.status.phase is final and request.status.completed_at is not None:
        return request.status.message
    if final is MaintenancePhase.COMPLETED:
        return f"{wording.given_back(count)}{wording.replaced(_replaced(request, boards))}"
    return wording.cancelled(count, by_request=request.spec.cancelled)


def _replaced(request: DeviceMaintenance, boards: Mapping[DeviceKey, str]) -> dict[DeviceKey, tuple[str, str]]:
    """Which of the devices that were asked for are other GPUs now than they were: the two UUIDs."""
    pairs = {each.key: (each.uuid, boards.get(each.key, "")) for each in request.status.devices if not each.overlaps}
    return {device: (before, now) for device, (before, now) in pairs.items() if before and now and before != now}


def _if_changed(request: DeviceMaintenance, status: DeviceMaintenanceStatus) -> DeviceMaintenanceStatus | None:
    return None if status == request.status else status


def _soonest(*times: timedelta | None) -> timedelta | None:
    found = [each for each in times if each]
    return min(*found, _LONGEST_WAIT) if found else None


def _describe_all(rules: Sequence[DeviceTaintRule]) -> str:
    return listed(map(_describe, rules), rest="more rules")


def _describe(rule: DeviceTaintRule) -> str:
    device = maintained_device(rule)
    taint = rule.spec.taint
    return f"rule {rule.metadata.name} ({taint.key}:{taint.effect} on {device or 'an unknown device'})"
