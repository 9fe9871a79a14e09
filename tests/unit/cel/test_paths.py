"""Attribute paths: everything that an expression can read; more is allowed, less is not."""

import pytest

from draco.cel.paths import AttributePath, reads
from draco.cel.syntax.parse import parse

A = AttributePath


@pytest.mark.parametrize(
    ("expression", "paths"),
    [
        ("true", []),
        ('device.driver == "a"', [A("driver")]),
        ("device.allowMultipleAllocations", [A("allowMultipleAllocations")]),
        ('device.attributes["a.b"].c == 1', [A("attributes", "a.b", "c")]),
        ('device.attributes.a["c"] == 1', [A("attributes", "a", "c")]),
        ('device.attributes["a"].c.d[0] == 1', [A("attributes", "a", "c")]),
        ('device.capacity["a"].b.compareTo(quantity("1")) > 0', [A("capacity", "a", "b")]),
        ('device.attributes["a"].?c.orValue(1) == 1', [A("attributes", "a", "c")]),
        ('device.attributes[?"a"].?c.hasValue()', [A("attributes", "a", "c")]),
        ("device.attributes.?a.hasValue()", [A("attributes", "a")]),
        ("has(device.attributes.a.c)", [A("attributes", "a", "c")]),
        ("has(device.attributes.a)", [A("attributes", "a")]),
        ('"a" in device.attributes', [A("attributes", "a")]),
        ('"c" in device.capacity["a"]', [A("capacity", "a", "c")]),
        (
            'cel.bind(d, device.attributes["a"], d.x == 1 && d.?y.orValue(2) == 2)',
            [A("attributes", "a", "x"), A("attributes", "a", "y")],
        ),
        ("cel.bind(d, device, d.driver == 'a')", [A("driver")]),
        ('device.attributes["a"].list.exists(x, x == device.driver)', [A("attributes", "a", "list"), A("driver")]),
        ("device.attributes.?a.optMap(d, d.x).orValue(1) == 1", [A("attributes", "a"), A("attributes", "a", "x")]),
        ("[{'driver': 1}].exists(device, device.driver == 1)", []),
        ("[1].exists(device, .device.driver == 'a')", [A("driver")]),
    ],
)
def test_paths_are_found_through_every_way_of_spelling_them(expression: str, paths: list[AttributePath]) -> None:
    found = reads(parse(expression).root)
    assert (found.paths, found.everything) == (frozenset(paths), False)


@pytest.mark.parametrize(
    ("expression", "strings"),
    [
        ("device.attributes.a.c == 'x'", {"x"}),
        ("'x' != device.attributes['a'].c || device.attributes.a['c'] == 'y'", {"x", "y"}),
        ("device.attributes.a.c in ['x', 'y'] && has(device.attributes.a.c)", {"x", "y"}),
        ("device.attributes.a.?c.orValue('z') == 'x'", {"x"}),
        ("cel.bind(c, device.attributes.a.c, c == 'x')", {"x"}),
        ("'c' in device.attributes.a", set()),
        ("device.attributes[?'a'].?c.hasValue()", set()),
    ],
)
def test_attributes_are_told_that_are_only_compared_with_strings(expression: str, strings: set[str]) -> None:
    assert reads(parse(expression).root).compared == {A("attributes", "a", "c"): strings}


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes.a.c == 1",
        "device.attributes.a.c == device.driver",
        "device.attributes.a.c > 'x'",
        "device.attributes.a.c == 'x' && device.attributes.a.c.startsWith('x')",
        "['x'].exists(x, x == device.attributes.a.c)",
        "device.attributes.a.c.d == 'x'",
        "has(device.attributes.a.c.d)",
        "device.attributes.a.?c.?d.hasValue()",
        "device.attributes.a.c in ['x', device.driver]",
        "device.attributes.a.c in [?optional.of('x')]",
        "device.attributes.a.?c.orValue(device.driver) == 'x'",
        "cel.bind(c, device.attributes.a.c, c)",
        "device.capacity.a.c == 'x'",
        "device.driver == 'x'",
    ],
)
def test_an_attribute_of_which_more_is_asked_is_not_only_compared(expression: str) -> None:
    assert not reads(parse(expression).root).compared


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes[device.driver].x == 1",
        'device.attributes["a"][device.driver] == 1',
        "device.attributes.exists(d, d == 'a')",
        'device.attributes["a"].exists(k, v, v == 1)',
        "size(device.attributes) == 1",
        'device.capacity["a"] == {}',
        "device == device",
        "device.driver in device.attributes",
        "cel.bind(d, device.attributes, d == {})",
        "(true ? device.attributes.a : device.attributes.b).x == 1",
        "[device.attributes][0].a.b == 1",
        "optional.of(device).value().driver == 'a'",
    ],
)
def test_looking_at_a_whole_map_counts_as_reading_everything(expression: str) -> None:
    assert reads(parse(expression).root).everything
