"""When a request may begin, by when its devices must be free, and which schedules make no sense."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.maintenance.gate import schedule_problem, start_time, time_left
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceDeadline, MaintenanceSchedule
from draco.resources.api.meta import TimeWindow
from draco.resources.windows import Openness
from tests.builders import MOMENT, a_maintenance

HOUR = timedelta(hours=1)
NIGHT = TimeWindow(start=f"{MOMENT - HOUR:%H:%M}", duration="2h")
"""Open from an hour before MOMENT until an hour after it."""
LATER = TimeWindow(start=f"{MOMENT + HOUR:%H:%M}", duration="2h")


def scheduled(*windows: TimeWindow, start: datetime | None = None, **spec: Any) -> DeviceMaintenance:
    request = a_maintenance()
    schedule = MaintenanceSchedule(start=start, windows=list(windows))
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, schedule=schedule, **spec))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (scheduled(), Openness(True)),
        (scheduled(start=MOMENT), Openness(True)),
        (scheduled(start=MOMENT - HOUR), Openness(True)),
        (scheduled(start=MOMENT + HOUR), Openness(False, MOMENT + HOUR)),
        (scheduled(NIGHT), Openness(True, MOMENT + HOUR)),
        (scheduled(LATER), Openness(False, MOMENT + HOUR)),
        (scheduled(NIGHT, start=MOMENT - HOUR), Openness(True, MOMENT + HOUR)),
        (scheduled(LATER, start=MOMENT + 2 * HOUR), Openness(False, MOMENT + 2 * HOUR)),
        (scheduled(NIGHT, start=MOMENT + 2 * HOUR), Openness(False, MOMENT + 23 * HOUR)),
    ],
)
def test_a_request_begins_in_a_window_and_not_before_its_start(request_: DeviceMaintenance, expected: Openness) -> None:
    assert start_time(request_, MOMENT) == expected


def test_a_start_in_the_year_9999_is_simply_later() -> None:
    far = MOMENT.replace(year=9999, month=12, day=31)
    assert start_time(scheduled(NIGHT, start=far), MOMENT) == Openness(False, far)


def test_who_looks_when_it_was_said_to_change_may_begin() -> None:
    for request in (scheduled(LATER), scheduled(NIGHT, start=MOMENT + 2 * HOUR), scheduled(start=MOMENT + HOUR)):
        until = start_time(request, MOMENT).until
        assert until is not None
        assert start_time(request, until).is_open
        assert not start_time(request, until - timedelta(seconds=1)).is_open


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (scheduled(), ""),
        (scheduled(NIGHT, deadline=MaintenanceDeadline(after="4h")), ""),
        (scheduled(msgspec.structs.replace(NIGHT, time_zone="Mars/Olympus")), "Mars/Olympus is not a time zone"),
        (
            scheduled(*(msgspec.structs.replace(NIGHT, time_zone=zone) for zone in ("Mars/A", "Mars/B"))),
            "Mars/A, Mars/B are not time zones; use a name",
        ),
        (
            scheduled(NIGHT, msgspec.structs.replace(NIGHT, duration="0m")),
            "spec.schedule.windows[1] has no duration",
        ),
        (scheduled(deadline=MaintenanceDeadline(after="0s")), "spec.deadline.after is zero"),
    ],
)
def test_what_cannot_be_meant_is_said(request_: DeviceMaintenance, said: str) -> None:
    assert said in schedule_problem(request_)
    assert bool(said) == bool(schedule_problem(request_))


@pytest.mark.parametrize(
    ("after", "now", "left"),
    [
        (None, MOMENT, None),
        ("0s", MOMENT, None),
        ("2h", MOMENT, 2 * HOUR),
        ("2h", MOMENT + HOUR, HOUR),
        ("2h", MOMENT + 2 * HOUR, timedelta(0)),
        ("2h", MOMENT + 9 * HOUR, timedelta(0)),
    ],
)
def test_a_deadline_counts_from_isolation(after: str | None, now: datetime, left: timedelta | None) -> None:
    deadline = MaintenanceDeadline(after=after) if after else None
    assert time_left(scheduled(deadline=deadline), MOMENT, now) == left
