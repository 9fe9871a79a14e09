"""Random selectors, and random devices to try them on.

Owns how the grammar is expanded. Every choice is drawn from the `Random` that is passed in.
"""

import random
import re
from typing import Any

from tests.differential.cel_calls import a_call
from tests.differential.cel_grammar import LEAVES, RULES
from tests.differential.cel_oddities import ODD

Json = dict[str, Any]
Rules = dict[str, list[str]]
RULE = re.compile(r"\$(\$|[a-z]+)")
DEPTH = 4


def an_expression(source: random.Random) -> str:
    """A selector: mostly one that compiles, sometimes one with a wrong type, a few from the list of odd ones."""
    kind = source.randrange(100)
    if kind < 6:
        return source.choice(ODD)
    if kind < 45:
        return a_call(source, lambda text: _filled(source, text, source.choice([0, 1, 1, 2]), 0))
    wrong = source.choice([0, 0, 0, 4])
    return expand(source, "bool", source.choice([2, 3, DEPTH]), wrong)


def expand(source: random.Random, rule: str, depth: int, wrong: int = 0, rules: Rules = RULES) -> str:
    """A random expansion of a rule; in `wrong` percent of cases, of another rule instead."""
    if source.randrange(100) < wrong:
        rule = source.choice(list(rules))
    ways = rules[rule]
    return _filled(source, source.choice(ways if depth > 0 else ways[:LEAVES]), depth, wrong, rules)


def _filled(source: random.Random, text: str, depth: int, wrong: int, rules: Rules = RULES) -> str:
    """A text in which each rule that it names is replaced by an expansion."""

    def fill(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        inner = expand(source, match[1], depth - 1, wrong, rules)
        bare = re.fullmatch(r"[\w.\"'\[\]?]+", inner)
        return inner if bare or match.span() == (0, len(text)) else f"({inner})"

    return RULE.sub(fill, text)


def a_device(source: random.Random) -> Json:
    """A device with attributes of every type in two domains, some of them missing, and sometimes capacities."""
    drawn: list[tuple[str, Json]] = [
        ("model", source.choice([{"string": "A100"}, {"string": "H100"}, {"string": "a"}, {"string": ""}, {"int": 7}])),
        ("count", {"int": source.choice([0, 1, 2, 3, 8, -1, 9223372036854775807])}),
        ("flag", {"bool": source.randrange(2) == 0}),
        ("version", {"version": source.choice(["1.2.3", "1.2.3+b", "2.0.0-rc.1", "0.0.1"])}),
        (
            "names",
            source.choice([{"strings": ["a", "b"]}, {"strings": ["A100"]}, {"string": "x"}, {"versions": ["1.2.3"]}]),
        ),
        ("counts", source.choice([{"ints": [1, 2, 3]}, {"ints": [2]}, {"bools": [True, False]}, {"int": 5}])),
        ("other.io/model", {"string": source.choice(["A100", "b"])}),
        ("other.io/size", source.choice([{"int": 3}, {"string": "big"}, {"ints": [3, 4]}])),
    ]
    most = source.choice([100, 95, 95, 60])
    driver = source.choice(["gpu.example.com"] * 5 + ["other.io"])
    if driver == "other.io":  # Go picks at random which of two values of one name counts
        drawn = [(key.replace("other.io", "gpu.example.com"), value) for key, value in drawn]
    device: Json = {
        "driver": driver,
        "attributes": {key: value for key, value in drawn if source.randrange(100) < most},
        "capacity": {
            key: {"value": value}
            for key, value in [("memory", source.choice(["10Gi", "40Gi", "0", "1500m"])), ("cores", "8")]
            if source.randrange(100) < most
        },
    }
    if source.randrange(4) == 0:
        device["allowMultipleAllocations"] = source.randrange(3) > 0
    return device
