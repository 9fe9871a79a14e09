"""Bounds on what an evaluation may build, for what Kubernetes builds without charging for it.

Owns the numbers and the sentences. Kubernetes would compute on until its memory is exhausted; nothing that a person means comes
near, and what costs by its size reaches Kubernetes' own limit first.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from draco.cel.errors import Abort
from draco.cel.values.values import MAPS, Value

MAX_COST: Final = 1_000_000
"""The cost above which Kubernetes refuses a selector when it is estimated, and stops it when it runs."""
MAX_TEXT: Final = 5_000_000
"""Characters of a text. Joining that many costs the whole limit."""
MAX_TOIL: Final = 20_000_000
"""Characters and elements that functions go through without a charge, in texts and lists of more than a thousand."""
MAX_MESSAGE: Final = 100_000
"""Characters of a value inside an error message."""
MAX_ITEMS: Final = 1_000_000
"""Elements of a list, as many as `lists.range` gives at most."""

Toil: TypeAlias = Callable[[Sequence[Value]], int]
"""From the arguments of a function that Kubernetes charges little for: how many characters and elements its work amounts to."""
_LONG: Final = 1000
_SIZED: Final = frozenset({str, bytes, list, *MAPS})
_PER_PATTERN: Final = 5_000
_PER_REPETITION: Final = 200_000
_PER_FOUND: Final = 100
_PER_URL_CHARACTER: Final = 5
_PER_ENTRY: Final = 8


def toil_of_all(values: Sequence[Value]) -> int:
    """Going through every argument."""
    return sum(_size(value) for value in values)


def _size(value: Value) -> int:
    if type(value) not in _SIZED or len(value) <= _LONG:
        return 0
    return len(value) * (_PER_ENTRY if type(value) in MAPS else 1)


def toil_inside(values: Sequence[Value]) -> int:
    """Going through a list and what is in it."""
    items = values[0]
    return _size(items) + (sum(map(_size, items)) if type(items) is list else 0)


def toil_of_formatting(values: Sequence[Value]) -> int:
    """A template is charged for, what it is filled with is not; a precision makes up to 32,767 digits."""
    template, filling = values
    digits = template.count("%.") * _LONG if type(template) is str else 0
    return digits + (sum(map(_size, filling)) if type(filling) is list else 0)


def toil_of_finding(values: Sequence[Value]) -> int:
    """Making every match of a pattern that is compiled already."""
    return len(values[0]) * _PER_FOUND if type(values[0]) is str else 0


def toil_of_compiling(values: Sequence[Value]) -> int:
    """Compiling a pattern."""
    pattern = values[1]
    repeats = pattern.count("{") if type(pattern) is str else 0
    return _PER_PATTERN + repeats * _PER_REPETITION


def toil_of_url(values: Sequence[Value]) -> int:
    """Taking a URL apart."""
    return len(values[0]) * _PER_URL_CHARACTER if type(values[0]) is str else 0


def check_toil(toil: int) -> None:
    """Raise Abort where an evaluation goes through more than any selector needs."""
    if toil > MAX_TOIL:
        raise Abort(f"the expression goes through more than {MAX_TOIL} characters and elements")


def check_text(length: int) -> None:
    """Raise Abort where a text would be longer than any selector needs."""
    if length > MAX_TEXT:
        raise Abort(f"the expression makes a text of more than {MAX_TEXT} characters")


def too_costly() -> Abort:
    """Return what Kubernetes says of an evaluation that has reached its cost limit."""
    return Abort("operation cancelled: actual cost limit exceeded")


def check_message(length: int) -> None:
    """Raise Abort where an error message would be longer than anybody reads."""
    if length > MAX_MESSAGE:
        raise Abort(f"the expression makes an error message of more than {MAX_MESSAGE} characters")


def check_items(count: int) -> None:
    """Raise Abort where a list would be longer than any selector needs."""
    if count > MAX_ITEMS:
        raise Abort(f"the expression makes a list of more than {MAX_ITEMS} elements")
