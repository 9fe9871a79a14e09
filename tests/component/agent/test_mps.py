"""MPS of a real agent with a keeper on its node: published, given to the claims that ask for it, and taken back."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pynvml
import pytest

from draco.agent.mps.folder import daemon_name
from draco.kube.clock import SystemClock
from draco.mps.keeper import MpsKeeper
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuStatus
from draco.resources.api.meta import Condition, ObjectKey, find_condition
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco.resources.names import ATTRIBUTE_MPS, CONDITION_MPS
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually
from tests.doubles.mps import MpsNode

pytestmark = pytest.mark.usefixtures("crds")

EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
HALF = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}


@asynccontextmanager
async def keeping(node: SimulatedNode) -> AsyncIterator[MpsNode]:
    """A keeper and a driver with MPS on the node."""
    with MpsNode(node.folder / "agent", state.load(node.gpus).driver.version) as mps:
        descriptor = mps.folder.keep()
        assert descriptor is not None
        keeper = MpsKeeper(
            mps.folder, mps.control, mps.processes, mps.daemons, version=lambda: "580", clock=SystemClock()
        )
        running = asyncio.create_task(keeper.run())
        try:
            yield mps
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            os.close(descriptor)


async def asking(node: SimulatedNode, *devices: str, **config: Any) -> ResourceClaim:
    """An allocated claim that asks for MPS."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", **({"mpsConfig": config} if config else {})},
    }
    return await node.allocate(await node.claim(), *devices, config=parameters)


def modes(node: SimulatedNode) -> list[int]:
    return [gpu.compute_mode for gpu in state.load(node.gpus).gpus]


async def published(node: SimulatedNode) -> list[Any]:
    """Whether MPS can be had, of each device."""
    found = [device.attributes.get(ATTRIBUTE_MPS) for one in await node.slices() for device in one.spec.devices]
    return [None if each is None else each.value for each in found]


async def reported(node: SimulatedNode) -> GpuStatus:
    return (await node.client.get(GPU_NODES, ObjectKey("", node.name))).status.gpus[0]


async def test_a_claims_daemon_lasts_as_long_as_the_claim(node: SimulatedNode) -> None:
    claim = await asking(node, "gpu-0", **HALF)
    gpu = state.load(node.gpus).gpus[0].uuid
    async with keeping(node) as mps, node.running(driver_root=mps.root.host):
        await node.published(2)
        assert await published(node) == [True, True]
        name = daemon_name([gpu])
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        assert modes(node) == [EXCLUSIVE, 0]
        pipe = mps.folder.pipe(name)
        assert mps.control.ask(pipe, "get_default_active_thread_percentage") == "50.0"
        assert mps.control.ask(pipe, "get_default_device_pinned_mem_limit 0") == "10240M"
        [spec] = [json.loads(path.read_text()) for path in node.cdi.iterdir()]
        [device] = spec["devices"]
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in device["containerEdits"]["env"]
        assert {each["hostPath"]: each["containerPath"] for each in device["containerEdits"]["mounts"]} == {
            str(pipe): "/tmp/nvidia-mps",
            str(mps.folder.shm(name)): "/dev/shm",
        }
        assert (await node.prepare(claim))[claim.metadata.uid].error == "", "for another pod"
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: modes(node) == [0, 0] and not mps.folder.names())
        assert not mps.processes.of(name)


async def test_the_next_claim_of_the_gpu_waits_until_the_daemon_has_ended(node: SimulatedNode) -> None:
    claim, plain = await asking(node, "gpu-0"), await node.claim("gpu-0")
    async with keeping(node) as mps, node.running(driver_root=mps.root.host):
        await node.published(2)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await node.unprepare(claim)
        assert (await node.prepare(plain))[plain.metadata.uid].error == ""
        assert modes(node) == [0, 0]
        assert not any("MPS" in line for line in node.cdi.joinpath(node.specs()[0]).read_text().splitlines())


async def test_without_a_keeper_it_is_published_as_such_and_the_claim_is_refused(node: SimulatedNode) -> None:
    claim = await asking(node, "gpu-0")
    async with node.running():
        await node.published(2)
        assert await published(node) == [False, False]
        error = (await node.prepare(claim))[claim.metadata.uid].error
        assert "it asks for MPS, and " in error
        assert "mps.enabled of the chart" in error
        assert modes(node) == [0, 0]

        async def told() -> bool:
            sharing = (await reported(node)).sharing
            return sharing is not None and sharing.mps is False

        await eventually(told)


async def test_agent_and_daemons_survive_each_other(node: SimulatedNode) -> None:
    claim = await asking(node, "gpu-0", "gpu-1")
    uuids = [gpu.uuid for gpu in state.load(node.gpus).gpus]
    name = daemon_name(uuids)
    async with keeping(node) as mps:
        async with node.running(driver_root=mps.root.host):
            await node.published(2)
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        [before] = mps.processes.of(name)
        async with node.running(driver_root=mps.root.host):
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""
            assert [each.pid for each in mps.processes.of(name)] == [before.pid]
            os.kill(before.pid, signal.SIGKILL)
            await eventually(
                lambda: (wanted := mps.folder.wanted(name)) and not mps.control.lacking(mps.folder.pipe(name), wanted)
            )
            assert modes(node) == [EXCLUSIVE, EXCLUSIVE], "another would use the GPUs past MPS"
            await node.unprepare(claim)
            await eventually(lambda: modes(node) == [0, 0])


async def test_a_daemon_that_does_not_start_again_is_told_on_its_claim_its_gpu_and_the_node(
    node: SimulatedNode,
) -> None:
    claim = await asking(node, "gpu-0")
    gpu = state.load(node.gpus).gpus[0].uuid
    name = daemon_name([gpu])

    async def condition() -> Condition | None:
        found = await node.client.get(CLAIMS, claim.metadata.key)
        return next((find_condition(one.conditions, CONDITION_MPS) for one in found.status.devices), None)

    async with keeping(node) as mps, node.running(driver_root=mps.root.host):
        await node.published(2)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        said = await eventually(condition)
        assert (said.status, said.reason) == ("True", "Answers")
        mps.daemons.broken = True
        mps.processes.kill(name)

        async def troubled() -> bool:
            now, notes = await condition(), (await reported(node)).notes
            return (
                now is not None
                and now.status == "False"
                and "nvidia-cuda-mps-control failed" in now.message
                and any(
                    "its MPS is not as its claim asks, because nvidia-cuda-mps-control failed" in each for each in notes
                )
            )

        await eventually(troubled)
        [event] = await eventually(lambda: node.events("MpsTrouble"))
        assert gpu in event.message
        mps.daemons.broken = False

        async def well() -> bool:
            now = await condition()
            return now is not None and now.status == "True" and not (await reported(node)).notes

        await eventually(well)
        assert await eventually(lambda: node.events("MpsTroubleEnded"))
        await node.unprepare(claim)
        await eventually(lambda: modes(node) == [0, 0])
