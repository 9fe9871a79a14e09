"""Who uses the GPUs: from simulated processes to the GpuUsage, the metrics, and `draco top`."""

import asyncio
import io
import json
from contextlib import redirect_stdout
from datetime import timedelta
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from draco.agent.usage import reading, unused
from draco.cli import run
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import Condition, ObjectKey, find_condition
from draco.resources.api.usage import DeviceUser, GpuUsage
from draco.resources.kinds import CLAIMS, GPU_USAGES, NAMESPACES
from draco.resources.names import CONDITION_UNUSED, NVIDIA_DRIVER
from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from draco_local.simulator.gpus.procfs import cgroup_of
from tests.agents import SimulatedNode, eventually
from tests.doubles.faultproxy import FaultProxy, answer

pytestmark = pytest.mark.usefixtures("crds")

FAST = {"usage_s": 0.2}
GIB = 1 << 30
PART = "gpu-0-mig-1g10gb-19-0"


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


async def test_of_a_mig_device_memory_and_load_are_known(node: SimulatedNode) -> None:
    by_hand.set_mode(node.gpus, 0, 1)
    claim = await a_claim(node, PART, pod="small-0")
    async with node.running(**FAST):
        await node.register()
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        [instance] = state.load(node.gpus).gpus[0].instances
        compute(
            node,
            11,
            claim,
            gpu_instance=instance.id,
            compute_instance=0,
            memory_mib=2048,
            memory_told=False,
            utilization=40,
        )
        [user] = await with_processes(node, 1)
        assert (user.claim, user.pod, user.container) == (claim.metadata.name, "small-0", "main")
        part = (await reported(node)).status.devices[0]
        assert (user.memory_used_bytes, user.utilization_percent) == (2 * GIB, part.utilization_percent)
        assert (part.uuid, part.device, part.profile) == (instance.compute[0].uuid, PART, "1g.10gb")
        assert part.gpu == state.load(node.gpus).gpus[0].uuid
        assert part.utilization_percent in {20, 40}, "20 if it began between two samples"
        faults.release(node.gpus, 11)
        assert [one.claim for one in await with_processes(node, 0)] == [claim.metadata.name]
        await node.unprepare(claim)
        await eventually(lambda: has_no_users(node))


async def has_no_users(node: SimulatedNode) -> bool:
    return not (await reported(node)).status.users


async def test_a_gpu_that_hangs_keeps_neither_claims_nor_the_usage_of_others_waiting(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LATE_S", 0.3)
    first, second = await a_claim(node, "gpu-0", pod="a"), await a_claim(node, "gpu-1", pod="b")
    hanging = state.load(node.gpus).gpus[0].uuid
    async with node.running(**FAST):
        await node.published(2)
        await node.prepare(second)
        compute(node, 11, first, memory_mib=1024)
        compute(node, 12, second, gpu=1, memory_mib=1024)
        await with_processes(node, 2)
        faults.hang(node.gpus, "nvmlDeviceGetUtilizationRates", gpu=0)
        await eventually(lambda: is_unread(node, [hanging]))
        assert (await node.prepare(first))[first.metadata.uid].error == ""
        assert [user.pod for user in await with_processes(node, 1)] == ["b"]
        compute(node, 13, second, gpu=1, memory_mib=1024)
        await with_processes(node, 2)
        faults.stop_failing(node.gpus)
        assert {user.pod for user in await with_processes(node, 3)} == {"a", "b"}
        assert await is_unread(node, [])


async def is_unread(node: SimulatedNode, gpus: list[str]) -> bool:
    return (await reported(node)).status.unread == gpus


async def test_a_pod_that_came_to_a_shared_claim_later_is_named(node: SimulatedNode) -> None:
    claim = await a_claim(node, "gpu-0", pod="first")
    async with node.running(**FAST):
        await node.published(2)
        await node.prepare(claim)
        both = await node.reserve(claim, "first", "second")
        pod = both.status.reserved_for[1]
        process = GpuProcess(11, cgroup=cgroup_of(pod.uid, "main"), container="main", memory_mib=1024)
        faults.hold(node.gpus, 0, process)
        [user] = await with_processes(node, 1)
        assert (user.namespace, user.claim, user.pod) == (node.namespace, claim.metadata.name, "second")


async def test_of_two_claims_of_a_pod_each_shows_its_own_containers(node: SimulatedNode) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await node.client.patch(NAMESPACES, ObjectKey("", node.namespace), label)
    claims = [await a_claim(node, "gpu-0", pod="both"), await node.claim("gpu-0", admin=True)]
    pods = [msgspec.to_builtins(one) for one in claims[0].status.reserved_for]
    claims[1] = await node.client.patch(
        CLAIMS, claims[1].metadata.key, {"status": {"reservedFor": pods}}, subresource="status"
    )
    async with node.running(**FAST):
        await node.published(2)
        for number, claim in enumerate(claims):
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""
            spec = json.loads((node.cdi / f"draco-{NVIDIA_DRIVER}-{claim.metadata.uid}.json").read_text())
            given = dict(each.split("=", 1) for each in spec["containerEdits"]["env"])
            compute(node, 11 + number, claim, container=f"c{number}", memory_mib=1024, variables=given)
        found = await with_processes(node, 2)
        assert {(user.container, user.claim) for user in found} == {
            (f"c{number}", claim.metadata.name) for number, claim in enumerate(claims)
        }


async def test_without_the_kind_usage_is_in_the_metrics(
    node: SimulatedNode, proxy: FaultProxy, unused_tcp_port: int
) -> None:
    proxy.fault(lambda request: "gpuusages" in request.path, answer(404, "NotFound"), times=10**9)
    async with node.running_through(proxy, listen=("127.0.0.1", unused_tcp_port), **FAST):
        await node.published(2)
        await eventually(lambda: tells_memory(unused_tcp_port))


async def tells_memory(port: int) -> bool:
    return len((await scraped(port)).get("draco_gpu_memory_total_bytes", [])) == 2


async def test_a_claim_says_which_of_its_devices_nobody_uses(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "REPORTED_AFTER", timedelta(0))
    claim = await a_claim(node, "gpu-0", "gpu-1", pod="train-0")
    soon = {**FAST, "unused_after_s": 0.5}
    async with node.running(**soon):
        await node.published(2)
        await node.prepare(claim)
        compute(node, 11, claim, utilization=10)
        compute(node, 12, claim, gpu=1)
        await eventually(lambda: says_unused(node, claim, "gpu-1"))
        [since] = [one.since for one in (await reported(node)).status.unused]
    before = await conditions(node, claim)
    assert before["gpu-1"].message == f"No program has used it since {since:%Y-%m-%d %H:%M} UTC."
    async with node.running(**soon):
        await node.published(2)
        assert await conditions(node, claim) == before, "a restart keeps what is known"
        faults.release(node.gpus, 11)
        await eventually(lambda: says_unused(node, claim, "gpu-0", "gpu-1"))
        assert (await conditions(node, claim))["gpu-1"] == before["gpu-1"]
        compute(node, 13, claim, gpu=1, utilization=5)
        await eventually(lambda: says_unused(node, claim, "gpu-0"))
        assert [one.claim for one in (await reported(node)).status.unused] == [claim.metadata.name]


async def conditions(node: SimulatedNode, claim: ResourceClaim) -> dict[str, Condition]:
    """The condition Unused by device."""
    found = await node.client.get(CLAIMS, claim.metadata.key)
    said = {one.device: find_condition(one.conditions, CONDITION_UNUSED) for one in found.status.devices}
    return {device: condition for device, condition in said.items() if condition is not None}


async def says_unused(node: SimulatedNode, claim: ResourceClaim, *devices: str) -> bool:
    return sorted(await conditions(node, claim)) == [*devices]
