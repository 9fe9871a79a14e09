"""When a GPU may be reset.

Owns the reading of windows: a window opens at its wall-clock time on its days and stays open for its duration, also across
midnight and across a change of the clocks. Takes the time as an argument.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import msgspec

from draco.resources.api.draco import MigReset, ResetPermit
from draco.resources.api.schedule import TimeWindow, Weekday

_DURATION = re.compile(r"(?:(\d{1,2})h)?(?:(\d{1,4})m)?", re.ASCII)
_DAYS = list(Weekday)
_AHEAD = 8
"""Days to look ahead: a window that opens once a week opens within them."""


class Permit(msgspec.Struct, frozen=True):
    """Whether a reset may be made now, and when that changes (None: it does not)."""

    granted: bool
    until: datetime | None = None


def permit(reset: MigReset, now: datetime) -> Permit:
    """What `reset` says at `now`. A window in an unknown time zone never opens; see `unknown_zones`."""
    if reset.permit is not ResetPermit.IN_WINDOWS:
        return Permit(reset.permit is ResetPermit.ALWAYS)
    openings = sorted(opening for window in reset.windows for opening in _openings(window, now))
    closes = now
    for opens, closing in openings:  # windows that touch are one
        if opens <= closes:
            closes = max(closes, closing)
    if closes > now:
        return Permit(True, closes)
    return Permit(False, next((opens for opens, _ in openings if opens > now), None))


def unknown_zones(reset: MigReset) -> list[str]:
    """Time zones of the windows that do not exist."""
    return sorted({window.time_zone for window in reset.windows if _zone(window.time_zone) is None})


def open_for(text: str) -> timedelta:
    """How long a window with this duration stays open; zero for a text that is no duration."""
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
    return [(start, start + open_for(window.duration)) for start in starts]


def _at(day: date, start: str, zone: ZoneInfo) -> datetime:
    # A time that the clocks skip counts as the moment of the skip's other side; one that comes twice as its first.
    return datetime.combine(day, time.fromisoformat(start), tzinfo=zone).astimezone(UTC)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # not a name at all, a folder of the database, not in the database
        return None
