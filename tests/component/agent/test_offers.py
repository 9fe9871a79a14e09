"""Which partitions an agent offers: exactly the wanted ones, from the moment it knows them."""

import asyncio
from typing import Any

import pytest

from draco.resources.api.draco import GpuNode, InstanceUse
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from tests.agents import SimulatedNode, eventually

pytestmark = pytest.mark.usefixtures("crds")

PLACEMENTS = 7 + 7 + 4 + 3 + 2 + 1 + 1  # of an H100: 1g, 1g+me, 1g of double memory, 2g, 3g, 4g, 7g


async def gpu_node(node: SimulatedNode) -> GpuNode:
    return await node.client.get(GPU_NODES, ObjectKey("", node.name))


async def want(node: SimulatedNode, promised: str = "", **gpus: str) -> None:
    """Write the operator's wanted modes, such as gpu_0="Dynamic". A device of the first GPU may be promised."""
    reported = (await eventually(lambda: reporting(node))).status.gpus
    uuids = {one.device.replace("-", "_"): one.uuid for one in reported}
    spec: Any = [{"uuid": uuids[device], "policy": "p", "mode": mode} for device, mode in gpus.items()]
    kept = [{"device": promised, "uuid": uuids["gpu_0"], "claim": "default/soon"}] if promised else []
    wanted = {"spec": {"gpus": spec, "promised": kept, "decided": sorted(uuids.values())}}
    await node.client.apply(GPU_NODES, ObjectKey("", node.name), wanted, manager="operator")


async def reporting(node: SimulatedNode) -> GpuNode | None:
    found = await gpu_node(node)
    return found if found.status.gpus else None


async def devices(node: SimulatedNode) -> frozenset[str]:
    return frozenset(device.name for one in await node.slices() for device in one.spec.devices)


class Sightings:
    """Watches continuously whether a device is published, until asked for the result."""

    def __init__(self, node: SimulatedNode, device: str) -> None:
        self._node, self._device = node, device
        self._seen: set[bool] = set()
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            self._seen.add(self._device in await devices(self._node))
            await asyncio.sleep(0.01)

    def end(self) -> set[bool]:
        """What was seen, possibly both."""
        self._task.cancel()
        return self._seen


async def test_partitions_are_offered_while_they_are_wanted(node: SimulatedNode) -> None:
    async with node.running():
        await node.published(2)
        await want(node, gpu_0="Dynamic")
        [counters, offered] = await node.published(2 + PLACEMENTS)
        assert [one.name for one in counters.spec.shared_counters] == ["gpu-0-counter-set"]
        assert {one.attributes["type"].string for one in offered.spec.devices} == {"gpu", "mig"}
        await want(node)
        [only] = await node.published(2)
        assert only.spec.shared_counters == []


async def test_a_place_that_a_claim_was_allocated_is_never_withdrawn_and_is_served(node: SimulatedNode) -> None:
    small = "gpu-0-mig-1g10gb-19-2"
    async with node.running():
        await want(node, gpu_0="Dynamic")
        await node.published(2 + PLACEMENTS)
        claim = await node.claim(small)
        sightings = Sightings(node, small)
        await want(node, promised=small)
        [counters, offered] = await node.published(3)
        assert [one.name for one in offered.spec.devices] == ["gpu-1", "gpu-0", small]
        assert [one.name for one in counters.spec.shared_counters] == ["gpu-0-counter-set"]
    async with node.running():  # once more, without a record of the claim
        await eventually(node.registration_socket.exists)
        await node.register()
        await eventually(lambda: ready(node))
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: reports(node, InstanceUse.CLAIM))
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        assert sightings.end() == {True}
        await want(node)
        await node.published(2)


async def test_a_place_that_was_withdrawn_too_early_is_offered_again(node: SimulatedNode) -> None:
    """It was allocated before the operator knew of the allocation."""
    async with node.running():
        await want(node)
        await node.published(2)
        await want(node, promised="gpu-0-mig-3g40gb-9-4")
        await node.published(3)
        await eventually(lambda: says(node, "The GPU keeps 3g.40gb at 4 for claim default/soon."))


async def test_a_place_that_is_promised_after_notice_was_given_of_it_never_leaves(node: SimulatedNode) -> None:
    """The scheduler allocated it at the moment its policy was deleted."""
    small = "gpu-0-mig-1g10gb-19-2"

    async def noticed() -> bool:
        return small in await devices(node) and small not in await untainted(node)

    async with node.running():
        await want(node, gpu_0="Dynamic")
        await node.published(2 + PLACEMENTS)
        sightings = Sightings(node, small)
        await want(node)
        await eventually(noticed)
        await want(node, promised=small)
        await node.published(3)
        assert small in await untainted(node)
        assert sightings.end() == {True}


async def says(node: SimulatedNode, message: str) -> bool:
    first = (await gpu_node(node)).status.gpus[0]
    return first.mig is not None and first.mig.message == message


async def test_a_restart_withdraws_no_partition_and_takes_no_own_instance_for_anothers(node: SimulatedNode) -> None:
    async with node.running():
        await want(node, gpu_0="Dynamic")
        await node.published(2 + PLACEMENTS)
        claim = await node.claim("gpu-0-mig-3g40gb-9-4")
        answer = (await node.prepare(claim))[claim.metadata.uid]
        assert answer.error == ""
        await eventually(lambda: reports(node, InstanceUse.CLAIM))
    before = await devices(node)
    uses: set[InstanceUse] = set()
    offered: set[frozenset[str]] = set()

    async def watch() -> None:
        while True:
            gpus = (await gpu_node(node)).status.gpus
            uses.update(one.use for gpu in gpus if gpu.mig for one in gpu.mig.instances)
            offered.add(await devices(node))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    async with node.running():
        await eventually(node.registration_socket.exists)
        await node.register()
        await node.published(2 + PLACEMENTS)
        await eventually(lambda: ready(node))
    watching.cancel()
    assert uses == {InstanceUse.CLAIM}
    assert offered == {before}
    assert await node.events("ForeignInstance") == []


async def reports(node: SimulatedNode, use: InstanceUse) -> bool:
    gpus = (await gpu_node(node)).status.gpus
    return [one.use for gpu in gpus if gpu.mig for one in gpu.mig.instances] == [use]


async def ready(node: SimulatedNode) -> bool:
    conditions = (await gpu_node(node)).status.conditions
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


async def test_of_a_gpu_under_maintenance_nothing_is_ever_offered_without_the_taint(node: SimulatedNode) -> None:
    """It is divided during the work, by a running agent and by a starting one, and returned at the end."""
    bare: set[str] = set()

    async def watch() -> None:
        while True:
            bare.update(name for name in await untainted(node) if name.startswith("gpu-0"))
            await asyncio.sleep(0.01)

    async def only_gpu_1() -> bool:
        return await untainted(node) == {"gpu-1"}

    async with node.running():
        await want(node)
        await node.published(2)
        [uuid] = [each.uuid for each in (await gpu_node(node)).status.gpus if each.device == "gpu-0"]
        entry = {"request": "fan", "uuid": uuid, "key": "draco.dev/maintenance", "effect": "NoSchedule"}

        async def isolate(*entries: Any) -> None:
            spec = {"spec": {"isolated": list(entries)} if entries else {}}
            await node.client.apply(GPU_NODES, ObjectKey("", node.name), spec, manager="maintenance")

        async def taken_up() -> bool:
            now = await gpu_node(node)
            return now.status.isolates and now.status.observed_generation == now.metadata.generation

        await isolate(entry)
        await eventually(only_gpu_1)
        await eventually(taken_up)
        await isolate(entry, {**entry, "request": "dust"})  # nothing is published otherwise for that
        await eventually(taken_up)
        await isolate(entry)
        watching = asyncio.create_task(watch())
        await want(node, gpu_0="Dynamic")
        await node.published(2 + PLACEMENTS)
        await want(node)
        await node.published(2)
    await want(node, gpu_0="Dynamic")
    async with node.running():
        await node.published(2 + PLACEMENTS)
        watching.cancel()
        assert bare == set()
        await isolate()

        async def given_back() -> bool:
            return len(await untainted(node)) == 2 + PLACEMENTS

        await eventually(given_back)


async def untainted(node: SimulatedNode) -> set[str]:
    return {device.name for one in await node.slices() for device in one.spec.devices if not device.taints}
