"""When a request may begin, and by when its devices must be free.

Owns what its schedule and its deadline mean at a moment, and what is wrong with them. Reading windows is `resources.windows`'.
"""

from datetime import datetime, timedelta

from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.texts import agreeing, listed
from draco.resources.windows import Openness, lasting, openness, unknown_zones

_FAR = timedelta(days=366)
"""Nobody needs to know today in which window a request of the year 9999 begins, and calendars end there."""


def start_time(request: DeviceMaintenance, now: datetime) -> Openness:
    """Whether the schedule lets a request begin at `now`. A start that is past lets it."""
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
    """What of the schedule or the deadline cannot be meant, in a sentence; "" if nothing."""
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
    """How long the devices may still be in use; zero once the deadline is past, None where there is none."""
    deadline = request.spec.deadline
    if deadline is None or not (after := lasting(deadline.after)):
        return None
    return max(isolated_at + after - now, timedelta(0))
