"""How soon claims are allocated, and how many a second: by Draco, and by kube-scheduler in the same run.

One real API server with a kube-scheduler, the controller that makes claims from templates, and the chart's admission policies.
First the nodes publish their GPUs for the scheduler, and pods are created, each with a claim for one GPU: one by one on an idle
cluster, then as fast as possible, until 95 % of the GPUs are in use. Their claims are made from a template, as nearly all are;
then the same is done with pods whose claims already exist. Then all of them are deleted, the same GPUs are published as agents
publish handed-over ones, `draco operator` takes them over as the chart's account, and identical claims without pods are created;
after them pods with a template, first without Draco's scheduling gate, then with the chart's webhook, which adds it. The
scheduler keeps running, as in a real cluster. The rate limits of Kubernetes' components are raised; Draco has none.

The time is that from the request that creates the pod or claim until a watch reports the allocation, or the node that the pod is
bound to.

    python -m benchmarks.claim_allocation --nodes 500 --gpus 8
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from benchmarks.allocating_cluster import (
    AT_ONCE,
    OPERATORS_CLASS,
    add_claim,
    add_pod,
    add_template,
    clear,
    gate_pods,
    handed_over,
    publish_for_the_scheduler,
)
from benchmarks.operator_scale import a_cluster, in_parallel, say
from benchmarks.table import Row, tell
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import ApiObject, Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.kinds import CLAIMS, PODS, Kind
from draco.resources.names import NVIDIA_DEVICE_CLASS
from draco_local.cluster import ports
from draco_local.cluster.controlplane import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from tests.component.chart.webhook import LocalWebhook

FILLED = 0.95
TARGET_P50, TARGET_P99, TARGET_RATE, TARGET_PODS = 0.5, 1.0, 1.5, 1.0
TARGET_BOUND_P50, TARGET_BOUND_P99 = 1.1, 1.3
TIMES = 200
WARM_UP = 10
PAUSE_S = 0.02
WITHIN_S = 900.0
MAKES_CLAIMS = "resourceclaim-controller"

T = TypeVar("T", bound=ApiObject)


class Figures(NamedTuple):
    """Of one allocator: seconds on an idle cluster, and how many a second while it fills."""

    idle_s: list[float]
    rate: float

    @property
    def p50_s(self) -> float:
        """The median."""
        return statistics.median(self.idle_s)

    @property
    def p99_s(self) -> float:
        """The 99th percentile."""
        return sorted(self.idle_s)[max(0, -(-len(self.idle_s) * 99 // 100) - 1)]

    def __str__(self) -> str:
        return f"{self.p50_s * 1000:.1f} and {self.p99_s * 1000:.1f} ms, {self.rate:.0f}/s"


class PodFigures(NamedTuple):
    """Until the claims of pods were allocated, and until the pods were bound."""

    allocated: Figures
    bound: Figures

    def __str__(self) -> str:
        return f"allocated {self.allocated}, bound {self.bound}"


class Measured(NamedTuple):
    """What was measured, in this order."""

    scheduler: PodFigures
    scheduler_made_before: PodFigures
    """With claims that existed before their pods."""
    draco: Figures
    """With claims that have no pods."""
    draco_ungated: PodFigures
    """Without Draco's scheduling gate."""
    draco_pods: PodFigures
    """As users create them: the webhook adds the gate."""


class Observer(Protocol):
    """When a watch reported what is waited for."""

    at_s: dict[str, float]

    async def until(self, enough: Callable[[], bool]) -> None:
        """Return when enough are there."""
        ...


class Watched(Generic[T]):
    """When the watch first reported it, by the name of the pod, or of a claim without one; `named` is "" before."""

    def __init__(self, client: Client, kind: Kind[T], named: Callable[[T], str]) -> None:
        self._informer: Informer[T] = Informer(client, kind, clock=SystemClock())
        self._informer.subscribe(self._look)
        self._named = named
        self.at_s: dict[str, float] = {}
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Watch until left."""
        watching = asyncio.create_task(self._informer.run())
        try:
            await self._informer.synced.wait()
            yield self
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _look(self, change: Change[T]) -> None:
        name = self._named(change.after) if change.after is not None else ""
        if name and name not in self.at_s:
            self.at_s[name] = time.monotonic()
            self._changed.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        """Return when enough are there."""
        async with asyncio.timeout(WITHIN_S):
            while not enough():
                self._changed.clear()
                await self._changed.wait()


def allocated(claim: ResourceClaim) -> str:
    """The pods whose claim is allocated."""
    if claim.status.allocation is None:
        return ""
    owner = claim.metadata.controller
    return owner.name if owner is not None else claim.metadata.name


def bound(pod: Pod) -> str:
    """The pods that are bound."""
    return pod.metadata.name if pod.spec.node_name else ""


async def nothing(_: str) -> None:
    """The preparation of what needs none."""


async def measure(
    observers: Sequence[Observer],
    prepare: Callable[[str], Awaitable[object]],
    begin: Callable[[str], Awaitable[object]],
    number: int,
) -> list[Figures]:
    """One by one first, and then all others at once; `number` in all. `prepare` is not measured."""
    began_s: dict[str, float] = {}

    async def started(name: str) -> None:
        began_s[name] = time.monotonic()
        await begin(name)

    async def all_seen(names: Sequence[str]) -> None:
        for observer in observers:
            await observer.until(lambda at_s=observer.at_s: all(name in at_s for name in names))  # type: ignore[misc]

    one_by_one = [f"idle-{each}" for each in range(min(TIMES, number // 4) + WARM_UP)]
    for name in one_by_one:
        await prepare(name)
        await asyncio.sleep(PAUSE_S)  # the effects of the preparation on others are over
        await started(name)
        await all_seen([name])
        await asyncio.sleep(PAUSE_S)
    at_once = [f"fill-{each}" for each in range(number - len(one_by_one))]
    await in_parallel([prepare(name) for name in at_once], AT_ONCE)
    await in_parallel([started(name) for name in at_once], AT_ONCE)
    await all_seen(at_once)
    first_s = min(began_s[name] for name in at_once)
    return [
        Figures(
            [each.at_s[name] - began_s[name] for name in one_by_one[WARM_UP:]],
            len(at_once) / (max(each.at_s[name] for name in at_once) - first_s),
        )
        for each in observers
    ]


async def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--filled", type=float, default=FILLED)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        measured = await run(Path(folder), options.nodes, options.gpus, options.filled)
    shown = rows(measured, f"{options.nodes} nodes x {options.gpus} GPUs", options.filled)
    tell(*shown)
    return 0 if all(row.met for row in shown) else 1


def rows(measured: Measured, known: str, filled: float = FILLED) -> list[Row]:
    """Draco's figures as parts and multiples of kube-scheduler's."""
    theirs, before, ours = measured.scheduler.allocated, measured.scheduler_made_before.allocated, measured.draco
    p99, rate = ours.p99_s / theirs.p99_s, ours.rate / theirs.rate
    return [
        _part(
            f"claim created until allocated by Draco, median, {known}, idle",
            ours.p50_s,
            theirs.p50_s,
            TARGET_P50,
            f"with kube-scheduler, from the pod ({before.p50_s * 1000:.1f} ms where its claim is there before)",
        ),
        Row(
            "the same, p99",
            f"{ours.p99_s * 1000:.1f} ms, {p99:.2f} of the scheduler's",
            f"{theirs.p99_s * 1000:.1f} ms with kube-scheduler, from the pod",
            f"<= {TARGET_P99:g} of the scheduler's",
            p99 <= TARGET_P99,
        ),
        Row(
            f"claims allocated while {filled:.0%} of the GPUs fill up, {known}",
            f"{ours.rate:.0f}/s, {rate:.2f} times the scheduler's",
            f"{theirs.rate:.0f}/s with kube-scheduler ({before.rate:.0f}/s where the claims are there before)",
            f">= {TARGET_RATE:g} times the scheduler's",
            rate >= TARGET_RATE,
        ),
        _part(
            "pod created until its claim from a template is allocated by Draco, median",
            measured.draco_pods.allocated.p50_s,
            theirs.p50_s,
            TARGET_PODS,
            "with kube-scheduler",
        ),
        _part(
            "pod created until bound where Draco allocates, median",
            measured.draco_pods.bound.p50_s,
            measured.scheduler.bound.p50_s,
            TARGET_BOUND_P50,
            f"with kube-scheduler ({measured.draco_ungated.bound.p50_s * 1000:.0f} ms with operator.gatePods=false)",
        ),
        _part(
            "the same, p99",
            measured.draco_pods.bound.p99_s,
            measured.scheduler.bound.p99_s,
            TARGET_BOUND_P99,
            f"with kube-scheduler ({measured.draco_ungated.bound.p99_s * 1000:.0f} ms with operator.gatePods=false)",
        ),
    ]


def _part(figure: str, ours_s: float, theirs_s: float, target: float, peer: str) -> Row:
    """A time that should be at most this part of the peer's."""
    part = ours_s / theirs_s
    return Row(
        figure,
        f"{ours_s * 1000:.1f} ms, {part:.2f} of the scheduler's",
        f"{theirs_s * 1000:.1f} ms {peer}",
        f"<= {target:g} of the scheduler's",
        part <= target,
    )


async def run(folder: Path, nodes: int, gpus: int, filled: float = FILLED) -> Measured:
    """All figures of kube-scheduler, and then Draco's."""
    number = int(filled * nodes * gpus)
    programs, flags = (
        [ETCD, APISERVER, SCHEDULER, CONTROLLER_MANAGER],
        {CONTROLLER_MANAGER: ("--controllers", MAKES_CLAIMS)},
    )
    async with a_cluster(folder, programs, flags) as (plane, client):
        await publish_for_the_scheduler(plane, client, nodes, gpus)
        for device_class in (NVIDIA_DEVICE_CLASS, OPERATORS_CLASS):
            await add_template(client, device_class)
        theirs = await of_pods(
            client, number, "kube-scheduler", lambda name: add_pod(client, name, NVIDIA_DEVICE_CLASS)
        )
        before = await of_pods(
            client,
            number,
            "kube-scheduler, with claims that are there before",
            lambda name: add_pod(client, name),
            lambda name: add_claim(client, name, NVIDIA_DEVICE_CLASS),
        )
        webhook, port = LocalWebhook(folder), ports.pick(taken=frozenset({plane.port}))
        async with handed_over(plane, client, folder, nodes, gpus, *webhook.options(port)):
            ours = await of_claims(client, number)
            ungated = await of_pods(
                client, number, "Draco, without the gate", lambda name: add_pod(client, name, OPERATORS_CLASS)
            )
            await gate_pods(client, webhook, port)
            pods = await of_pods(
                client, number, "Draco, with pods", lambda name: add_pod(client, name, OPERATORS_CLASS)
            )
    return Measured(theirs, before, ours, ungated, pods)


async def of_pods(
    client: Client,
    number: int,
    called: str,
    begin: Callable[[str], Awaitable[object]],
    prepare: Callable[[str], Awaitable[object]] = nothing,
) -> PodFigures:
    """Measured with pods."""
    async with (
        Watched(client, CLAIMS, allocated).running() as allocations,
        Watched(client, PODS, bound).running() as bindings,
    ):
        found = PodFigures(*await measure([allocations, bindings], prepare, begin, number))
    await done(client, called, found)
    return found


async def of_claims(client: Client, number: int) -> Figures:
    """Measured with claims that have no pods."""
    async with Watched(client, CLAIMS, allocated).running() as allocations:
        (found,) = await measure([allocations], nothing, lambda name: add_claim(client, name, OPERATORS_CLASS), number)
    await done(client, "Draco", found)
    return found


async def done(client: Client, called: str, found: object) -> None:
    """Print what was measured, and delete all pods and claims."""
    say(f"{called}: {found} (load average {os.getloadavg()[0]:.1f})")
    await clear(client)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
