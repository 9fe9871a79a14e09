"""Selectors that Draco once answered otherwise than Kubernetes; `python -m tests.differential.hunt` looks for more."""

from collections.abc import Iterator

import pytest

from tests.differential.runs import kept
from tests.differential.selector_answers import Json, draco_says, kubernetes_says
from tests.oracle.programs import Oracle, oracle


@pytest.fixture(scope="module")
def go() -> Iterator[Oracle]:
    with oracle("cel") as program:
        yield program


@pytest.mark.parametrize("case", kept("cel"))
def test_selectors_that_once_differed_do_not(go: Oracle, case: Json) -> None:
    [wanted] = kubernetes_says(go, case)
    assert draco_says(case) == wanted
