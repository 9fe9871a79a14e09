"""Draco answers selectors as Kubernetes does: the same devices match at the same cost, with the same errors in the same words.

`python -m tests.differential.hunt` looks for differences without stopping at the first one.
"""

import random
import re
from collections.abc import Mapping

import pytest
from hypothesis import given, note, seed
from hypothesis import strategies as st

from draco.cel.functions import table
from draco.cel.functions.overloads import Overload
from tests.differential.cel_cases import a_device, an_expression
from tests.differential.runs import SEED, Tally, kept, size
from tests.differential.selector_answers import (
    BREAKDOWN,
    ENVIRONMENTS,
    Json,
    draco_says,
    environment_of,
    kubernetes_says,
    without_luck,
)
from tests.oracle.programs import Oracle

DEVICES_EACH = 3
NOT_CALLABLE = frozenset({"__not_strictly_false__", "_in_", "in"})
"""Functions that Kubernetes keeps for expressions parsed long ago; no new expression can call them."""

ORACLE = "cel"
COUNTED = "evaluations of selectors"


def compare(go: Oracle, tally: Tally, cases: list[Json]) -> None:
    """Require the same answers."""
    for case, wanted in zip(cases, kubernetes_says(go, *cases), strict=True):
        if BREAKDOWN in wanted.get("error", ""):
            tally.answers["left out"] += 1
            continue
        tally.answers[next(iter(wanted))] += 1
        note(f"keep as tests/differential/kept/cel/<what it is>.json: {case}")
        assert without_luck(case, draco_says(case)) == without_luck(case, wanted)


@seed(SEED)
@size(1000)
@given(source=st.randoms(use_true_random=False))
def test_random_selectors_match_the_same_devices_or_fail_alike(go: Oracle, tally: Tally, source: random.Random) -> None:
    expression = an_expression(source)
    compare(go, tally, [{"expression": expression, "device": a_device(source)} for _ in range(DEVICES_EACH)])


@pytest.mark.parametrize("environment", ENVIRONMENTS[1:], ids=lambda one: "-".join(one.get("gates", ["no gates"])))
def test_the_api_server_admits_the_same_selectors(go: Oracle, tally: Tally, environment: Json) -> None:
    @seed(SEED)
    @size(150)
    @given(source=st.randoms(use_true_random=False))
    def agrees(source: random.Random) -> None:
        compare(go, tally, [{"expression": an_expression(source), "device": a_device(source), **environment}])

    agrees()


@pytest.mark.parametrize("case", kept("cel"))
def test_selectors_that_once_differed_do_not(go: Oracle, case: Json) -> None:
    [wanted] = kubernetes_says(go, case)
    assert without_luck(case, draco_says(case)) == without_luck(case, wanted)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda one: "-".join(one.get("gates", [str(len(one))])))
def test_the_overloads_of_every_function_are_those_of_kubernetes_in_its_order(go: Oracle, environment: Json) -> None:
    [answer] = go.ask({"expression": "true", "overloads": True, **environment})
    functions: Mapping[str, list[list[str]]] = answer["overloads"]
    wanted = {
        name: [(overload, plain(signature)) for overload, signature in overloads]
        for name, overloads in functions.items()
        if name not in NOT_CALLABLE
    }
    known = table(environment_of(environment).libraries)
    assert {name: [(one.id, plain(signature(one))) for one in overloads] for name, overloads in known.items()} == wanted


def signature(overload: Overload) -> str:
    kind = "method" if overload.is_member else "function"
    return f"{kind}({', '.join(map(str, overload.parameters))}) -> {overload.result}"


def plain(text: str) -> str:
    """A signature with type variables numbered in order of appearance, and short type names."""
    numbers: dict[str, str] = {}
    text = text.replace("google.protobuf.Duration", "duration").replace("google.protobuf.Timestamp", "timestamp")
    return re.sub(r"<[^>]*>|\b[A-Z]\b", lambda name: numbers.setdefault(name[0], f"T{len(numbers)}"), text)
