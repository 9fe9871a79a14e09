"""A longer fuzz run, with new texts each time: `python -m tests.fuzz [--seconds N] [TARGET ...]`. DRACO_SEED repeats one.

Owns the command line only. Exits with 1 at the first text that breaks a law, and prints that text.
"""

import argparse
import os
import secrets
import sys
import traceback

from tests.fuzz.run import Broken, fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz the named targets, or all, in turn."""
    known = {target.name: target for target in TARGETS}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Feed random texts to what reads texts.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target [default: 60]")
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[[], *known], help=f"of {', '.join(known)}")
    wanted = parser.parse_args()
    seed = int(os.environ.get("DRACO_SEED") or secrets.randbelow(1 << 32))
    _say(f"DRACO_SEED={seed}")
    for name in wanted.targets or known:
        try:
            done = fuzz(known[name], seconds=wanted.seconds, seed=seed)
        except Broken as broken:
            traceback.print_exception(broken)
            return 1
        _say(f"{name}: {done.texts} texts, {done.kinds} kinds of answers")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
