"""Says above the results with which seed the differential tests compare."""

from tests.differential.runs import SEED


def pytest_report_header() -> str:
    return f"differential tests: DRACO_SEED={SEED}"
