"""A longer fuzz run: `python -m tests.fuzz [--seconds N] [TARGET ...]`, repeated by DRACO_SEED.

Owns the command line only. Ends with 1 at the first text that breaks a law, and prints that text.
"""

import argparse
import sys
import traceback

from tests.differential.runs import SEED
from tests.fuzz.run import Broken, fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz the named targets, or all, one after the other."""
    known = {target.name: target for target in TARGETS}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Feed random texts to what reads texts.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target [default: 60]")
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[[], *known], help=f"of {', '.join(known)}")
    wanted = parser.parse_args()
    _say(f"DRACO_SEED={SEED}")
    for name in wanted.targets or known:
        try:
            done = fuzz(known[name], seconds=wanted.seconds, seed=SEED)
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
