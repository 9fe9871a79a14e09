"""Lengths of time as our kinds write them: "2h30m".

Owns the reading of such a text; the schemas in `crds/` say which ones are taken.
"""

import re
from datetime import timedelta

_DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?", re.ASCII)


def duration(text: str) -> timedelta:
    """Read "2h30m", "45m" or "8h"; zero for a text that is no duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return timedelta(0)
    hours, minutes = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes)
