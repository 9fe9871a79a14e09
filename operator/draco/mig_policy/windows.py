"""When a GPU may be reset.

Owns what a policy's permit means. Takes the time as an argument; the reading of windows is `resources.windows`'.
"""

from datetime import datetime

import msgspec

from draco.resources.api.draco import MigReset, ResetPermit
from draco.resources.windows import openness


class Permit(msgspec.Struct, frozen=True):
    """Whether a reset may be made now, and when that changes (None: it does not)."""

    granted: bool
    until: datetime | None = None


def permit(reset: MigReset, now: datetime) -> Permit:
    """What `reset` says at `now`. A window in an unknown time zone never opens."""
    if reset.permit is not ResetPermit.IN_WINDOWS:
        return Permit(reset.permit is ResetPermit.ALWAYS)
    found = openness(reset.windows, now)
    return Permit(found.is_open, found.until)
