"""Who uses the GPUs: from simulated processes to the GpuUsage, the metrics, and `draco top`."""

import asyncio
import io
import json
from contextlib import redirect_stdout
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from draco.cli import run
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.usage import DeviceUser, GpuUsage
from draco.resources.kinds import GPU_USAGES
from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.gpu_state import GpuProcess
from draco_local.simulator.gpus.procfs import cgroup_of
from tests.agents import SimulatedNode, eventually

pytestmark = pytest.mark.usefixtures("crds")

FAST = {"usage_s": 0.2}
GIB = 1 << 30


def compute(
    node: SimulatedNode, pid: int, claim: ResourceClaim, *, gpu: int = 0, container: str = "main", **uses: Any
) -> None:
    """A process of a claim's first pod."""
    [pod, *_] = claim.status.reserved_for
    process = GpuProcess(pid, cgroup=cgroup_of(pod.uid, container), container=container, hostname=pod.name, **uses)
    faults.hold(node.gpus, gpu, process)


async def a_claim(node: SimulatedNode, *devices: str, pod: str) -> ResourceClaim:
    return await node.reserve(await node.claim(*devices), pod)


async def reported(node: SimulatedNode) -> GpuUsage:
    try:
        return await node.client.get(GPU_USAGES, ObjectKey("", node.name))
    except NotFound:
        return GpuUsage()


async def with_processes(node: SimulatedNode, count: int) -> list[DeviceUser]:
    """The users, once so many processes are reported."""

    async def look() -> list[DeviceUser]:
        found = (await reported(node)).status.users
        return found if sum(user.processes for user in found) == count else []

    found: list[DeviceUser] = await eventually(look)
    return found


def top(plane: ControlPlane, node: SimulatedNode, *arguments: str) -> Any:
    with redirect_stdout(io.StringIO()) as out:
        assert run(["top", "--kubeconfig", str(plane.kubeconfig), "--node", node.name, "-o", "json", *arguments]) == 0
    return json.loads(out.getvalue())["rows"]


async def test_processes_are_reported_by_claim_pod_and_container(
    node: SimulatedNode, api_server: ControlPlane, unused_tcp_port: int
) -> None:
    train = await a_claim(node, "gpu-0", pod="train-0")
    idle = await a_claim(node, "gpu-1", pod="idle-0")
    async with node.running(listen=("127.0.0.1", unused_tcp_port), **FAST):
        await node.published(2)
        await node.prepare(train)
        await node.prepare(idle)
        compute(node, 11, train, memory_mib=30 * 1024, utilization=60)
        compute(node, 12, train, container="sidecar", memory_mib=2 * 1024)
        faults.hold(node.gpus, 0, GpuProcess(13, memory_mib=512, name="Xorg", kind="drawing"))
        found = await with_processes(node, 3)
        names = {(user.namespace, user.claim, user.pod, user.container): user for user in found}
        mine = (node.namespace, train.metadata.name, "train-0")
        assert {*names} == {
            (*mine, "main"),
            (*mine, "sidecar"),
            ("", "", "", ""),
            (node.namespace, idle.metadata.name, "idle-0", ""),
        }
        main = names[(*mine, "main")]
        assert (main.memory_used_bytes, main.utilization_percent, main.processes) == (30 * GIB, 60, 1)
        assert names["", "", "", ""].memory_used_bytes == GIB // 2

        text = await scraped(unused_tcp_port)
        memory = {
            (labels["namespace"], labels["pod"], labels["container"], labels["dra_claim_name"]): value
            for labels, value in text["draco_container_gpu_memory_bytes"]
        }
        assert memory[node.namespace, "train-0", "main", train.metadata.name] == 30 * GIB
        assert sum(memory.values()) == 32.5 * GIB, "every process counts once"

        rows = await asyncio.to_thread(top, api_server, node)
        assert [(row["claim"], row["memoryUsedBytes"]) for row in rows] == [
            (train.metadata.name, 32 * GIB),
            ("", GIB // 2),
            (idle.metadata.name, 0),
        ]


async def scraped(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        families = text_string_to_metric_families(await response.text())
    return {one.name: [(sample.labels, sample.value) for sample in one.samples] for one in families}
