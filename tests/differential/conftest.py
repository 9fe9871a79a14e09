"""What differential tests share: the oracle, and a count of what was compared. The header of each run shows the seed."""

from collections.abc import Iterator

import pytest

from tests.differential.runs import SEED, Tally
from tests.oracle.programs import Oracle, oracle


def pytest_report_header() -> str:
    return f"differential tests: DRACO_SEED={SEED}"


@pytest.fixture(scope="module")
def go(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    """The oracle named by the module's ORACLE."""
    with oracle(request.module.ORACLE) as program:
        yield program


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """A count of what the module's COUNTED names."""
    count = Tally(request.module.COUNTED)
    yield count
    count.report()
