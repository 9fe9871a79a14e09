"""A run of a fixed shape: random kills of programs during maintenances and faults, then everything is returned to service.

`python -m tests.adversary.cluster.chaos --kills 100 --maintenances 50 --faults 200`. Owns the shape; the cluster machine executes
it and the observer judges it. Exits with status 1 if a law was broken or fewer actions took effect than requested: killing a
program that is not running does not count, nor does a fault of a missing board.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple

from tests.adversary.cluster import machine
from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.maintainers import BUDGETS, Maintainers
from tests.adversary.cluster.tenants import NODES, Action

DYNAMIC = ("adv-0", "adv-2")
SPARE = 1.2
"""Factor by which more actions are drawn than requested, because some have no effect."""
GOES_ON_WITHIN = 0.15
"""Each next step of a request follows within this share of the remaining time."""
IN_THE_END = (
    Action("rest", {}),
    Action("maintenance: all deleted", {}),
    *(Action("hardware: reboot", {"node": node, "minors": None}) for node in NODES),
    Action("all is given back", {}),
)
"""Let the cluster come to rest; then delete every request, reboot every node, and let it rest again."""


class Shape(NamedTuple):
    """How many kills, maintenances and faults, in how many seconds."""

    kills: int
    maintenances: int
    faults: int
    seconds: float


class Chaos(Maintainers):
    """Draws a run of a shape from a seed."""

    def run(self, shape: Shape) -> Iterator[Action]:
        """The actions, each with the pause before it."""
        for node in DYNAMIC:
            yield self._draw(
                lambda node=node: Action("policy: set", {"policy": write.policy(f"mp-{node}", node, "Dynamic")})
            )
        yield Action("budget: set", {"budget": write.budget(BUDGETS[0], maxDevices=4)})
        due: list[tuple[float, Action]] = []
        for draw, count in self._what(shape).items():
            due += [(self._random.random(), self._draw(draw)) for _ in range(count)]
        for _ in range(shape.maintenances):
            due += self._maintenance()
        last = 0.0
        for moment, action in sorted(due, key=itemgetter(0)):
            yield action._replace(wait_s=round((moment - last) * shape.seconds, 3))
            last = moment
        yield from IN_THE_END

    def _what(self, shape: Shape) -> dict[Callable[[], Action], int]:
        few = max(1, shape.maintenances // 5)
        return {
            self._kill: round(shape.kills * SPARE),
            self.sickness: round(shape.faults * SPARE),
            self._heal: shape.faults // 3,
            self._whole: shape.maintenances // 2,
            self._parts: shape.maintenances // 2,
            self._shared: few,
            self._tolerates_all: few,
            self._end_pod: shape.maintenances // 2,
            self.set_budget: few,
            self.end_budget: max(1, few // 2),
            self.set_health_policy: few,
            self.end_health_policy: max(1, few // 2),
        }

    def _maintenance(self) -> Iterator[tuple[float, Action]]:
        """A maintenance request and the steps that follow it."""
        moment = self._random.random()
        asked = self._draw(self.maintain)
        yield moment, asked
        title = asked.arguments["request"]["metadata"]["name"]
        for how in self._random.choice(
            [("finished",), ("approved", "finished"), ("approved", "finished", "deleted"), ("cancelled",), ("deleted",)]
        ):
            moment += (1.0 - moment) * GOES_ON_WITHIN * self._random.random()
            yield moment, Action(f"maintenance: {how}", {"title": title})

    def _kill(self) -> Action:
        back_in_s = self._random.choice([0.2, 1.0, 4.0])
        if self._random.random() < 0.4:
            return Action(
                "kill: operator", {"who": self._random.choice(["leader", "leader", "follower"]), "back_in_s": back_in_s}
            )
        return Action("kill: agent", {"node": self._random.choice(NODES), "back_in_s": back_in_s})

    def _heal(self) -> Action:
        return Action("hardware: healed", {"node": self._random.choice(NODES)})

    def _draw(self, draw: Callable[[], Action]) -> Action:
        self._number += 1
        return draw()


def main() -> int:
    """Run it and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary.cluster.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--maintenances", type=int, default=50)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=360.0, help="in which all of it happens")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="to draw the same again")
    given = parser.parse_args()
    shape = Shape(given.kills, given.maintenances, given.faults, given.seconds)
    report = run(shape, given.seed)
    print(report)  # noqa: T201 - a command
    lacking = missing(report, shape)
    for each in lacking:
        print(each, file=sys.stderr)  # noqa: T201 - a command
    return 1 if report.violations or lacking else 0


def run(shape: Shape, seed: int, **how: object) -> machine.Report:
    """Run the shape on a new cluster."""
    return machine.replay(list(Chaos(seed).run(shape)), stop_at_first=False, **how)  # type: ignore[arg-type]


def missing(report: machine.Report, shape: Shape) -> list[str]:
    """Which actions took effect less often than requested."""
    done = {
        "programs killed": (report.seen.get("programs killed", 0.0), shape.kills),
        "maintenances": (report.actions.get("maintenance: asked for", 0), shape.maintenances),
        "faults": (report.seen.get("faults of boards", 0.0), shape.faults),
    }
    return [f"only {count:g} {what} of {wanted}" for what, (count, wanted) in done.items() if count < wanted]


if __name__ == "__main__":
    sys.exit(main())
