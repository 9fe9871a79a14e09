"""Kubernetes' quantity and version functions; `draco.resources` has the arithmetic and order of the values."""

import operator
from collections.abc import Callable
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import READING
from draco.cel.functions.overloads import row, succeeds
from draco.cel.values.texts import quoted
from draco.cel.values.values import ComputedQuantity
from draco.resources.quantity import Format, Quantity, QuantityError
from draco.resources.semver import SemVer, SemVerError


def _quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except QuantityError as error:
        raise EvaluationError(error.upstream) from None


def _as_integer(one: Quantity) -> int:
    number = one.as_int64()
    if number is None:
        raise EvaluationError("cannot convert value to integer")
    return number


def _computed(result: Quantity) -> ComputedQuantity:
    return ComputedQuantity(result.mantissa, result.exponent, wide=result.wide, format=result.format, text=result.text)


def _of_int(number: int) -> Quantity:
    return Quantity.of(number, Format.DECIMAL_EXPONENT)


def _semver(text: str, normalise: bool = False) -> SemVer:
    try:
        return SemVer.parse_loosely(text) if normalise else SemVer.parse(text)
    except SemVerError as error:
        raise EvaluationError(error.upstream.format(quoted(error.part))) from None


def _number(name: str) -> Callable[[SemVer], int]:
    """One number of a version as an int; larger numbers wrap around, as in Go."""
    return lambda version: (int(getattr(version, name)) + 2**63) % 2**64 - 2**63


OVERLOADS: Final = {
    "standard": (
        row("string_to_quantity", "quantity(string) -> quantity", _quantity, cost=READING),
        row("is_quantity_string", "isQuantity(string) -> bool", succeeds(_quantity), cost=READING),
        row("quantity_sign", "sign(quantity) -> int", Quantity.sign),
        row("quantity_is_greater_than", "quantity.isGreaterThan(quantity) -> bool", operator.gt),
        row("quantity_is_less_than", "quantity.isLessThan(quantity) -> bool", operator.lt),
        row("quantity_compare_to", "quantity.compareTo(quantity) -> int", Quantity.compare),
        row("quantity_get_float", "quantity.asApproximateFloat() -> double", Quantity.approximate),
        row("quantity_get_int", "quantity.asInteger() -> int", _as_integer),
        row("quantity_is_integer", "quantity.isInteger() -> bool", lambda one: one.as_int64() is not None),
        row("quantity_add", "quantity.add(quantity) -> quantity", lambda one, other: _computed(one + other)),
        row("quantity_add_int", "quantity.add(int) -> quantity", lambda one, other: _computed(one + _of_int(other))),
        row("quantity_sub", "quantity.sub(quantity) -> quantity", lambda one, other: _computed(one - other)),
        row("quantity_sub_int", "quantity.sub(int) -> quantity", lambda one, other: _computed(one - _of_int(other))),
    ),
    "semver": (
        row("string_to_semver", "semver(string) -> semver", _semver, cost=READING),
        row("string_bool_to_semver", "semver(string, bool) -> semver", _semver, cost=READING),
        row("is_semver_string", "isSemver(string) -> bool", succeeds(_semver), cost=READING),
        row("is_semver_string_bool", "isSemver(string, bool) -> bool", succeeds(_semver), cost=READING),
        row("semver_is_greater_than", "semver.isGreaterThan(semver) -> bool", operator.gt),
        row("semver_is_less_than", "semver.isLessThan(semver) -> bool", operator.lt),
        row("semver_compare_to", "semver.compareTo(semver) -> int", SemVer.compare),
        row("semver_major", "semver.major() -> int", _number("major")),
        row("semver_minor", "semver.minor() -> int", _number("minor")),
        row("semver_patch", "semver.patch() -> int", _number("patch")),
    ),
}
