"""Names stand for boards, and what is prepared is what is there: over reboots, losses and returns, as the API server sees it."""

import json
from typing import Any

import msgspec

from draco.agent import checkpoint
from draco.agent.checkpoint import Checkpoint, Loaded
from draco.agent.files import LocalFiles
from draco.resources.claims import ResourceClaim
from draco.resources.kinds import GPU_NODES
from draco.resources.meta import ObjectKey
from draco.resources.names import FIELD_MANAGER_OPERATOR, FORGET_GPU
from draco.simulator import faults, hotplug, state
from draco.simulator.gpu_state import GpuState
from tests.agents import SimulatedNode, eventually


def hardware(node: SimulatedNode) -> list[GpuState]:
    return state.load(node.gpus).gpus


async def uuids(node: SimulatedNode) -> dict[str, Any]:
    """What the slices say: device name to UUID."""
    devices = [device for one in await node.slices() for device in one.spec.devices]
    return {device.name: device.attributes["uuid"].value for device in devices}


def opened(node: SimulatedNode, claim: ResourceClaim) -> dict[str, str]:
    """UUID to device node, as the claim's spec gives them to a container."""
    spec = json.loads(next(node.cdi.glob(f"*{claim.metadata.uid}.json")).read_text())
    edits = [device["containerEdits"] for device in spec["devices"]]
    return {one["env"][0].partition("=")[2]: one["deviceNodes"][0]["path"] for one in edits}


def remove(node: SimulatedNode, index: int) -> GpuState:
    """A board leaves, the node boots, and the minor numbers of the others close the gap."""
    gone = hardware(node)[index]
    hotplug.remove(node.gpus, index)
    faults.reboot(node.gpus)
    return gone


def bring_back(node: SimulatedNode, gpu: GpuState) -> None:
    hotplug.reseat(node.gpus, gpu.uuid)
    faults.reboot(node.gpus)


async def test_a_reboot_that_permutes_minor_numbers_moves_no_name(node: SimulatedNode) -> None:
    async with node.running():
        await node.published(2)
        before = await uuids(node)
    faults.reboot(node.gpus, minors=[1, 0])
    claim = await node.claim("gpu-0")
    async with node.running():
        answer = (await node.prepare(claim))[claim.metadata.uid]
        assert answer.error == ""
        assert opened(node, claim) == {before["gpu-0"]: "/dev/nvidia1"}
        await node.published(2)
        assert await uuids(node) == before


async def test_names_outlive_a_record_that_is_lost_or_of_an_earlier_version(node: SimulatedNode) -> None:
    async with node.running():
        await node.published(2)
        before = await uuids(node)
    faults.reboot(node.gpus, minors=[1, 0])
    node.checkpoint.unlink()
    async with node.running():
        assert await uuids(node) == before

    async def reported() -> dict[str, str]:
        found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
        return {one.device: one.uuid for one in found.status.gpus}

    found = checkpoint.load(node.checkpoint, LocalFiles())
    assert isinstance(found, Loaded)
    record = Checkpoint(node.checkpoint, LocalFiles(), boot_id="")
    record.restore(msgspec.structs.replace(found, gpus=[]))
    record.change()
    async with node.running():
        assert await uuids(node) == before


async def test_a_gpu_that_does_not_come_back_keeps_its_name_and_place_and_nobody_gets_its_claims(
    node: SimulatedNode, crds: None
) -> None:
    mine, other = await node.claim("gpu-0"), await node.claim("gpu-1")
    async with node.running():
        await node.published(2)
        before = await uuids(node)
        assert [one.error for one in (await node.prepare(mine, other)).values()] == ["", ""]
    gone = remove(node, 0)
    async with node.running():
        assert await uuids(node) == before
        assert opened(node, other) == {before["gpu-1"]: "/dev/nvidia0"}
        answers = await node.prepare(mine, other)
        assert gone.uuid in answers[mine.metadata.uid].error
        assert answers[other.metadata.uid].error == ""
        assert len(node.specs()) == 1
        assert [one.error for one in (await node.unprepare(mine)).values()] == [""]
        first = await node.claim("gpu-0")
        assert "Absent" in (await node.prepare(first))[first.metadata.uid].error
    bring_back(node, gone)
    async with node.running():
        assert (await node.prepare(first))[first.metadata.uid].error == ""
        assert opened(node, first) == {before["gpu-0"]: "/dev/nvidia0"}


async def test_a_person_can_say_that_a_gpu_is_gone_for_good(node: SimulatedNode, crds: None) -> None:
    async with node.running():
        await node.published(2)
        before = await uuids(node)
    gone = remove(node, 0)
    async with node.running():
        await node.published(2)
        body = {"metadata": {"name": node.name, "annotations": {FORGET_GPU: gone.uuid}}}
        await node.client.apply(GPU_NODES, ObjectKey("", node.name), body, manager=FIELD_MANAGER_OPERATOR)
        await eventually(lambda: node.published(1))
        assert await uuids(node) == {"gpu-1": before["gpu-1"]}
