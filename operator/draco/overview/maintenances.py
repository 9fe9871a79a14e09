"""DeviceMaintenances and MaintenanceBudgets for people: where each stands, what it waits for, and what to do next. Pure."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from draco.maintenance.taint_impact import named_and_members
from draco.overview.status_schema import BudgetView, ConditionView, MaintainedView, MaintenanceView
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.draco import MigPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.maintenance import (
    OVER,
    Approval,
    DeviceMaintenance,
    DrainPolicy,
    MaintenanceBudget,
    MaintenancePhase,
    VerificationMode,
)
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.sharing import SharingPolicy
from draco.resources.texts import agreeing, counted, listed

OUT_OF_SERVICE = frozenset(
    {
        MaintenancePhase.ISOLATED,
        MaintenancePhase.DRAINING,
        MaintenancePhase.IN_MAINTENANCE,
        MaintenancePhase.VERIFYING,
        MaintenancePhase.FAILED,
    }
)
"""Phases in which the devices have the request's taint."""
BEFORE_ISOLATION = frozenset({MaintenancePhase.PENDING, MaintenancePhase.REHEARSED})
UNSEEN = "The operator has not processed it yet; is it running?"
_OUTDATED = "The operator has not processed its last change yet; is it running?"


def phase_of(request: DeviceMaintenance) -> MaintenancePhase:
    """The request's phase; Pending if the operator has not seen it."""
    return request.status.phase or MaintenancePhase.PENDING


def maintenance_view(
    request: DeviceMaintenance,
    claims: Mapping[str, ResourceClaim],
    members: Mapping[ObjectKey, Pod] = MappingProxyType({}),
) -> MaintenanceView:
    """One request. `claims` are by "namespace/name", as far as readable; `members` as in `pods_using`."""
    status = request.status
    holding = _holding(request)
    return MaintenanceView(
        name=request.metadata.name,
        phase=phase_of(request),
        reason=request.spec.reason,
        message=_message(request),
        devices=[str(device.key) for device in status.devices],
        device_count=len(status.devices) if status.device_count is None else status.device_count,
        in_use=status.in_use or 0,
        claims=holding,
        pods=pods_using(holding, claims, members),
        since=_since(request),
        waits_for=waits_for(request),
        next_steps=next_steps(request),
        details=[
            MaintainedView(
                device=str(each.key),
                uuid=each.uuid,
                same_hardware_as=each.overlaps,
                claims=each.claims,
                watched_by=each.watched_by,
            )
            for each in status.devices
        ],
        conditions=[msgspec.convert(each, ConditionView, from_attributes=True) for each in status.conditions],
    )


def claims_held(requests: Iterable[DeviceMaintenance], claims: Mapping[str, ResourceClaim]) -> list[ResourceClaim]:
    """The claims that have devices of these requests."""
    names = sorted({name for each in requests for name in _holding(each)})
    return [claims[name] for name in names if name in claims]


def _holding(request: DeviceMaintenance) -> list[str]:
    """The claims that have its devices, by "namespace/name"."""
    return sorted({name for device in request.status.devices for name in device.claims})


def pods_using(
    names: Iterable[str], claims: Mapping[str, ResourceClaim], members: Mapping[ObjectKey, Pod]
) -> list[str]:
    """The pods ("namespace/name") that have these claims. `members` are pods that may have one through a PodGroup."""
    return sorted(
        {str(key) for name in names if (claim := claims.get(name)) for key in named_and_members(claim, members)}
    )


def waits_for(request: DeviceMaintenance) -> str:
    """What must happen next, in a few words; "" if nothing."""
    phase, spec, status = phase_of(request), request.spec, request.status
    waits = {
        MaintenancePhase.REHEARSED: "approval" if needs_approval(request) else _first_reason(request),
        MaintenancePhase.ISOLATED: f"{counted(status.in_use or 0, 'device')} in use" if status.in_use else "isolation",
        MaintenancePhase.IN_MAINTENANCE: f"Jobs of {spec.work.from_cron_job}" if spec.work else "`finish`",
        MaintenancePhase.VERIFYING: "verification",
        MaintenancePhase.FAILED: "a person",
    }
    waits[MaintenancePhase.DRAINING] = waits[MaintenancePhase.ISOLATED]
    if phase in OVER:
        return ""
    if status.observed_generation < request.metadata.generation:
        return "the operator"
    if request.is_to_end:
        return "the return of its devices"
    return waits.get(phase) or _first_reason(request)


def next_steps(request: DeviceMaintenance) -> list[str]:
    """What a person can do now, each with its command."""
    name, spec = request.metadata.name, request.spec
    cancel = f"Return the devices unrepaired: draco maintain cancel {name}"
    match phase_of(request):
        case phase if phase in OVER or request.is_to_end:
            steps = []
        case MaintenancePhase.ISOLATED | MaintenancePhase.DRAINING:
            patch = f'kubectl patch dm {name} --type merge -p \'{{"spec":{{"drain":{{"policy":"Evict"}}}}}}\''
            waits = request.status.in_use and spec.drain.policy is DrainPolicy.WAIT
            steps = [f"Evict the pods that hold the devices: {patch}", cancel] if waits else [cancel]
        case MaintenancePhase.IN_MAINTENANCE if spec.work:
            steps = [
                f"It continues automatically when the Jobs of CronJob {spec.work.from_cron_job} have succeeded.",
                cancel,
            ]
        case MaintenancePhase.IN_MAINTENANCE:
            steps = [f"When the work is done: draco maintain finish {name}"]
        case MaintenancePhase.VERIFYING:
            person = spec.verification.mode is VerificationMode.PERSON and not spec.finished
            steps = [f"When you have looked at the devices: draco maintain finish {name}"] if person else []
        case MaintenancePhase.FAILED:
            steps = [
                "Repair what failed (delete a failed Job: it is created again); maintenance then resumes automatically.",
                cancel,
            ]
        case _:
            steps = [f"Let it start: draco maintain approve {name}"] if needs_approval(request) else []
            steps.append(f"Cancel it: draco maintain cancel {name}")
    return steps


def needs_approval(request: DeviceMaintenance) -> bool:
    """Whether it still needs approval."""
    return request.spec.approval is Approval.REQUIRED and not request.spec.approved


def budget_view(budget: MaintenanceBudget) -> BudgetView:
    """The row of one budget."""
    spec, status = budget.spec, budget.status
    limits = []
    if spec.max_devices is not None:
        limits.append(counted(spec.max_devices, "GPU"))
    if spec.max_percent is not None:
        limits.append(f"{spec.max_percent} %")
    limit = f"at most {' and '.join(limits)}" if limits else ""
    about = f" of class {spec.device_class_name}" if spec.device_class_name and limits else ""
    scope = {"Cluster": "", "Node": " per node", "NVLinkDomain": " per NVLink domain"}[spec.per] if limits else ""
    breaker = f"stops after {counted(spec.max_failed, 'failure')}" if spec.max_failed is not None else ""
    return BudgetView(
        name=budget.metadata.name,
        limit="; ".join(filter(None, (limit + about + scope, breaker))),
        paused=spec.paused,
        devices=status.devices or 0,
        out_of_service=status.out_of_service or 0,
        waiting=status.waiting or 0,
        message=message_of(budget),
    )


def pause_warning(budgets: Iterable[MaintenanceBudget]) -> str:
    """The warning if maintenance is paused; else ""."""
    names = sorted(each.metadata.name for each in budgets if each.spec.paused)
    if not names:
        return ""
    by = f"MaintenanceBudget {listed(names)} {agreeing(len(names), 'is', 'are')} paused"
    others = [name for name in names if name != PAUSE]
    how = "`draco maintain resume`"
    if others:
        how = f"set spec.paused of {listed(others)} to false" + (f", and {how}" if PAUSE in names else "")
    return f"{by}: no device is taken out of service and no pod evicted. To end the pause: {how}."


PAUSE = "pause"
"""Name of the MaintenanceBudget that `draco maintain pause` creates."""


def message_of(seen: MaintenanceBudget | MigPolicy | SharingPolicy | DeviceLimit | DeviceReservation) -> str:
    """The operator's last message about it, or that the operator has not processed its current generation."""
    if seen.status.observed_generation < seen.metadata.generation:
        return _OUTDATED if seen.status.observed_generation else UNSEEN
    return seen.status.message


def _message(request: DeviceMaintenance) -> str:
    if not request.status.message and request.status.phase is None:
        return UNSEEN
    return request.status.message


def _since(request: DeviceMaintenance) -> str:
    """When it entered its phase, as far as the status tells: the latest of its times."""
    status = request.status
    times = (status.completed_at, status.started_at, status.draining_at, status.isolated_at)
    found = max((each for each in times if each), default=request.metadata.creation_timestamp)
    return found.isoformat() if found else ""


def _first_reason(request: DeviceMaintenance) -> str:
    """The reason of the first condition that is not True, as words."""
    reason = next((each.reason for each in request.status.conditions if each.status != "True" and each.reason), "")
    return "".join(f" {each.lower()}" if each.isupper() else each for each in reason).strip() or "the operator"
