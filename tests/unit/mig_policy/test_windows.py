"""Windows: when a GPU may be reset."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from draco.mig_policy.matching import permit
from draco.resources.api.draco import MigReset, ResetPermit
from draco.resources.api.meta import TimeWindow, Weekday
from draco.resources.windows import Openness, unknown_zones

BERLIN = ZoneInfo("Europe/Berlin")


def windows(*each: TimeWindow) -> MigReset:
    return MigReset(permit=ResetPermit.IN_WINDOWS, windows=list(each))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_never_and_always_do_not_ask_for_the_time() -> None:
    now = utc("2026-03-04T12:00")
    nightly = [TimeWindow(start="11:00", duration="2h")]
    assert permit(MigReset(windows=nightly), now) == Openness(False)
    assert permit(MigReset(permit=ResetPermit.ALWAYS), now) == Openness(True)


@pytest.mark.parametrize(
    ("now", "granted", "until"),
    [
        ("2026-03-04T21:59:59", False, "2026-03-04T22:00"),
        ("2026-03-04T22:00", True, "2026-03-05T00:30"),
        ("2026-03-05T00:29:59", True, "2026-03-05T00:30"),
        ("2026-03-05T00:30", False, "2026-03-05T22:00"),
    ],
)
def test_a_window_is_open_from_its_start_for_its_duration_across_midnight(
    now: str,
    granted: bool,
    until: str,
) -> None:
    nightly = windows(TimeWindow(start="22:00", duration="2h30m"))
    assert permit(nightly, utc(now)) == Openness(granted, utc(until))


def test_the_day_is_the_one_on_which_it_opens() -> None:
    saturdays = windows(TimeWindow(start="23:00", duration="3h", days=[Weekday.SAT]))
    assert permit(saturdays, utc("2026-03-08T01:00")).is_open  # Sunday; the window opened on Saturday
    assert not permit(saturdays, utc("2026-03-07T01:00")).is_open
    assert permit(saturdays, utc("2026-03-08T02:00")) == Openness(False, utc("2026-03-14T23:00"))


def test_the_time_of_day_is_that_of_the_time_zone_in_summer_and_in_winter() -> None:
    nightly = windows(TimeWindow(start="02:00", duration="1h", time_zone="Europe/Berlin"))
    assert permit(nightly, utc("2026-01-10T01:30")).is_open
    assert permit(nightly, utc("2026-07-10T00:30")).is_open
    assert not permit(nightly, utc("2026-07-10T01:30")).is_open


def test_a_window_that_the_clocks_skip_still_opens_once() -> None:
    nightly = windows(TimeWindow(start="02:30", duration="30m", time_zone="Europe/Berlin"))
    noon_before = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    opens = permit(nightly, noon_before).until
    assert opens is not None
    assert opens == utc("2026-03-29T01:30")
    assert permit(nightly, opens) == Openness(True, opens + timedelta(minutes=30))


def test_a_window_of_a_day_reaches_over_the_short_day_of_the_year() -> None:
    saturdays = TimeWindow(start="23:30", duration="24h", days=[Weekday.SAT], time_zone="Europe/Berlin")
    monday = datetime(2026, 3, 30, 0, 15, tzinfo=BERLIN)
    assert permit(windows(saturdays), monday) == Openness(True, monday + timedelta(minutes=15))


def test_on_its_day_a_weekly_window_that_is_over_opens_next_week() -> None:
    saturdays = windows(TimeWindow(start="01:00", duration="1h", days=[Weekday.SAT]))
    assert permit(saturdays, utc("2026-03-07T02:00")) == Openness(False, utc("2026-03-14T01:00"))


def test_windows_that_touch_are_one_in_whatever_order() -> None:
    both = (TimeWindow(start="20:00", duration="2h"), TimeWindow(start="22:00", duration="1h"))
    for each in (windows(*both), windows(*reversed(both))):
        assert permit(each, utc("2026-03-04T21:00")) == Openness(True, utc("2026-03-04T23:00"))


def test_a_window_that_is_always_open_stays_open() -> None:
    daily = windows(TimeWindow(start="00:00", duration="24h"))
    now = utc("2026-03-04T21:00")
    found = permit(daily, now)
    assert found.is_open
    assert found.until is not None
    assert found.until > now


def test_a_time_zone_that_does_not_exist_never_opens_and_is_named() -> None:
    nowhere = windows(TimeWindow(start="00:00", duration="24h", time_zone="Europe/Atlantis"))
    assert permit(nowhere, utc("2026-03-04T21:00")) == Openness(False)
    assert unknown_zones(nowhere.windows) == ["Europe/Atlantis"]
    assert unknown_zones(windows(TimeWindow(start="00:00", duration="1h", time_zone="../etc/passwd")).windows) == [
        "../etc/passwd"
    ]
    assert unknown_zones(windows(TimeWindow(start="00:00", duration="1h", time_zone="Europe")).windows) == ["Europe"]
    assert unknown_zones(windows(TimeWindow(start="00:00", duration="1h", time_zone="")).windows) == ['""']
