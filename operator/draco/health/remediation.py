"""Decides which DeviceMaintenances HealthPolicies open automatically, and what becomes of them.

Owns the requests with `LABEL_REMEDIATES`: at most one per GPU at a time, and none while another DeviceMaintenance concerns it.
Failures are counted from the existing requests, so the count survives restarts; after too many in a row nothing more is opened
and a person has to look. `maintenance` runs these requests like any other, and decides when they may begin.

An isolated request continues whatever becomes of its policy or fault: work may be running. A waiting one is cancelled when its
policy does not ask for it any more, or when its GPU has left the node, because another board may get its name. One whose work has
not begun is cancelled when another board has the name. One that only evicts is finished when the fault is over. A request that a
person cancelled is not opened again for the same fault.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from draco.health.policy import RuleMatch, named
from draco.health.requests import (
    OUTCOME_FAILED,
    attempt_of,
    concerns,
    is_over,
    met_another_board,
    newest_first,
    opened_for,
    remediates,
    waits,
)
from draco.resources.api.draco import GpuStatus
from draco.resources.api.health import FaultScope, GpuFaultStatus, HealthEffect, HealthPolicy
from draco.resources.api.maintenance import (
    CONDITION_FAILED,
    DeviceMaintenance,
    DeviceMaintenanceSpec,
    DrainPolicy,
    MaintenanceDrain,
    MaintenancePhase,
    MaintenanceSelector,
    MaintenanceVerification,
    MaintenanceWork,
    VerificationMode,
)
from draco.resources.api.meta import ObjectMeta, find_condition
from draco.resources.names import (
    ANNOTATION_FAULT,
    ANNOTATION_OUTCOME,
    FIELD_MANAGER_OPERATOR,
    LABEL_MANAGED_BY,
    LABEL_REMEDIATES,
    DeviceKey,
    PoolKey,
)
from draco.resources.texts import agreeing, counted, listed

OUTCOME_WITHDRAWN = "withdrawn"
_COMES_BACK = timedelta(hours=1)
"""A fault that is back within this time was not repaired."""
_SETTLES = timedelta(minutes=1)
"""How long the fault of a completed request may still be reported: the agent's next reading and report take time."""
_HEALS = timedelta(minutes=3)
"""How long a failed request may still be completed: the agent's clean readings follow the work that repaired the GPU."""
_EVICTIONS = 2
"""Permitted failures in a row of requests that only evict."""


class SeenRemedies(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node: its GPUs, the rules that match their faults, and existing requests.

    `requests` are the DeviceMaintenances that may concern the node. `policies` are all that exist, by UID. `published` are UUIDs
    of published GPUs. `readable`: the agent reads its GPUs, so a fault that is not reported is over.
    """

    now: datetime
    pool: PoolKey
    gpus: Sequence[GpuStatus]
    published: Collection[str]
    readable: bool
    matches: Sequence[RuleMatch]
    policies: Mapping[str, HealthPolicy]
    requests: Sequence[DeviceMaintenance]


class RequestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a request of ours: finish it, or cancel it with this outcome."""

    request: DeviceMaintenance
    outcome: str = ""

    def __str__(self) -> str:
        verb = "cancel" if self.outcome else "finish"
        return f"{verb} {self.request.metadata.name}{f' ({self.outcome})' if self.outcome else ''}"


class RemedyNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note for a policy's status. `given_up`: a person has to look."""

    policy: str
    text: str
    given_up: bool = False


class RemediationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write for one node."""

    node: str
    create: tuple[DeviceMaintenance, ...] = ()
    change: tuple[RequestChange, ...] = ()
    notes: tuple[RemedyNote, ...] = ()
    look_again: timedelta | None = None

    def __str__(self) -> str:
        steps = [f"open {each.metadata.name}: {each.spec.reason}" for each in self.create]
        return f"{self.node}: " + ("; ".join([*steps, *map(str, self.change)]) or "nothing to do")


class _GpuPlan(msgspec.Struct, kw_only=True):
    create: DeviceMaintenance | None = None
    change: RequestChange | None = None
    note: RemedyNote | None = None
    look_again: timedelta | None = None


def plan_remediation(seen: SeenRemedies) -> RemediationPlan:
    """What the faults of one node's GPUs need now."""
    plans = [_plan_gpu(seen, gpu) for gpu in seen.gpus]
    return RemediationPlan(
        node=seen.pool.pool,
        create=tuple(each.create for each in plans if each.create),
        change=(
            *(each.change for each in plans if each.change),
            *(left_behind(seen.requests, seen.policies, seen.pool.pool, seen.gpus) if seen.readable else ()),
        ),
        notes=tuple(each.note for each in plans if each.note),
        look_again=min((each.look_again for each in plans if each.look_again), default=None),
    )


def left_behind(
    requests: Iterable[DeviceMaintenance],
    policies: Collection[str],
    node: str,
    gpus: Iterable[GpuStatus] = (),
) -> tuple[RequestChange, ...]:
    """Withdraw waiting requests for GPUs that left a node and are not in `gpus`. `policies` are the UIDs of existing ones."""
    here = {gpu.uuid for gpu in gpus}
    return tuple(
        RequestChange(request=each, outcome=OUTCOME_WITHDRAWN)
        for each in requests
        if each.spec.device_selector.pool == node
        and remediates(each) in policies
        and opened_for(each)[0] not in here
        and (waits(each) or met_another_board(each))
        and not each.is_to_end
    )


def _plan_gpu(seen: SeenRemedies, gpu: GpuStatus) -> _GpuPlan:
    device = DeviceKey(seen.pool.driver, seen.pool.pool, gpu.device)
    ours = [each for each in seen.requests if remediates(each) and opened_for(each)[0] == gpu.uuid]
    open_ones = [each for each in ours if not is_over(each)]
    wish = _wish(seen, gpu)
    if open_ones:
        return _plan_open(seen, gpu, newest_first(open_ones)[0], ours)
    if wish is None:
        return _GpuPlan()
    if wish.rule.remediation and wish.fault.scope is FaultScope.NODE and wish.rule.effect is not HealthEffect.EVICT:
        said = f"{wish.fault.name} concerns all of node {seen.pool.pool}: work on one GPU cannot repair it."
        return _given_up(wish, said)
    if gpu.uuid not in seen.published or not gpu.device:
        return _noted(
            wish, f"{wish.fault.name}: {named(seen.pool.pool, gpu)} is not published, so nothing is opened for it."
        )
    other = next((each for each in seen.requests if concerns(each, device, gpu.uuid)), None)
    if other is not None:
        return _noted(wish, f"{named(seen.pool.pool, gpu)} waits for DeviceMaintenance {other.metadata.name}.")
    return _plan_next(seen, wish, device, newest_first(ours))


def _wish(seen: SeenRemedies, gpu: GpuStatus, policy: str = "") -> RuleMatch | None:
    """The match that counts, of one policy or of any (""): repair before eviction, and the worst fault first."""
    matches = [each for each in seen.matches if each.gpu.uuid == gpu.uuid and policy in {"", each.policy}]
    working = [each for each in matches if each.rule.remediation]
    whole = [each for each in working if each.fault.scope is not FaultScope.NODE]
    evicting = [each for each in matches if each.rule.effect is HealthEffect.EVICT]
    return next(iter([*whole, *evicting, *working]), None)


def _plan_open(
    seen: SeenRemedies, gpu: GpuStatus, request: DeviceMaintenance, ours: Sequence[DeviceMaintenance]
) -> _GpuPlan:
    policy = seen.policies.get(remediates(request))
    spec = request.spec
    if policy is None or request.is_to_end:
        return _GpuPlan()  # its policy was deleted, so a person owns it now
    if request.status.phase is MaintenancePhase.FAILED:
        return _plan_failed(seen, gpu, request, policy, newest_first(ours))
    is_over_now = seen.readable and not any(each.name == opened_for(request)[1] for each in gpu.faults)
    if waits(request):
        # While a GPU is not published, for example because its node reboots, whether the policy selects it is unknown.
        known = policy.spec.dry_run or gpu.uuid in seen.published
        if is_over_now or (known and _wish(seen, gpu, policy.metadata.name) is None):
            return _GpuPlan(change=RequestChange(request=request, outcome=OUTCOME_WITHDRAWN))
    elif is_over_now and spec.work is None and not spec.finished:
        return _GpuPlan(change=RequestChange(request=request))
    return _GpuPlan()


def _plan_failed(
    seen: SeenRemedies,
    gpu: GpuStatus,
    request: DeviceMaintenance,
    policy: HealthPolicy,
    newest_first: Sequence[DeviceMaintenance],
) -> _GpuPlan:
    """A failed request keeps the GPU out of service: cancel it if another attempt is due, else leave it to a person."""
    name, fault = policy.metadata.name, opened_for(request)[1]
    of_gpu = [each for each in seen.matches if each.gpu.uuid == gpu.uuid and each.policy == name]
    wish = next((each for each in of_gpu if each.fault.name == fault), next(iter(of_gpu), None))
    if wish is None:
        return _GpuPlan()
    failed = find_condition(request.status.conditions, CONDITION_FAILED)
    failed_at = failed.last_transition_time if failed is not None else None
    # If the clock was set back, nobody must wait for hours, here and below.
    if failed_at is not None and timedelta() < (heals_in := failed_at + _HEALS - seen.now) <= _HEALS:
        return _GpuPlan(look_again=heals_in)
    failures = _failures(newest_first, policy, seen.now, None)
    if failures < _most_failures(wish):
        return _GpuPlan(change=RequestChange(request=request, outcome=OUTCOME_FAILED))
    gpu_name, request_name = named(seen.pool.pool, gpu), request.metadata.name
    said = f"{counted(failures, 'request')} for {gpu_name} failed in a row. Repair it, and cancel {request_name}."
    return _given_up(wish, said)


def _plan_next(seen: SeenRemedies, wish: RuleMatch, device: DeviceKey, past: Sequence[DeviceMaintenance]) -> _GpuPlan:
    policy = next((each for each in seen.policies.values() if each.metadata.name == wish.policy), None)
    if policy is None:
        return _GpuPlan()
    gpu = named(seen.pool.pool, wish.gpu)
    if past and _cancelled_by_a_person(past[0], wish.fault):
        return _noted(
            wish,
            f"{wish.fault.name} of {gpu}: DeviceMaintenance {past[0].metadata.name} was cancelled. Delete it to try again.",
        )
    if past and past[0].status.completed_at is not None:
        settled_in = past[0].status.completed_at + _SETTLES - seen.now
        if timedelta() < settled_in <= _SETTLES:
            return _GpuPlan(look_again=settled_in)
    failures = _failures(past, policy, seen.now, wish.fault)
    if failures >= _most_failures(wish):
        names = [each.metadata.name for each in past[:failures]]
        said = (
            f"{counted(failures, 'request')} for {gpu} failed in a row. Repair it; delete {listed(names)} to have "
            f"{agreeing(failures, 'it', 'them')} tried again."
        )
        return _given_up(wish, said)
    attempt = 1 + max(map(attempt_of, past), default=0)
    return _GpuPlan(create=_request(policy, wish, device, attempt))


def _request(policy: HealthPolicy, wish: RuleMatch, device: DeviceKey, attempt: int) -> DeviceMaintenance:
    """The request. Its name has the GPU and the attempt, so two replicas cannot open two."""
    remediation = wish.rule.remediation if wish.fault.scope is not FaultScope.NODE else None
    evicts = wish.rule.effect in {HealthEffect.EVICT, HealthEffect.NO_EXECUTE}
    verification = MaintenanceVerification()
    if remediation and remediation.verify_from_cron_job:
        verification = MaintenanceVerification(
            mode=VerificationMode.JOB, from_cron_job=remediation.verify_from_cron_job
        )
    return DeviceMaintenance(
        metadata=ObjectMeta(
            name=f"health-{re.sub('[^a-z0-9-]', '-', wish.gpu.uuid.lower())[:200]}-{attempt}",
            labels={LABEL_REMEDIATES: policy.metadata.uid, LABEL_MANAGED_BY: FIELD_MANAGER_OPERATOR},
            annotations={ANNOTATION_FAULT: f"{wish.gpu.uuid}: {wish.fault.name}"},
        ),
        spec=DeviceMaintenanceSpec(
            device_selector=MaintenanceSelector(driver=device.driver, pool=device.pool, device=device.device),
            reason=f"{wish.fault.name} (HealthPolicy {policy.metadata.name}, rule {wish.rule.name})",
            drain=MaintenanceDrain(policy=DrainPolicy.EVICT if evicts else DrainPolicy.WAIT),
            work=MaintenanceWork(from_cron_job=remediation.from_cron_job) if remediation else None,
            verification=verification,
        ),
    )


def _failures(
    newest_first: Sequence[DeviceMaintenance], policy: HealthPolicy, now: datetime, fault: GpuFaultStatus | None
) -> int:
    """How many requests of the policy for a GPU failed in a row, the latest first. `fault` is the current one."""
    count = 0
    back_at: datetime | None = None
    if fault is not None:
        back_at = fault.first_seen or now
    for request in newest_first:
        if remediates(request) != policy.metadata.uid:
            break
        outcome = request.metadata.annotations.get(ANNOTATION_OUTCOME, "")
        completed = request.status.completed_at
        failed = outcome == OUTCOME_FAILED or request.status.phase is MaintenancePhase.FAILED
        if request.status.phase is MaintenancePhase.COMPLETED and completed and back_at:
            failed = back_at - completed <= _COMES_BACK
        if not failed and outcome != OUTCOME_WITHDRAWN:
            break
        count += failed
        back_at = request.metadata.creation_timestamp
    return count


def _most_failures(wish: RuleMatch) -> int:
    return wish.rule.remediation.max_failures if wish.rule.remediation else _EVICTIONS


def _cancelled_by_a_person(request: DeviceMaintenance, fault: GpuFaultStatus) -> bool:
    meta = request.metadata
    if request.status.phase is not MaintenancePhase.CANCELLED or ANNOTATION_OUTCOME in meta.annotations:
        return False
    made = meta.creation_timestamp
    return fault.first_seen is None or made is None or fault.first_seen <= made


def _noted(wish: RuleMatch, text: str) -> _GpuPlan:
    return _GpuPlan(note=RemedyNote(policy=wish.policy, text=text))


def _given_up(wish: RuleMatch, text: str) -> _GpuPlan:
    return _GpuPlan(note=RemedyNote(policy=wish.policy, text=f"A person has to look: {text}", given_up=True))
