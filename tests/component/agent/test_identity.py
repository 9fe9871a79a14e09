"""Device names stand for boards, and prepared claims match the hardware, across reboots, losses and returns of boards."""

import asyncio
import io
import json
import shutil
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any

import pytest

from draco.agent.files import Files
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint, RecordState
from draco.cli import run
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES, NODES, SLICES
from draco.resources.names import FIELD_MANAGER_OPERATOR, FORGET_GPU
from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.accidents import by_hand, faults, hotplug
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import GpuState
from tests.agents import SimulatedNode, eventually
from tests.doubles.faultproxy import FaultProxy, answer


def hardware(node: SimulatedNode) -> list[GpuState]:
    return state.load(node.gpus).gpus


async def uuids(node: SimulatedNode) -> dict[str, Any]:
    """UUIDs in the slices, by device name."""
    devices = [device for one in await node.slices() for device in one.spec.devices]
    return {device.name: device.attributes["uuid"].value for device in devices}


def opened(node: SimulatedNode, claim: ResourceClaim) -> dict[str, str]:
    """Device nodes in the claim's CDI spec, by UUID."""
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
    first, second = await node.claim("gpu-0"), await node.claim("gpu-1")
    async with node.running():
        assert (await node.prepare(first))[first.metadata.uid].error == ""
        assert opened(node, first) == {before["gpu-0"]: "/dev/nvidia1"}
        await node.unprepare(first)
        assert await uuids(node) == before
    found = checkpoint.load(node.checkpoint, Files())
    assert isinstance(found, RecordState)
    record = Checkpoint(node.checkpoint, Files(), boot_id="")
    record.restore(found)
    record.remember([])
    async with node.running():
        assert (await node.prepare(second))[second.metadata.uid].error == ""
        assert opened(node, second) == {before["gpu-1"]: "/dev/nvidia0"}
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


async def test_a_claim_says_which_instance_it_has_and_says_it_anew_after_a_reboot(
    node: SimulatedNode, crds: None
) -> None:
    for gpu in (0, 1):
        by_hand.set_mode(node.gpus, gpu, 1)
    claim = await node.claim("gpu-0-mig-1g10gb-19-3")

    async def said() -> dict[str, Any]:
        found = await node.client.get(CLAIMS, claim.metadata.key)
        return found.status.devices[0].data if found.status.devices else {}

    def real() -> dict[str, Any]:
        gpu = next(one for one in hardware(node) if one.uuid == mine)
        made = next(iter(gpu.instances), None)
        if made is None or not made.compute:
            return {}
        numbers = {"giID": made.id, "ciID": made.compute[0].id, "uuid": made.compute[0].uuid}
        address = f"{gpu.pci_domain:04x}:{gpu.pci_bus:02x}:{gpu.pci_device:02x}.0"
        place = {"profile": "1g.10gb", "placement": {"start": 3, "size": 1}}
        return {"version": 1, "parentUUID": mine, "pciBusID": address, **place, **numbers}

    async def right() -> bool:
        return bool(real()) and await said() == real()

    async with node.running():
        mine = hardware(node)[0].uuid
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await eventually(right)
    before = await said()
    faults.reboot(node.gpus, minors=[1, 0])
    async with node.running():
        await eventually(right)
        assert (await said())["uuid"] != before["uuid"]
        assert set(opened(node, claim)) == {(await said())["uuid"]}
        assert set(opened(node, claim).values()) == {"/dev/nvidia1"}


async def test_a_board_in_the_place_of_another_gets_a_name_of_its_own(node: SimulatedNode, crds: None) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.published(2)
        before = await uuids(node)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
    new = hotplug.replace(node.gpus, 0)
    faults.reboot(node.gpus)
    async with node.running():
        await node.published(3)
        assert await uuids(node) == {**before, "gpu-2": new}
        error = (await node.prepare(claim))[claim.metadata.uid].error
        assert f"NVML does not list GPU {before['gpu-0']} any more" in error
        other = await node.claim("gpu-2")
        assert (await node.prepare(other))[other.metadata.uid].error == ""
        assert opened(node, other) == {new: "/dev/nvidia0"}
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: node.published(2))
        assert await uuids(node) == {"gpu-1": before["gpu-1"], "gpu-2": new}


async def comes_again(node: SimulatedNode) -> Node:
    """The Node is deleted, and another machine registers under its name, with boards of its own. The disk stays the same."""
    await node.client.delete(NODES, ObjectKey("", node.name))
    node.gpus.unlink()
    state.create(node.gpus, board="H100-80GB", gpus=2, node_name=f"another-{node.name}")
    node.rebuild_sysfs()
    return await node.create()


async def report(node: SimulatedNode) -> GpuNode | None:
    """The agent's report on the current boards."""
    found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    there = {one.uuid for one in hardware(node)}
    return found if there <= {gpu.uuid for gpu in found.status.gpus} else None


async def health_of(node: SimulatedNode, claim: ResourceClaim) -> list[tuple[str, str]]:
    """GPU and health of the claim's device, from the claim's status."""
    devices = (await node.client.get(CLAIMS, claim.metadata.key)).status.devices
    return [(one.board, each.reason) for one in devices for each in one.conditions if each.type == "Healthy"]


async def warnings(plane: ControlPlane) -> list[str]:
    """Warnings of `draco status`."""
    with redirect_stdout(io.StringIO()) as out:
        assert await asyncio.to_thread(run, ["status", "--kubeconfig", str(plane.kubeconfig), "-o", "json"]) == 0
    return list(json.loads(out.getvalue())["warnings"])


@pytest.mark.parametrize("collected", [True, False])
async def test_another_machine_of_the_same_name_has_nothing_of_the_earlier_one(
    api_server: ControlPlane, node: SimulatedNode, crds: None, collected: bool
) -> None:
    """Both if Kubernetes collected the earlier Node's objects before the agent starts, and if not yet."""
    claim = await node.reserve(await node.claim("gpu-0"), "worker")
    async with node.running():
        await node.published(2)
        before = await uuids(node)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: health_of(node, claim))
        await eventually(lambda: report(node))
        prepared = datetime.now(UTC).replace(microsecond=0)
    shutil.rmtree(node.folder / "agent")
    shutil.rmtree(node.cdi)

    async def is_later() -> bool:
        """Whether a later second has begun: the API server's timestamps have whole seconds."""
        return datetime.now(UTC).replace(microsecond=0) > prepared

    await eventually(is_later)
    new = await comes_again(node)
    if collected:
        for one in await node.slices():
            await node.client.delete(SLICES, one.metadata.key)
        await node.client.delete(GPU_NODES, ObjectKey("", node.name))
    async with node.running():
        found = await eventually(lambda: report(node))
        assert {gpu.uuid for gpu in found.status.gpus} == {one.uuid for one in hardware(node)}
        assert found.status.prepared_claims == 0
        assert node.specs() == []

        async def own() -> bool:
            return set((await uuids(node)).values()) == {one.uuid for one in hardware(node)}

        await eventually(own)
        slices = await node.published(2)
        fresh = (found, *slices) if collected else slices  # the earlier Node's GpuNode is collected with it
        assert {owner.uid for one in fresh for owner in one.metadata.owner_references} == {new.metadata.uid}
        # The pod is still bound to the node's name, so kubelet starts it here.
        error = (await node.prepare(claim))[claim.metadata.uid].error
        if not collected:  # the names are of the earlier machine's boards
            assert "was allocated gpu-0, which this node does not have" in error
            return
        assert error == ""

        async def other_board() -> bool:
            return await health_of(node, claim) == [(before["gpu-0"], "OtherBoard")]

        await eventually(other_board)
        await node.register()

        async def said() -> list[str]:
            return [each for each in await warnings(api_server) if before["gpu-0"] in each]

        [told] = await eventually(said)
        assert told == (
            f"Pod {node.namespace}/worker got GPU {before['gpu-0']} of an earlier machine called {node.name}; another one has "
            "that name now. Delete it, by force if it does not end: "
            f"`kubectl delete pod -n {node.namespace} worker --force --grace-period=0`."
        )


async def test_another_machine_with_the_disk_of_the_earlier_one_gives_nothing_of_its_claims_away(
    node: SimulatedNode, crds: None
) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.published(2)
        before = await uuids(node)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: health_of(node, claim))
    new = await comes_again(node)
    async with node.running():
        found = await eventually(lambda: report(node))
        assert [(gpu.device, gpu.uuid) for gpu in found.status.gpus if gpu.faults] == [("gpu-0", before["gpu-0"])]
        await node.published(3)
        assert {owner.uid for one in await node.slices() for owner in one.metadata.owner_references} == {
            new.metadata.uid
        }
        assert set(await uuids(node)) == {"gpu-0", "gpu-2", "gpu-3"}
        error = (await node.prepare(claim))[claim.metadata.uid].error
        assert f"NVML does not list GPU {before['gpu-0']} any more" in error

        async def absent() -> bool:
            return await health_of(node, claim) == [(before["gpu-0"], "Absent")]

        await eventually(absent)
        assert node.specs() == []


async def test_while_the_api_server_cannot_say_the_names_claims_are_given_up_and_none_is_prepared(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.published(2)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
    found = checkpoint.load(node.checkpoint, Files())
    record = Checkpoint(node.checkpoint, Files(), boot_id="")
    record.restore(found)
    record.remember([])
    proxy.fault(lambda request: "resourceslices" in request.path, answer(503), times=10_000)
    async with node.running_through(proxy):
        other = await node.claim("gpu-1")
        assert (
            "has not read this node's published device names" in (await node.prepare(other))[other.metadata.uid].error
        )
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        assert node.specs() == []
        proxy.heal()

        async def prepared() -> bool:
            return not (await node.prepare(other))[other.metadata.uid].error

        await eventually(prepared)
