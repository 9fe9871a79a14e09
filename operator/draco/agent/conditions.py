"""Conditions: when one changes its status, and when writing it would say nothing new.

Pure. Owns the rule that `lastTransitionTime` moves only with `status`.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from draco.resources.meta import Condition


def merged(wanted: Sequence[Condition], before: Sequence[Condition], now: datetime) -> list[Condition]:
    """`wanted`, each with the time at which its status became what it is; `before` is what was reported so far."""
    known = {condition.type: condition for condition in before}
    result = []
    for condition in wanted:
        old = known.get(condition.type)
        since = old.last_transition_time if old is not None and old.status == condition.status else None
        result.append(msgspec.structs.replace(condition, last_transition_time=since or now.replace(microsecond=0)))
    return result
