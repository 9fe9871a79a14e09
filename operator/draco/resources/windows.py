"""When weekly windows are open, and the length of durations such as "2h30m".

A window opens at its wall-clock time on its days and stays open for its duration, across midnight and changes of the clock. The
time is an argument. Callers decide what may be done in a window.
"""

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import msgspec

from draco.resources.api.meta import TimeWindow, Weekday

_DURATION = re.compile(r"(?:(\d{1,3})h)?(?:(\d{1,4})m)?", re.ASCII)
_DAYS = list(Weekday)
_AHEAD = 8
"""Days to look ahead: even a weekly window opens within them."""


class Openness(msgspec.Struct, frozen=True):
    """Whether a window is open, and until when that holds (None: forever)."""

    is_open: bool
    until: datetime | None = None


def openness(windows: Iterable[TimeWindow], now: datetime) -> Openness:
    """Whether a window is open at `now`. One in an unknown time zone never opens; see `unknown_zones`."""
    openings = sorted(opening for window in windows for opening in _openings(window, now))
    closes = now
    for opens, closing in openings:  # adjacent windows are merged
        if opens <= closes:
            closes = max(closes, closing)
    if closes > now:
        return Openness(True, closes)
    return Openness(False, next((opens for opens, closing in openings if closing > opens > now), None))


def unknown_zones(windows: Iterable[TimeWindow]) -> list[str]:
    """Unknown time zones of the windows, as shown to people: an empty one as "" in quotes."""
    return sorted({window.time_zone or '""' for window in windows if _zone(window.time_zone) is None})


def is_duration(text: str) -> bool:
    """Whether the text is a duration."""
    return bool(text) and _DURATION.fullmatch(text) is not None


def lasting(text: str) -> timedelta:
    """The length of a duration such as "2h30m"; zero for an invalid one."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return timedelta(0)
    hours, minutes = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes)


def _openings(window: TimeWindow, now: datetime) -> list[tuple[datetime, datetime]]:
    """Opening and closing times in UTC, from the day before yesterday on."""
    zone = _zone(window.time_zone)
    if zone is None:
        return []
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=offset) for offset in range(-2, _AHEAD + 1))
    starts = [_at(day, window.start, zone) for day in days if not window.days or _DAYS[day.weekday()] in window.days]
    return [(start, start + lasting(window.duration)) for start in starts]


def _at(day: date, start: str, zone: ZoneInfo) -> datetime:
    # A time skipped by a change of the clock means the moment after it; an ambiguous time means the first.
    return datetime.combine(day, time.fromisoformat(start), tzinfo=zone).astimezone(UTC)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # not a name, a folder of the database, not in the database
        return None
