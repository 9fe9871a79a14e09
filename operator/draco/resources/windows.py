"""When times of the week are, and how long texts such as "2h30m" last.

Owns the reading of windows: a window opens at its wall-clock time on its days and stays open for its duration, also across
midnight and across a change of the clocks. Takes the time as an argument. What may be done in a window is the caller's to say.
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
"""Days to look ahead: a window that opens once a week opens within them."""


class Openness(msgspec.Struct, frozen=True):
    """Whether something may be done now, as in a window that is open, and when that changes (None: it does not)."""

    is_open: bool
    until: datetime | None = None


def openness(windows: Iterable[TimeWindow], now: datetime) -> Openness:
    """Whether one is open at `now`. A window in an unknown time zone never opens; see `unknown_zones`."""
    openings = sorted(opening for window in windows for opening in _openings(window, now))
    closes = now
    for opens, closing in openings:  # windows that touch are one
        if opens <= closes:
            closes = max(closes, closing)
    if closes > now:
        return Openness(True, closes)
    return Openness(False, next((opens for opens, closing in openings if closing > opens > now), None))


def unknown_zones(windows: Iterable[TimeWindow]) -> list[str]:
    """Time zones of the windows that do not exist, as one shows them: none at all as "" in quotes."""
    return sorted({window.time_zone or '""' for window in windows if _zone(window.time_zone) is None})


def is_duration(text: str) -> bool:
    """Whether it says how long something lasts."""
    return bool(text) and _DURATION.fullmatch(text) is not None


def lasting(text: str) -> timedelta:
    """How long a text such as "2h30m" lasts; zero for a text that is no duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return timedelta(0)
    hours, minutes = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes)


def _openings(window: TimeWindow, now: datetime) -> list[tuple[datetime, datetime]]:
    """When the window opens and closes, from the day before yesterday on, in UTC."""
    zone = _zone(window.time_zone)
    if zone is None:
        return []
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=offset) for offset in range(-2, _AHEAD + 1))
    starts = [_at(day, window.start, zone) for day in days if not window.days or _DAYS[day.weekday()] in window.days]
    return [(start, start + lasting(window.duration)) for start in starts]


def _at(day: date, start: str, zone: ZoneInfo) -> datetime:
    # A time that the clocks skip counts as the moment of the skip's other side; one that comes twice as its first.
    return datetime.combine(day, time.fromisoformat(start), tzinfo=zone).astimezone(UTC)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # not a name at all, a folder of the database, not in the database
        return None
