"""Whether a node's driver holds memory limits, as its slices and its GpuNode say."""

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually

pytestmark = pytest.mark.usefixtures("crds")


async def test_a_node_says_so_from_driver_615_on(client: Client) -> None:
    node = SimulatedNode(client, gpus=1)
    await node.create()

    async def said(level: MemoryLimitBy) -> bool:
        devices = [device for each in await node.slices() for device in each.spec.devices]
        gpus = (await node.client.get(GPU_NODES, ObjectKey("", node.name))).status.gpus
        published = [each.attributes.get(ATTRIBUTE_MEMORY_LIMIT) for each in devices]
        reported = [each.sharing.memory_limit for each in gpus if each.sharing is not None]
        return [each.string for each in published if each is not None] == reported == [level]

    async with node.running():
        await node.published(1)
        await eventually(lambda: said(MemoryLimitBy.NONE))
        faults.reload_driver(node.gpus, version="615")
        await eventually(lambda: said(MemoryLimitBy.DRIVER))
    await node.delete()
