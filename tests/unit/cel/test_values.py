"""Values apart from whole expressions: equality, map keys and Go's formatting."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.cel.errors import Abort, EvaluationError
from draco.cel.functions.operators import divide, modulo
from draco.cel.values.equality import equal
from draco.cel.values.texts import civil_date, double_text, duration_text, quoted, timestamp_text
from draco.cel.values.values import (
    NONE,
    ComputedQuantity,
    DomainMap,
    Duration,
    Key,
    Optional,
    Timestamp,
    UInt,
    as_number,
    find,
    key_of,
    value_of_key,
)
from draco.resources.quantity import Format, Quantity
from draco.resources.semver import SemVer


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, UInt(1), True),
        (1, 1.0, True),
        (1, True, False),
        (0.0, -0.0, True),
        (math.nan, math.nan, False),
        (2**53 + 1, float(2**53), True),
        (2**53 + 1, UInt(2**53), False),
        ("1", 1, False),
        (None, 0, False),
        ([1, UInt(2)], [1.0, 2], True),
        ({"a": 1}, {"a": 1.0}, True),
        (Timestamp(5), Timestamp(5, 3600), True),
        (Duration(1), Duration(2), False),
        (Optional(1), Optional(1.0), True),
        (NONE, Optional(1), False),
    ],
)
def test_values_are_equal_by_what_they_mean(one: Any, other: Any, same: bool) -> None:
    assert equal(one, other) is same
    assert equal(other, one) is same


def test_a_version_compares_with_versions_only_on_the_left() -> None:
    with pytest.raises(EvaluationError, match=r"^no such overload$"):
        equal(SemVer.parse("1.0.0"), "1.0.0")
    assert equal("1.0.0", SemVer.parse("1.0.0")) is False
    assert equal(SemVer.parse("1.0.0"), None) is False


def test_a_computed_quantity_is_not_recognised_on_the_right() -> None:
    computed = ComputedQuantity(1, 0, wide=False, format=Format.DECIMAL_SI)
    assert equal(computed, Quantity.parse("1"))
    with pytest.raises(EvaluationError, match=r"^no such overload$"):
        equal(Quantity.parse("1"), computed)


def test_an_error_inside_a_list_passes_for_equality() -> None:
    assert equal([SemVer.parse("1.0.0")], ["x"])


def test_keys_of_different_types_are_different_entries_yet_numbers_find_each_other() -> None:
    entries = {key_of(1): "int", key_of(True): "bool"}
    assert len(entries) == 2
    assert find(entries, UInt(1)) == (True, "int")
    assert find(entries, 1.0) == (True, "int")
    assert find(entries, True) == (True, "bool")
    assert find(entries, 1.5) == (False, None)
    assert [value_of_key(key) for key in entries] == [1, True]


def test_an_exact_key_wins_over_an_equal_number() -> None:
    entries = {Key(int, 1): "int", Key(UInt, UInt(1)): "uint"}
    assert find(entries, UInt(1)) == (True, "uint")


def test_some_values_cannot_be_keys() -> None:
    with pytest.raises(Abort, match=r"hash of unhashable type cel\.Semver"):
        key_of(SemVer.parse("1.0.0"))


def test_an_unknown_domain_reads_as_empty_and_is_not_there() -> None:
    domains = DomainMap({"a": {}})
    assert domains["b"] == {}
    assert "b" not in domains
    assert len(domains) == 1


@pytest.mark.parametrize(
    ("number", "kind", "wanted"),
    [
        (1.5, int, None),
        (2.0**63, int, None),
        (-1, UInt, None),
        (math.inf, int, None),
        (3.0, UInt, 3),
        (2**53 + 1, float, None),
    ],
)
def test_a_number_changes_its_type_only_without_loss(number: Any, kind: type, wanted: Any) -> None:
    assert as_number(number, kind) == wanted


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1).filter(bool))
def test_division_cuts_towards_zero_and_the_rest_fits(one: int, other: int) -> None:
    if other == -1 and one == -(2**63):
        with pytest.raises(EvaluationError, match=r"^integer overflow$"):
            divide(one, other)
        return
    assert divide(one, other) * other + modulo(one, other) == one
    assert abs(divide(one, other)) == abs(one) // abs(other)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e6, "1e+06"),
        (123456.0, "123456"),
        (1234567.5, "1.2345675e+06"),
        (0.0001, "0.0001"),
        (1.5e-5, "1.5e-05"),
        (-0.0, "-0"),
        (1e100, "1e+100"),
        (math.inf, "+Inf"),
        (100000.0, "100000"),
    ],
)
def test_doubles_are_spelled_as_in_go(number: float, text: str) -> None:
    assert double_text(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_spelling_of_a_double_reads_back(number: float) -> None:
    assert float(double_text(number)) == number


def test_moments_and_spans_are_spelled_as_in_go() -> None:
    assert timestamp_text(Timestamp(1_500_000_000)) == "1970-01-01T00:00:01.5Z"
    assert timestamp_text(Timestamp(0, -5400)) == "1969-12-31T22:30:00-01:30"
    assert duration_text(Duration(-1)) == "-0.000000001s"
    assert duration_text(Duration(3600 * 10**9)) == "3600s"


@pytest.mark.parametrize(
    ("days", "date"),
    [
        (0, (1970, 1, 1)),
        (-1, (1969, 12, 31)),
        (11_016, (2000, 2, 29)),
        (-719_162, (1, 1, 1)),
        (2_932_897, (10000, 1, 1)),
    ],
)
def test_days_become_dates_beyond_what_python_knows(days: int, date: tuple[int, int, int]) -> None:
    assert civil_date(days) == date


def test_quotes_escape_what_cannot_be_seen() -> None:
    assert quoted('a\x00é\u200b\n"\\') == '"a\\x00é\\u200b\\n\\"\\\\"'
