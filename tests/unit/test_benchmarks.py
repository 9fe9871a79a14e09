"""How the figures of several benchmarks become one table."""

from pathlib import Path

import pytest

from benchmarks.table import ROWS_FILE, Row, read, shown, tell


def test_rows_are_shown_and_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows"
    monkeypatch.setenv(ROWS_FILE, str(file))
    rows = [Row("list", "0.1 s", "1.2 s", "10 times", True), Row("a long figure", "3 MB", "-", "2 MB", False)]
    tell(rows[0])
    tell(rows[1])
    assert read(file) == rows
    assert "0.1 s" in capsys.readouterr().out


def test_columns_are_aligned_and_a_missed_target_stands_out() -> None:
    lines = shown([Row("list", "1", "2", "3", True), Row("longer", "1", "2", "3", False)]).splitlines()
    assert lines[0].startswith("figure  measured")
    assert lines[1].endswith("met")
    assert lines[2].endswith("MISSED")
    assert lines[1].index("met") == lines[2].index("MISSED")
