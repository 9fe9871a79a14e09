"""Durations, times of day and names as written on a command line and in files."""

import re
from typing import Final

from draco.cli.output import CommandError
from draco.resources.names import LONGEST_NAME
from draco.resources.windows import is_duration

DURATION_HELP: Final = "hours and minutes, such as 2h30m, 45m or 2h"
NO_LIMIT: Final = "0s"
_LIMIT: Final = re.compile(r"(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s)?")
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_TIME_OF_DAY: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


def duration(text: str, what: str) -> str:
    """Validate a duration in the form that Draco's objects use; `what` names it in the error. Raises CommandError."""
    if not is_duration(text):
        raise CommandError(f"'{text}' is not a duration for {what}: write {DURATION_HELP}.")
    return text


def limit_s(text: str) -> float | None:
    """The seconds of a --timeout; 0 and 0s mean no limit (None), as in kubectl. Raises CommandError."""
    if text == "0":
        return None
    if not text or not (found := _LIMIT.fullmatch(text)):
        raise CommandError(
            f"'{text}' is not a duration for --timeout: write for example 90s, 45m or 2h30m; 0 is no limit."
        )
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds or None


def is_name(text: str, longest: int = LONGEST_NAME) -> bool:
    """Whether the API server accepts the text as an object's name."""
    return len(text) <= longest and _NAME.fullmatch(text) is not None


def is_time_of_day(text: str) -> bool:
    """Whether the text is HH:MM."""
    return _TIME_OF_DAY.fullmatch(text) is not None
