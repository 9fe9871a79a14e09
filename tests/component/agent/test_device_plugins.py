"""A device plugin that offers the same GPUs: what the agent publishes and reports meanwhile."""

import socket
from typing import Any

import pytest

from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES, NODES
from draco.resources.names import CONDITION_SOLE_ALLOCATOR, TAINT_DEVICE_PLUGIN
from tests.agents import SimulatedNode, eventually
from tests.doubles.faultproxy import FaultProxy, answer

pytestmark = pytest.mark.usefixtures("crds")


async def counts(node: SimulatedNode, **resources: str) -> None:
    """Kubelet reports this many of these resources."""
    named: dict[str, Any] = {f"nvidia.com/{name.replace('_', '-')}": count for name, count in resources.items()}
    status = {"capacity": named, "allocatable": named}
    await node.client.patch(NODES, ObjectKey("", node.name), {"status": status}, subresource="status")


async def tainted(node: SimulatedNode) -> list[str]:
    return [
        device.name
        for one in await node.slices()
        for device in one.spec.devices
        if any((taint.key, taint.effect) == (TAINT_DEVICE_PLUGIN, "NoSchedule") for taint in device.taints)
    ]


async def said(node: SimulatedNode) -> tuple[str, str]:
    found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    return next(
        ((one.status, one.message) for one in found.status.conditions if one.type == CONDITION_SOLE_ALLOCATOR), ("", "")
    )


async def test_gpus_that_kubelet_counts_are_tainted_and_told_until_it_counts_none(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    async def both() -> bool:
        return await tainted(node) == ["gpu-0", "gpu-1"] and (await said(node))[0] == "False"

    async def neither() -> bool:
        return await tainted(node) == [] and (await said(node))[0] == "True"

    async with node.running_through(proxy, socket_check_s=0.05):
        await node.published(2)
        await eventually(neither)
        await counts(node, gpu="2")
        await eventually(both)
        assert "A device plugin gives out nvidia.com/gpu on this node" in (await said(node))[1]
        [event] = await eventually(lambda: node.events("DevicePlugin"))
        assert (event.type, event.action) == ("Warning", "Taint")
        proxy.fault(lambda request: request.path.endswith("/nodes"), answer(403, "Forbidden"), times=10**9)
        for stream in proxy.open_streams:
            stream.cut()
        assert await both(), "the node cannot be read: it stays as it was"
        proxy.heal()
        await counts(node, gpu="0")
        await eventually(neither)


async def test_a_plugin_that_counts_mig_devices_by_profile_gives_out_no_gpu_that_is_not_divided(
    node: SimulatedNode,
) -> None:
    async with node.running(socket_check_s=0.05):
        await node.published(2)
        await counts(node, mig_1g_10gb="7")

        async def is_said() -> bool:
            return (await said(node))[0] == "False"

        await eventually(is_said)
        assert await tainted(node) == []


async def test_a_plugin_that_has_just_begun_to_listen_is_found_before_kubelet_says_anything(
    node: SimulatedNode,
) -> None:
    folder = node.folder / "device-plugins"
    folder.mkdir()

    async def all_tainted() -> bool:
        return len(await tainted(node)) == 2

    async def none_tainted() -> bool:
        return await tainted(node) == []

    async with node.running(socket_check_s=0.05):
        await node.published(2)
        with socket.socket(socket.AF_UNIX) as served:
            served.bind(str(folder / "nvidia-gpu.sock"))
            served.listen()
            await eventually(all_tainted)
        (folder / "nvidia-gpu.sock").unlink()
        await eventually(none_tainted)
