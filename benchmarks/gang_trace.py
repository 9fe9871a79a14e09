"""How long gangs wait, and how many GPUs are idle meanwhile: with Draco, and with kube-scheduler's GangScheduling, on one trace.

One real API server and kube-scheduler with the feature gates of PodGroups. Jobs arrive at random, from one GPU to gangs of 64.
The pods of some gangs have a claim for one GPU each; those of the others, as in most training, for all GPUs of a node
(--whole-nodes). A job runs for a time of its own after its last pod is bound, and is then deleted. The same jobs arrive at the
same times twice: first the scheduler allocates their claims, then Draco does. The trace is replayed in seconds; a second may
stand for any time that is long compared to a decision. Because time is compressed, the scheduler's backoff is, too: at most 1 s
instead of 10 s. Both runs use the same scheduler. Pods that wait for Draco have its scheduling gate, as its documentation
advises.

A GPU is idle if no running job has it while a gang waits: also if a gang holds it that lacks some of its pods.

Which gang gets free GPUs decides how long all later ones wait, so a tenth of a second changes both figures by a tenth or more, in
either direction. So there are several long traces (--seeds): with a hundred jobs, the cluster fills and empties for much of the
time, when a queue has almost nothing to decide. Each takes 25 minutes.

    python -m benchmarks.gang_trace --nodes 16 --jobs 300 --seeds 1 2 3
"""

import argparse
import asyncio
import functools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from benchmarks.allocating_cluster import OPERATORS_CLASS, add_claim, clear, end, handed_over, publish_for_the_scheduler
from benchmarks.operator_scale import a_cluster, in_parallel, say
from benchmarks.table import Row, tell
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import POD_GROUPS, PODS
from draco.resources.names import NVIDIA_DEVICE_CLASS, SCHEDULING_GATE
from draco_local.cluster.controlplane import APISERVER, ETCD, SCHEDULER
from tests.component.allocation.lab import ALLOCATE

GPUS = 8
SIZES = {1: 50, 8: 20, 16: 15, 32: 10, 64: 5}
"""GPUs of a job, and the percentage of jobs with that many."""
MEAN_S, LOAD = 20.0, 0.9
OVERDUE_S = 20 * MEAN_S
"""After this time GPUs are kept for the first gang in the queue, although they are idle until it has all that it needs."""
GANG = 8
"""From this size on a job is a gang; smaller jobs need no group."""
WHOLE_NODES = 0.5
"""The part of the gangs whose pods ask for all GPUs of a node each."""
AT_ONCE = 32
WITHIN_S = 900.0
"""After the last job has come."""
GATES = ("--feature-gates", "GenericWorkload=true,GangScheduling=true,DRAWorkloadResourceClaims=true")
FLAGS = {APISERVER: (*GATES, "--runtime-config", "scheduling.k8s.io/v1alpha2=true"), SCHEDULER: GATES}
BACKOFF_S = 1
CHART = (*ALLOCATE, "--api-versions", "scheduling.k8s.io/v1alpha2/PodGroup")
Found = TypeVar("Found")
POD_GROUP = next(kind for kind in POD_GROUPS if kind.version == "v1alpha2")


class Job(NamedTuple):
    """When it arrives, how many GPUs it asks for, how long it runs, and how many GPUs each of its pods has."""

    name: str
    at_s: float
    size: int
    lasts_s: float
    pod_gpus: int = 1

    @property
    def pods(self) -> list[str]:
        """The names of its pods, and of their claims."""
        return [f"{self.name}-{number}" for number in range(self.size // self.pod_gpus)]


class Wait(NamedTuple):
    """How long a gang waited, and for how many GPUs."""

    s: float
    gpus: int


class Outcome(NamedTuple):
    """The outcome of one or several traces."""

    waits: list[Wait]
    idle_gpu_s: float
    lasted_s: float
    unstarted: int
    load: float

    @property
    def mean_wait_s(self) -> float:
        """Of the gangs that started, and of the others until the end of the trace."""
        return statistics.fmean(wait.s for wait in self.waits)

    @property
    def mean_gpu_wait_s(self) -> float:
        """The same for each of their GPUs: a large gang that waits has more work undone."""
        return sum(wait.s * wait.gpus for wait in self.waits) / sum(wait.gpus for wait in self.waits)

    @property
    def longest_wait_s(self) -> float:
        """Of the same gangs: a short mean is worth little if a gang starves."""
        return max(wait.s for wait in self.waits)

    def __str__(self) -> str:
        return (
            f"gangs waited {self.mean_wait_s:.1f} s in the mean, {self.longest_wait_s:.1f} s at most, by GPU "
            f"{self.mean_gpu_wait_s:.1f} s, {self.idle_gpu_s:.0f} GPU seconds idle meanwhile, {self.unstarted} not started "
            f"after {self.lasted_s:.0f} s (load average {self.load:.1f})"
        )


class Replay:
    """One run of the trace."""

    def __init__(self, client: Client, device_class: str, gpus: int) -> None:
        self._client = client
        self._class = device_class
        self._gpus = gpus
        self._bound: dict[str, asyncio.Event] = {}
        self._left: dict[str, int] = {}
        self._job_of: dict[str, str] = {}
        self._waiting = 0
        self._running = 0
        self._idle = 0.0
        self._since_s = time.monotonic()
        self.waits_s: dict[str, float] = {}
        self.informer: Informer[Pod] = Informer(client, PODS, clock=SystemClock())
        self.informer.subscribe(self._look)

    async def run(self, jobs: Sequence[Job]) -> Outcome:
        """Replay it, and delete what is left."""
        began_s = self._since_s = time.monotonic()
        tasks = [asyncio.create_task(self._live(job, began_s)) for job in jobs]
        await asyncio.wait(tasks, timeout=jobs[-1].at_s + WITHIN_S)
        for task in tasks:
            if task.done():
                task.result()
        lasted_s, unstarted = time.monotonic() - began_s, [task for task in tasks if not task.done()]
        self._change(0, 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gangs = [job for job in jobs if job.size >= GANG]
        waits = [Wait(self.waits_s.get(job.name, lasted_s - job.at_s), job.size) for job in gangs]
        return Outcome(waits, self._idle, lasted_s, len(unstarted), os.getloadavg()[0])

    async def _live(self, job: Job, began_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + job.at_s - time.monotonic()))
        is_gang, came_s = job.size >= GANG, time.monotonic()
        self._change(+is_gang, 0)
        try:
            bound = await self.begin(job)
            await bound.wait()
            if is_gang:
                self.waits_s[job.name] = time.monotonic() - came_s
            self._change(-is_gang, +job.size)
            is_gang = False
            await asyncio.sleep(job.lasts_s)
            self._change(0, -job.size)
        finally:
            if is_gang:
                self._change(-1, 0)
        await self.end(job)

    async def begin(self, job: Job) -> asyncio.Event:
        """Create its objects. The event is set when its last pod is bound."""
        bound = self._bound[job.name] = asyncio.Event()
        self._left[job.name] = len(job.pods)
        self._job_of |= dict.fromkeys(job.pods, job.name)
        if job.size >= GANG:
            await self._group(job)
        await in_parallel([self._begin(job, name) for name in job.pods], AT_ONCE)
        return bound

    async def end(self, job: Job) -> None:
        """Delete its pods and their claims."""
        await in_parallel([end(self._client, ObjectKey("default", name)) for name in job.pods], AT_ONCE)

    async def _group(self, job: Job) -> None:
        meta = {"name": job.name, "namespace": "default"}
        spec = {"schedulingPolicy": {"gang": {"minCount": len(job.pods)}}}
        await self._client.create(POD_GROUP, {"metadata": meta, "spec": spec})

    async def _begin(self, job: Job, name: str) -> None:
        spec: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            **({"schedulingGroup": {"podGroupName": job.name}} if job.size >= GANG else {}),
            **({"schedulingGates": [{"name": SCHEDULING_GATE}]} if self._class == OPERATORS_CLASS else {}),
        }
        pod = await self._client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        # As a template's: one that no pod owns is for Draco a claim of its own, not a gang's, until the watch tells of the pod.
        await add_claim(self._client, name, self._class, owner=pod, gpus=job.pod_gpus)

    def _look(self, change: Change[Pod]) -> None:
        pod = change.after
        if pod is None or not pod.spec.node_name or (change.before is not None and change.before.spec.node_name):
            return
        job = self._job_of.get(pod.metadata.name)
        if job is not None:
            self._left[job] -= 1
            if not self._left[job]:
                self._bound[job].set()

    def _change(self, waiting: int, running: int) -> None:
        now_s = time.monotonic()
        if self._waiting:
            self._idle += (self._gpus - self._running) * (now_s - self._since_s)
        self._since_s = now_s
        self._waiting += waiting
        self._running += running


def trace(number: int, gpus: int, prefix: str, seed: int, whole_nodes: float) -> list[Job]:
    """Jobs that arrive at random and ask for LOAD of all GPUs on average; the same for each `prefix` of their names.

    Their times are the same for any part of `whole_nodes`.
    """
    chance, shapes = random.Random(seed), random.Random(f"shapes {seed}")
    sizes, weights = list(SIZES), list(SIZES.values())
    mean_size = sum(size * weight for size, weight in SIZES.items()) / sum(weights)
    every_s = mean_size * MEAN_S / (LOAD * gpus)
    jobs, at_s = [], 0.0
    for index in range(number):
        at_s += chance.expovariate(1 / every_s)
        (size,) = chance.choices(sizes, weights)
        lasts_s, whole = chance.expovariate(1 / MEAN_S), shapes.random() < whole_nodes
        jobs.append(Job(f"{prefix}-{index}", at_s, min(size, gpus), lasts_s, GPUS if whole and size >= GANG else 1))
    return jobs


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of several traces, as if they were one."""
    return Outcome(
        [wait for each in outcomes for wait in each.waits],
        sum(each.idle_gpu_s for each in outcomes),
        sum(each.lasted_s for each in outcomes),
        sum(each.unstarted for each in outcomes),
        max(each.load for each in outcomes),
    )


async def with_each(
    folder: Path, nodes: int, measure: Callable[[Replay, str], Awaitable[Found]], *options: str
) -> tuple[Found, Found]:
    """Measure on an empty cluster where the scheduler allocates, then where an operator with these options does."""
    flags = FLAGS | {SCHEDULER: (*GATES, "--config", str(compressed(folder)))}
    async with a_cluster(folder, [ETCD, APISERVER, SCHEDULER], flags) as (plane, client):
        await publish_for_the_scheduler(plane, client, nodes, GPUS, CHART)

        async def measured(device_class: str, prefix: str, who: str) -> Found:
            replay = Replay(client, device_class, nodes * GPUS)
            watching = asyncio.create_task(replay.informer.run())
            try:
                await replay.informer.synced.wait()
                found = await measure(replay, prefix)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await clear(client)
            say(f"{who}: {found}")
            return found

        theirs = await measured(NVIDIA_DEVICE_CLASS, "theirs", "kube-scheduler with GangScheduling")
        async with handed_over(plane, client, folder, nodes, GPUS, *options):
            return theirs, await measured(OPERATORS_CLASS, "ours", "Draco")


def compressed(folder: Path) -> Path:
    """Write the scheduler's configuration, with its backoff compressed like the trace. Returns its file."""
    access = str(folder / "plane" / f"{SCHEDULER}.kubeconfig")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": access, "qps": 2000, "burst": 4000},
        "podInitialBackoffSeconds": BACKOFF_S,
        "podMaxBackoffSeconds": BACKOFF_S,
    }
    path = folder / "compressed.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


async def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one trace for each")
    parser.add_argument("--whole-nodes", type=float, default=WHOLE_NODES, help="the part of the gangs with such pods")
    parser.add_argument("--overdue", type=float, default=OVERDUE_S)
    options = parser.parse_args()

    async def replayed(replay: Replay, prefix: str, seed: int) -> Outcome:
        return await replay.run(trace(options.jobs, options.nodes * GPUS, prefix, seed, options.whole_nodes))

    found = []
    for seed in options.seeds:
        measure = functools.partial(replayed, seed=seed)
        with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
            found.append(await with_each(Path(folder), options.nodes, measure, "--overdue-after", str(options.overdue)))
    theirs, ours = map(together, zip(*found, strict=True))
    whole = f"{options.whole_nodes:.0%} of the gangs by whole nodes"
    shown = rows(theirs, ours, f"{len(found)} x {options.jobs} jobs on {options.nodes} nodes x {GPUS} GPUs, {whole}")
    tell(*shown)
    return 0 if all(row.met for row in shown) else 1


def rows(theirs: Outcome, ours: Outcome, known: str) -> list[Row]:
    """Draco's figures beside the scheduler's."""
    scheduler = "with kube-scheduler and GangScheduling"
    wait, idle = ours.mean_wait_s / theirs.mean_wait_s, ours.idle_gpu_s / max(theirs.idle_gpu_s, 1e-9)
    gpus = ours.mean_gpu_wait_s / theirs.mean_gpu_wait_s
    return [
        Row(
            f"mean wait of gangs of 8 to 64, {known}",
            f"{ours.mean_wait_s:.1f} s (longest {ours.longest_wait_s:.1f}), {wait:.2f} of the scheduler's",
            f"{theirs.mean_wait_s:.1f} s (longest {theirs.longest_wait_s:.1f}) {scheduler}",
            "below the scheduler's",
            wait < 1,
        ),
        Row(
            "the same by GPU, so that a large gang counts for more",
            f"{ours.mean_gpu_wait_s:.1f} s, {gpus:.2f} of the scheduler's",
            f"{theirs.mean_gpu_wait_s:.1f} s {scheduler}",
            "below the scheduler's",
            gpus < 1,
        ),
        Row(
            "GPU time idle while a gang waits, same trace",
            f"{ours.idle_gpu_s:.0f} GPU s, {idle:.2f} of the scheduler's",
            f"{theirs.idle_gpu_s:.0f} GPU s {scheduler}",
            "below the scheduler's",
            idle < 1,
        ),
    ]


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
