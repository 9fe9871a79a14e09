"""Requests and previews as text for a terminal. Owns layout and words."""

from collections.abc import Sequence
from datetime import UTC, datetime

from draco.cli.output import echo, echo_lines, visible
from draco.cli.tables import print_table, table
from draco.maintenance.selecting.rehearsal import Rehearsal
from draco.overview.maintenances import pause_warning
from draco.overview.status_schema import ConditionView, MaintainedView, MaintenanceView
from draco.resources.api.maintenance import (
    Approval,
    DeviceMaintenance,
    DrainPolicy,
    MaintenanceBudget,
    MaintenanceRehearsal,
)
from draco.resources.names import DeviceKey
from draco.resources.texts import agreeing, are, counted, listed

_SHOWN = 10
"""Devices and pods that a preview names; the rest are counted."""
_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S
_YOUNG = 2
"""Below this many minutes seconds are shown, below this many hours minutes, and so on."""


def preview(request: DeviceMaintenance, found: Rehearsal, budgets: Sequence[MaintenanceBudget]) -> list[str]:
    """What the request would do, one sentence per line."""
    if found.problem:
        return [f"It would not start: {found.problem}"]
    return [
        f"Isolates {_devices(found.devices)}.",
        *numbers(found.summary, request.spec.drain.policy),
        *_waits(request, budgets),
    ]


def numbers(summary: MaintenanceRehearsal, policy: DrainPolicy) -> list[str]:
    """The counts: pods, PodDisruptionBudgets, and what remains of each class."""
    lines = []
    if not summary.claims:
        lines.append("No claim holds any of them.")
    else:
        claims = f"{counted(summary.claims, 'claim')} {agreeing(summary.claims, 'holds', 'hold')} some of them"
        pods = counted(summary.pods, "pod")
        names = f": {listed(summary.pod_names, _SHOWN, total=summary.pods)}" if summary.pod_names else ""
        match policy:
            case DrainPolicy.WAIT:
                fate = f"work starts when {pods} {agreeing(summary.pods, 'has', 'have')} ended; no pod is evicted"
            case DrainPolicy.EVICT:
                fate = f"evicts {pods}, as their disruption budgets allow"
            case _:
                fate = f"evicts {pods}, and after half an hour deletes the rest, regardless of disruption budgets"
        lines.append(f"{claims}: {fate}{names}.")
    if summary.blocking_budgets and policy is not DrainPolicy.WAIT:
        lines.append(
            f"PodDisruptionBudgets that would block evictions now: {listed(summary.blocking_budgets, _SHOWN)}."
        )
    lines += [
        f"DeviceClass {each.name}: {each.free_after} of {each.devices} stay free for new claims (now {each.free})."
        for each in summary.classes
    ]
    return lines


def _waits(request: DeviceMaintenance, budgets: Sequence[MaintenanceBudget]) -> list[str]:
    """What must happen before anything is isolated."""
    spec, lines = request.spec, []
    if spec.approval is Approval.REQUIRED:
        lines.append(f"Starts after `draco maintain approve {request.metadata.name}`.")
    if spec.schedule.start:
        lines.append(f"Starts no earlier than {spec.schedule.start.isoformat(timespec='minutes')}.")
    for window in spec.schedule.windows:
        days = ", ".join(window.days) or "every day"
        lines.append(f"Starts only in a window: {days} {window.start} for {window.duration} ({window.time_zone}).")
    for budget in sorted(budgets, key=lambda each: each.metadata.name):
        if budget.spec.max_devices is None and budget.spec.max_percent is None:
            continue
        status = budget.status
        out = status.out_of_service or 0
        used = f"{out} of {counted(status.devices or 0, 'GPU')} {are(out)} out of service"
        waiting = f", {counted(status.waiting, 'request')} waiting" if status.waiting else ""
        lines.append(f"MaintenanceBudget {budget.metadata.name} has to allow it ({used}{waiting}).")
    if paused := pause_warning(budgets):
        lines.append(paused)
    return lines


def show_list(views: Sequence[MaintenanceView], now: datetime) -> None:
    """A table with a row per request."""
    rows = table("NAME", "PHASE", "DEVICES", "IN USE", "PODS", "SINCE", "WAITS FOR", "DETAIL")
    for view in map(visible, views):
        figures = map(str, (view.device_count, view.in_use, len(view.pods)))
        rows.add_row(view.name, view.phase, *figures, age(view.since, now), view.waits_for or "-", view.message)
    print_table(rows)


def show_one(view: MaintenanceView, found: MaintenanceRehearsal | None, policy: DrainPolicy, now: datetime) -> None:
    """Everything known of one request, and the next step."""
    view = visible(view)
    echo(f"{view.name}: {view.phase}" + (f" for {age(view.since, now)}" if view.since else ""))
    if view.reason:
        echo(f"Reason: {view.reason}")
    if view.message:
        echo(view.message)
    if view.details:
        _show_devices(view.details)
    if view.pods:
        echo(f"Pods that use them: {listed(view.pods, _SHOWN)}")
    if found is not None and view.phase in {"Pending", "Rehearsed"}:
        echo()
        echo_lines(numbers(found, policy))
    if view.conditions:
        _show_conditions(view.conditions)
    if view.next_steps:
        echo()
        echo_lines(view.next_steps)


def _show_devices(devices: Sequence[MaintainedView]) -> None:
    echo()
    rows = table("DEVICE", "GPU", "HELD BY", "NOTE")
    for each in devices:
        notes = [f"same hardware as {each.same_hardware_as}"] if each.same_hardware_as else []
        notes += [f"watched by {listed(each.watched_by)}"] if each.watched_by else []
        rows.add_row(each.device, each.uuid or "-", ", ".join(each.claims) or "-", "; ".join(notes))
    print_table(rows)


def _show_conditions(conditions: Sequence[ConditionView]) -> None:
    echo()
    rows = table("CONDITION", "STATUS", "REASON", "MESSAGE")
    for condition in conditions:
        rows.add_row(condition.type, condition.status, condition.reason, condition.message)
    print_table(rows)


def age(since: str, now: datetime) -> str:
    """The time since then, as kubectl writes it: 42s, 5m, 3h, 2d."""
    if not since:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(since).astimezone(UTC)).total_seconds()))
    for unit, letter in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m")):
        if seconds >= _YOUNG * unit:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"


def _devices(devices: Sequence[DeviceKey]) -> str:
    """The devices; partitions of a GPU that goes too are only counted."""
    names = listed([f"{key.pool}/{key.device}" for key in devices], _SHOWN)
    return f"{counted(len(devices), 'device')}, the same hardware included: {names}"
