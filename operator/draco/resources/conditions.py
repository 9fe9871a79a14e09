"""Conditions: since when each is what it is.

Owns the rule that `lastTransitionTime` moves only with `status`. What a condition says is its reporter's.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from draco.resources.api.meta import Condition


def timed(wanted: Condition, before: Sequence[Condition], now: datetime, *, generation: int | None = None) -> Condition:
    """The condition with the time at which its status became what it is; `before` is what was reported so far.

    `generation` is that of the spec which it is about, where it says one.
    """
    known = next((each for each in before if each.type == wanted.type), None)
    since = known.last_transition_time if known is not None and known.status == wanted.status else None
    return msgspec.structs.replace(
        wanted,
        observed_generation=wanted.observed_generation if generation is None else generation,
        last_transition_time=since or now,
    )


def all_timed(wanted: Sequence[Condition], before: Sequence[Condition], now: datetime) -> list[Condition]:
    """The same of several, by the second: the API server keeps no more of the conditions of claims."""
    return [timed(each, before, now.replace(microsecond=0)) for each in wanted]
