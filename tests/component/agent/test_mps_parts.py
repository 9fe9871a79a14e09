"""MPS on the MIG devices of a real agent with a keeper on its node: two phases of Prepare, and the order of the end."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from draco.agent.claims import work
from draco.agent.claims.mps import name_of
from draco.agent.hardware.gpus import PlacementKey
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import MigMode
from draco.resources.api.meta import Condition, find_condition
from draco.resources.kinds import CLAIMS
from draco.resources.names import ATTRIBUTE_MPS, CONDITION_MPS, GpuUuid
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_mps import keeping
from tests.component.agent.test_partitions import a_divided_node, want

SMALL = "gpu-0-mig-1g10gb-19-3"
RIGHT = "gpu-0-mig-3g40gb-9-4"


@pytest.fixture
async def node(client: Client, namespace: str, crds: None) -> AsyncIterator[SimulatedNode]:
    """A node with one simulated H100 in MIG mode."""
    async with a_divided_node(client, namespace) as made:
        yield made


def places(node: SimulatedNode) -> list[tuple[int, int]]:
    return sorted((one.profile_id, one.start) for one in state.load(node.gpus).gpus[0].instances if one.compute)


def key(node: SimulatedNode, profile: int, start: int) -> PlacementKey:
    return PlacementKey(GpuUuid(state.load(node.gpus).gpus[0].uuid), profile, start)


async def asking(node: SimulatedNode, *devices: str) -> ResourceClaim:
    """An allocated claim that asks for MPS on MIG devices, half of the threads for each client."""
    sharing = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    config: dict[str, Any] = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "MigDeviceConfig",
        "sharing": sharing,
    }
    return await node.allocate(await node.claim(), *devices, config=config)


async def test_a_mig_device_has_a_daemon_from_the_claims_first_pod_to_its_last(node: SimulatedNode) -> None:
    claim = await asking(node, SMALL)
    name = name_of(key(node, 19, 3))

    async def condition() -> Condition | None:
        found = await node.client.get(CLAIMS, claim.metadata.key)
        return next((find_condition(one.conditions, CONDITION_MPS) for one in found.status.devices), None)

    async with keeping(node) as mps, node.running(driver_root=mps.root.host):
        await want(node, MigMode.DYNAMIC)

        async def published() -> bool:
            devices = {device.name: device for one in await node.slices() for device in one.spec.devices}
            return SMALL in devices and devices[SMALL].attributes[ATTRIBUTE_MPS].bool_ is True

        await eventually(published)
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        wanted = mps.folder.wanted(name)
        assert wanted is not None
        [instance] = state.load(node.gpus).gpus[0].instances
        assert wanted.devices == [instance.compute[0].uuid]
        assert mps.control.ask(mps.folder.pipe(name), "get_default_active_thread_percentage") == "50.0"
        said = await eventually(condition)
        assert (said.status, said.reason) == ("True", "Answers")

        async def limits() -> Any:
            [device] = (await node.client.get(CLAIMS, claim.metadata.key)).status.devices
            return device.data.get("mps") == {"limitsPer": "process", "newestProtocol": 2}

        await eventually(limits)
        assert (await node.prepare(claim))[claim.metadata.uid].error == "", "for another pod"
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        assert places(node) == []
        await eventually(lambda: not mps.folder.names() and not mps.processes.of(name))


async def test_a_claim_whose_daemon_never_starts_leaves_no_instance(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "DAEMON_S", 0.5)
    claim = await asking(node, SMALL)
    async with keeping(node) as mps, node.running(driver_root=mps.root.host):
        mps.daemons.broken = True
        error = (await node.prepare(claim))[claim.metadata.uid].error
        assert "its MPS daemon is not ready, because " in error
        assert "Kubelet tries again" in error
        await eventually(lambda: places(node) == [] and not mps.folder.names())
        mps.daemons.broken = False
        monkeypatch.undo()
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await node.unprepare(claim)


async def test_an_agent_that_is_replaced_leaves_the_daemons_of_mig_devices(node: SimulatedNode) -> None:
    claim = await asking(node, SMALL)
    other = await asking(node, RIGHT)
    names = [name_of(key(node, *place)) for place in ((19, 3), (9, 4))]
    async with keeping(node) as mps:
        async with node.running(driver_root=mps.root.host):
            for each in (claim, other):
                assert (await node.prepare(each))[each.metadata.uid].error == ""
        before = [mps.processes.of(name) for name in names]
        async with node.running(driver_root=mps.root.host):
            await node.unprepare(claim)
            assert places(node) == [(9, 4)]
            assert not mps.processes.of(names[0])
            assert mps.processes.of(names[1]) == before[1], "of another claim"
            await node.unprepare(other)
