"""Run every benchmark, each in a process of its own so that none inherits another's memory, and print one table.

`python -m benchmarks [NAME ...]`. Exits with 1 if a target was missed or a benchmark failed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import table

FOLDER = Path(__file__).parent
SIZES = {"operator_scale": ["", "--nodes 10000 --claims 200", "--mig"]}
"""Figures that docs/performance.md gives for several sizes are measured at each."""
NOT_BENCHMARKS = {"__init__", "__main__", "allocating_cluster", "gpu_fleet", "mig_streams", "table"}
ALONE = {"installation", "upgrade"}
"""They need an image and root, so they run only if named."""


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_BENCHMARKS)
    unknown = set(names) - set(known)
    if unknown:
        print(f"No benchmark is called {', '.join(sorted(unknown))}: there are {', '.join(known)}.", file=sys.stderr)
        return 2
    failed = []
    with tempfile.TemporaryDirectory(prefix="draco-benchmarks-") as folder:
        rows = Path(folder) / "rows"
        rows.touch()
        for name, *options in runs(names or [each for each in known if each not in ALONE]):
            print(f"== {' '.join([name, *options])} ==", flush=True)
            command = [sys.executable, "-m", f"benchmarks.{name}", *options]
            before = rows.stat().st_size
            subprocess.run(command, env=os.environ | {table.ROWS_FILE: str(rows)}, check=False)
            if rows.stat().st_size == before:  # a missed target is a row, too
                failed.append(" ".join([name, *options]))
        told = table.read(rows)
    print(f"\n{table.shown(told)}")
    for name in failed:
        print(f"{name} failed: its output is above.", file=sys.stderr)
    return 1 if failed or not all(row.met for row in told) else 0


def runs(names: list[str]) -> list[list[str]]:
    """Each benchmark with its options, once for every size."""
    return [[name, *options.split()] for name in names for options in SIZES.get(name, [""])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
