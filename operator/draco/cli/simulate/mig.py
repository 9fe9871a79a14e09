"""`draco simulate mig`: how a trace of MIG claims (`traces`) would have fared under different policies (`draco.mig.replay`)."""

import asyncio
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import click

from draco.cli.options import output_option, with_cluster
from draco.cli.output import echo_lines, lines_of, print_document
from draco.cli.simulate.traces import LONGEST_LINE, Arrive, Depart, TraceError, events
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import NotFound
from draco.mig.board import Board, Profile
from draco.mig.geometry import geometry
from draco.mig.known_boards import BOARDS
from draco.mig.replay import (
    Policy,
    Replay,
    ReplayCounts,
    ReplayOutcome,
    SimulatedFleet,
    profiles_met,
    rule_of,
    used_share,
)
from draco.mig_policy.boards import boards_of
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.texts import counted

SCHEMA: Final = "draco.dev/mig-simulation/v1"
"""Schema of the document. Fields are only added under one name."""
FEWEST_SAMPLES: Final = 256
"""In a long trace, headroom is sampled evenly: at least this many times, at most twice as many."""


@dataclass
class _Run:
    """One policy on the trace, with samples of its headroom."""

    policy: Policy
    replay: Replay
    headroom: list[dict[str, tuple[int, int]]] = field(default_factory=list)

    def take(self, event: Arrive | Depart) -> None:
        match event:
            case Arrive(t, claim, profile, movable):
                self.replay.arrive(claim, profile, t, movable=movable)
            case Depart(t, claim):
                self.replay.depart(claim, t)

    def measure(self) -> dict[str, tuple[int, int]]:
        """Per profile: how many more fit now, and how many if everything were placed again."""
        profiles = self.replay.board.profiles
        return {p.name: (self.replay.headroom(p), self.replay.headroom_repacked(p)) for p in profiles}


@click.command(name="mig")
@click.option("--board", metavar="BOARD", help=f"One of {', '.join(BOARDS)}; with --from-node, one of that node's.")
@click.option(
    "--from-node", metavar="NODE", help="Take the board from what this node's agent has reported to the cluster."
)
@click.option("--gpus", type=click.IntRange(1, 100_000), required=True, metavar="N", help="How many GPUs.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    metavar="N",
    help="How many GPUs a node has.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True),
    required=True,
    metavar="FILE",
    help='JSON lines by time, {"t": 0.1, "arrive": "a", "profile": "3g.40gb"} or {"t": 2.3, "depart": "a"}; - reads standard '
    "input.",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice([each.value for each in Policy]),
    multiple=True,
    default=[Policy.STEERED.value],
    show_default=True,
    help="Who chooses the placement; repeatable, each gets the same claims.",
)
@click.option(
    "--moves",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help='How many instances may move for a blocked claim; only those of claims that arrived with "movable": true.',
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed of scheduler-1.35.")
@with_cluster
@output_option("text", "json")
def command(
    *,
    board: str | None,
    from_node: str | None,
    gpus: int,
    gpus_per_node: int,
    trace: Path,
    policies: Sequence[str],
    moves: int,
    seed: int,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Replay a trace of MIG claims, and say how many would be refused.

    Claims that do not fit are refused, not queued. A refusal is avoidable if the claim would fit after all claims were
    placed again. Policies: scheduler-1.35 and scheduler-1.36 are kube-scheduler with devices in NVIDIA's order, steered is
    kube-scheduler with devices in Draco's order, operator chooses GPU and start in the whole fleet, oracle repacks without limit
    and is the upper bound.

    \b
    draco simulate mig --board H100-80GB --gpus 16 --trace week.jsonl
    draco simulate mig --from-node gpu-node-1 --gpus 64 --trace - --policy steered --policy oracle -o json
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    if from_node is None and (kubeconfig or context):
        raise click.UsageError("--kubeconfig and --context belong to --from-node: give a node with it.")
    table = _known(board) if from_node is None else asyncio.run(_reported(from_node, board, kubeconfig, context))
    runs = []
    for policy in map(Policy, dict.fromkeys(policies)):
        chance = Random(seed).randrange  # noqa: S311 - simulates a scheduler that meets devices in random order
        fleet = SimulatedFleet(geometry(table), gpus, gpus_per_node)
        runs.append(_Run(policy, Replay(fleet, rule_of(policy, chance), moves)))
    name = "standard input" if str(trace) == "-" else str(trace)
    with click.open_file(str(trace), "rb") as stream:
        number, began = _replay(events(lines_of(stream, LONGEST_LINE), table, name), runs)
    if not number:
        raise TraceError(f"{name} holds no events")
    boards = {"board": board} if from_node is None else {"board": board, "fromNode": from_node}
    document = {
        "schema": SCHEMA,
        **boards,
        "gpus": gpus,
        "gpusPerNode": gpus_per_node,
        **_document(number, began, runs),
    }
    if output == "json":
        print_document(document)
    else:
        echo_lines(_lines(document))


def _known(name: str | None) -> Board:
    if name is None:
        raise click.UsageError(f"--board is missing: {', '.join(BOARDS)}, or give a node with --from-node.")
    if name in BOARDS:
        return BOARDS[name]
    near = [each for each in BOARDS if name and each.startswith(name.upper())]
    near = near or difflib.get_close_matches(name.upper(), BOARDS, n=1)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise click.UsageError(f"There is no board {name}: there are {', '.join(BOARDS)}.{meant}")


async def _reported(node: str, name: str | None, kubeconfig: Path | None, context: str | None) -> Board:
    async with Client(await connect(kubeconfig, context)) as client:
        try:
            boards = boards_of(await client.get(GPU_NODES, ObjectKey("", node)))
        except NotFound:
            raise click.ClickException(
                f"the cluster has no GpuNode {node}: `kubectl get gpunodes` lists those whose agent has reported"
            ) from None
    if name is None and len(boards) == 1:
        return next(iter(boards.values()))
    if name is not None and name in boards:
        return boards[name]
    if not boards:
        raise click.ClickException(f"node {node} has reported no board that supports MIG")
    has = ", ".join(boards)
    raise click.UsageError(
        f"Node {node} has the boards {has}: choose one with --board."
        if name is None
        else f"Node {node} has no board {name}: it has {has}."
    )


def _replay(trace: Iterable[Arrive | Depart], runs: Sequence[_Run]) -> tuple[int, float]:
    """Feed each event to every run. Returns the number of events and the time of the first."""
    number, began, every = 0, 0.0, 1
    for event in trace:
        if not number:
            began = event.t
            for run in runs:
                run.replay.at = began
        number += 1
        for run in runs:
            run.take(event)
        if number % every == 0:
            for run in runs:
                run.headroom.append(run.measure())
            if len(runs[0].headroom) == 2 * FEWEST_SAMPLES:
                every *= 2
                for run in runs:
                    del run.headroom[::2]  # the rest are multiples of the new interval
    return number, began


def _document(number: int, began: float, runs: Sequence[_Run]) -> dict[str, Any]:
    first = runs[0].replay
    claims = first.results.accepted + first.results.refused
    return {
        "slices": first.slices,
        "trace": {"events": number, "claims": claims, "start": began, "end": first.at},
        "policies": [_policy_report(run) for run in runs],
    }


def _policy_report(run: _Run) -> dict[str, Any]:
    results, profiles = run.replay.results, list(profiles_met(run.replay.results))
    last = run.measure()
    return {
        "policy": run.policy.value,
        **_counted(results, None),
        "moves": results.moves,
        "usedCapacity": {
            "mean": round(used_share(run.replay), 4),
            "peak": round(results.peak_slices / run.replay.slices, 4),
            "end": round(run.replay.used_slices / run.replay.slices, 4),
        },
        "profiles": [{"profile": p.name, **_counted(results, p)} for p in run.replay.board.profiles if p in profiles],
        "headroom": [_headroom(p.name, last, run.headroom) for p in run.replay.board.profiles],
    }


def _counted(results: ReplayCounts, profile: Profile | None) -> dict[str, int]:
    repaired = results.of(ReplayOutcome.REPAIRED, profile=profile)
    avoidable, full = (
        results.of(ReplayOutcome.AVOIDABLE, profile=profile),
        results.of(ReplayOutcome.FULL, profile=profile),
    )
    accepted = results.of(ReplayOutcome.ACCEPTED, profile=profile) + repaired
    return {
        "claims": accepted + avoidable + full,
        "accepted": accepted,
        "repaired": repaired,
        "refused": avoidable + full,
        "avoidable": avoidable,
    }


def _headroom(
    name: str, last: Mapping[str, tuple[int, int]], samples: Sequence[Mapping[str, tuple[int, int]]]
) -> dict[str, Any]:
    now, repacked = last[name]
    means = [sum(each[name][side] for each in samples) / max(1, len(samples)) for side in (0, 1)]
    return {
        "profile": name,
        "mean": round(means[0], 2),
        "meanRepacked": round(means[1], 2),
        "end": now,
        "endRepacked": repacked,
    }


def _lines(document: Mapping[str, Any]) -> Iterable[str]:
    trace, policies = document["trace"], document["policies"]
    where = document["board"] if "fromNode" not in document else f"the board of {document['fromNode']}"
    nodes = -(-document["gpus"] // document["gpusPerNode"])
    fleet = f"{counted(document['gpus'], 'GPU')} ({where}) in {counted(nodes, 'node')}"
    yield f"{fleet}: {counted(trace['claims'], 'claim')} in {counted(trace['events'], 'event')}"
    yield ""
    yield f"{'POLICY':<16}{'ACCEPTED':>20}{'REFUSED':>10}{'AVOIDABLE':>12}{'MEAN USE':>10}{'PEAK USE':>10}"
    for report in policies:
        accepted = f"{report['accepted']} ({_percent(report['accepted'] / max(1, report['claims']))})"
        used = report["usedCapacity"]
        yield (
            f"{report['policy']:<16}{accepted:>20}{report['refused']:>10}{report['avoidable']:>12}"
            f"{_percent(used['mean']):>10}{_percent(used['peak']):>10}"
        )
    for report in policies:
        yield ""
        moved = f", {counted(report['moves'], 'instance')} moved" if report["moves"] else ""
        yield f"{report['policy']}{moved}"
        yield f"  {'PROFILE':<16}{'CLAIMS':>9}{'REFUSED':>9}{'AVOIDABLE':>11}{'MORE WOULD FIT':>16}{'IF REPACKED':>13}"
        profiles = {each["profile"]: each for each in report["profiles"]}
        for room in report["headroom"]:
            each = profiles.get(room["profile"], {"claims": 0, "refused": 0, "avoidable": 0})
            yield (
                f"  {room['profile']:<16}{each['claims']:>9}{each['refused']:>9}{each['avoidable']:>11}"
                f"{room['mean']:>16.1f}{room['meanRepacked']:>13.1f}"
            )


def _percent(share: float) -> str:
    return f"{share:.1%}"
