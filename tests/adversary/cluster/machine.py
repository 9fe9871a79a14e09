"""The cluster machine: acts on a whole cluster for a while, lets it come to rest, and reports what the observer found.

Owns the alternation of acting and resting, the record of actions, and the report. `actions` draws the actions, `performing`
executes them, and the observer judges the result.
"""

import asyncio
import heapq
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path

from tests.adversary.cluster.actions import Chooser
from tests.adversary.cluster.cluster import Cluster, access_of
from tests.adversary.cluster.observer.api import Api
from tests.adversary.cluster.observer.kept import Kept, Scraped, kept_at_rest
from tests.adversary.cluster.observer.observer import Violation
from tests.adversary.cluster.observer.rest import is_said_to_fit
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.performing import Performer
from tests.adversary.cluster.tenants import Action

REST_WITHIN_S = 90.0
"""How long after the last action each pod must run or have an explanation, in seconds that count."""
LASTS_S = 40.0
"""How long a suspicion must last: a changing Event is written once in 30 s, and a GPU may change pods faster than that."""
ONE_AFTER_ANOTHER_S = 120.0
"""After this much more time every suspicion counts, however new."""
DOUBTED_AFTER_S = 60.0
"""When to restart a scheduler that refuses pods which fit according to Draco: it may have missed a freed device."""
UNSETTLED_S = 120.0
"""How long killed programs may take to be up again and settled."""
REST_EVERY_S = 150.0
QUIET_S = 3.0
"""How long the cluster must stay at rest: an explanation that comes and goes does not count."""

KEPT = Path(__file__).parent / "kept"

Say = Callable[[str], None]


@dataclass
class Report:
    """The result of a run."""

    seed: int | None
    folder: Path
    seconds: float = 0.0
    actions: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"cluster machine: seed {self.seed}, {self.seconds:.0f} s, {sum(self.actions.values())} actions"]
        lines += [f"  {count:>6}  {kind}" for kind, count in sorted(self.actions.items())]
        lines += [f"  {value:>6g}  {what}" for what, value in sorted(self.seen.items())]
        lines += [f"  {count:>6}  refused: {what}" for what, count in sorted(self.refused.items())]
        lines += [f"  {len(self.violations)} violations told; what was done and all logs are in {self.folder}"]
        return "\n".join([*lines, *(f"\n{each}" for each in self.violations)])


def run(
    seconds: float,
    seed: int,
    *,
    most: int | None = None,
    beside: Iterable[Action] = (),
    ahead_s: float = 0.0,
    folder: Path | None = None,
    say: Say = print,
    stop_at_first: bool = False,
    draws: Callable[[int], Chooser] = Chooser,
) -> Report:
    """Run a new cluster: actions drawn from the seed, and a record `beside` them that starts `ahead_s` earlier.

    Actions are drawn for this many seconds, at most `most`. `draws` makes the chooser from the seed.
    """
    say(f"cluster machine: {seconds:.0f} s with seed {seed}")
    chooser = draws(seed)

    def drawn() -> Iterator[Action]:
        until = time.monotonic() + ahead_s + seconds
        first = chooser.next()
        yield first._replace(wait_s=ahead_s + first.wait_s)
        while time.monotonic() < until:
            yield chooser.next()

    return _on_a_cluster(
        lambda: together([beside, islice(drawn(), most)]), seed, folder, say, stop_at_first=stop_at_first
    )


def replay(
    actions: Sequence[Action], *, folder: Path | None = None, say: Say = print, stop_at_first: bool = True
) -> Report:
    """Replay recorded actions."""
    say(f"cluster machine: {len(actions)} recorded actions")
    return _on_a_cluster(lambda: iter(actions), None, folder, say, stop_at_first=stop_at_first)


def together(records: Iterable[Iterable[Action]]) -> Iterator[Action]:
    """Merge records as if all began at the same moment."""
    last = 0.0
    for moment, action in heapq.merge(*map(_timed, records), key=itemgetter(0)):
        yield action._replace(wait_s=moment - last)
        last = moment


def _timed(record: Iterable[Action]) -> Iterator[tuple[float, Action]]:
    moment = 0.0
    for action in record:
        moment += action.wait_s
        yield moment, action


def kept() -> Iterator[Action]:
    """The findings of earlier runs, each shrunk to a few actions."""
    return together(load(file) for file in sorted(KEPT.glob("*.json")))


def shrink(actions: Sequence[Action], law: str, *, say: Say = print, attempts: int = 40) -> list[Action]:
    """Shorten a list of actions for as long as it still breaks the law."""
    kept, size = list(actions), max(1, len(actions) // 2)
    while size and attempts:
        start = 0
        while start < len(kept) and attempts:
            attempts -= 1
            fewer = kept[:start] + kept[start + size :]
            found = replay(fewer, say=say).violations
            broken = any(each.law == law for each in found)
            say(f"  {len(fewer)} actions: {'still' if broken else 'no longer'} {law}")
            if broken:
                kept = fewer
            else:
                start += size
        size //= 2
    return kept


def save(actions: Sequence[Action], path: Path) -> None:
    """Write actions to a file."""
    path.write_text(json.dumps([list(each) for each in actions], indent=1))


def load(path: Path) -> list[Action]:
    """Read actions from a file."""
    return [Action(*each) for each in json.loads(path.read_text())]


def _on_a_cluster(
    drawn: Callable[[], Iterator[Action]],
    seed: int | None,
    folder: Path | None,
    say: Say,
    *,
    stop_at_first: bool,
) -> Report:
    folder = folder or Path(tempfile.mkdtemp(prefix="adversary-"))
    report = Report(seed, folder)
    cluster = Cluster.up(folder)
    try:
        asyncio.run(_act(cluster, drawn(), report, say, stop_at_first=stop_at_first))
    finally:
        cluster.stop()
        observer = cluster.observer
        report.violations = list(observer.violations)
        report.seen = {key: float(value) for key, value in observer.counts.items()}
        report.seen |= {f"longest, s: {law}": float(value) for law, value in observer.longest.items()}
        report.seen["oldest lease, s, while its holder lived"] = round(observer.lease.oldest_s, 2)
        report.seen["takeovers of the lease"] = len(observer.lease.takeovers)
        report.seen["longest takeover, s"] = round(max([0.0, *observer.lease.takeovers]), 1)
    return report


async def _act(cluster: Cluster, drawn: Iterator[Action], report: Report, say: Say, *, stop_at_first: bool) -> None:
    recorded: list[Action] = []
    observer = cluster.observer
    async with Api(access_of(cluster.plane)) as api:
        performer = Performer(cluster, api)
        await performer.prepare()
        started = rested = time.monotonic()
        told = 0
        try:
            for action in drawn:
                await asyncio.sleep(action.wait_s)
                recorded.append(action)
                if action.kind == "rest":
                    await _rest(cluster, performer)
                    rested = time.monotonic()
                    continue
                await performer.perform(action)
                await asyncio.to_thread(cluster.restart_ended)
                for violation in observer.violations[told:]:
                    told += 1
                    say(f"{violation.at} {violation.law}: {violation.text}")
                    with (report.folder / "findings.txt").open("a") as findings:
                        findings.write(f"{violation}\n")
                if told and stop_at_first:
                    return
                if time.monotonic() - rested > REST_EVERY_S:
                    await _rest(cluster, performer)
                    rested = time.monotonic()
            await _rest(cluster, performer)
        finally:
            # Programs die with the thread that started them, and this loop's threads end with it: stop the observer first.
            await asyncio.to_thread(observer.stop)
            report.seconds = time.monotonic() - started
            report.actions, report.refused = dict(performer.done), dict(performer.refused)
            observer.counts |= performer.came_of
            save(recorded, report.folder / "actions.json")


def lasting(since: Mapping[Suspicion, float], counted: float) -> list[Suspicion]:
    """The suspicions that count when the time is over: those that lasted, or all if new ones never cease."""
    lasts_s = 0.0 if counted > REST_WITHIN_S + ONE_AFTER_ANOTHER_S else LASTS_S
    return [each for each, began in since.items() if counted - began >= lasts_s]


async def _rest(cluster: Cluster, performer: Performer) -> None:
    """Let everything recover, then judge each pod that does not run."""
    await performer.settle()
    observer = cluster.observer
    counted = quiet = unsettled = 0.0
    since: dict[Suspicion, float] = {}
    doubted: list[Suspicion] = []
    kept = Kept()
    scraped: dict[str, Scraped] = {}
    last = time.monotonic()
    while quiet < QUIET_S:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.restart_ended)  # including an operator that could not renew its lease
        now = time.monotonic()
        passed, last = min(now - last, 1.0), now
        waiting = observer.unexplained()
        if not waiting:  # otherwise operators still have work
            scraped = await asyncio.to_thread(cluster.scraped)
            waiting = kept.look(kept_at_rest(scraped))
        quiet = 0.0 if waiting else quiet + passed
        if down := observer.not_settled(now):
            unsettled += passed
        else:
            counted += passed
        if unsettled > UNSETTLED_S:
            observer.violated(Suspicion("no rest", str(now), f"nothing was killed lately, and still down: {down}"))
            return
        since = {each: since.get(each, counted) for each in waiting}
        if counted > REST_WITHIN_S and (wrong_now := lasting(since, counted)):
            for wrong in wrong_now:
                observer.violated(wrong)
            return
        if counted > DOUBTED_AFTER_S and not doubted and waiting and all(is_said_to_fit(each) for each in waiting):
            doubted = waiting
            await performer.start_scheduler_afresh()
            counted, since = 0.0, {}
    await performer.probing.run()
    for wrong in doubted:
        if observer.waits_for_a_node(wrong):
            observer.violated(wrong)  # explained only now: Draco was wrong that it fits
    observer.counts["times at rest"] += 1
    for each in scraped.values():
        observer.counts["operators that kept nothing at rest"] += 1
        observer.counts["new pods with the webhook's gate, at rest"] += each.gated
        most = "most memory of an operator at rest, MiB"
        observer.counts[most] = max(observer.counts[most], round(each.memory_mib))
    observer.counts["times at rest with a fresh scheduler"] += bool(doubted)
    observer.counts["longest until rest, s"] = max(observer.counts["longest until rest, s"], round(counted))
