"""What keeps a request from asking the budgets whether it may isolate its devices, the most important reason first.

Owns the order of these checks, their reasons, and what schedule and deadline mean at a moment. `resources.windows` reads windows;
`selecting` checks the selection.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.maintenance import wording
from draco.resources.api.maintenance import Approval, DeviceMaintenance, MaintenancePhase
from draco.resources.api.taints import BLOCKING_EFFECTS
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.texts import agreeing, listed
from draco.resources.windows import Openness, lasting, openness, unknown_zones

POOL_INCOMPLETE: Final = "PoolIncomplete"


class SelectionProblem(msgspec.Struct, frozen=True):
    """Why a request cannot begin with what it selects: a reason and a message."""

    reason: str
    message: str


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request does not begin. `rehearsed`: it could, but for its schedule, an approval or other requests."""

    reason: str
    message: str
    rehearsed: bool = True
    look_again: timedelta | None = None


COUNTING: Final = Waiting(reason="CountingBudgets", message="Counting what MaintenanceBudgets allow.")
"""The budgets have not answered yet. Never written to a status: the answer comes within a moment."""


def what_holds_up(
    request: DeviceMaintenance,
    now: datetime,
    *,
    problem: SelectionProblem | None,
    found: Collection[DeviceKey],
    beyond: Sequence[DeviceKey],
    incomplete: Sequence[PoolKey] = (),
) -> Waiting | None:
    """Why the devices cannot be isolated now; None if they can. `found` are the selected devices.

    `beyond` are those that only a DeviceTaintRule could isolate, where none is served. `incomplete` are pools with missing
    slices, so more may be selected later.
    """
    if problem is None and incomplete and request.spec.taint.effect in BLOCKING_EFFECTS:
        rehearsed = request.status.phase is MaintenancePhase.REHEARSED
        return Waiting(reason=POOL_INCOMPLETE, message=wording.incomplete(incomplete), rehearsed=rehearsed)
    wrong = _what_is_wrong(request, problem, found, beyond)
    if wrong is not None:
        return Waiting(reason=wrong.reason, message=wrong.message, rehearsed=False)
    if request.spec.approval is Approval.REQUIRED and not request.spec.approved:
        return Waiting(reason="NotApproved", message=wording.not_approved(request))
    start = start_time(request, now)
    if not start.is_open:
        left = start.until - now if start.until else None
        return Waiting(reason="NotYet", message=wording.not_yet(start.until), look_again=left)
    return None


def _what_is_wrong(
    request: DeviceMaintenance,
    problem: SelectionProblem | None,
    found: Collection[DeviceKey],
    beyond: Sequence[DeviceKey],
) -> SelectionProblem | None:
    if problem is not None:
        return problem
    if not found:
        return SelectionProblem("NoDevices", wording.no_devices(request.spec.device_selector))
    if beyond:
        return SelectionProblem("DeviceTaintRuleNotServed", wording.rules_not_served(beyond))
    if request.spec.taint.effect not in BLOCKING_EFFECTS:
        return SelectionProblem("EffectNone", wording.only_announced(request.spec.taint.effect))
    if said := schedule_problem(request):
        return SelectionProblem("InvalidSchedule", said)
    return None


_FAR = timedelta(days=366)
"""Windows are not computed for starts further away: nobody needs them yet, and calendars end in the year 9999."""


def start_time(request: DeviceMaintenance, now: datetime) -> Openness:
    """Whether the schedule lets a request begin at `now`. A start in the past does."""
    schedule = request.spec.schedule
    if schedule.start is not None and schedule.start > now:
        if not schedule.windows or schedule.start - now > _FAR:
            return Openness(False, schedule.start)
        there = openness(schedule.windows, schedule.start)
        return Openness(False, schedule.start if there.is_open else there.until)
    if not schedule.windows:
        return Openness(True)
    return openness(schedule.windows, now)


def schedule_problem(request: DeviceMaintenance) -> str:
    """Why the schedule or the deadline is invalid, as a message; "" if they are valid."""
    windows = request.spec.schedule.windows
    if zones := unknown_zones(windows):
        no_zones = agreeing(len(zones), "is not a time zone", "are not time zones")
        return f"spec.schedule.windows: {listed(zones)} {no_zones}; use a name such as UTC or Europe/Berlin."
    if empty := [index for index, window in enumerate(windows) if not lasting(window.duration)]:
        return f"spec.schedule.windows[{empty[0]}] has no duration; give one such as 2h30m."
    deadline = request.spec.deadline
    if deadline is not None and not lasting(deadline.after):
        return "spec.deadline.after is zero; give a duration such as 4h, or leave spec.deadline out."
    return ""


def time_left(request: DeviceMaintenance, isolated_at: datetime, now: datetime) -> timedelta | None:
    """How long the devices may still be in use; zero once the deadline is past, None without a deadline."""
    deadline = request.spec.deadline
    if deadline is None or not (after := lasting(deadline.after)):
        return None
    return max(isolated_at + after - now, timedelta(0))
