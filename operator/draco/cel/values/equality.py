"""Equality of values, as in Kubernetes' CEL: comparing its own types with others is an error, absorbed inside lists and maps."""

from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.values.values import (
    MAPS,
    NUMBERS,
    Cidr,
    ComputedQuantity,
    Ip,
    NamedFormat,
    Optional,
    Timestamp,
    Url,
    Value,
    find,
    value_of_key,
)
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer

_STRICT: Final[dict[type, type]] = {
    **{kind: kind for kind in (Quantity, SemVer, Ip, Cidr, Url, NamedFormat)},
    ComputedQuantity: Quantity,
}
"""Types whose comparison with any type but this is an error."""


def equal(one: Value, other: Value) -> bool:  # noqa: PLR0911 - one per type
    """CEL's `==`. Raises EvaluationError if one of Kubernetes' own types meets another type."""
    kind, other_kind = type(one), type(other)
    if kind is str:
        return other_kind is str and bool(one == other)
    if kind in NUMBERS:
        return other_kind in NUMBERS and _numbers_equal(one, other)
    if one is None or other is None:
        return one is other
    accepts = _STRICT.get(kind)
    if accepts is not None:
        return _strictly_equal(one, other, accepts)
    if kind is list:
        return other_kind is list and len(one) == len(other) and _Containers().lists_equal(one, other)
    if kind in MAPS:
        return other_kind in MAPS and _Containers().maps_equal(one, other)
    if kind is Optional:
        return other_kind is Optional and _optionals_equal(one, other)
    if kind is Timestamp:
        return other_kind is Timestamp and bool(one.ns == other.ns)
    return kind is other_kind and bool(one == other)


def _numbers_equal(one: Value, other: Value) -> bool:
    if type(one) is float or type(other) is float:
        return float(one) == float(other)  # a large int loses digits in Go too
    return bool(one == other)


def _strictly_equal(one: Value, other: Value, accepts: type) -> bool:
    kind = type(other)
    if kind is not accepts:
        raise EvaluationError("no such overload")
    if type(one) is Url:
        return bool(one.text == other.text)
    if type(one) is NamedFormat:
        return bool(one.name == other.name)
    return bool(one == other)


class _Containers:
    """One deep comparison. Lists can share parts so often that their number explodes, so each pair is compared once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def lists_equal(self, one: list[Value], other: list[Value]) -> bool:
        return all(map(self._not_different, one, other))

    def maps_equal(self, one: Value, other: Value) -> bool:
        if len(one) != len(other):
            return False
        for key, value in one.items():
            found, match = find(other, value_of_key(key))
            if not found or not self._not_different(value, match):
                return False
        return True

    def _not_different(self, one: Value, other: Value) -> bool:
        """Whether two elements are equal or their comparison fails: inside lists and maps Kubernetes counts an error as equal."""
        kind, other_kind = type(one), type(other)
        if kind is other_kind and kind in _PLAIN:
            return bool(one == other)
        if (kind is list and other_kind is list) or (kind in MAPS and other_kind in MAPS):
            pair = (id(one), id(other))
            known = self._known.get(pair)
            if known is None:
                compare = self.lists_equal if kind is list else self.maps_equal
                known = self._known[pair] = len(one) == len(other) and compare(one, other)
            return known
        if kind is Optional and other_kind is Optional and one.present and other.present:
            held, other_held = type(one.value), type(other.value)
            if held is other_held and held in _COMPOSED:
                return self._not_different(one.value, other.value)
        try:
            return equal(one, other)
        except EvaluationError:
            return True


_PLAIN: Final = frozenset({str, int, bool, bytes, float})
_COMPOSED: Final = frozenset({list, dict, Optional})


def _optionals_equal(one: Optional, other: Optional) -> bool:
    if not one.present or not other.present:
        return one.present == other.present
    return equal_without_null(one.value, other.value)


def equal_without_null(one: Value, other: Value) -> bool:
    """Equality as `in` and similar functions use it: without the special case for null."""
    if other is None and type(one) in _STRICT:
        raise EvaluationError("no such overload")
    return equal(one, other)


def is_equal(one: Value, other: Value) -> bool:
    """Whether two values are equal; an error counts as no."""
    try:
        return equal_without_null(one, other)
    except EvaluationError:
        return False
