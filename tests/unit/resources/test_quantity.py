"""Quantity equals Kubernetes' own: tables for the rules that users should know, and Go itself for everything else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draco.resources.errors import DracoError
from draco.resources.quantity import Format, Quantity, QuantityError
from tests.oracle.programs import Oracle, oracle


@pytest.fixture(scope="module")
def go() -> Iterator[Oracle]:
    with oracle("values") as program:
        yield program


# --- accepted: everything the grammar allows, with values at the limits of Go's two representations ---

DIGITS = st.one_of(
    st.integers(0, 2000).map(str),
    st.text("0123456789", max_size=24),
    st.sampled_from(
        ["0", "00", "1000", "1024", "999", "1023", "9223372036854775807", "9223372036854775808", "999999999999999999"]
    ),
)
NUMBERS = st.builds(
    lambda sign, whole, fraction: sign + whole + fraction,
    st.sampled_from(["", "", "", "+", "-"]),
    DIGITS,
    st.one_of(st.just(""), DIGITS.map(lambda digits: f".{digits}")),
)
SUFFIXES = st.one_of(
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]),
    st.builds(
        lambda letter, sign, number: f"{letter}{sign}{number}",
        st.sampled_from("eE"),
        st.sampled_from(["", "+", "-"]),
        st.integers(0, 40),
    ),
)
QUANTITIES = st.builds(lambda number, suffix: number + suffix, NUMBERS, SUFFIXES)
ALMOST = st.one_of(
    QUANTITIES,
    st.text("+-.0123456789eEinumkKMGTPQ ", max_size=10),
    st.builds(lambda one, other: one + other, QUANTITIES, st.text(max_size=3)),
).filter(
    lambda text: not re.search(r"[eE]\+?0*[1-9][0-9]{2}", text)
)  # Draco refuses such exponents, which would keep Go busy for hours


def described(quantity: Quantity) -> dict[str, Any]:
    """What Go would answer for this quantity."""
    return {
        "text": str(quantity),
        "format": str(quantity.format),
        "int64": quantity.as_int64(),
        "value": quantity.value(),
        "approximate": repr(quantity.approximate()),
        "compare": 0,
    }


def answered(answer: dict[str, Any]) -> dict[str, Any]:
    """Go's answer, with its float in Python's notation."""
    return answer | {"approximate": repr(float(answer["approximate"]))}


def parsed(text: str) -> dict[str, Any]:
    try:
        return described(Quantity.parse(text))
    except QuantityError as error:
        return {"error": error.upstream}


@pytest.mark.exhaustive
@settings(max_examples=800, deadline=None)
@given(st.lists(ALMOST, min_size=1, max_size=6))
@example(["Ei", "Gi", "+", "-", ".", "+.Pi", "0Ei", "-.5Ki", "5.", ".5", "1.500", "05", "+5Ki", "1000E", "1e21", "-0"])
@example(["8Ei", "7.9999999999Ei", "0.0000000001", "-0.1n", "0.5Ki", "1e-40", "12E6", "1e", "1E", "1ee5", "5-3", "1e-"])
def test_every_text_is_read_and_printed_as_go_does(go: Oracle, texts: list[str]) -> None:
    answers = go.ask(*({"op": "parse", "text": [text]} for text in texts))
    for text, answer in zip(texts, answers, strict=True):
        expected = {"error": answer["error"]} if "error" in answer else answered(answer)
        assert parsed(text) == expected, text


def readable(text: str) -> bool:
    return "error" not in parsed(text)


READABLE = QUANTITIES.filter(readable)


@settings(max_examples=400, deadline=None)
@given(READABLE, READABLE)
@example("1Gi", "1024Mi")
@example("0.9Ki", "922m")
@example("0", "0e-19")
def test_two_quantities_compare_as_in_go(go: Oracle, one: str, other: str) -> None:
    (answer,) = go.ask({"op": "compare", "text": [one, other]})
    left, right = Quantity.parse(one), Quantity.parse(other)
    assert left.compare(right) == answer["compare"]
    assert (left < right, left == right, left > right) == tuple(answer["compare"] == way for way in (-1, 0, 1))
    assert (hash(left) == hash(right)) or left != right


@pytest.mark.exhaustive
@settings(max_examples=400, deadline=None)
@given(st.lists(READABLE, min_size=2, max_size=4), st.sampled_from(["add", "sub"]))
@example(["512Ei", "512Ei"], "add")
@example(["999999999999999999", "999999999999999999", "999999999999999999", "1m"], "add")
@example(["0", "1Gi"], "sub")
@example(["0.1", "0e-19"], "add")
@example(["-1.5", "0e-30"], "add")
@example(["0", "1e1", "0.1e20"], "add")
@example(["9010000000000000Ki", "5.30000e2"], "add")
@example(["0", "922337203685477581e20", "0.1e20"], "add")
def test_sums_and_differences_are_those_of_go(go: Oracle, texts: list[str], op: str) -> None:
    (answer,) = go.ask({"op": op, "text": texts})
    total, *rest = map(Quantity.parse, texts)
    for one in rest:
        total = total + one if op == "add" else total - one
    assert described(total) == answered(answer)


@settings(max_examples=300)
@given(READABLE)
def test_canonical_text_is_a_fixed_point_where_it_keeps_the_value(text: str) -> None:
    canonical = Quantity.parse(text).canonical()
    again = Quantity.parse(canonical)
    assert again.canonical() == canonical
    assert again == Quantity.parse(text) or abs(Quantity.parse(text).nanos) >= 10**30  # Go has no suffix beyond E


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("0.5", "500m"),
        ("80000M", "80G"),
        ("100Ki", "100Ki"),
        ("0.1n", "1n"),
        ("12e6", "12e6"),
        ("12000e3", "12e6"),
        ("9Ei", "9223372036854775807"),
        ("-0", "0"),
    ],
)
def test_the_largest_suffix_that_loses_nothing_is_printed(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("4Qi", 'unknown suffix "Qi"'),
        ("4Gb", 'unknown suffix "Gb"'),
        ("1e", 'unknown suffix "e"'),
        ("", "it is empty"),
        (" 4", "it has spaces around it"),
        ("4\n", "it has spaces around it"),
        ("1,5Gi", "it is not of the form number and suffix"),
        ("Three", "it is not of the form number and suffix"),
        ("Ei", "it has no number"),
        ("9" * 1001, "it has more than 1000 digits"),
        ("1e1000000000", "it has more than 1000 digits"),
        ("1e" + "9" * 5000, "it has more than 1000 digits"),
    ],
)
def test_a_malformed_quantity_gets_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(QuantityError) as refusal:
        Quantity.parse(text)
    shown = text if len(text) <= 80 else text[:80] + "…"
    advice = "use a number with an optional suffix such as m, k, M, Gi"
    assert str(refusal.value) == f'"{shown}" is not a quantity: {reason}; {advice}'
    assert isinstance(refusal.value, DracoError)


def test_a_tiny_exponent_is_rounded_up_without_computing_it() -> None:
    assert str(Quantity.parse("-1e-999999999999999999")) == "-1e-9"


def test_a_whole_number_becomes_a_quantity_of_the_wanted_format() -> None:
    assert str(Quantity.of(40 * 2**30, Format.BINARY_SI)) == "40Gi"
    assert str(Quantity.of(5000)) == "5k"


def test_a_quantity_is_true_unless_it_is_zero() -> None:
    assert Quantity.parse("1n")
    assert not Quantity.parse("0Gi")
    assert Quantity.parse("-3").sign() == -1
    assert repr(Quantity.parse("3Gi")) == "Quantity('3Gi')"


def test_a_quantity_is_not_equal_to_a_number_or_a_text() -> None:
    assert Quantity.parse("1") != 1
    assert Quantity.parse("1") != "1"
    with pytest.raises(TypeError):
        Quantity.parse("1") < 2  # noqa: B015 - it must raise


def test_the_least_int_is_its_own_negative_where_it_is_taken_away() -> None:
    least = Quantity.of(-(2**63))
    assert Quantity.parse("10Gi") - least < Quantity.parse("10Gi")
    assert (Quantity.parse("-10Gi") - least).compare(Quantity.of(2**63 - 10 * 2**30)) == 0
    assert (Quantity.of(0) - least).as_int64() == -(2**63)


@pytest.mark.parametrize("text", ["0" * 100_000 + ":", "0." + "0" * 100_000 + "{", "e" * 100_000 + "!"])
def test_a_long_text_that_is_no_quantity_is_refused_at_once(text: str) -> None:
    with pytest.raises(QuantityError):  # parsing digits repeatedly would take days
        Quantity.parse(text)
