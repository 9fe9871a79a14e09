"""Selectors as text that can be changed."""

import pytest

from draco.cel import AttributePath, compile_selector
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.selectors.accesses import path_text
from draco.selectors.comparisons import comparison, holds, literal
from draco.selectors.demands import demands, guarded, without
from draco.selectors.tokens import replaced

MODEL = AttributePath("attributes", "gpu.example.com", "model")
MEMORY = AttributePath("capacity", "gpu.example.com", "memory")


def texts(expression: str) -> list[str]:
    return [demand.text for demand in demands(expression)]


def test_a_chain_falls_into_its_demands_in_or_out_of_parentheses() -> None:
    assert texts("a && (b && (c)) && d") == ["a", "b", "(c)", "d"]


@pytest.mark.parametrize("whole", ["a || b && c", "(a || b) ? c : d", "!(a && b)", "a", "[a && b][0]"])
def test_what_is_no_chain_is_one_demand(whole: str) -> None:
    assert texts(whole) == [whole]


def test_an_alternative_in_a_chain_keeps_its_parentheses() -> None:
    assert texts("(a || b) && c.?d") == ["(a || b)", "c.?d"]


def test_quotes_and_comments_do_not_confuse_the_cutting() -> None:
    assert texts('a == "x && y" // && z\n && b') == ['a == "x && y"', "b"]


def test_what_does_not_parse_has_no_demands() -> None:
    assert demands("a &&") == []


def test_a_demand_can_be_dropped() -> None:
    parts = demands("a && (b && c)")
    assert without(parts, parts[1]) == "a && c"
    alone = demands("a")
    assert without(alone, alone[0]) == "true"


def test_a_guard_holds_for_the_whole_expression() -> None:
    assert guarded("a || b", "g") == "g && (a || b)"
    assert guarded("a && b", "g") == "g && a && b"


@pytest.mark.parametrize(
    ("text", "path", "operator", "value"),
    [
        ('device.attributes["gpu.example.com"].model == "a"', MODEL, "==", "a"),
        ('"a" != device.attributes["gpu.example.com"]["model"]', MODEL, "!=", "a"),
        ('-3 < device.attributes["gpu.example.com"].?model.orValue(0)', MODEL, ">", -3),
        ('device.capacity["gpu.example.com"].memory == quantity("1Gi")', MEMORY, "==", Quantity.parse("1Gi")),
        (
            'device.capacity["gpu.example.com"].memory.compareTo(quantity("1Gi")) >= 0',
            MEMORY,
            ">=",
            Quantity.parse("1Gi"),
        ),
        (
            'device.capacity["gpu.example.com"].memory.compareTo(quantity("1Gi")) == 1',
            MEMORY,
            ">",
            Quantity.parse("1Gi"),
        ),
        (
            'quantity("1Gi").compareTo(device.capacity["gpu.example.com"].memory) <= 0',
            MEMORY,
            ">=",
            Quantity.parse("1Gi"),
        ),
        (
            'device.attributes["gpu.example.com"].model.isLessThan(semver("1.2.3"))',
            MODEL,
            "<",
            SemVer.parse("1.2.3"),
        ),
        ('device.driver == "x"', AttributePath("driver"), "==", "x"),
        ('!device.attributes["gpu.example.com"].model', MODEL, "==", False),
        ('device.attributes["gpu.example.com"].model', MODEL, "==", True),
        ('device.attributes["gpu.example.com"].model in ["a"]', MODEL, "in", "a"),
    ],
)
def test_a_plain_comparison_is_read(text: str, path: AttributePath, operator: str, value: object) -> None:
    [demand] = demands(text)
    read = comparison(demand)
    assert read is not None
    assert (read.path, read.operator, read.value) == (path, operator, value)


@pytest.mark.parametrize(
    "text",
    [
        'device.attributes["gpu.example.com"].model.startsWith("a")',
        'device.attributes["gpu.example.com"].model == device.attributes["gpu.example.com"].other',
        'device.attributes["gpu.example.com"].model.compareTo(semver("1.2.3")) >= 7',
        'device.capacity["gpu.example.com"].memory == quantity("nonsense")',
        'device.attributes["gpu.example.com"].model in [device.driver]',
        "true",
    ],
)
def test_anything_else_is_no_comparison(text: str) -> None:
    [demand] = demands(text)
    assert comparison(demand) is None


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        (
            'device.driver == "x" && device.capacity["d"].memory.compareTo( quantity("40Gi") ) >= 0',
            Quantity.parse("39Gi"),
            'device.driver == "x" && device.capacity["d"].memory.compareTo( quantity("39Gi") ) >= 0',
        ),
        (
            "device.driver == 'x' && device.attributes['d'].index > -3 // low",
            -4,
            "device.driver == 'x' && device.attributes['d'].index > -4 // low",
        ),
        (
            "device.driver == 'x' && device.attributes['d'].model == 'a'",
            'it\'s "b"\\',
            "device.driver == 'x' && device.attributes['d'].model == \"it's \\\"b\\\"\\\\\"",
        ),
    ],
)
def test_a_changed_constant_leaves_the_rest_of_the_text_alone(before: str, value: object, after: str) -> None:
    read = comparison(demands(before)[1])
    assert read is not None
    assert replaced(before, read.start, read.end, literal(value)) == after  # type: ignore[arg-type] # of several types
    compile_selector(after)
    changed = comparison(demands(after)[1])
    assert changed is not None
    assert changed.value == value


def test_things_of_different_kinds_are_not_comparable() -> None:
    assert holds(">=", Quantity.parse("2"), [Quantity.parse("1")]) is True
    assert holds("<", "a", ["b"]) is True
    assert holds("==", SemVer.parse("1.0.0"), ["1.0.0"]) is None
    assert holds("==", True, [1]) is None
    assert holds("in", 3, ["3", 3]) is True
    assert holds("!=", "a", ["a"]) is False


def test_a_path_reads_as_in_a_selector() -> None:
    assert path_text(MODEL) == 'device.attributes["gpu.example.com"].model'
    assert path_text(AttributePath("capacity", "d", "a-b")) == 'device.capacity["d"]["a-b"]'
    assert path_text(AttributePath("driver")) == "device.driver"
    assert literal(True) == "true"


def test_a_chain_of_very_many_demands_is_left_whole() -> None:
    assert len(texts(" && ".join(["a"] * 32))) == 32
    assert len(texts(" && ".join(["a"] * 33))) == 1
