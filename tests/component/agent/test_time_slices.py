"""Time slices of a real agent: published, set for the claims that ask for them, and taken back."""

from typing import Any

import pynvml
import pytest

from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuStatus
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import ATTRIBUTE_TIME_SLICING
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually

pytestmark = pytest.mark.usefixtures("crds")


def config(interval: str) -> Any:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }


async def slicing(node: SimulatedNode, interval: str) -> ResourceClaim:
    return await node.allocate(await node.claim(), "gpu-0", config=config(interval))


def slices(node: SimulatedNode) -> list[int]:
    return [gpu.time_slice for gpu in state.load(node.gpus).gpus]


async def published(node: SimulatedNode) -> list[Any]:
    """Whether time slices can be set, of each device."""
    found = [
        device.attributes.get(ATTRIBUTE_TIME_SLICING) for one in await node.slices() for device in one.spec.devices
    ]
    return [None if each is None else each.value for each in found]


async def reported(node: SimulatedNode) -> GpuStatus:
    return (await node.client.get(GPU_NODES, ObjectKey("", node.name))).status.gpus[0]


async def test_a_claims_time_slice_lasts_as_long_as_the_claim(node: SimulatedNode) -> None:
    claim = await slicing(node, "Long")
    async with node.running():
        [pool] = await node.published(2)
        assert pool.spec.pool.generation == 1
        assert await published(node) == [True, True], "known before anything is published"
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        assert slices(node) == [3, 0]
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: slices(node) == [0, 0])


async def test_an_agent_takes_back_what_the_last_one_left(node: SimulatedNode) -> None:
    claim = await slicing(node, "Medium")
    async with node.running():
        await node.published(2)
        await node.prepare(claim)
        faults.fail(node.gpus, "nvidia-smi", pynvml.NVML_ERROR_UNKNOWN)
        await node.unprepare(claim)
    assert slices(node) == [2, 0]
    faults.stop_failing(node.gpus)
    async with node.running():
        await eventually(lambda: slices(node) == [0, 0])


async def test_a_board_that_has_none_is_published_as_such_and_refuses_the_claim(client: Client) -> None:
    node = SimulatedNode(client, gpus=1, board="P4")
    await node.create()
    claim = await slicing(node, "Short")
    async with node.running():
        await node.published(1)
        assert await published(node) == [False]
        error = (await node.prepare(claim))[claim.metadata.uid].error
        assert "asks for time slices of Short, and the board or the driver of" in error

        async def told() -> bool:
            sharing = (await reported(node)).sharing
            return sharing is not None and sharing.time_slicing is False

        await eventually(told)
    await node.delete()


async def test_a_node_without_nvidia_smi_says_so_and_takes_other_claims(node: SimulatedNode) -> None:
    faults.nvidia_smi(node.gpus, installed=False)
    long, plain = await slicing(node, "Long"), await node.claim("gpu-1")
    async with node.running():
        await node.published(2)
        assert await published(node) == [None, None]
        assert "there is no nvidia-smi" in (await node.prepare(long))[long.metadata.uid].error
        assert (await node.prepare(plain))[plain.metadata.uid].error == ""

        async def noted() -> bool:
            return any(
                "its time slice cannot be set: there is no nvidia-smi" in each for each in (await reported(node)).notes
            )

        await eventually(noted)
