"""Limits on what an evaluation may build where Kubernetes charges nothing, and would exhaust its memory.

No real selector comes near these limits, and work that is charged by size reaches Kubernetes' own limit first.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from draco.cel.errors import Abort
from draco.cel.values.values import MAPS, Value

MAX_COST: Final = 1_000_000
"""Kubernetes refuses a selector with a higher estimated cost, and stops one that exceeds it at run time."""
MAX_TEXT: Final = 5_000_000
"""Characters of a text. Joining that many costs the whole limit."""
MAX_TOIL: Final = 20_000_000
"""Characters and elements processed without a charge, in texts and lists of more than a thousand."""
MAX_MESSAGE: Final = 100_000
"""Characters of a value in an error message."""
MAX_ITEMS: Final = 1_000_000
"""Elements of a list, the maximum of `lists.range`."""

Toil: TypeAlias = Callable[[Sequence[Value]], int]
"""From the arguments of a function with a low charge: how many characters and elements it processes."""
_LONG: Final = 1000
_SIZED: Final = frozenset({str, bytes, list, *MAPS})
_PER_PATTERN: Final = 5_000
_PER_REPETITION: Final = 200_000
_PER_FOUND: Final = 100
_PER_URL_CHARACTER: Final = 5
_PER_ENTRY: Final = 8


def toil_of_all(values: Sequence[Value]) -> int:
    """Toil of processing every argument."""
    return sum(map(_size, values))


def _size(value: Value) -> int:
    if type(value) not in _SIZED or len(value) <= _LONG:
        return 0
    return len(value) * (_PER_ENTRY if type(value) in MAPS else 1)


def toil_inside(values: Sequence[Value]) -> int:
    """Toil of processing a list and its elements."""
    items = values[0]
    return _size(items) + (sum(map(_size, items)) if type(items) is list else 0)


def toil_of_formatting(values: Sequence[Value]) -> int:
    """Toil of formatting: the template is charged, its arguments are not, and a precision makes up to 32,767 digits."""
    template, filling = values
    digits = template.count("%.") * _LONG if type(template) is str else 0
    return digits + (sum(map(_size, filling)) if type(filling) is list else 0)


def toil_of_finding(values: Sequence[Value]) -> int:
    """Toil of finding all matches of a compiled pattern."""
    return len(values[0]) * _PER_FOUND if type(values[0]) is str else 0


def toil_of_compiling(values: Sequence[Value]) -> int:
    """Toil of compiling a pattern."""
    pattern = values[1]
    repeats = pattern.count("{") if type(pattern) is str else 0
    return _PER_PATTERN + repeats * _PER_REPETITION


def toil_of_url(values: Sequence[Value]) -> int:
    """Toil of parsing a URL."""
    return len(values[0]) * _PER_URL_CHARACTER if type(values[0]) is str else 0


def check_toil(toil: int) -> None:
    """Raise Abort for more uncharged work than any selector needs."""
    if toil > MAX_TOIL:
        raise Abort(f"the expression goes through more than {MAX_TOIL} characters and elements")


def check_text(length: int) -> None:
    """Raise Abort for a longer text than any selector needs."""
    if length > MAX_TEXT:
        raise Abort(f"the expression makes a text of more than {MAX_TEXT} characters")


def too_costly() -> Abort:
    """Return Kubernetes' error for reaching the cost limit."""
    return Abort("operation cancelled: actual cost limit exceeded")


def check_message(length: int) -> None:
    """Raise Abort for an error message too long to read."""
    if length > MAX_MESSAGE:
        raise Abort(f"the expression makes an error message of more than {MAX_MESSAGE} characters")


def check_items(count: int) -> None:
    """Raise Abort for a longer list than any selector needs."""
    if count > MAX_ITEMS:
        raise Abort(f"the expression makes a list of more than {MAX_ITEMS} elements")
