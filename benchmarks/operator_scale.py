"""How long the operator needs to know a large cluster, and how much memory that takes.

Creates Nodes and ResourceSlices on a real API server, starts `draco operator` as a process, and measures from its start until
/readyz says ok and its workers answer, the memory of all its processes together once everything in them runs and it was scraped
(shared memory counts once), and the time of a scrape. The start is shown beside the time that fetching the same objects takes at
least. Then pods are created that wait for different claims, and the time is taken until they are explained.

    python -m benchmarks.operator_scale --nodes 1000 --gpus 8
    python -m benchmarks.operator_scale --nodes 10000
    python -m benchmarks.operator_scale --nodes 1000 --mig     # each GPU whole and in every partition: 152 devices a node
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import yaml

from benchmarks.gpu_fleet import a_partitioned_node, node_name
from benchmarks.table import Row, tell
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, DEVICE_MAINTENANCES, EVENTS, NODES, PODS, SLICES, Kind
from draco_local.cluster.controlplane import STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries

CRDS = Path(__file__).parent.parent / "crds"
DEFINITIONS: Kind[Any] = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, dict
)
TARGETS = {
    (False, False): (5.0, 300.0),
    (False, True): (40.0, 500.0),
    (True, False): (15.0, 600.0),
    (True, True): (0.0, 0.0),
}
"""Targets in seconds and MiB, by whether GPUs are in Dynamic MIG and whether there are more than a thousand nodes."""
TARGET_EVENT_S = 0.2
TARGET_FIRST_S = 1.0
TARGET_ALL_S = 10.0
SERVICE_ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)
SETTLED_AFTER_S = 8.0
"""By then Kopf runs, the lease is held and everything was reconciled once."""


async def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--mig", action="store_true")
    parser.add_argument("--claims", type=int, default=0)
    options = parser.parse_args()
    fill = fill_partitioned_node if options.mig else fill_node
    with tempfile.TemporaryDirectory() as folder:
        async with a_cluster(Path(folder)) as (plane, client):
            started = time.monotonic()
            await in_parallel([fill(client, i, options.gpus) for i in range(options.nodes)], 32)
            say(f"{options.nodes} nodes x {options.gpus} GPUs created in {time.monotonic() - started:.1f} s")
            lists_s = await bare_lists_s(client)
            async with an_operator(plane, Path(folder)) as operator:
                ready_s = await operator.until_ready(120)
                await operator.until_said("kopf.loaded", 60)
                scrape_s = await operator.scrape_s()
                answers_s = await explained_s(client, operator)
                await asyncio.sleep(SETTLED_AFTER_S)
                memory_mib = operator.memory_mib()
                warm_s = await next_explained_s(client, 5)
                first_s, all_s = await all_explained_s(client, options.claims)
                say(f"main {operator.resident_mib()}; with children at work {operator.memory_mib():.0f} MiB")
                say(
                    await operator.scrape(
                        "?name[]=draco_event_loop_longest_hold_seconds&name[]=draco_worker_cpu_seconds_total"
                    )
                )
    known = f"{options.nodes} nodes x {options.gpus} GPUs{' in Dynamic MIG' if options.mig else ''}"
    target_s, target_mib = TARGETS[options.mig, options.nodes > 1000]
    rows = [
        Row(
            f"operator start, {known} known",
            f"{ready_s:.2f} s",
            f"bare lists {lists_s:.2f} s",
            f"<= {target_s:g} s",
            ready_s <= target_s,
        ),
        Row(
            f"until a claim is explained, {known}",
            f"{answers_s:.2f} s",
            "-",
            f"<= {target_s:g} s",
            answers_s <= target_s,
        ),
        Row(
            f"memory of all of the operator's processes, {known}",
            f"{memory_mib:.0f} MiB",
            "-",
            f"<= {target_mib:g} MiB",
            memory_mib <= target_mib,
        ),
        Row(
            f"claim to Event, {known}",
            f"{warm_s * 1000:.0f} ms",
            "-",
            f"<= {TARGET_EVENT_S * 1000:g} ms",
            warm_s <= TARGET_EVENT_S,
        ),
        Row(f"scrape of all metrics, {known}", f"{scrape_s * 1000:.0f} ms", "-", "-", met=True),
    ]
    if options.claims:
        many = f"{options.claims} different waiting claims, {known}"
        rows += [
            Row(
                f"first Event of {many}", f"{first_s:.2f} s", "-", f"<= {TARGET_FIRST_S:g} s", first_s <= TARGET_FIRST_S
            ),
            Row(f"all Events of {many}", f"{all_s:.2f} s", "-", f"<= {TARGET_ALL_S:g} s", all_s <= TARGET_ALL_S),
        ]
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


async def bare_lists_s(client: Client) -> float:
    """Seconds to fetch the same objects as bytes, without decoding them: the least that any client needs."""
    started = time.monotonic()
    for kind in (NODES, SLICES):
        await client.connection.request("GET", kind.path())
    return time.monotonic() - started


@contextlib.asynccontextmanager
async def a_cluster(
    folder: Path, programs: Sequence[str] = STORE, flags: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """An API server with etcd and Draco's kinds, and the other `programs`, each with these flags."""
    plane = ControlPlane(folder / "plane", Settings(programs=binaries.find(*programs), extra_flags=flags))
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
    """Whether Draco's kinds can be listed."""
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


_IDLE_FOR_S, _IDLE_SHARE = 1.0, 0.05
"""An operator is idle if it has used at most this share of one processor for this long."""


class OperatorProcess:
    """One replica under measurement."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._started = time.monotonic()
        self._url = ""

    @property
    def age_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started

    async def until_ready(self, within_s: float) -> float:
        """Seconds from its start until it is ready."""
        await until(self._ready, within_s)
        return time.monotonic() - self._started

    async def until_said(self, event: str, within_s: float) -> None:
        """Return once it has logged this event."""

        async def said() -> bool:
            return any(each["event"] == event for each in self.events())

        await until(said, within_s)

    async def _ready(self) -> bool:
        if self._process.returncode is not None:
            raise RuntimeError(self._log.read_text())
        if not self._url:
            ports = [event["port"] for event in self.events() if event["event"] == "http.serving"]
            if not ports:
                return False
            self._url = f"http://127.0.0.1:{ports[0]}"
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/readyz") as response:
            return response.status == 200

    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]

    async def until_idle(self, within_s: float) -> None:
        """Return once it has used almost no CPU time for a while: the work of its start is done."""

        async def idle() -> bool:
            before = self._cpu_s()
            await asyncio.sleep(_IDLE_FOR_S)
            return self._cpu_s() - before <= _IDLE_SHARE * _IDLE_FOR_S

        await until(idle, within_s)

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system: see proc(5)

    def log_from(self, offset: int) -> bytes:
        """The whole lines of its log from this byte on."""
        with self._log.open("rb") as stream:
            stream.seek(offset)
            read = stream.read()
        return read[: read.rfind(b"\n") + 1]

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
        """The most memory that was ever resident in its first process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024

    def memory_mib(self) -> float:
        """The memory of all its processes now. Shared memory counts once."""
        return sum(map(proportional_mib, self.pids()))

    def resident_mib(self) -> str:
        """The same for each process, for people."""
        return " ".join(f"{proportional_mib(pid):.0f}" for pid in self.pids())

    def pids(self) -> list[int]:
        """The operator's process, and all that it has started."""
        found = [self._process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += map(int, children.read_text().split())
        return found


def proportional_mib(pid: int) -> float:
    """The memory of a process, with its share of shared pages; 0 once it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0) / 1024


async def fill_partitioned_node(client: Client, number: int, gpus: int) -> None:
    """A Node whose GPUs are published whole and with every partition."""
    name = node_name(number)
    await client.create(NODES, a_node(name))
    for each in a_partitioned_node(gpus):
        if each["kind"] == "ResourceSlice":
            text = json.dumps(each).replace(node_name(0), name).replace("GPU-00000001", f"GPU-{number:08x}")
            await client.create(SLICES, json.loads(text))


async def add_claim(client: Client, name: str) -> None:
    """A pod that the scheduler refused, and its claim, which differs from all others."""
    namespace, key = "default", ObjectKey("default", name)
    expression = f"device.attributes['gpu.nvidia.com'].productName == 'none of {name}'"
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    await client.create(CLAIMS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    pod = {"containers": [{"name": "a", "image": "a"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    await client.create(PODS, {"metadata": {"name": name, "namespace": namespace}, "spec": pod})
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    await client.patch(PODS, key, {"status": {"conditions": [refused]}}, subresource="status")


async def events_about(client: Client, prefix: str) -> int:
    """How many pods with such names have an Event."""
    events = await client.list(EVENTS, namespace="default")
    about = [each.involved_object for each in events if each.involved_object]
    return len({each.name for each in about if each.kind == "Pod" and each.name.startswith(prefix)})


async def explained_s(client: Client, operator: OperatorProcess) -> float:
    """Seconds from the operator's start until the first claim is explained."""
    spec = {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}
    await client.create(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": spec})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    await add_claim(client, "first")

    async def look() -> bool:
        return await events_about(client, "first") == 1

    await until(look, 120)
    return operator.age_s


async def next_explained_s(client: Client, times: int) -> float:
    """Seconds from the refusal of a pod until its Event is there, the median of several."""
    took = []
    for number in range(times):
        name = f"next-{number}"
        await add_claim(client, name)
        began_s = time.monotonic()
        await until(lambda name=name: said_once(client, name), 60)  # type: ignore[misc]
        took.append(time.monotonic() - began_s)
    return statistics.median(took)


async def said_once(client: Client, name: str) -> bool:
    """Whether the pod has its Event."""
    return await events_about(client, name) == 1


async def all_explained_s(client: Client, count: int) -> tuple[float, float]:
    """Seconds from the first refusal of this many pods until the first, and until all of them have their Events."""
    if not count:
        return 0.0, 0.0
    began_s = time.monotonic()
    adding = asyncio.create_task(in_parallel([add_claim(client, f"many-{number}") for number in range(count)], 16))
    first_s = 0.0
    while (there := await events_about(client, "many-")) < count and time.monotonic() - began_s < 120:
        first_s = first_s or (time.monotonic() - began_s if there else 0.0)
        await asyncio.sleep(0.05)
    await adding
    return first_s, time.monotonic() - began_s


@contextlib.asynccontextmanager
async def an_operator(
    plane: ControlPlane, folder: Path, *options: str, kubeconfig: Path | None = None
) -> AsyncIterator[OperatorProcess]:
    """`draco operator` as a process, from its start: as the administrator, unless `kubeconfig` names another user."""
    log = folder / "operator.log"
    with log.open("w") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "draco", "operator", "--kubeconfig", str(kubeconfig or plane.kubeconfig)),
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
    """Await everything, this many at a time."""
    limit = asyncio.Semaphore(at_once)

    async def one(each: Any) -> None:
        async with limit:
            await each

    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(one(each))


def say(line: str) -> None:
    """Print progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
