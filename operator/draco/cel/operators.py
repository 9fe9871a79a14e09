"""Operators: arithmetic, order, membership and element access, with CEL's errors.

Owns what `+ - * / % < in []` do to two values. Laziness (`&&`, `||`, `?:`) belongs to the compiler.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from draco.cel.bounds import check_items
from draco.cel.dispatch import Function
from draco.cel.errors import EvaluationError
from draco.cel.texts import shown
from draco.cel.values import (
    MAPS,
    NUMBERS,
    Duration,
    Optional,
    Timestamp,
    UInt,
    Value,
    equal,
    find,
    int_of,
    is_equal,
    type_name,
    uint_of,
)

_SECOND: Final = 10**9
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
RECEIVERS: Final = frozenset({str, Duration, Timestamp})
"""Types whose values get asked for an operator they do not have, so that the error names no operator."""
_NO_ORDER: Final = "NaN values cannot be ordered"
_COMPARABLE: Final = frozenset({bool, int, UInt, float, str, bytes, Duration, Timestamp})


def _unsupported(operator: str, one: Value) -> EvaluationError:
    """The error for a left side that has no such operator."""
    return EvaluationError("no such overload" if type(one) in RECEIVERS else f"no such overload: {operator}")


def _bad_right() -> EvaluationError:
    return EvaluationError("no such overload")


def timestamp_of(ns: int, offset_s: int = 0) -> Timestamp:
    """A moment. Raises EvaluationError outside the years 1 to 9999."""
    if not _FIRST_SECOND <= ns // _SECOND <= _LAST_SECOND:
        raise EvaluationError("timestamp overflow")
    return Timestamp(ns, offset_s)


def add(one: Value, other: Value) -> Value:
    """`one + other`: numbers, texts, bytes, lists, moments and spans of time."""
    kind = type(one)
    if kind is type(other):
        if kind is int:
            return int_of(one + other)
        if kind in {str, float, bytes, list}:
            if kind is list:
                check_items(len(one) + len(other))
            return one + other
        if kind is UInt:
            return uint_of(int(one) + int(other))
        if kind is Duration:
            return Duration(int_of(one.ns + other.ns))
    if kind is Timestamp and type(other) is Duration:
        return timestamp_of(one.ns + other.ns, one.offset_s)
    if kind is Duration and type(other) is Timestamp:
        return timestamp_of(one.ns + other.ns, other.offset_s)
    if kind in {int, str, float, list, bytes, UInt, Duration, Timestamp}:
        raise _bad_right()
    raise _unsupported("_+_", one)


def subtract(one: Value, other: Value) -> Value:
    """`one - other`."""
    kind = type(one)
    if kind is type(other):
        if kind is int:
            return int_of(one - other)
        if kind is float:
            return one - other
        if kind is UInt:
            return uint_of(int(one) - int(other))
        if kind in {Duration, Timestamp}:
            return Duration(int_of(one.ns - other.ns))
    if kind is Timestamp and type(other) is Duration:
        int_of(-other.ns)
        return timestamp_of(one.ns - other.ns, one.offset_s)
    if kind in {int, float, UInt, Duration, Timestamp}:
        raise _bad_right()
    raise _unsupported("_-_", one)


def multiply(one: Value, other: Value) -> Value:
    """`one * other`."""
    kind = type(one)
    if kind in NUMBERS:
        if kind is not type(other):
            raise _bad_right()
        if kind is int:
            return int_of(one * other)
        return one * other if kind is float else uint_of(int(one) * int(other))
    raise _unsupported("_*_", one)


def divide(one: Value, other: Value) -> Value:
    """`one / other`; whole numbers are cut towards zero."""
    kind = type(one)
    if kind in NUMBERS:
        if kind is not type(other):
            raise _bad_right()
        if kind is float:
            return _divide_doubles(one, other)
        if not other:
            raise EvaluationError("division by zero")
        if kind is UInt:
            return UInt(int(one) // int(other))
        return int_of(-(-one // other) if (one < 0) != (other < 0) else one // other)
    raise _unsupported("_/_", one)


def _divide_doubles(one: float, other: float) -> float:
    if other:
        return one / other
    if not one or math.isnan(one):
        return math.nan
    return math.copysign(math.inf, one) * math.copysign(1.0, other)


def modulo(one: Value, other: Value) -> Value:
    """`one % other`, with the sign of the left side."""
    kind = type(one)
    if kind in {int, UInt}:
        if kind is not type(other):
            raise _bad_right()
        if not other:
            raise EvaluationError("modulus by zero")
        if kind is UInt:
            return UInt(int(one) % int(other))
        if other == -1:
            int_of(-one)
        rest = abs(one) % abs(other)
        return -rest if one < 0 else rest
    raise _unsupported("_%_", one)


def negate(one: Value) -> Value:
    """`-one`."""
    kind = type(one)
    if kind is int:
        return int_of(-one)
    if kind is float:
        return -one
    if kind is Duration:
        return Duration(int_of(-one.ns))
    if kind is bool:
        raise _bad_right()
    raise _unsupported("-_", one)


def logical_not(one: Value) -> bool:
    """`!one`."""
    if one is True:
        return False
    if one is False:
        return True
    raise _bad_right()


def compare(one: Value, other: Value) -> int:
    """-1, 0 or 1. Raises EvaluationError where the types have no order among each other; the left type has one."""
    kind, other_kind = type(one), type(other)
    if kind in NUMBERS and other_kind in NUMBERS:
        if kind is float or other_kind is float:
            one, other = float(one), float(other)
            if one != one or other != other:  # noqa: PLR0124 - NaN
                raise EvaluationError(_NO_ORDER)
        return int(one > other) - int(one < other)
    if kind is not other_kind:
        raise EvaluationError(_NO_ORDER) if kind is float and math.isnan(one) else _bad_right()
    if kind in {Duration, Timestamp}:
        one, other = one.ns, other.ns
    return int(one > other) - int(one < other)


def is_comparable(one: Value) -> bool:
    """Whether values of its type have an order."""
    return type(one) in _COMPARABLE


def _order(operator: str, holds: Callable[[int], bool]) -> Function:
    def ordered(one: Value, other: Value) -> bool:
        if type(one) not in _COMPARABLE:
            raise _unsupported(operator, one)
        return holds(compare(one, other))

    return ordered


less = _order("_<_", lambda order: order < 0)
less_or_equal = _order("_<=_", lambda order: order <= 0)
greater = _order("_>_", lambda order: order > 0)
greater_or_equal = _order("_>=_", lambda order: order >= 0)


def not_equal(one: Value, other: Value) -> bool:
    """`one != other`, which is true where `==` is an error."""
    try:
        return not equal(one, other)
    except EvaluationError:
        return True


def contained(one: Value, other: Value) -> bool:
    """`one in other`: an element of a list, a key of a map. A comparison that is an error counts as not equal."""
    kind = type(other)
    if kind is list:
        for element in other:
            if type(one) is type(element) is str:
                if one == element:
                    return True
            elif is_equal(one, element):
                return True
        return False
    if kind in MAPS:
        return find(other, one)[0]
    raise _bad_right()


def index(operand: Value, key: Value) -> Value:
    """`operand[key]`. Raises EvaluationError where nothing stands there."""
    present, value = look_up(operand, key)
    if present:
        return value
    if type(operand) is list:
        raise EvaluationError(f"index out of bounds: {shown(key)}")
    raise EvaluationError(f"no such key: {shown(key)}")


def look_up(operand: Value, key: Value) -> tuple[bool, Value]:
    """Whether `operand[key]` exists, and what it is; a value that has no elements has none here either."""
    kind = type(operand)
    if kind in MAPS:
        present, value = find(operand, key)
        return (True, operand.__missing__(key)) if not present and kind is not dict else (present, value)
    if kind is list:
        position = _position(key)
        return (True, operand[position]) if 0 <= position < len(operand) else (False, None)
    return False, None


def _position(key: Value) -> int:
    if type(key) not in NUMBERS:
        raise EvaluationError(f"unsupported index type '{type_name(key)}' in list")
    if type(key) is float and not key.is_integer():
        raise EvaluationError(f"unsupported index value {shown(key)} in list")
    return int(key)


def has_value(one: Value) -> bool:
    """Whether an optional holds a value."""
    return type(one) is Optional and one.present


OPERATORS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        "_+_": add,
        "_-_": subtract,
        "_*_": multiply,
        "_/_": divide,
        "_%_": modulo,
        "-_": negate,
        "!_": logical_not,
        "_<_": less,
        "_<=_": less_or_equal,
        "_>_": greater,
        "_>=_": greater_or_equal,
        "_==_": equal,
        "_!=_": not_equal,
        "@in": contained,
        "_[_]": index,
    }
)
