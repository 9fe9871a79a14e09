"""Membership in a list of constants, as a set.

Owns when Kubernetes turns `x in [constants]` into a set and what that set holds; it differs from a walk over the list where a
value cannot be hashed, which is then an error.
"""

from collections.abc import Callable
from typing import Final

from draco.cel.values import NUMBERS, Key, UInt, Value, as_number, check_hashable, key_of

_PRIMITIVE: Final = frozenset({bool, float, int, str, UInt})


def membership(items: list[Value]) -> Callable[[Value], bool] | None:
    """A test for being one of the items, or None where Kubernetes walks over the list."""
    if not all(type(item) in _PRIMITIVE for item in items):
        return None
    keys: set[str | Key] = {key_of(item) for item in items}
    for item in items:
        if type(item) in NUMBERS:
            keys |= _same_number(item)

    def is_member(value: Value) -> bool:
        if type(value) is str:
            return value in keys
        check_hashable(value)
        return key_of(value) in keys

    return is_member


def _same_number(item: Value) -> set[str | Key]:
    """A number under its other types, where they hold it."""
    if type(item) is float:
        found = {kind: as_number(item, kind) for kind in (int, UInt)}
        return {Key(kind, number) for kind, number in found.items() if number is not None}
    other: type = UInt if type(item) is int else int
    number = as_number(item, other)
    same: set[str | Key] = {Key(float, float(item))}
    return same | {Key(other, number)} if number is not None else same
