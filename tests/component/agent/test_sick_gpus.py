"""A GPU that fails while the agent runs: slices, kubelet's health, GpuNode and claims show it at once; no new claim gets it."""

import pytest

from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually

SLOW = {"rescan_s": 600.0}  # so long that a periodic reading cannot be what notices in time


async def taints(node: SimulatedNode) -> dict[str, list[tuple[str, str, str]]]:
    return {
        device.name: [(one.key, one.value, one.effect) for one in device.taints]
        for one in await node.slices()
        for device in one.spec.devices
    }


@pytest.mark.usefixtures("crds")
async def test_an_xid_that_ends_a_gpu_counts_at_once_everywhere(node: SimulatedNode) -> None:
    running, late = await node.claim("gpu-0"), await node.claim("gpu-0", "gpu-1")
    async with node.running(**SLOW):
        await node.published(2)
        assert not (await node.prepare(running))[running.metadata.uid].error
        faults.xid(node.gpus, 0, 119)
        expected = {"gpu-0": [("draco.dev/xid", "Xid119", "NoSchedule")], "gpu-1": []}

        async def tainted() -> bool:
            return await taints(node) == expected

        await eventually(tainted)

        async def told() -> object:
            found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
            return {gpu.device: gpu.message for gpu in found.status.gpus if gpu.health == "Unhealthy"}

        assert (await eventually(told))["gpu-0"].startswith("XID 119: ")
        async with node.health() as stream:
            states = {one.device.device_name: (one.health, one.message) for one in (await stream.read()).devices}
        assert (states["gpu-0"][0], states["gpu-1"][0]) == (2, 1)
        assert states["gpu-0"][1].startswith("XID 119: ")

        async def unhealthy() -> object:
            [device] = (await node.client.get(CLAIMS, running.metadata.key)).status.devices
            return [one for one in device.conditions if one.type == "Healthy" and one.status == "False"]

        assert (await eventually(unhealthy))[0].message.startswith("XID 119: ")
        # The claim that has it keeps it; a new claim is told which of its GPUs is faulty.
        again = (await node.prepare(running))[running.metadata.uid]
        assert (again.error, [one.device_name for one in again.devices]) == ("", ["gpu-0"])
        assert not (await node.unprepare(running))[running.metadata.uid].error
        refusal = (await node.prepare(late))[late.metadata.uid].error
        assert "gpu-0 (Xid119: XID 119:" in refusal
        assert "gpu-1" not in refusal
    async with node.running(**SLOW):
        await eventually(tainted)
        assert "Xid119" in (await node.prepare(late))[late.metadata.uid].error, "a restart heals no GPU"
    faults.reload_driver(node.gpus)
    node.rebuild_sysfs()
    async with node.running(**SLOW):
        expected["gpu-0"] = []
        await eventually(tainted)
        assert not (await node.prepare(late))[late.metadata.uid].error


async def test_an_xid_of_an_application_changes_nothing(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running(**SLOW):
        await node.published(2)
        [before] = await node.slices()
        for code in (13, 31, 43, 45):
            faults.xid(node.gpus, 0, code)
        faults.xid(node.gpus, 1, 79)  # comes after them: when this one was seen, they were, too

        async def seen() -> object:
            return (await taints(node))["gpu-1"]

        await eventually(seen)
        assert (await taints(node))["gpu-0"] == []
        [after] = await node.slices()
        assert after.spec.pool.generation == before.spec.pool.generation + 1
        assert not (await node.prepare(claim))[claim.metadata.uid].error
