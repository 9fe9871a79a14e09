"""Run every benchmark, each in a process of its own so that none inherits another's memory, and print one table.

`python -m benchmarks [NAME ...]`. Ends with 1 if a target was missed or a benchmark failed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import table

FOLDER = Path(__file__).parent
NOT_BENCHMARKS = {"__init__", "__main__", "gpu_fleet", "mig_streams", "table"}


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
        for name in names or known:
            print(f"== {name} ==", flush=True)
            command = [sys.executable, "-m", f"benchmarks.{name}"]
            before = rows.stat().st_size
            subprocess.run(command, env=os.environ | {table.ROWS_FILE: str(rows)}, check=False)
            if rows.stat().st_size == before:  # a missed target is a row, too
                failed.append(name)
        told = table.read(rows)
    print(f"\n{table.shown(told)}")
    for name in failed:
        print(f"{name} failed: what it said is above.", file=sys.stderr)
    return 1 if failed or not all(row.met for row in told) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
