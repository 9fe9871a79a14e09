"""Times of the week at which something may be done.

Owns the structs. Reading the texts is `resources.windows`' business.
"""

from enum import StrEnum

from draco.resources.api.base import ApiStruct


class Weekday(StrEnum):
    """Days of the week, in their order."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


class TimeWindow(ApiStruct, frozen=True, kw_only=True):
    """A time of the week: from `start` ("22:00") of each day (all when none is named) for `duration` ("2h30m")."""

    start: str
    duration: str
    days: list[Weekday] = []
    time_zone: str = "UTC"
