"""`python -m tests.adversary`: look for trouble for as long as you like; `make adversary` starts it.

Owns options and the choice of a machine. Exits with status 1 if a machine found something.
"""

import argparse
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.adversary.agent.run import Finding, hunt
from tests.adversary.cluster import machine as cluster
from tests.adversary.cluster.rivalry import Rivalry


class Machine(NamedTuple):
    """One adversary: a description, and `run(seconds, seed)`, which returns True if it found nothing."""

    does: str
    run: Callable[[float, int], bool]


def _cluster(seconds: float, seed: int) -> bool:
    report = cluster.run(seconds, seed)
    print(report)
    return not report.violations


def _rivals(seconds: float, seed: int) -> bool:
    report = cluster.run(seconds, seed, draws=Rivalry)
    print(report)
    return not report.violations


def _agent(seconds: float, seed: int) -> bool:
    try:
        print(hunt(seconds=seconds, seed=seed))
    except Finding as finding:
        traceback.print_exception(finding)
        print(finding.done.summary)
        return False
    return True


MACHINES = {
    "agent": Machine("torments one agent, step by step", _agent),
    "cluster": Machine("torments a whole cluster", _cluster),
    "rivals": Machine("torments one whose pods are evicted for others", _rivals),
}


def main() -> None:
    """Run the chosen machines, each for an equal share of the time."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description="Look for trouble.")
    parser.add_argument("machine", nargs="*", metavar="machine", help=f"one of {', '.join(MACHINES)}; without any, all")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all machines together")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="to draw the same actions again")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="do again what the cluster machine wrote down")
    parser.add_argument("--shrink", metavar="LAW", help="with --replay: leave out what is not needed to break this law")
    given = parser.parse_args()
    if unknown := set(given.machine) - MACHINES.keys():
        parser.error(f"there is no machine {', '.join(sorted(unknown))}, only {', '.join(MACHINES)}")
    if given.replay:
        sys.exit(_again(given.replay, given.shrink))
    wanted = given.machine or list(MACHINES)
    found_nothing = [MACHINES[each].run(given.seconds / len(wanted), given.seed) for each in wanted]
    sys.exit(0 if all(found_nothing) else 1)


def _again(record: Path, law: str | None) -> int:
    actions = cluster.load(record)
    if law:
        actions = cluster.shrink(actions, law)
        shrunk = record.with_suffix(".shrunk.json")
        cluster.save(actions, shrunk)
        print(f"{len(actions)} actions are in {shrunk}")
    report = cluster.replay(actions)
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    main()
