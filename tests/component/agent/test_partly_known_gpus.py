"""GPUs that NVML describes incompletely or that are not ready: published as far as known, or reported; others are served."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.api.slices import Device
from draco.resources.kinds import GPU_NODES
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus.state import load, mutate
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_sick_gpus import taints

pytestmark = pytest.mark.usefixtures("crds")
Report = Callable[[GpuNode], bool]


@asynccontextmanager
async def a_node(client: Client, board: str, gpus: int = 2) -> AsyncIterator[SimulatedNode]:
    node = SimulatedNode(client, board=board, gpus=gpus)
    await node.create()
    try:
        yield node
    finally:
        await node.delete()


async def devices(node: SimulatedNode) -> dict[str, Device]:
    return {device.name: device for one in await node.slices() for device in one.spec.devices}


async def reported(node: SimulatedNode, wanted: Report) -> GpuNode:
    async def found() -> GpuNode | None:
        one = await node.client.get(GPU_NODES, ObjectKey("", node.name))
        return one if wanted(one) else None

    answer: GpuNode = await eventually(found)
    return answer


def complete(node: GpuNode) -> str:
    """What the condition says is missing; "" for nothing, "?" while there is no condition."""
    one = find_condition(node.status.conditions, "Complete")
    return "?" if one is None else one.message


def readable(node: GpuNode) -> bool:
    one = find_condition(node.status.conditions, "Readable")
    return one is not None and one.status == "True"


async def prepares(node: SimulatedNode, device: str) -> str:
    """The error of preparing a new claim; "" if it succeeds. The claim is unprepared again."""
    claim = await node.claim(device)
    error = str((await node.prepare(claim))[claim.metadata.uid].error)
    if not error:
        assert not (await node.unprepare(claim))[claim.metadata.uid].error
    return error


@pytest.mark.parametrize("before", [False, True], ids=["from its first start", "after a restart"])
async def test_a_gpu_without_memory_of_its_own_is_published_without_it_and_can_be_had(
    client: Client, before: bool
) -> None:
    async with a_node(client, "L40S") as node:
        if before:
            async with node.running():
                await node.published(2)
        with mutate(node.gpus) as state:
            state.gpus[0].pci_domain = 15
        node.rebuild_sysfs()
        faults.fail(node.gpus, "nvmlDeviceGetMemoryInfo", faults.ERRORS["NOT_SUPPORTED"], gpu=0)
        async with node.running():
            await node.published(2)

            async def without() -> bool:
                found = await devices(node)
                return found["gpu-0"].capacity == {} and "memory" in found["gpu-1"].capacity

            await eventually(without)
            found = (await devices(node))["gpu-0"]
            assert found.taints == []
            address = load(node.gpus).gpus[0].bus_id
            assert address.startswith("000f:")
            assert found.attributes["resource.kubernetes.io/pciBusID"].string == address
            said = await reported(
                node, lambda one: "gpu-0: published without memory" in complete(one) and readable(one)
            )
            first = said.status.gpus[0]
            assert (first.memory, first.health, first.faults) == ("", "Healthy", [])
            assert [await prepares(node, name) for name in ("gpu-0", "gpu-1")] == ["", ""]


@pytest.mark.parametrize("before", [False, True], ids=["from its first start", "after a restart"])
async def test_a_gpu_without_a_minor_number_is_named_and_the_other_keeps_its_name_and_is_served(
    client: Client, before: bool
) -> None:
    async with a_node(client, "L40S") as node:
        if before:
            async with node.running():
                await node.published(2)
        faults.fail(node.gpus, "nvmlDeviceGetMinorNumber", faults.ERRORS["NOT_SUPPORTED"], gpu=0)
        async with node.running():
            said = await reported(node, lambda one: bool(one.status.unidentified))
            [named] = said.status.unidentified
            assert (named.index, named.uuid) == (0, load(node.gpus).gpus[0].uuid)
            assert "no minor number" in named.message
            assert "WSL2" in named.message

            async def served() -> bool:
                blocked = {name for name, found in (await taints(node)).items() if found}
                return set(await devices(node)) - blocked == {"gpu-1"}

            await eventually(served)
            assert await prepares(node, "gpu-1") == ""
            if before:
                assert "gpu-0" in await prepares(node, "gpu-0")
        faults.stop_failing(node.gpus)
        async with node.running():
            await reported(node, lambda one: not one.status.unidentified and readable(one))

            async def published() -> bool:
                return await taints(node) == {"gpu-0": [], "gpu-1": []}

            await eventually(published)
            assert await prepares(node, "gpu-0") == ""


async def test_a_gpu_takes_claims_as_soon_as_it_has_joined_its_fabric(node: SimulatedNode) -> None:
    faults.fabric(node.gpus, 0, "joining")
    joining = {"gpu-0": [("draco.dev/unsettled", "FabricJoining", "NoSchedule")], "gpu-1": []}
    # Only the agent's faster polling may notice.
    async with node.running(rescan_s=600.0, probe_s=0.1):

        async def tainted() -> bool:
            return await taints(node) == joining

        await eventually(tainted)
        await reported(node, lambda one: "gpu-0: it is being registered with its NVLink fabric" in complete(one))
        assert "gpu-0 is still being registered" in await prepares(node, "gpu-0")
        assert await prepares(node, "gpu-1") == ""
        faults.fabric(node.gpus, 0, "joined")

        async def free() -> bool:
            return (await taints(node))["gpu-0"] == []

        await eventually(free)
        await reported(node, lambda one: complete(one) == "")
        assert await prepares(node, "gpu-0") == ""


async def test_a_gpu_that_could_not_join_its_fabric_has_a_fault_until_it_has(node: SimulatedNode) -> None:
    faults.fabric(node.gpus, 0, "failed")
    async with node.running():

        async def tainted() -> bool:
            return await taints(node) == {"gpu-0": [("draco.dev/fabric", "FabricFailed", "NoSchedule")], "gpu-1": []}

        await eventually(tainted)
        said = await reported(node, lambda one: any(gpu.faults for gpu in one.status.gpus) and readable(one))
        assert "could not join its NVLink fabric" in said.status.gpus[0].message
        assert "FabricFailed" in await prepares(node, "gpu-0")
        assert await prepares(node, "gpu-1") == ""
        faults.fabric(node.gpus, 0, "joined")

        async def free() -> bool:
            return (await taints(node))["gpu-0"] == []

        await eventually(free)


@pytest.mark.parametrize("board", ["A100-80GB", "H100-80GB"])
async def test_a_gpu_that_was_left_in_mig_mode_is_given_out_only_where_the_mode_ends_without_a_reset(
    client: Client, board: str
) -> None:
    async with a_node(client, board) as node:
        by_hand.set_mode(node.gpus, 0, 1)
        faults.reset(node.gpus, 0)
        assert load(node.gpus).gpus[0].mig_current == 1
        name = f"gpu-{load(node.gpus).gpus[0].minor}"
        async with node.running():
            await node.published(2)
            found = (await taints(node))[name]
            if board == "H100-80GB":
                assert found == []
                assert await prepares(node, name) == ""
                assert load(node.gpus).gpus[0].mig_current == 0, "whoever has all of it can use it"
                return
            assert found == [("draco.dev/unsettled", "MigMode", "NoSchedule")]
            said = await reported(node, lambda one: "or select it with a MigPolicy" in complete(one) and readable(one))
            assert f"{name}: its MIG mode is on" in complete(said)
            assert "MIG mode" in await prepares(node, name)
            by_hand.set_mode(node.gpus, 0, 0)
            faults.reset(node.gpus, 0)
            await reported(node, lambda one: complete(one) == "")

            async def free() -> bool:
                return (await taints(node))[name] == []

            await eventually(free)


@pytest.mark.parametrize("version", ["535.129.03.01", "r590-beta", "18446744073709551616.1.1", "5" * 80, ""])
async def test_a_version_that_is_none_costs_a_node_nothing_else_and_is_said(node: SimulatedNode, version: str) -> None:
    with mutate(node.gpus) as state:
        state.driver.version = version
    async with node.running():
        await node.published(2)
        assert not any("driverVersion" in one.attributes for one in (await devices(node)).values())
        said = await reported(
            node, lambda one: complete(one).startswith("Published without driverVersion") and readable(one)
        )
        assert said.status.driver_version == version


async def test_a_driver_without_events_is_read_at_intervals_and_that_is_said(node: SimulatedNode) -> None:
    asked: list[str] = []
    library: Any = node.library
    counted = library.nvmlEventSetCreate

    class Counting:
        def __getattr__(self, name: str) -> Any:
            if name == "nvmlEventSetCreate":
                asked.append(name)
            return getattr(library, name)

    assert counted is not None
    node.library = Counting()  # type: ignore[assignment] # as pynvml is one to the agent
    faults.fail(node.gpus, "nvmlEventSetCreate", faults.ERRORS["NOT_SUPPORTED"])
    async with node.running(rescan_s=0.2):
        await node.published(2)
        await reported(node, lambda one: complete(one).startswith("The agent receives no XIDs") and readable(one))
        assert await prepares(node, "gpu-0") == ""
        faults.recovery_action(node.gpus, 1, 1)

        async def seen() -> bool:
            return (await taints(node))["gpu-1"] == [("draco.dev/recovery", "NeedsReset", "NoSchedule")]

        await eventually(seen)
        before = len(asked)
        await eventually(lambda: len(asked) >= before + 4)  # twice per reading, not more
        assert all(not found for name, found in (await taints(node)).items() if name == "gpu-0")
