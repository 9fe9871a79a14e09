"""What the agent publishes about NVLinks: selectable by CEL, and updated when the links change."""

import uuid

from draco.cel import compile_selector, device_view
from draco.kube.connect.client import Client
from draco.resources.api.slices import Device
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import wiring
from tests.agents import SimulatedNode, eventually

CLUSTER = uuid.UUID("c1c1c1c1-0000-4000-8000-000000000001")
DOMAIN = f"device.attributes['gpu.nvidia.com'].?clusterUUID.orValue('') == '{CLUSTER}'"
PAIRED = "device.attributes['draco.dev'].?nvlinkPeers.orValue('') != ''"
FIRST = "'draco.dev' in device.attributes && device.attributes['draco.dev'].nvlinkGroup == 0"


def selected(expression: str, devices: list[Device]) -> set[str]:
    selector = compile_selector(expression)
    return {one.name for one in devices if selector.matches(device_view("gpu.nvidia.com", one))}


async def devices(node: SimulatedNode) -> list[Device]:
    return [device for one in await node.slices() for device in one.spec.devices]


async def test_gpus_of_a_fabric_can_be_selected_by_it(client: Client) -> None:
    node = SimulatedNode(client, gpus=2)
    wiring.join_fabric(node.gpus, cluster=CLUSTER, clique=7)
    await node.create()
    async with node.running():
        await node.published(2)
        found = await devices(node)
    assert selected(DOMAIN, found) == selected(FIRST, found) == {"gpu-0", "gpu-1"}
    assert {one.attributes["cliqueID"].value for one in found} == {7}
    await node.delete()


async def test_what_is_published_follows_the_links(client: Client) -> None:
    node = SimulatedNode(client, gpus=4, board="A30")
    wiring.bridge_pairs(node.gpus)
    await node.create()
    async with node.running(rescan_s=0.1):
        await node.published(4)
        found = await devices(node)
        assert selected(PAIRED, found) == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
        assert selected(FIRST, found) == {"gpu-0", "gpu-1"}
        for gpu in (0, 1):
            for link in range(4):
                faults.nvlink(node.gpus, gpu, link, down=True)

        async def parted() -> bool:
            return selected(PAIRED, await devices(node)) == {"gpu-2", "gpu-3"}

        await eventually(parted)
    await node.delete()
