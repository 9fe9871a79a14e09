"""What a node offers when its GpuNode was deleted: the last spec holds until an operator writes another."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from draco.agent.mig.last_spec import LAST_SPEC
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES, NODES, SLICES
from draco.resources.names import FIELD_MANAGER_OPERATOR, TAINT_MAINTENANCE, TAINT_OPERATOR_ALLOCATED
from tests.agents import SimulatedNode, eventually

pytestmark = pytest.mark.usefixtures("crds")

PARTITIONS = 7 + 7 + 4 + 3 + 2 + 1 + 1  # of an H100


async def gpu_node(node: SimulatedNode) -> GpuNode:
    return await node.client.get(GPU_NODES, ObjectKey("", node.name))


async def reported(node: SimulatedNode) -> GpuNode | None:
    found = await gpu_node(node)
    return found if len(found.status.gpus) == 2 else None


async def write(node: SimulatedNode, **spec: Any) -> None:
    """Write the operator's spec: both GPUs are decided, plus this."""
    found = await eventually(lambda: reported(node))
    decided = [one.uuid for one in found.status.gpus]
    body = {"spec": {"decided": decided, **spec}}
    await node.client.apply(GPU_NODES, ObjectKey("", node.name), body, manager=FIELD_MANAGER_OPERATOR)


async def taints(node: SimulatedNode) -> dict[str, set[str]]:
    """The keys of the taints of each device."""
    devices = [device for one in await node.slices() for device in one.spec.devices]
    return {device.name: {taint.key for taint in device.taints} for device in devices}


async def isolate_and_divide(node: SimulatedNode) -> None:
    """Put gpu-0 under maintenance in mode Dynamic, and hand gpu-1 over to Draco."""
    uuids = {one.device: one.uuid for one in (await eventually(lambda: reported(node))).status.gpus}
    entry = {
        "request": "fan",
        "uuid": uuids["gpu-0"],
        "device": "gpu-0",
        "key": TAINT_MAINTENANCE,
        "effect": "NoSchedule",
    }
    dynamic = {"uuid": uuids["gpu-0"], "policy": "p", "mode": "Dynamic"}
    await write(node, gpus=[dynamic], isolated=[entry], operatorAllocated=[uuids["gpu-1"]])
    await eventually(lambda: as_wanted(node))


async def as_wanted(node: SimulatedNode) -> bool:
    found = await taints(node)
    of_one = {key for name, keys in found.items() if name.startswith("gpu-0") for key in keys or {""}}
    return (
        len(found) == 2 + PARTITIONS
        and of_one == {TAINT_MAINTENANCE}
        and found.get("gpu-1") == {TAINT_OPERATOR_ALLOCATED}
    )


@asynccontextmanager
async def always_as_wanted(node: SimulatedNode) -> AsyncIterator[None]:
    """Within the block, published devices always match the last spec."""
    others: list[dict[str, set[str]]] = []

    async def watch() -> None:
        while True:
            if not await as_wanted(node):
                others.append(await taints(node))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    try:
        yield
        assert not others
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def deleted(node: SimulatedNode) -> None:
    await node.client.delete(GPU_NODES, ObjectKey("", node.name))


async def heard_of(node: SimulatedNode) -> GpuNode | None:
    """The GpuNode that the agent created again, once the agent has read it and published accordingly."""
    found = await reported(node)
    if found is None or found.status.observed_generation != found.metadata.generation:
        return None
    generations = {one.spec.pool.generation for one in await node.slices()}
    return found if generations == {found.status.pool_generation} else None


async def test_a_gpunode_that_is_deleted_lifts_nothing_until_the_operator_has_decided_again(
    node: SimulatedNode,
) -> None:
    async with node.running():
        await isolate_and_divide(node)
        async with always_as_wanted(node):
            await deleted(node)
            made = await eventually(lambda: heard_of(node))
            assert made.spec.decided == []
        await write(node)

        async def given_back() -> bool:
            return await taints(node) == {"gpu-0": set(), "gpu-1": set()}

        await eventually(given_back)


async def test_an_agent_that_starts_without_a_gpunode_goes_on_by_what_was_wanted_last(node: SimulatedNode) -> None:
    async with node.running():
        await isolate_and_divide(node)
    await deleted(node)
    async with always_as_wanted(node):
        async with node.running():
            await eventually(lambda: heard_of(node))
        await deleted(node)
        async with node.running():  # the previous agent's record still has what it did not hear again
            await eventually(lambda: heard_of(node))
    for one in await node.slices():  # as a starting kubelet does
        await node.client.delete(SLICES, one.metadata.key)
    async with node.running():
        await eventually(lambda: as_wanted(node))


@pytest.mark.parametrize("damage", ["lost", "unreadable"])
async def test_without_a_record_what_was_published_last_is_what_is_wanted(node: SimulatedNode, damage: str) -> None:
    async with node.running():
        await isolate_and_divide(node)
    await deleted(node)
    if damage == "lost":
        shutil.rmtree(node.folder / "agent")
    else:
        (node.folder / "agent" / LAST_SPEC).write_bytes(b'{"node_uid": 1}')
    async with always_as_wanted(node), node.running():
        await eventually(lambda: heard_of(node))


async def test_what_was_wanted_of_another_node_of_that_name_is_void(node: SimulatedNode) -> None:
    async with node.running():
        await isolate_and_divide(node)
    await deleted(node)
    await node.client.delete(NODES, ObjectKey("", node.name))
    await node.create()
    async with node.running():
        await eventually(lambda: heard_of(node))
        assert not any((await taints(node)).values())


async def test_a_gpunode_that_an_earlier_node_left_is_not_believed(node: SimulatedNode) -> None:
    """The garbage collector deletes it some time later."""
    async with node.running():
        await isolate_and_divide(node)
    await node.client.delete(NODES, ObjectKey("", node.name))
    await node.create()
    async with node.running():

        async def undivided() -> bool:
            return await taints(node) == {"gpu-0": set(), "gpu-1": set()}

        await eventually(undivided)
