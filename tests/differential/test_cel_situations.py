"""Draco answers as Kubernetes does in situations of Kubernetes' own tests, in every environment, and for hostile selectors."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.differential.cel_hostile import BOUNDED, hostile, leaf_of
from tests.differential.cel_situations import situations
from tests.differential.runs import SEED
from tests.differential.selector_answers import ENVIRONMENTS, Json, comparable, draco_says, without_luck
from tests.oracle.programs import answers

T = TypeVar("T")
LONGEST = 200
"""Limit in runs of `a_loop` on this machine, ten times what the slowest case takes: ten seconds if a run takes 50 ms."""
EVALUATIONS = 2
"""Draco evaluates twice: for the answer and for its cost."""
AT_ONCE_S = 0.05
"""Cases that took less are not compared with the limit: no machine runs `LONGEST` loops in so little time."""
TOWERS = 60


def kubernetes_says(*cases: Json) -> list[Json]:
    """Kubernetes' answers from a separate process: hostile cases would make a shared one large and slow."""
    return [comparable(answer) for answer in answers("cel", cases)]


def a_loop() -> int:
    """Measures the speed of this machine."""
    total = 0
    for number in range(1_000_000):
        total += number
    return total


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of the work, and the processor time that this thread spent on it."""
    before_s = time.thread_time()
    return work(), time.thread_time() - before_s


@pytest.fixture(scope="module")
def wanted() -> dict[str, Json]:
    """Kubernetes' answer to each hostile case that it is asked about."""
    cases = {name: case for name, case in hostile() if name not in BOUNDED}
    return dict(zip(cases, kubernetes_says(*cases.values()), strict=True))


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_every_situation_has_the_answer_of_kubernetes(environment: Json) -> None:
    cases = {name: case | environment for name, case in situations()}
    differ = []
    for (name, asked), answer in zip(cases.items(), kubernetes_says(*cases.values()), strict=True):
        said = draco_says(asked)
        if said != answer and without_luck(asked, said) != without_luck(asked, answer):
            differ.append((name, answer, said))
    assert not differ


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("name", "case"), [pytest.param(name, case, id=name) for name, case in hostile()])
def test_a_hostile_selector_is_answered_soon_and_as_kubernetes_answers(
    wanted: dict[str, Json], name: str, case: Json
) -> None:
    said, took_s = timed(lambda: draco_says(case))
    if name in BOUNDED:
        assert BOUNDED[name] in str(said)
    else:
        assert without_luck(case, said) == without_luck(case, wanted[name])
    if took_s > AT_ONCE_S:
        assert took_s / EVALUATIONS <= LONGEST * timed(a_loop)[1]


def test_nesting_of_any_shape_and_depth_is_answered_as_kubernetes_answers() -> None:
    source = random.Random(SEED)
    cases = [leaf_of(source) for _ in range(TOWERS)]
    bounded = 0
    for case, answer in zip(cases, kubernetes_says(*cases), strict=True):
        said = draco_says(case)
        if any(bound in str(said) for bound in BOUNDED.values()):
            bounded += 1
        else:
            assert said == answer, case["expression"]
    assert bounded < TOWERS / 10
