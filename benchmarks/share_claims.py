"""Whether kube-scheduler ever gives claims more of shared GPUs than there is: `python -m benchmarks.share_claims [--claims N]`.

Nodes with one GPU each, published as the agent publishes it under a SharingPolicy of mode Memory, on a real API server and
kube-scheduler. All claims are created at once, for more memory than there is. When no pod has been bound for a second, a tenth of
the claims, the oldest, are released for those that wait. Every state of every claim in the API server's watch history is judged.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from benchmarks.mig_scheduler import DRIVER, cluster, gone, ready_node
from benchmarks.table import Row, tell
from draco.agent.publish import slices
from draco.agent.publish.slices import Publisher
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.sharing import SharedGpu, SharingMode
from draco.resources.kinds import CLAIMS, PODS, SLICES
from draco.resources.names import NVIDIA_DEVICE_CLASS, NVIDIA_DRIVER
from draco.sharing.terms import as_shareable, terms_for
from tests.builders import a_gpu
from tests.commitments import overcommitted

CLAIMS_TRIED, NODES, SEED = 1000, 100, 40
FULL_AFTER_S = 1.0
WITHIN_S = 60.0
AT_ONCE = 32
FORM = SharedGpu(uuid="", policy="shares", mode=SharingMode.MEMORY, step="1Gi")
GPU = slices.device(a_gpu(), DRIVER)
MEMORY = GPU.capacity["memory"].value


class History:
    """Judges each state of the claims as it arrives."""

    def __init__(self, claims: Informer[ResourceClaim]) -> None:
        self.states = 0
        self.released = 0
        self.changed = asyncio.Event()
        self.wrong: set[str] = set()
        self._held: dict[str, dict[str, DeviceRequestAllocationResult]] = {}  # by pool, then by claim
        claims.subscribe(self._follow)

    def _follow(self, change: Change[ResourceClaim]) -> None:
        self.states += 1
        name = change.key.name
        before, after = (each.results if each is not None else () for each in (change.before, change.after))
        self.released += bool(before) and not after
        self.changed.set()
        for result in before:
            self._held[result.pool].pop(name, None)
        for result in after:
            held = self._held.setdefault(result.pool, {})
            held[name] = result
            self.wrong.update(
                overcommitted({claim: [msgspec.to_builtins(each)] for claim, each in held.items()}, {"memory": MEMORY})
            )


async def main() -> int:
    """Place and release the claims, and say whether a GPU was ever over-committed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=CLAIMS_TRIED)
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args()
    async with cluster() as client:
        for number in range(options.nodes):
            await _publish(client, f"node-{number:03}")
        placed, took_s, history = await _churn(client, options.claims)
    row = Row(
        f"{options.claims} claims for shares of {options.nodes} GPUs",
        f"{placed} placed, {history.released} released in {took_s:.0f} s; {len(history.wrong)} over-commitments in "
        f"{history.states} states",
        "-",
        "all placed and released, 0 over-commitments",
        placed == history.released == options.claims and not history.wrong,
    )
    for each in sorted(history.wrong)[:10]:
        print(each, file=sys.stderr)
    tell(row)
    return 0 if row.met else 1


async def _publish(client: Client, name: str) -> None:
    uid = await ready_node(client, name)
    devices = [as_shareable(GPU, terms_for(FORM, GPU))]
    for one in slices.plan(devices, [], by=Publisher(node=name, uid=uid, driver=NVIDIA_DRIVER)).create:
        await client.create(SLICES, one)


async def _churn(client: Client, number: int) -> tuple[int, float, History]:
    """Place the claims and release them; how many were placed, how long that took, and what was seen."""
    claims, pods = (Informer(client, kind, clock=SystemClock()) for kind in (CLAIMS, PODS))
    history, bound = History(claims), asyncio.Queue[str]()

    def follow(change: Change[Pod]) -> None:
        was_bound = change.before is not None and bool(change.before.spec.node_name)
        if change.after is not None and change.after.spec.node_name and not was_bound:
            bound.put_nowait(change.key.name)

    pods.subscribe(follow)
    started = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        watching = [tasks.create_task(each.run()) for each in (claims, pods)]
        await claims.synced.wait()
        await pods.synced.wait()
        asking = tasks.create_task(_ask(client, number))
        held: deque[str] = deque()
        placed = 0
        while placed < number:
            try:
                held.append(await asyncio.wait_for(bound.get(), FULL_AFTER_S))
                placed += 1
            except TimeoutError:
                for _ in range(len(held) // 10):
                    await gone(client, held.popleft())
        await asking
        for name in held:
            await gone(client, name)
        async with asyncio.timeout(WITHIN_S):
            while history.released < placed:
                history.changed.clear()
                await history.changed.wait()
        took_s = time.monotonic() - started
        for each in watching:
            each.cancel()
    return placed, took_s, history


async def _ask(client: Client, number: int) -> None:
    chance, at_once = random.Random(SEED), asyncio.Semaphore(AT_ONCE)

    async def ask(name: str, memory: int) -> None:
        async with at_once:
            await _claim_and_pod(client, name, memory)

    async with asyncio.TaskGroup() as tasks:
        for name in _names(number):
            tasks.create_task(ask(name, chance.randint(5, 15)))


def _names(number: int) -> Iterator[str]:
    return (f"claim-{index:05}" for index in range(number))


async def _claim_and_pod(client: Client, name: str, memory: int) -> None:
    exactly = {"deviceClassName": NVIDIA_DEVICE_CLASS, "capacity": {"requests": {"memory": f"{memory}Gi"}}}
    metadata = {"name": name, "namespace": "default"}
    await client.create(
        CLAIMS, {"metadata": metadata, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    )
    pod = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    await client.create(PODS, {"metadata": metadata, "spec": pod})


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
