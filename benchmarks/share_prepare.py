"""How long Prepare takes for a share of a GPU: `python -m benchmarks.share_prepare`.

One simulated node with its agent, on a real API server. Claims are written as allocated: half of them to a share of a GPU that a
SharingPolicy's form shares, half to a whole GPU, which are the peer. Measures each call of NodePrepareResources over the agent's
own socket, alternately, and unprepares the claim again.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import grpc.aio

from benchmarks.table import Row, tell
from draco.agent.plugin.api import dra_v1_pb2
from draco.agent.plugin.wire import DRA_V1, unary
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device
from draco.resources.kinds import CLAIMS, GPU_NODES, SLICES
from draco.resources.names import NVIDIA_DEVICE_CLASS, NVIDIA_DRIVER
from draco_local.cluster import attach
from draco_local.cluster.controlplane import STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries

TARGET_MS, TARGET_RATIO = 50.0, 1.2
NODE = "node-0"
SHARED, WHOLE = "gpu-0", "gpu-1"
WARM_UP = 5
READY_WITHIN_S = 60.0


async def measure(pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of each Prepare: of shares, and of whole GPUs."""
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        plane = ControlPlane(Path(folder) / "cluster", Settings(programs=binaries.find(*STORE)))
        root = Path(folder) / "n"
        try:
            await asyncio.to_thread(plane.start)
            async with Client(await connect(plane.kubeconfig)) as client:
                await attach.install(client)
                with _node(plane, root):
                    await _share(client)
                    return await _sample(client, next(root.rglob(f"{NVIDIA_DRIVER}/dra*.sock")), pairs)
        finally:
            await asyncio.to_thread(plane.destroy)


@contextmanager
def _node(plane: ControlPlane, root: Path) -> Iterator[None]:
    """A simulated node with two GPUs."""
    command = [sys.executable, "-m", "draco_local.simulator.nodes", "--kubeconfig", str(plane.kubeconfig)]
    equipment = ["--nodes", "1", "--gpus", "2", "--root", str(root), "--name-prefix", "node", "--log-level", "warning"]
    process = subprocess.Popen([*command, *equipment])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


async def _share(client: Client) -> None:
    """Have the agent share one of the two GPUs by memory, as the operator would."""
    devices = await _published(client, lambda found: len(found) == 2)
    said = devices[SHARED].attributes["uuid"].string
    form = {"uuid": said, "policy": "benchmark", "mode": "Memory", "step": "1Gi", "default": "10Gi"}
    await client.patch(GPU_NODES, ObjectKey("", NODE), {"spec": {"shared": [form]}})
    await _published(client, lambda found: SHARED in found and bool(found[SHARED].allow_multiple_allocations))


async def _published(client: Client, check: Callable[[dict[str, Device]], bool]) -> dict[str, Device]:
    async with asyncio.timeout(READY_WITHIN_S):
        while True:
            found = {device.name: device for each in await client.list(SLICES) for device in each.spec.devices}
            if check(found):
                return found
            await asyncio.sleep(0.1)


async def _sample(client: Client, socket: Path, pairs: int) -> tuple[list[float], list[float]]:
    took: dict[str, list[float]] = {SHARED: [], WHOLE: []}
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        for index in range(WARM_UP + pairs):
            for device in (SHARED, WHOLE) if index % 2 else (WHOLE, SHARED):
                claim = await _allocated(client, f"claim-{index:04}-{device}", device)
                took[device].append(await _prepare(channel, claim))
                await client.delete(CLAIMS, claim.metadata.key)
    return took[SHARED][WARM_UP:], took[WHOLE][WARM_UP:]


async def _allocated(client: Client, name: str, device: str) -> ResourceClaim:
    metadata = {"name": name, "namespace": "default"}
    request = {"name": "gpu", "exactly": {"deviceClassName": NVIDIA_DEVICE_CLASS}}
    await client.create(CLAIMS, {"metadata": metadata, "spec": {"devices": {"requests": [request]}}})
    result: dict[str, Any] = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": NODE, "device": device}
    if device == SHARED:
        result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": "10Gi"}}
    status = {"allocation": {"devices": {"results": [result]}}}
    made: ResourceClaim = await client.patch(
        CLAIMS, ObjectKey("default", name), {"status": status}, subresource="status"
    )
    return made


async def _prepare(channel: grpc.aio.Channel, claim: ResourceClaim) -> float:
    """Prepare a claim and unprepare it; the seconds that the first took."""
    meta = claim.metadata
    asked = [dra_v1_pb2.Claim(namespace=meta.namespace, name=meta.name, uid=meta.uid)]
    prepare, unprepare = (unary(channel, DRA_V1, f"Node{verb}Resources") for verb in ("Prepare", "Unprepare"))
    began = time.monotonic()
    answer = await prepare(dra_v1_pb2.NodePrepareResourcesRequest(claims=asked))
    took_s = time.monotonic() - began
    if error := answer.claims[meta.uid].error:
        raise click.ClickException(error)
    await unprepare(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=asked))
    return took_s


def p99_ms(samples: list[float]) -> float:
    """The 99th percentile in milliseconds."""
    return statistics.quantiles(samples, n=100)[98] * 1000


@click.command()
@click.option("--pairs", default=300, show_default=True, help="Claims of each kind.")
def main(pairs: int) -> None:
    """Compare Prepare of a share with that of a whole GPU."""
    shares, whole = asyncio.run(measure(pairs))
    ratio = statistics.median(shares) / statistics.median(whole)
    medians = f"median {statistics.median(shares) * 1000:.1f} ms, {ratio:.2f} times"
    tell(
        Row(
            "Prepare of a share of a GPU, p99",
            f"{p99_ms(shares):.1f} ms ({medians})",
            f"{p99_ms(whole):.1f} ms for a whole GPU",
            f"<= {TARGET_MS:g} ms, <= {TARGET_RATIO} times the peer",
            p99_ms(shares) <= TARGET_MS and ratio <= TARGET_RATIO,
        )
    )


if __name__ == "__main__":
    main()
