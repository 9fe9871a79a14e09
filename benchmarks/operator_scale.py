"""How long the operator needs to know a large cluster, and how much memory that takes.

Creates Nodes and ResourceSlices on a real API server, starts `draco operator` as a process, and measures from its start until
/readyz says ok, its peak resident memory once everything in it runs and it was scraped, and the time a scrape takes. The start
is shown beside the time in which the same objects can be fetched at all.

    python -m benchmarks.operator_scale --nodes 1000 --gpus 8
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.table import Row, tell
from draco.cluster import binaries
from draco.cluster.controlplane import STORE, ControlPlane, Settings
from draco.kube.client import Client
from draco.kube.kubeconfig import connect
from draco.resources.kinds import DEVICE_MAINTENANCES, NODES, SLICES, Kind
from draco.resources.meta import ObjectKey

CRDS = Path(__file__).parent.parent / "crds"
DEFINITIONS: Kind[Any] = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, dict
)
TARGET_S = 5.0
TARGET_MIB = 300.0
SETTLED_AFTER_S = 3.0
"""By then Kopf runs, the lease is held and the first look at everything is over."""


async def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with a_cluster(Path(folder)) as (plane, client):
            started = time.monotonic()
            await in_parallel([fill_node(client, i, options.gpus) for i in range(options.nodes)], 32)
            say(f"{options.nodes} nodes x {options.gpus} GPUs created in {time.monotonic() - started:.1f} s")
            lists_s = await bare_lists_s(client)
            async with an_operator(plane, Path(folder)) as operator:
                ready_s = await operator.until_ready(60)
                await operator.until_said("kopf.loaded", 60)
                scrape_s = await operator.scrape_s()
                await asyncio.sleep(SETTLED_AFTER_S)
                rss_mib = operator.peak_mib()
    known = f"{options.nodes} nodes x {options.gpus} GPUs"
    rows = [
        Row(
            f"operator start, {known} known",
            f"{ready_s:.2f} s",
            f"bare lists {lists_s:.2f} s",
            f"<= {TARGET_S:g} s",
            ready_s <= TARGET_S,
        ),
        Row(
            f"operator peak memory, {known}", f"{rss_mib:.0f} MiB", "-", f"<= {TARGET_MIB:g} MiB", rss_mib <= TARGET_MIB
        ),
        Row(f"scrape of all metrics, {known}", f"{scrape_s * 1000:.0f} ms", "-", "-", met=True),
    ]
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


async def bare_lists_s(client: Client) -> float:
    """Seconds to fetch the same objects as bytes, without looking at them: what no client can do without."""
    started = time.monotonic()
    for kind in (NODES, SLICES):
        await client.connection.request("GET", kind.path())
    return time.monotonic() - started


@contextlib.asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """An API server, with its etcd, that knows Draco's kinds."""
    plane = ControlPlane(folder / "plane", Settings(programs=binaries.find(*STORE)))
    try:
        plane.start()
        async with Client(await connect(plane.kubeconfig)) as client:
            for file in sorted(CRDS.glob("*.yaml")):
                await client.create(DEFINITIONS, yaml.safe_load(file.read_text()))
            await until(lambda: served(client), 30)
            yield plane, client
    finally:
        plane.stop()


async def served(client: Client) -> bool:
    """Whether our kinds can be listed."""
    try:
        await client.list(DEVICE_MAINTENANCES)
    except Exception:  # noqa: BLE001 - not yet
        return False
    return True


async def fill_node(client: Client, number: int, gpus: int) -> None:
    """A Node of the usual size, and the slice of its GPUs."""
    name = f"node-{number:05}"
    await client.create(NODES, a_node(name))
    ready = [
        {
            "type": type_,
            "status": "True" if type_ == "Ready" else "False",
            "reason": "Kubelet",
            "message": "kubelet says so",
        }
        for type_ in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {"names": [f"registry.example.com/team/image-{i}:v1", f"registry.example.com/team/image-{i}@sha256:{i:064x}"]}
        for i in range(50)
    ]
    status = {"conditions": ready, "images": images, "capacity": {"cpu": "192", "memory": "2Ti", "pods": "110"}}
    await client.patch(NODES, ObjectKey("", name), {"status": status}, subresource="status")
    await client.create(SLICES, a_slice(name, number, gpus))


def a_node(name: str) -> dict[str, Any]:
    """A Node with the labels that GPU nodes usually have."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(40)}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}, "spec": {}}


def a_slice(node: str, number: int, gpus: int) -> dict[str, Any]:
    """What an agent publishes for a node of H100s."""
    domain = "resource.kubernetes.io"
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{number:08x}-0000-0000-0000-{i:012x}"},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "brand": {"string": "Nvidia"},
                "architecture": {"string": "Hopper"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "driverVersion": {"version": "580.82.7"},
                "cudaDriverVersion": {"version": "13.0.0"},
                f"{domain}/pciBusID": {"string": f"0000:{i:02x}:00.0"},
                f"{domain}/pcieRoot": {"string": f"pci0000:{i:02x}"},
            },
            "capacity": {"memory": {"value": "81559Mi"}},
        }
        for i in range(gpus)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{node}-gpu.nvidia.com"},
        "spec": {"driver": "gpu.nvidia.com", "pool": pool, "nodeName": node, "devices": devices},
    }


class OperatorProcess:
    """One replica under measurement."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._started = time.monotonic()
        self._url = ""

    async def until_ready(self, within_s: float) -> float:
        """Seconds from its start until it is ready."""
        await until(self._ready, within_s)
        return time.monotonic() - self._started

    async def until_said(self, event: str, within_s: float) -> None:
        """Return once it has logged this event."""

        async def said() -> bool:
            return any(each["event"] == event for each in self._events())

        await until(said, within_s)

    async def _ready(self) -> bool:
        if self._process.returncode is not None:
            raise RuntimeError(self._log.read_text())
        if not self._url:
            ports = [event["port"] for event in self._events() if event["event"] == "http.serving"]
            if not ports:
                return False
            self._url = f"http://127.0.0.1:{ports[0]}"
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/readyz") as response:
            return response.status == 200

    def _events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]

    async def scrape(self, query: str = "") -> str:
        """Its metrics."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/metrics{query}") as response:
            return await response.text()

    async def scrape_s(self) -> float:
        """Seconds that one scrape of everything takes."""
        started = time.monotonic()
        await self.scrape()
        return time.monotonic() - started

    def peak_mib(self) -> float:
        """The most memory that was ever resident."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024


@contextlib.asynccontextmanager
async def an_operator(plane: ControlPlane, folder: Path, *options: str) -> AsyncIterator[OperatorProcess]:
    """`draco operator` as a process, from its start."""
    log = folder / "operator.log"
    with log.open("w") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "draco", "operator", "--kubeconfig", str(plane.kubeconfig)),
            *("--namespace", "default", "--listen", "127.0.0.1:0", *options),
            stdout=stream,
            stderr=stream,
        )
    try:
        yield OperatorProcess(process, log)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def until(look: Callable[[], Awaitable[bool]], within_s: float, pause_s: float = 0.02) -> None:
    """Return when `look` says so; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not await look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s")
        await asyncio.sleep(pause_s)


async def in_parallel(work: list[Any], at_once: int) -> None:
    """Await everything, so many at once."""
    limit = asyncio.Semaphore(at_once)

    async def one(each: Any) -> None:
        async with limit:
            await each

    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(one(each))


def say(line: str) -> None:
    """Progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
