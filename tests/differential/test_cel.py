"""Draco's selectors answer as Kubernetes' own do: the same devices match, and the same error is said in the same words.

`python -m tests.differential.hunt` looks for differences without stopping at the first one.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, note, seed
from hypothesis import strategies as st

from tests.differential.cel_cases import a_device, an_expression
from tests.differential.runs import SEED, Tally, kept, size
from tests.differential.selector_answers import BREAKDOWN, Json, draco_says, kubernetes_says
from tests.oracle.programs import Oracle, oracle

DEVICES_EACH = 3


@pytest.fixture(scope="module")
def go() -> Iterator[Oracle]:
    with oracle("cel") as program:
        yield program


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    count = Tally("evaluations of selectors")
    yield count
    count.report()


@seed(SEED)
@size(1500)
@given(source=st.randoms(use_true_random=False))
def test_random_selectors_match_the_same_devices_or_fail_alike(go: Oracle, tally: Tally, source: random.Random) -> None:
    expression = an_expression(source)
    cases = [{"expression": expression, "device": a_device(source)} for _ in range(DEVICES_EACH)]
    for case, wanted in zip(cases, kubernetes_says(go, *cases), strict=True):
        if BREAKDOWN in wanted.get("error", ""):
            tally.answers["left out"] += 1
            continue
        tally.answers[next(iter(wanted))] += 1
        note(f"keep as tests/differential/kept/cel/<what it is>.json: {case}")
        assert draco_says(case) == wanted


@pytest.mark.parametrize("case", kept("cel"))
def test_selectors_that_once_differed_do_not(go: Oracle, case: Json) -> None:
    [wanted] = kubernetes_says(go, case)
    assert draco_says(case) == wanted
