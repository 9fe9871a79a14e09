"""Says below the results what the differential tests compared, and with which seed."""

import pytest

from tests.differential.runs import REPORTS, SEED


def pytest_report_header() -> str:
    return f"differential tests: DRACO_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORTS:
        terminalreporter.section("differential tests")
        for line in REPORTS:
            terminalreporter.write_line(line)
