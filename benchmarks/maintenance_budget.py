"""Hundreds of maintenances at once under one budget: whether it is ever exceeded, and how soon all are done.

Creates Nodes and ResourceSlices on a real API server, starts `draco operator` as a process, and requests all maintenances
together, each for another GPU. A worker does work of known length on each: it sets spec.finished this long after it saw
InMaintenance. After each change that a watch of the taint rules reports, the observer of the chaos tests, which shares no code
with Draco, counts the GPUs out of service: no state between two samples is missed, and a GPU counts until its last rule is gone.

The least possible time is that of the works of one of the budget's slots, one after the other, each with the time that a single
request takes on this cluster: from its creation to InMaintenance, and from spec.finished until its rule is gone.

    python -m benchmarks.maintenance_budget --nodes 1000 --requests 500 --at-once 50 --work-s 10
"""

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from benchmarks.operator_scale import a_cluster, an_operator, fill_node, in_parallel, say, until
from benchmarks.table import Row, tell
from tests.adversary.cluster.cluster import access_of
from tests.adversary.cluster.observer.api import Access, Api, Gone
from tests.adversary.cluster.observer.budgets import OutOfService
from tests.adversary.cluster.observer.watching import KINDS
from tests.adversary.cluster.observer.world import Object, World

TARGET = 1.2
REQUESTS = KINDS["request"].paths[0]
BUDGETS = KINDS["budget"].paths[0]
ALONE = 7
ALONE_WITHIN_S = 60.0
KNOWN_S = 3.0
"""This long after it was written, everybody knows the budget."""


class Worker:
    """Works this long on each request that is InMaintenance, and counts what is out of service meanwhile."""

    def __init__(self, api: Api, world: World, *, work_s: float) -> None:
        self.out = OutOfService(world)
        self.work_s = work_s
        self.begun: dict[str, float] = {}
        self.phases: dict[str, str] = {}
        self.samples = 0
        self._api = api
        self._rules: dict[str, Object] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def watch_requests(self, since: str) -> None:
        """Watch the requests, and start work on those whose devices are free."""
        async for _, one in _changes(self._api, REQUESTS, since):
            name, phase = one["metadata"]["name"], str((one.get("status") or {}).get("phase"))
            self.phases[name] = phase
            if phase == "InMaintenance" and name not in self.begun:
                self.begun[name] = time.monotonic()
                task = asyncio.create_task(self._work(name))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def watch_rules(self, path: str, since: str) -> None:
        """Count after each change of a rule."""
        async for type_, one in _changes(self._api, path, since):
            uid = one["metadata"]["uid"]
            before, after = self._rules.get(uid), None if type_ == "DELETED" else one
            self.out.changed(before, after)
            self.samples += 1
            if after is None:
                self._rules.pop(uid, None)
            else:
                self._rules[uid] = after

    async def _work(self, name: str) -> None:
        await asyncio.sleep(self.work_s)
        answer = await self._api.call("PATCH", f"{REQUESTS}/{name}", {"spec": {"finished": True}})
        if not answer.ok:
            raise RuntimeError(f"{name} could not be finished: {answer.body}")

    def is_over(self, names: set[str]) -> bool:
        """Whether these are completed and nothing is out of service."""
        return not self.out.gpus and all(self.phases.get(name) == "Completed" for name in names)


async def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--work-s", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with a_cluster(Path(folder)) as (plane, client):
            await in_parallel([fill_node(client, number, options.gpus) for number in range(options.nodes)], 32)
            say(f"{options.nodes} nodes x {options.gpus} GPUs created")
            async with an_operator(plane, Path(folder)) as operator:
                await operator.until_ready(120)
                await operator.until_said("kopf.loaded", 60)
                async with a_worker(access_of(plane), options.work_s) as (api, worker):
                    rows = await measure(api, worker, options)
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


async def measure(api: Api, worker: Worker, options: argparse.Namespace) -> list[Row]:
    """One request alone, several times, and then all together."""
    alone_s = []
    for number in range(ALONE):
        began = time.monotonic()
        name = f"alone-{number}"
        await ask(api, name, options.nodes - 1 - number, options.gpus)
        await until(lambda name=name: _true(worker.is_over({name})), ALONE_WITHIN_S + worker.work_s)  # type: ignore[misc]
        alone_s.append(time.monotonic() - began - worker.work_s)
    round_s = worker.work_s + statistics.median(alone_s)
    say(f"alone, without the work of {worker.work_s:g} s: {' '.join(f'{each:.2f}' for each in alone_s)} s")
    budget = {"apiVersion": "draco.dev/v1alpha1", "kind": "MaintenanceBudget", "metadata": {"name": "benchmark"}}
    written = await api.call("POST", BUDGETS, {**budget, "spec": {"maxDevices": options.at_once}})
    if not written.ok:
        raise RuntimeError(f"the budget was refused: {written.body}")
    await asyncio.sleep(KNOWN_S)
    worker.out.most = worker.samples = 0
    rounds = math.ceil(options.requests / options.at_once)
    names = {f"many-{number:05}" for number in range(options.requests)}
    began = time.monotonic()
    await in_parallel([ask(api, name, number, options.gpus) for number, name in enumerate(sorted(names))], 64)
    say(f"{options.requests} requests written in {time.monotonic() - began:.1f} s")
    await until(lambda: _true(worker.is_over(names)), 5 * rounds * round_s + 60.0, pause_s=0.05)
    took_s, least_s = time.monotonic() - began, rounds * round_s
    known = f"{options.requests} maintenances at once, {options.nodes} nodes x {options.gpus} GPUs"
    least = f"{rounds} rounds of {worker.work_s:g} s work + {round_s - worker.work_s:.2f} s alone = {least_s:.0f} s"
    return [
        Row(
            f"most GPUs out of service, {known}",
            f"{worker.out.most}",
            f"{worker.samples} changes of rules watched",
            f"<= {options.at_once}",
            0 < worker.out.most <= options.at_once,
        ),
        Row(
            f"until all are done, {known}",
            f"{took_s:.0f} s = {took_s / least_s:.2f}x ({took_s / rounds / worker.work_s:.2f}x of the works alone)",
            least,
            f"<= {TARGET:g}x",
            took_s <= TARGET * least_s,
        ),
    ]


async def ask(api: Api, name: str, number: int, gpus: int) -> None:
    """Ask for a GPU of the node with this number."""
    selector = {"driver": "gpu.nvidia.com", "pool": f"node-{number:05}", "device": f"gpu-{number % gpus}"}
    document = {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceMaintenance", "metadata": {"name": name}}
    spec = {"deviceSelector": selector, "reason": "benchmark", "verification": {"mode": "Person"}}
    answer = await api.call("POST", REQUESTS, {**document, "spec": spec}, timeout_s=60.0)
    if not answer.ok:
        raise RuntimeError(f"{name} was refused: {answer.body}")


@asynccontextmanager
async def a_worker(access: Access, work_s: float) -> AsyncIterator[tuple[Api, Worker]]:
    """A worker that has seen what is published, and watches."""
    async with Api(access) as api, asyncio.TaskGroup() as tasks:
        world = World()
        for one in (await api.call("GET", KINDS["slice"].paths[0], timeout_s=60.0)).body["items"]:
            world.names.learn(one)
        worker = Worker(api, world, work_s=work_s)
        rules = await _served(api, KINDS["rule"].paths)
        watches = [
            tasks.create_task(worker.watch_requests(await _revision(api, REQUESTS))),
            tasks.create_task(worker.watch_rules(rules, await _revision(api, rules))),
        ]
        yield api, worker
        for each in watches:
            each.cancel()


async def _served(api: Api, paths: tuple[str, ...]) -> str:
    for path in paths:
        if (await api.call("GET", f"{path}?limit=1")).ok:
            return path
    raise RuntimeError(f"this API server serves none of {', '.join(paths)}")


async def _revision(api: Api, path: str) -> str:
    return str((await api.call("GET", f"{path}?limit=1")).body["metadata"]["resourceVersion"])


async def _changes(api: Api, path: str, since: str) -> AsyncIterator[tuple[str, Object]]:
    """Every change since a revision, without a gap: a watch that ends goes on from the last revision that it told."""
    while True:
        try:
            async for type_, one in api.watch(path, since):
                since = one["metadata"]["resourceVersion"]
                if type_ != "BOOKMARK":
                    yield type_, one
        except Gone as gone:
            if str(gone) != "ended":
                raise RuntimeError(f"the watch of {path} was lost: {gone}") from gone


async def _true(value: bool) -> bool:
    return value


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
