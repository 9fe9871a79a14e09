"""One row for each performance figure: what a benchmark reports, and how all rows are shown together.

A benchmark is a module here with its own command, `python -m benchmarks.<name>`. It measures Draco and its named peer in the same
run and ends with `tell(Row(...), ...)`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROWS_FILE = "DRACO_BENCHMARK_ROWS"
"""Environment variable: the file to which rows are also appended, one JSON object a line."""
HEAD = ("figure", "measured", "peer", "target", "")


class Row(NamedTuple):
    """One figure. `measured`, `peer` and `target` are texts with units; `met` says whether the target was reached."""

    figure: str
    measured: str
    peer: str
    target: str
    met: bool


def tell(*rows: Row) -> None:
    """Print the rows, and append them to the file of a run of all benchmarks."""
    print(shown(rows), flush=True)
    if file := os.environ.get(ROWS_FILE):
        with Path(file).open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(row._asdict()) + "\n" for row in rows)


def read(file: Path) -> list[Row]:
    """The rows that benchmarks have reported."""
    return [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def shown(rows: Sequence[Row]) -> str:
    """The rows as an aligned table."""
    lines = [HEAD, *((*row[:4], "met" if row.met else "MISSED") for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
