"""A hung driver does not stop the node: the agent reports which call hangs, and does what needs no driver."""

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_sick_gpus import taints

SOON = {"nvml_limit_s": 2.0}
PART = "gpu-0-mig-1g10gb-19-0"


async def readable(node: SimulatedNode) -> tuple[str, str, str]:
    found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    told = [(one.status, one.reason, one.message) for one in found.status.conditions if one.type == "Readable"]
    return told[0] if told else ("", "", "not reported yet")


async def prepared(node: SimulatedNode, claim: Any) -> str:
    """The error of preparing the claim; "" if it succeeded."""
    return str((await node.prepare(claim))[claim.metadata.uid].error)


async def given_up(node: SimulatedNode, claim: Any) -> str:
    return str((await node.unprepare(claim))[claim.metadata.uid].error)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.usefixtures("crds")
async def test_a_call_that_hangs_is_told_everywhere_and_claims_of_other_gpus_go_on(
    node: SimulatedNode, port: int
) -> None:
    first, other, late = await node.claim("gpu-0"), await node.claim("gpu-1"), await node.claim("gpu-1")
    async with node.running(listen=("127.0.0.1", port), **SOON):
        await node.published(2)
        assert not await prepared(node, first)
        assert not await prepared(node, other)
        faults.hang(node.gpus, "nvmlDeviceGetMemoryInfo", gpu=0)

        async def hangs() -> bool:
            return (await readable(node))[:2] == ("False", "DriverHangs")

        await eventually(hangs)
        assert "NVML's nvmlDeviceGetMemoryInfo for GPU" in (await readable(node))[2]
        status, text = await get(port, "/readyz")
        assert (status, "nvmlDeviceGetMemoryInfo" in text) == (503, True)
        assert await get(port, "/livez") == (200, "ok\n")
        [age] = [
            line for line in (await get(port, "/metrics"))[1].splitlines() if line.startswith("draco_agent_nvml_r")
        ]
        assert float(age.split()[1]) > SOON["nvml_limit_s"]
        async with node.health() as stream:
            assert {one.health for one in (await stream.read()).devices} == {0}
        expected = {"gpu-0": [("draco.dev/driver", "DriverHangs", "NoSchedule")], "gpu-1": []}

        async def tainted() -> bool:
            return await taints(node) == expected

        await eventually(tainted)
        assert not await given_up(node, first)
        assert "NVML's nvmlDeviceGetMemoryInfo for GPU" in await prepared(node, first)
        assert not await given_up(node, other)
        assert not await prepared(node, late)
        faults.stop_failing(node.gpus)

        async def well() -> bool:
            return (await readable(node))[0] == "True"

        await eventually(well)
        expected["gpu-0"] = []
        await eventually(tainted)
        assert not await prepared(node, first)


async def test_an_agent_that_starts_while_the_driver_hangs_gives_whole_gpus_up(node: SimulatedNode) -> None:
    claim, late = await node.claim("gpu-0"), await node.claim("gpu-1")
    async with node.running():
        assert not await prepared(node, claim)
    faults.hang(node.gpus, "nvmlDeviceGetCount")
    async with node.running(**SOON):
        assert "nvmlDeviceGetCount has not answered since" in await prepared(node, late)
        assert not await given_up(node, claim)
        assert node.specs() == []
        faults.stop_failing(node.gpus)

        async def works() -> bool:
            return not await prepared(node, late)

        await eventually(works)


async def test_a_driver_that_hangs_while_lost_instances_are_made_again_keeps_nobody_from_kubelet(
    node: SimulatedNode,
) -> None:
    part, whole, third = await node.claim(PART), await node.claim("gpu-1"), await node.claim("gpu-1")
    async with node.running():
        assert not await prepared(node, part)
        assert not await prepared(node, whole)
    faults.reload_driver(node.gpus)
    faults.hang(node.gpus, "nvmlDeviceCreateGpuInstanceWithPlacement", gpu=0)
    async with node.running(**SOON):
        assert not await given_up(node, whole)
        assert not await prepared(node, third)
        refusal = await given_up(node, part)
        assert "nvmlDeviceCreateGpuInstanceWithPlacement for GPU" in refusal
        faults.stop_failing(node.gpus)

        async def gone() -> bool:
            return not await given_up(node, part)

        await eventually(gone, within_s=60)


async def test_claims_that_kubelet_asks_for_while_a_partition_hangs_are_not_given_twice(node: SimulatedNode) -> None:
    part, whole = await node.claim(PART), await node.claim("gpu-0")
    faults.hang(node.gpus, "nvmlGpuInstanceCreateComputeInstance")
    async with node.running(prepare_deadline_s=1.0):
        assert "within 1 s" in await prepared(node, part)
        assert "within 1 s" in await prepared(node, whole), "the GPU is being divided"
        faults.stop_failing(node.gpus)

        async def done() -> bool:
            return not await prepared(node, part)

        await eventually(done)

        async def refused() -> bool:
            return "still prepared for claim" in await prepared(node, whole)

        await eventually(refused)
        assert node.specs() == [node.specs()[0]]


async def test_whoever_waits_for_a_partition_whose_making_hangs_is_told_which_call_does(node: SimulatedNode) -> None:
    call = "NVML's nvmlGpuInstanceCreateComputeInstance for GPU"
    part, whole, other = await node.claim(PART), await node.claim("gpu-0"), await node.claim("gpu-1")
    async with node.running(prepare_deadline_s=10.0):
        faults.hang(node.gpus, "nvmlGpuInstanceCreateComputeInstance")
        divides = asyncio.create_task(prepared(node, part))

        async def begun() -> bool:
            return '"creating"' in node.checkpoint.read_text()

        await eventually(begun)
        refusal = await prepared(node, whole)
        assert f"cannot be prepared now: {call}" in refusal, "what has the GPU comes to no end by itself"
        assert not await prepared(node, other)
        assert f"within 10 s: {call}" in await divides
        faults.stop_failing(node.gpus)

        async def gone() -> bool:
            return not await given_up(node, part)

        await eventually(gone)
        assert not await prepared(node, whole)


async def test_an_agent_that_is_stopped_ends_though_a_call_does_not(node: SimulatedNode, port: int) -> None:
    async with node.running(listen=("127.0.0.1", port), **SOON) as task:
        await node.published(2)
        faults.hang(node.gpus, "nvmlDeviceGetMemoryInfo")

        async def hangs() -> bool:
            return "nvmlDeviceGetMemoryInfo" in (await get(port, "/readyz"))[1]

        await eventually(hangs)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.done()
    faults.stop_failing(node.gpus)


async def test_the_record_is_written_by_one_at_a_time_however_many_claims_come_at_once(node: SimulatedNode) -> None:
    both = [await node.claim("gpu-0"), await node.claim("gpu-1")]
    async with node.running():
        for _ in range(10):
            assert await asyncio.gather(*(prepared(node, one) for one in both)) == ["", ""]
            assert len(node.specs()) == 2
            assert await asyncio.gather(*(given_up(node, one) for one in both)) == ["", ""]
            assert node.specs() == []
