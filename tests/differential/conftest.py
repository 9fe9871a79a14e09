"""What differential tests share: the program to compare with, and a count of what was compared. Says with which seed they do."""

from collections.abc import Iterator

import pytest

from tests.differential.runs import SEED, Tally
from tests.oracle.programs import Oracle, oracle


def pytest_report_header() -> str:
    return f"differential tests: DRACO_SEED={SEED}"


@pytest.fixture(scope="module")
def go(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    """The program that the module names in ORACLE."""
    with oracle(request.module.ORACLE) as program:
        yield program


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Of what the module names in COUNTED."""
    count = Tally(request.module.COUNTED)
    yield count
    count.report()
