"""Draco, Kubernetes and cel-python give the same answers to plain CEL, except for a list of cel-python's differences."""

import random

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from tests.differential.cel_python import a_plain_expression, cel_python_says, is_plain, written_plain_expressions
from tests.differential.cel_python_differences import DIFFERENCES, EXPENSIVE, Answers, is_known
from tests.differential.runs import SEED, Tally, size
from tests.differential.selector_answers import Json, draco_says, kubernetes_says, without_luck
from tests.oracle.programs import Oracle

KNOWN = {expression: answers for rows in DIFFERENCES.values() for expression, answers in rows.items()}

ORACLE = "cel"
COUNTED = "expressions of plain CEL, by three"


def a_case(expression: str) -> Json:
    return {"expression": expression, "device": {"driver": "gpu.example.com", "attributes": {}, "capacity": {}}}


def agreed(go: Oracle, expression: str) -> str:
    """The answer that Kubernetes and Draco agree on: `true`, `false` or `error`."""
    case = a_case(expression)
    [wanted] = kubernetes_says(go, case)
    assert without_luck(case, draco_says(case)) == without_luck(case, wanted)
    return str(wanted["match"]).lower() if "match" in wanted else "error"


def test_what_was_written_for_other_tests_is_answered_alike_by_three(go: Oracle, tally: Tally) -> None:
    expressions = [each for each in written_plain_expressions() if each not in KNOWN and each != EXPENSIVE]
    assert len(expressions) > 150
    answers = {expression: (agreed(go, expression), cel_python_says(expression)) for expression in expressions}
    assert {expression: said for expression, said in answers.items() if said[0] != said[1]} == {}
    tally.answers.update(said for said, _ in answers.values())


@seed(SEED)
@size(400)
@given(source=st.randoms(use_true_random=False))
def test_random_plain_expressions_are_answered_alike_by_three(go: Oracle, tally: Tally, source: random.Random) -> None:
    expression = a_plain_expression(source)
    said = agreed(go, expression)
    by_python = cel_python_says(expression)
    if not is_plain(expression) or is_known(expression, said, by_python):
        tally.answers["left out"] += 1
        return
    tally.answers[said] += 1
    assert by_python == said


def test_only_an_error_that_a_macro_lets_pass_is_known_of_random_expressions() -> None:
    absorbed = "(3 == 0) && [0, 1].filter(i, 10 / (i - 1) > 0).all(i, i != i)"
    assert is_known(absorbed, "false", "error")
    assert not is_known(absorbed, "false", "true")
    assert not is_known("(3 == 0) && 1 / 0 == 1", "false", "error")
    assert is_known('{"b": 2}.all(s, s < string({}["b"]))', "error", "IndexError")


@pytest.mark.parametrize(("expression", "answers"), [pytest.param(*row, id=row[0][:60]) for row in KNOWN.items()])
def test_a_known_difference_is_still_one(go: Oracle, expression: str, answers: Answers) -> None:
    assert is_plain(expression)
    assert Answers(agreed(go, expression), cel_python_says(expression)) == answers
    assert answers.kubernetes != answers.cel_python
