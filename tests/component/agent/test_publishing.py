"""Slices are right, whatever other writers, the server or the network do."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.agent.errors import ClusterUnsuited
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.state.node import NodeState
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaint
from draco.resources.kinds import NODES, SLICES, Kind
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually
from tests.builders import a_device, a_slice
from tests.doubles.clock import ManualClock
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
        proxy.fault(lambda request: writes(request) and "dryRun" not in request.query, action)
    proxy.fault(lambda request: "dryRun" in request.query, answer(409, "Conflict"))  # while it asks what is served
    async with node.running_through(proxy):
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


async def test_a_reloaded_driver_is_published_with_its_new_version(node: SimulatedNode) -> None:
    async with node.running():
        await node.published(2)
        faults.reload_driver(node.gpus, version="590.10.01")

        async def seen() -> bool:
            [one] = await node.slices()
            versions = {device.attributes["driverVersion"].value for device in one.spec.devices}
            return versions == {"590.10.1"} and one.spec.pool.generation == 2

        await eventually(seen)


class DroppingClient(Client):
    """Like a server with a feature gate off: it silently stores devices without taints."""

    async def create(self, kind: Kind[Any], obj: Any, **options: Any) -> Any:
        return await super().create(kind, without_taints(obj), **options)

    async def replace(self, kind: Kind[Any], key: ObjectKey, obj: Any, **options: Any) -> Any:
        return await super().replace(kind, key, without_taints(obj), **options)


def without_taints(one: ResourceSlice) -> ResourceSlice:
    devices = [msgspec.structs.replace(device, taints=[]) for device in one.spec.devices]
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, devices=devices))


async def test_fields_that_the_server_drops_are_not_written_over_and_over(node: SimulatedNode) -> None:
    publisher = SlicePublisher(
        DroppingClient(node.client.connection),
        NodeState(ManualClock()),
        node=node.name,
        driver="gpu.nvidia.com",
        clock=SystemClock(),
    )
    taint = DeviceTaint(key="example.com/x", effect="NoSchedule")
    publisher.want([a_device("gpu-0", taints=[taint])])
    with capture_logs() as logs:
        running = asyncio.create_task(publisher.run())
        [first] = await node.published(1)
        publisher.want([a_device("gpu-1", taints=[taint])])

        async def renamed() -> bool:
            return await devices_of(node) == [["gpu-1"]]

        await eventually(renamed)
        [second] = await node.slices()
        await node.client.patch(SLICES, second.metadata.key, {"metadata": {"labels": {"wake": "up"}}})
        await asyncio.sleep(0.5)  # time for a write that must not happen
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    [last] = await node.slices()
    assert (first.spec.pool.generation, last.spec.pool.generation) == (1, 2)
    assert [one["event"] for one in logs].count("slices.fields_dropped") == 2


class LateClient(Client):
    """Its answers arrive after the watch delivered the write."""

    async def create(self, kind: Kind[Any], obj: Any, **options: Any) -> Any:
        return await late(super().create(kind, obj, **options))

    async def replace(self, kind: Kind[Any], key: ObjectKey, obj: Any, **options: Any) -> Any:
        return await late(super().replace(kind, key, obj, **options))


async def late(answer: Coroutine[Any, Any, Any]) -> Any:
    made = await answer
    await asyncio.sleep(0.2)  # the answer's delay in a busy event loop
    return made


async def test_a_write_whose_answer_comes_after_the_watch_holds_up_nothing(node: SimulatedNode) -> None:
    state = NodeState(ManualClock())
    publisher = SlicePublisher(
        LateClient(node.client.connection),
        state,
        node=node.name,
        driver="gpu.nvidia.com",
        clock=ManualClock(),  # delayed work never runs
    )
    publisher.want([a_device("gpu-0")])
    running = asyncio.create_task(publisher.run())
    await eventually(lambda: state.facts.published)
    publisher.want([a_device("gpu-0"), a_device("gpu-1")])
    await eventually(lambda: state.facts.published and state.facts.published.devices == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class TooLateClient(Client):
    """Somebody deletes a slice right before it is replaced, once."""

    deleted = False

    async def replace(self, kind: Kind[Any], key: ObjectKey, obj: Any, **options: Any) -> Any:
        if not self.deleted:
            self.deleted = True
            await self.delete(kind, key)
        return await super().replace(kind, key, obj, **options)


async def test_a_slice_that_is_deleted_while_it_is_replaced_is_made_again_without_a_fuss(node: SimulatedNode) -> None:
    state = NodeState(ManualClock())
    publisher = SlicePublisher(
        TooLateClient(node.client.connection),
        state,
        node=node.name,
        driver="gpu.nvidia.com",
        clock=SystemClock(),
    )
    publisher.want([a_device("gpu-0")])
    with capture_logs() as logs:
        running = asyncio.create_task(publisher.run())
        await eventually(lambda: state.facts.published)
        publisher.want([a_device("gpu-0"), a_device("gpu-1")])
        await eventually(lambda: state.facts.published and state.facts.published.devices == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert await devices_of(node) == [["gpu-0", "gpu-1"]]
    assert [one["event"] for one in logs if one["log_level"] == "error"] == []


async def test_a_cluster_without_dra_is_one_sentence(node: SimulatedNode, proxy: FaultProxy) -> None:
    proxy.fault(lambda request: "resource.k8s.io" in request.path, answer(404, "NotFound"), times=1000)
    async with Client(Connection(proxy.url)) as through:
        direct, node.client = node.client, through
        with pytest.RaisesGroup(
            pytest.RaisesExc(ClusterUnsuited, match=r"no GPU can be claimed. Upgrade to Kubernetes")
        ):
            await node.run()
        node.client = direct
