"""Whether a real scheduler does what the replays of MIG placement assume: `python -m benchmarks.mig_scheduler [--claims N]`.

Two nodes with eight GPUs each on a real API server and kube-scheduler. Claims come and go one by one; after each, the nodes
publish what the agent would: in one run in Draco's order, in another in the order of names, which never changes. A claim that the
scheduler calls unschedulable is deleted, as the replays refuse it.
"""

import argparse
import asyncio
import contextlib
import heapq
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.mig_streams import GRID, Arrival, arrivals
from benchmarks.table import Row, tell
from draco.agent.hardware.gpus import DriverInfo, GpuMigView, HeldInstance, Instance, Use, device_name
from draco.agent.publish import partitions, slices
from draco.agent.publish.partitions import Divisible, Place, partition_name
from draco.agent.publish.slices import Publisher
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.mig.geometry import BoardPool, Choice, State, geometry
from draco.mig.replay import Policy, Replay, SimulatedFleet, rule_of
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, NODES, PODS, SLICES
from draco.resources.names import NVIDIA_DEVICE_CLASS, NVIDIA_DRIVER
from draco_local.cluster.controlplane import APISERVER, ETCD, SCHEDULER, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.builders import a_gpu

NODE_NAMES, GPUS_PER_NODE = ("node-0", "node-1"), 8
CLAIMS_TRIED, MIX, LOAD, SEED = 150, "uniform", 1.0, 1000
AS_PLANNED = 0.95
WITHIN_S = 60.0
DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")
Order = Callable[[Sequence[Divisible]], list[Place]]


def by_name(gpus: Sequence[Divisible]) -> list[Place]:
    """GPU by GPU, profile by profile, lowest start first: an order that does not depend on what is in use."""
    ascending = sorted(gpus, key=lambda each: each.gpu.minor)
    return [Place(gpu.uuid, placement) for gpu in ascending for placement in gpu.placements]


class Node:
    """One node's GPUs, and what claims hold of them."""

    def __init__(self, name: str, order: Order) -> None:
        self.name = name
        self.gpus = [a_gpu(minor) for minor in range(GPUS_PER_NODE)]
        self.held: dict[str, Choice] = {}
        self._order = order
        self._order_out: list[Place] = []

    def divisible(self) -> list[Divisible]:
        """The GPUs as the agent knows them."""
        return [self._divisible(minor) for minor in range(GPUS_PER_NODE)]

    def _divisible(self, minor: int) -> Divisible:
        gpu = self.gpus[minor]
        there = [choice.placement for choice in self.held.values() if choice.gpu == minor]
        held = tuple(
            HeldInstance(
                instance=Instance(gpu=gpu.uuid, gi=gi, profile_id=p.profile.id, start=p.start, size=p.profile.size),
                use=Use.CLAIM,
            )
            for gi, p in enumerate(there)
        )
        mig = GpuMigView(gpu=gpu.uuid, board=GRID, held=held)
        return Divisible(gpu=gpu, mig=mig, board=GRID, whole=False)

    async def publish(self, client: Client, uid: str) -> None:
        """Write the slices that have changed; the order only when it matters."""
        gpus = self.divisible()
        if partitions.better(self._order_out, gpus) is not None:
            self._order_out = self._order(gpus)
        devices = partitions.devices(gpus, DRIVER, self._order_out)
        observed = [one for one in await client.list(SLICES) if one.spec.node_name == self.name]
        publisher = Publisher(node=self.name, uid=uid, driver=NVIDIA_DRIVER)
        plan = slices.plan(devices, observed, by=publisher, counters=partitions.counters(gpus))
        for one in plan.replace:
            await client.replace(SLICES, one.metadata.key, one)
        for one in plan.create:
            await client.create(SLICES, one)

    def place(self, device: str) -> Choice:
        """The placement that a device's name stands for."""
        for minor, gpu in enumerate(self.gpus):
            for placement in GRID.placements:
                if partition_name(device_name(gpu), placement) == device:
                    return Choice(minor, placement)
        raise LookupError(device)

    def is_best(self, choice: Choice) -> bool:
        """Whether no other place would have less capability loss, by the rule that orders devices."""
        states = [gpu.state for gpu in self.divisible()]
        best = BoardPool(geometry(GRID), states).choose(choice.placement.profile)
        return best is not None and _cost(states, choice) == _cost(states, best)


def _cost(states: Sequence[State], choice: Choice) -> tuple[int, ...]:
    ranked = geometry(GRID).rank(states[choice.gpu], choice.placement)
    return ranked.loss, ranked.minus_instances, ranked.units_left


class Outcome(NamedTuple):
    """Of one run: claims accepted, and how many of them got a place that costs least."""

    accepted: int
    as_planned: int


async def main() -> int:
    """Run both orders, and say whether the scheduler did as planned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=CLAIMS_TRIED)
    number = parser.parse_args().claims
    gpus = len(NODE_NAMES) * GPUS_PER_NODE
    stream = arrivals(MIX, SEED, gpus=gpus, load=LOAD, number=number)
    steered, named = [await run(stream, order) for order in (partitions.order, by_name)]
    expected = [replayed(stream, policy, gpus) for policy in (Policy.STEERED, Policy.SCHEDULER_1_36)]
    share = steered.as_planned / steered.accepted
    row = Row(
        f"MIG claims of {number} accepted by kube-scheduler, devices in Draco's order",
        f"{steered.accepted}, {share:.0%} of them where planned",
        f"{named.accepted} with devices by name; replays say {expected[0]} and {expected[1]}",
        f">= by name, >= {AS_PLANNED:.0%} where planned",
        steered.accepted >= named.accepted and share >= AS_PLANNED,
    )
    tell(row)
    return 0 if row.met else 1


def replayed(stream: Sequence[Arrival], policy: Policy, gpus: int) -> int:
    """How many claims the replay accepts."""
    made = Replay(SimulatedFleet(geometry(GRID), gpus, GPUS_PER_NODE), rule_of(policy, lambda _: 0))
    for index, claim in enumerate(stream):
        for name in [str(i) for i in range(index) if stream[i].until <= claim.at and made.holds(str(i))]:
            made.depart(name, claim.at)
        made.arrive(str(index), claim.profile, claim.at)
    return made.results.accepted


async def run(stream: Sequence[Arrival], order: Order) -> Outcome:
    """The stream on a cluster of its own."""
    async with cluster() as client:
        uids = {name: await ready_node(client, name) for name in NODE_NAMES}
        nodes = {name: Node(name, order) for name in NODE_NAMES}
        for node in nodes.values():
            await node.publish(client, uids[node.name])
        leaving: list[tuple[float, str, str]] = []
        accepted = as_planned = 0
        for index, claim in enumerate(stream):
            changed = set()
            while leaving and leaving[0][0] <= claim.at:
                _, name, where = heapq.heappop(leaving)
                await gone(client, name)
                del nodes[where].held[name]
                changed.add(where)
            for where in sorted(changed):
                await nodes[where].publish(client, uids[where])
            name = f"claim-{index:05}"
            found = await _scheduled(client, name, claim.profile.name)
            if found is None:
                await gone(client, name)
                continue
            where, device = found
            choice = nodes[where].place(device)
            accepted += 1
            as_planned += nodes[where].is_best(choice)
            nodes[where].held[name] = choice
            heapq.heappush(leaving, (claim.until, name, where))
            await nodes[where].publish(client, uids[where])
        return Outcome(accepted, as_planned)


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Client]:
    """An API server with a scheduler, and nothing else that acts."""
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        plane = ControlPlane(Path(folder) / "cluster", Settings(programs=binaries.find(ETCD, APISERVER, SCHEDULER)))
        try:
            await asyncio.to_thread(plane.start)
            async with Client(await connect(plane.kubeconfig)) as client:
                await client.create(DEVICE_CLASSES, _device_class())
                account = {"metadata": {"name": "default", "namespace": "default"}}
                await client.connection.request(
                    "POST", "/api/v1/namespaces/default/serviceaccounts", body=msgspec.json.encode(account)
                )
                yield client
        finally:
            await asyncio.to_thread(plane.destroy)


def _device_class() -> dict[str, Any]:
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA_DRIVER}'"}}
    return {"metadata": {"name": NVIDIA_DEVICE_CLASS}, "spec": {"selectors": [selector]}}


async def ready_node(client: Client, name: str) -> str:
    """A node that pods may run on; its UID."""
    labels = {"kubernetes.io/hostname": name}
    made = await client.create(NODES, {"metadata": {"name": name, "labels": labels}})
    resources = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    conditions = [{"type": "Ready", "status": "True", "reason": "Simulated", "message": "There is no kubelet."}]
    status = {"capacity": resources, "allocatable": resources, "conditions": conditions}
    await client.patch(NODES, ObjectKey("", name), {"status": status}, subresource="status")
    await client.patch(NODES, ObjectKey("", name), {"spec": {"taints": None}})  # not-ready: nothing else removes it
    return made.metadata.uid


async def _scheduled(client: Client, name: str, profile: str) -> tuple[str, str] | None:
    """Node and device a new claim gets; None if the scheduler finds none."""
    expression = f"device.attributes['{NVIDIA_DRIVER}'].profile == '{profile}'"
    exactly = {"deviceClassName": NVIDIA_DEVICE_CLASS, "selectors": [{"cel": {"expression": expression}}]}
    metadata = {"name": name, "namespace": "default"}
    spec = {"devices": {"requests": [{"name": "mig", "exactly": exactly}]}}
    await client.create(CLAIMS, {"metadata": metadata, "spec": spec})
    pod = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "mig"}]}}],
        "resourceClaims": [{"name": "mig", "resourceClaimName": name}],
    }
    key = ObjectKey("default", name)
    await client.create(PODS, {"metadata": metadata, "spec": pod})
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = await client.get(PODS, key)
            if found.spec.node_name:
                break
            if any(each.type == "PodScheduled" and each.reason == "Unschedulable" for each in found.status.conditions):
                return None
            await asyncio.sleep(0.005)
    allocation = (await client.get(CLAIMS, key)).status.allocation
    assert allocation is not None
    return found.spec.node_name, allocation.devices.results[0].device


async def gone(client: Client, name: str) -> None:
    """Delete pod and claim of this name; what kube-controller-manager would do in between is done here."""
    key = ObjectKey("default", name)
    await client.delete(PODS, key, grace_period_s=0)
    await client.patch(CLAIMS, key, {"status": {"reservedFor": None, "allocation": None}}, subresource="status")
    await client.patch(CLAIMS, key, {"metadata": {"finalizers": None}})
    await client.delete(CLAIMS, key)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
