"""Whether Draco's operator accepts as many MIG claims on a real API server as the replay of its rule predicts.

Two nodes with eight GPUs each, published in every partition as GPUs that are handed over to Draco, and `draco operator` as the
chart's account. The claims of a stream come and go one by one; one for which the operator finds no place is deleted. The same
stream is replayed with the rule alone, which `benchmarks.mig` calls `operator`, and with the rule of a scheduler that takes
devices by name.

    python -m benchmarks.mig_operator --claims 2000
"""

import argparse
import asyncio
import heapq
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.allocating_cluster import allocating, end, published_as_dracos
from benchmarks.mig_scheduler import DRIVER, GPUS_PER_NODE, NODE_NAMES, Node, ready_node, replayed
from benchmarks.mig_streams import Arrival, arrivals
from benchmarks.operator_scale import OperatorProcess, a_cluster, say
from benchmarks.table import Row, tell
from draco.agent.publish import partitions, slices
from draco.agent.publish.slices import Publisher
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.mig.replay import Policy
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES, SLICES
from draco.resources.names import NVIDIA_DRIVER
from draco_local.cluster.controlplane import APISERVER, ETCD
from tests.component.allocation.lab import ALLOCATE, ChartParts

CLAIMS_TRIED, MIX, LOAD, SEED = 2_000, "uniform", 0.8, 1000
LEEWAY = 0.3
"""Percentage points between what is accepted and what the replay accepts."""
CLASS = "mig.draco.dev"
WITHIN_S = 30.0
POLICY = {"mode": "Dynamic", "allocator": "Operator"}


class OperatorsAnswers:
    """The operator's decisions on claims: devices, from a watch, or no place, from its log."""

    def __init__(self, client: Client, operator: OperatorProcess) -> None:
        self.informer: Informer[ResourceClaim] = Informer(client, CLAIMS, clock=SystemClock())
        self._operator = operator
        self._read = 0
        self._refused: set[str] = set()

    async def accepted(self, name: str) -> bool:
        """Whether the claim got a device, once that is decided."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                claim = self.informer.store.get(ObjectKey("default", name))
                if claim is not None and claim.status.allocation is not None:
                    return True
                self._look()
                if f"default/{name}" in self._refused:
                    return False
                await asyncio.sleep(0.002)

    def _look(self) -> None:
        lines = self._operator.log_from(self._read)
        self._read += len(lines)
        for line in lines.splitlines():
            if b'"allocation.no_place"' in line:
                self._refused.update(json.loads(line)["claims"])


async def main() -> int:
    """Run the stream, and say whether as many claims were accepted as the rule accepts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=CLAIMS_TRIED)
    number = parser.parse_args().claims
    gpus = len(NODE_NAMES) * GPUS_PER_NODE
    stream = arrivals(MIX, SEED, gpus=gpus, load=LOAD, number=number)
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        accepted = 100 * await run(Path(folder), stream) / number
    rule, named = (100 * replayed(stream, each, gpus) / number for each in (Policy.OPERATOR, Policy.SCHEDULER_1_36))
    row = Row(
        f"MIG claims of {number:,} accepted by the operator on an API server, load {LOAD:g}",
        f"{accepted:.2f} %, {accepted - rule:+.2f} points beside the replay of its rule",
        f"{rule:.2f} % in the replay; {named:.2f} % for devices by name",
        f"within {LEEWAY:g} points of the replay",
        abs(accepted - rule) <= LEEWAY,
    )
    tell(row)
    return 0 if row.met else 1


async def run(folder: Path, stream: Sequence[Arrival]) -> int:
    """How many claims of the stream the operator accepts."""
    async with a_cluster(folder, [ETCD, APISERVER]) as (plane, client):
        ChartParts(plane, ALLOCATE).install()
        for name in NODE_NAMES:
            await publish(client, name)
        gpus = len(NODE_NAMES) * GPUS_PER_NODE
        async with allocating(plane, client, folder, gpus, POLICY) as operator:
            answers = OperatorsAnswers(client, operator)
            watching = asyncio.create_task(answers.informer.run())
            try:
                await answers.informer.synced.wait()
                return await replay(client, answers, stream)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)


async def replay(client: Client, answers: OperatorsAnswers, stream: Sequence[Arrival]) -> int:
    """The claims come and go in the order of the stream."""
    leaving: list[tuple[float, str]] = []
    accepted = 0
    for index, claim in enumerate(stream):
        while leaving and leaving[0][0] <= claim.at:
            await end(client, ObjectKey("default", heapq.heappop(leaving)[1]))
        name = f"claim-{index:05}"
        await ask(client, name, claim.profile.name)
        if await answers.accepted(name):
            accepted += 1
            heapq.heappush(leaving, (claim.until, name))
        else:
            await end(client, ObjectKey("default", name))
        if index % 500 == 499:
            say(f"{accepted} of {index + 1} accepted")
    return accepted


async def ask(client: Client, name: str, profile: str) -> None:
    """A claim for one partition."""
    expression = f"device.attributes['{NVIDIA_DRIVER}'].profile == '{profile}'"
    exactly = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": expression}}]}
    spec = {"devices": {"requests": [{"name": "mig", "exactly": exactly}]}}
    await client.create(CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def publish(client: Client, name: str) -> None:
    """A node, all of whose GPUs are published in every partition as handed over, and what its agent would report of them."""
    uid = await ready_node(client, name)
    node = Node(name, partitions.order)
    gpus = node.divisible()
    devices = [published_as_dracos(each) for each in partitions.devices(gpus, DRIVER, partitions.order(gpus))]
    publisher = Publisher(node=name, uid=uid, driver=NVIDIA_DRIVER)
    for one in slices.plan(devices, [], by=publisher, counters=partitions.counters(gpus)).create:
        await client.create(SLICES, one)
    await client.create(GPU_NODES, {"metadata": {"name": name}})
    seen = [{"device": f"gpu-{gpu.minor}", "uuid": gpu.uuid, "mig": {"capable": True}} for gpu in node.gpus]
    status = {"driver": NVIDIA_DRIVER, "gpus": seen}
    await client.patch(GPU_NODES, ObjectKey("", name), {"status": status}, subresource="status")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
