"""How long it takes from applying a DeviceTaintRule until the operator counts its devices.

On a cluster of this many nodes, applies one rule after the other and polls the operator's metric `draco_taint_rule_devices` until
it shows the rule with its one device. Measured from the API server's answer to the apply until the scrape that shows it, so the
polling interval (a few milliseconds) is included. The peer is a bare watch of the rules in this process: the API server's own
part.

    python -m benchmarks.taint_latency --nodes 200 --rules 300
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import structlog

from benchmarks.operator_scale import OperatorProcess, a_cluster, an_operator, fill_node, in_parallel, say
from benchmarks.table import Row, tell
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.discovery import discover
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule

TARGET_P99_S = 0.2


async def main() -> int:
    """Run the benchmark; 0 when the target is met."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rules", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with a_cluster(Path(folder)) as (plane, client):
            await in_parallel([fill_node(client, i, options.gpus) for i in range(options.nodes)], 32)
            say(f"{options.nodes} nodes x {options.gpus} GPUs created")
            async with an_operator(plane, Path(folder)) as operator:
                await operator.until_ready(60)
                measured = await measure(client, operator, options.nodes, options.rules)
    p99_s, bare_p99_s = p99(measured.operator_s), p99(measured.watch_s)
    median_s, bare_s = statistics.median(measured.operator_s), statistics.median(measured.watch_s)
    rows = [
        Row("taint rule applied to counted, p50", ms(median_s), f"bare watch {ms(bare_s)}", "-", met=True),
        Row(
            "taint rule applied to counted, p99",
            ms(p99_s),
            f"bare watch {ms(bare_p99_s)}",
            f"<= {ms(TARGET_P99_S)}",
            p99_s <= TARGET_P99_S,
        ),
    ]
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


class Measured(NamedTuple):
    """Seconds from applied to seen, one entry a rule."""

    operator_s: list[float]
    watch_s: list[float]


def p99(seconds: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(seconds, n=100)[98]


def ms(seconds: float) -> str:
    """For people."""
    return f"{seconds * 1000:.1f} ms"


async def measure(client: Client, operator: OperatorProcess, nodes: int, rules: int) -> Measured:
    """Apply this many rules one after the other, time each, and delete it again."""
    kind = (await discover(client)).taint_rules
    if kind is None:
        raise RuntimeError("this API server does not serve DeviceTaintRule")
    seen: defaultdict[str, asyncio.Future[float]] = defaultdict(asyncio.get_running_loop().create_future)
    watch = Informer(client, kind, clock=SystemClock())

    def note(change: Change[DeviceTaintRule]) -> None:
        if not seen[change.key.name].done():
            seen[change.key.name].set_result(time.monotonic())

    watch.subscribe(note)
    watching = asyncio.create_task(watch.run())
    await watch.synced.wait()
    measured = Measured([], [])
    for number in range(rules):
        name = f"rule-{number:05}"
        selector = {"driver": "gpu.nvidia.com", "pool": f"node-{number % nodes:05}", "device": "gpu-0"}
        spec = {"deviceSelector": selector, "taint": {"key": "example.com/benchmark", "effect": "NoSchedule"}}
        await client.apply(kind, ObjectKey("", name), {"spec": spec}, manager="benchmark")
        applied = time.monotonic()
        shown = f'draco_taint_rule_devices{{effect="NoSchedule",rule="{name}"}} 1.0'
        while shown not in await operator.scrape("?name[]=draco_taint_rule_devices"):
            if time.monotonic() - applied > 10:
                raise TimeoutError(f"{name} was not counted within 10 s")
        measured.operator_s.append(time.monotonic() - applied)
        async with asyncio.timeout(10):  # the operator may have seen it first
            measured.watch_s.append(max(0.0, await seen[name] - applied))
        await client.delete(kind, ObjectKey("", name))
    watching.cancel()
    await asyncio.wait({watching})
    return measured


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
