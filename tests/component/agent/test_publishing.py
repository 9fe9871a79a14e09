"""Slices are what they should be, whatever others, the server or the network do to them."""

import msgspec

from draco.kube.client import Client
from draco.kube.connection import Connection
from draco.resources.kinds import NODES, SLICES
from draco.resources.meta import ObjectKey, ObjectMeta
from draco.resources.slices import ResourceSlice
from draco.simulator import faults
from tests.agents import SimulatedNode, eventually
from tests.builders import a_slice
from tests.doubles.faultproxy import FaultProxy, answer, drop, writes


async def devices_of(node: SimulatedNode) -> list[list[str]]:
    return [[device.name for device in one.spec.devices] for one in await node.slices()]


async def test_a_node_without_gpus_publishes_an_empty_slice(client: Client) -> None:
    node = SimulatedNode(client, gpus=0)
    await node.create()
    async with node.running():
        [only] = await node.published(0)
    assert only.spec.devices == []
    await node.delete()


async def test_a_restart_writes_nothing(node: SimulatedNode) -> None:
    async with node.running():
        [before] = await node.published(2)
    async with node.running():
        await eventually(node.registration_socket.exists)
        await node.register()
        [after] = await node.published(2)
    assert after.metadata.resource_version == before.metadata.resource_version


async def test_slices_left_by_another_installation_are_adopted(node: SimulatedNode) -> None:
    old = a_slice(node.name, ["gpu-0"], name=f"{node.name}-gpu.nvidia.com-x7k2p", generation=7)
    await node.client.create(SLICES, msgspec.structs.replace(old, metadata=ObjectMeta(name=old.metadata.name)))
    async with node.running():

        async def alone() -> ResourceSlice | None:
            found = await node.slices()
            return found[0] if [one.spec.pool.generation for one in found] == [8] else None

        adopted = await eventually(alone)
    assert len(adopted.spec.devices) == 2


async def test_slices_of_another_driver_on_the_node_are_left_alone(node: SimulatedNode) -> None:
    other = a_slice(node.name, ["nic-0"], driver="gpu.example.com", name=f"{node.name}-other")
    await node.client.create(SLICES, msgspec.structs.replace(other, metadata=ObjectMeta(name=other.metadata.name)))
    async with node.running():
        await node.published(3)
    assert sorted(len(devices) for devices in await devices_of(node)) == [1, 2]


async def test_an_edit_by_somebody_else_is_put_right(node: SimulatedNode) -> None:
    async with node.running():
        [before] = await node.published(2)
        spec = msgspec.structs.replace(before.spec, devices=before.spec.devices[:1])
        await node.client.replace(SLICES, before.metadata.key, msgspec.structs.replace(before, spec=spec))

        async def repaired() -> bool:
            [one] = await node.slices()
            return one.spec.pool.generation == 2 and len(one.spec.devices) == 2

        await eventually(repaired)


async def test_a_node_made_anew_gets_slices_of_its_own(node: SimulatedNode) -> None:
    async with node.running():
        [before] = await node.published(2)
        await node.client.delete(NODES, ObjectKey("", node.name))
        await node.client.delete(SLICES, before.metadata.key)  # as the garbage collector does
        fresh = await node.create()

        async def owned() -> bool:
            found = await node.slices()
            return [one.metadata.owner_references[0].uid for one in found] == [fresh.metadata.uid]

        await eventually(owned)


async def test_a_slow_api_server_that_refuses_and_fails_gets_the_slices_in_the_end(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    for action in (answer(429, headers={"Retry-After": "1"}), answer(500), answer(503), answer(409, "Conflict"), drop):
        proxy.fault(writes, action)
    direct = node.client
    async with Client(Connection(proxy.url)) as through:
        node.client = through
        async with node.running():
            node.client = direct
            [published] = await node.published(2)
    assert published.spec.pool.generation == 1


async def test_a_gpu_that_is_lost_stays_published_and_a_late_driver_is_waited_for(node: SimulatedNode) -> None:
    faults.break_driver(node.gpus)
    async with node.running():
        await node.register()
        assert await node.slices() == []
        faults.break_driver(node.gpus, 0)
        await node.published(2)
        faults.lose(node.gpus, 0)
        async with node.health() as stream:
            await eventually(lambda: lost(stream))
        assert await devices_of(node) == [["gpu-0", "gpu-1"]]


async def lost(stream: object) -> bool:
    response = await stream.read()  # type: ignore[attr-defined]
    return {one.device.device_name: one.health for one in response.devices} == {"gpu-0": 2, "gpu-1": 1}
