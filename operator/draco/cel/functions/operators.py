"""Operators `+ - * / % < in []` on two values, with CEL's errors. The compiler handles the lazy ones (`&&`, `||`, `?:`)."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import ADDING, ADDING_LISTS, EQUALITY, FREE, INEQUALITY, MEMBERSHIP, ORDER_OF_TEXTS
from draco.cel.functions.overloads import Function, Row, row
from draco.cel.values.bounds import check_items, toil_of_all
from draco.cel.values.equality import equal, is_equal
from draco.cel.values.texts import SECOND, shown
from draco.cel.values.values import (
    MAPS,
    NUMBERS,
    Duration,
    Key,
    Timestamp,
    UInt,
    Value,
    as_number,
    check_hashable,
    find,
    int_of,
    key_of,
    type_name,
    uint_of,
)

FIRST_SECOND: Final = -62_135_596_800
LAST_SECOND: Final = 253_402_300_799
"""Seconds since 1970 of the years 1 to 9999."""
_RECEIVERS: Final = frozenset({str, Duration, Timestamp})
"""Types whose error for a missing operator does not name the operator."""
_PRIMITIVE: Final = frozenset({bool, float, int, str, UInt})
_NO_ORDER: Final = "NaN values cannot be ordered"
_COMPARABLE: Final = frozenset({bool, int, UInt, float, str, bytes, Duration, Timestamp})


def unsupported(operator: str, one: Value) -> EvaluationError:
    """Return the error for a value without this operator or function."""
    return EvaluationError("no such overload" if type(one) in _RECEIVERS else f"no such overload: {operator}")


def _bad_right() -> EvaluationError:
    return EvaluationError("no such overload")


def timestamp_of(ns: int, offset_s: int = 0) -> Timestamp:
    """Return a timestamp. Raises EvaluationError outside the years 1 to 9999."""
    if not FIRST_SECOND <= ns // SECOND <= LAST_SECOND:
        raise EvaluationError("timestamp overflow")
    return Timestamp(ns, offset_s)


def add(one: Value, other: Value) -> Value:
    """`one + other`: numbers, texts, bytes, lists, timestamps and durations."""
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
    raise unsupported("_+_", one)


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
    raise unsupported("_-_", one)


def multiply(one: Value, other: Value) -> Value:
    """`one * other`."""
    kind = type(one)
    if kind in NUMBERS:
        if kind is not type(other):
            raise _bad_right()
        if kind is int:
            return int_of(one * other)
        return one * other if kind is float else uint_of(int(one) * int(other))
    raise unsupported("_*_", one)


def divide(one: Value, other: Value) -> Value:
    """`one / other`; integers are truncated towards zero."""
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
    raise unsupported("_/_", one)


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
    raise unsupported("_%_", one)


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
    raise unsupported("-_", one)


def logical_not(one: Value) -> bool:
    """`!one`."""
    if one is True:
        return False
    if one is False:
        return True
    raise _bad_right()


def compare(one: Value, other: Value) -> int:
    """Return -1, 0 or 1. Raises EvaluationError if the types have no common order; the left type must have one."""
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
    """Whether values of this type have an order."""
    return type(one) in _COMPARABLE


def _ordered(operator: str, holds: Callable[[int], bool]) -> Function:
    def ordered(one: Value, other: Value) -> bool:
        if type(one) not in _COMPARABLE:
            raise unsupported(operator, one)
        return holds(compare(one, other))

    return ordered


def not_equal(one: Value, other: Value) -> bool:
    """`one != other`; true if `==` is an error."""
    try:
        return not equal(one, other)
    except EvaluationError:
        return True


def contained(one: Value, other: Value) -> bool:
    """`one in other`: an element of a list or key of a map. A comparison that fails counts as not equal."""
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


def membership(items: list[Value]) -> Callable[[Value], bool] | None:
    """Return a set-based membership test, which fails for unhashable values; None if Kubernetes walks over the list."""
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
    """The keys of an equal number of other types that can hold it."""
    if type(item) is float:
        found = {kind: as_number(item, kind) for kind in (int, UInt)}
        return {Key(kind, number) for kind, number in found.items() if number is not None}
    other: type = UInt if type(item) is int else int
    number = as_number(item, other)
    same: set[str | Key] = {Key(float, float(item))}
    return same | {Key(other, number)} if number is not None else same


def index(operand: Value, key: Value) -> Value:
    """`operand[key]`. Raises EvaluationError if there is none."""
    present, value = look_up(operand, key)
    if present:
        return value
    if type(operand) is list:
        raise EvaluationError(f"index out of bounds: {shown(key)}")
    raise EvaluationError(f"no such key: {shown(key)}")


def look_up(operand: Value, key: Value) -> tuple[bool, Value]:
    """Whether `operand[key]` exists, and its value; a value without elements has none."""
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
    position: int | None = as_number(key, int)
    if position is None:
        raise EvaluationError(f"unsupported index value {shown(key)} in list")
    return position


_ADDED: Final = {
    "bytes": ("bytes, bytes", "bytes", ADDING),
    "double": ("double, double", "double", FREE),
    "duration_duration": ("duration, duration", "duration", FREE),
    "duration_timestamp": ("duration, timestamp", "timestamp", FREE),
    "timestamp_duration": ("timestamp, duration", "timestamp", FREE),
    "int64": ("int, int", "int", FREE),
    "list": ("list(A), list(A)", "list(A)", ADDING_LISTS),
    "string": ("string, string", "string", ADDING),
    "uint64": ("uint, uint", "uint", FREE),
}
_SUBTRACTED: Final = {
    "double": ("double, double", "double"),
    "duration_duration": ("duration, duration", "duration"),
    "int64": ("int, int", "int"),
    "timestamp_duration": ("timestamp, duration", "timestamp"),
    "timestamp_timestamp": ("timestamp, timestamp", "duration"),
    "uint64": ("uint, uint", "uint"),
}
_NUMBER_IDS: Final = {"int": "int64", "uint": "uint64", "double": "double"}
_ORDERED: Final = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_ORDERS: Final = (
    ("less", "_<_", _ordered("_<_", lambda order: order < 0)),
    ("less_equals", "_<=_", _ordered("_<=_", lambda order: order <= 0)),
    ("greater", "_>_", _ordered("_>_", lambda order: order > 0)),
    ("greater_equals", "_>=_", _ordered("_>=_", lambda order: order >= 0)),
)


def _order_rows(name: str, operator: str, run: Function) -> Iterator[Row]:
    """Rows of one operator: each type with itself, and each number type with the others."""
    for kind in _ORDERED:
        cost = ORDER_OF_TEXTS if kind in {"string", "bytes"} else FREE
        number = _NUMBER_IDS.get(kind)
        yield row(f"{name}_{number or kind}", f"{operator}({kind}, {kind}) -> bool", singleton=run, cost=cost)
        for other in sorted(_NUMBER_IDS.keys() - {kind}) if number else ():
            identity = f"{name}_{number}_{_NUMBER_IDS[other]}"
            yield row(identity, f"{operator}({kind}, {other}) -> bool", singleton=run)


def _same_type(name: str, operator: str, run: Function, *kinds: str) -> Iterator[Row]:
    for kind in kinds:
        yield row(f"{name}_{_NUMBER_IDS[kind]}", f"{operator}({kind}, {kind}) -> {kind}", singleton=run)


OVERLOADS: Final = {
    "standard": (
        row("conditional", "_?_:_(bool, A, A) -> A"),
        row("logical_and", "_&&_(bool, bool) -> bool"),
        row("logical_or", "_||_(bool, bool) -> bool"),
        row("logical_not", "!_(bool) -> bool", singleton=logical_not),
        row("not_strictly_false", "@not_strictly_false(bool) -> bool"),
        row("equals", "_==_(A, A) -> bool", singleton=equal, cost=EQUALITY, toil=toil_of_all),
        row("not_equals", "_!=_(A, A) -> bool", singleton=not_equal, cost=INEQUALITY, toil=toil_of_all),
        *(
            row(f"add_{identity}", f"_+_({taken}) -> {given}", singleton=add, cost=cost, toil=toil_of_all)
            for identity, (taken, given, cost) in _ADDED.items()
        ),
        *_same_type("divide", "_/_", divide, "double", "int", "uint"),
        *_same_type("modulo", "_%_", modulo, "int", "uint"),
        *_same_type("multiply", "_*_", multiply, "double", "int", "uint"),
        row("negate_double", "-_(double) -> double", singleton=negate),
        row("negate_int64", "-_(int) -> int", singleton=negate),
        *(
            row(f"subtract_{identity}", f"_-_({taken}) -> {given}", singleton=subtract)
            for identity, (taken, given) in _SUBTRACTED.items()
        ),
        row("index_list", "_[_](list(A), int) -> A"),
        row("index_map", "_[_](map(A, B), A) -> B"),
        row("optional_list_index_int", "_[_](optional(list(V)), int) -> optional(V)"),
        row("optional_map_index_value", "_[_](optional(map(K, V)), K) -> optional(V)"),
        row("list_optindex_optional_int", "_[?_](list(V), int) -> optional(V)"),
        row("optional_list_optindex_optional_int", "_[?_](optional(list(V)), int) -> optional(V)"),
        row("map_optindex_optional_value", "_[?_](map(K, V), K) -> optional(V)"),
        row("optional_map_optindex_optional_value", "_[?_](optional(map(K, V)), K) -> optional(V)"),
        row("select_optional_field", "_?._(dyn, string) -> optional(V)"),
        row("in_list", "@in(A, list(A)) -> bool", singleton=contained, cost=MEMBERSHIP),
        row("in_map", "@in(A, map(A, B)) -> bool", singleton=contained),
        *(each for order in _ORDERS for each in _order_rows(*order)),
    )
}
