"""Shares that are held to their memory: what the agent publishes, and what a claim's containers get."""

import json
import uuid
from typing import Any

import pytest

from draco.agent.mps.folder import daemon_name
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuSharing
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, NVIDIA_DRIVER
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_mps import EXCLUSIVE, keeping, modes
from tests.unit.agent.driver_on_disk import A_LIBRARY

pytestmark = pytest.mark.usefixtures("crds")


ANY = 1_000_000
"""Clears a GPU for its form at any generation of the pool: no claim holds it."""


async def share(node: SimulatedNode, **gpus: list[int]) -> None:
    """Ask the agent to share GPUs by memory, such as MPS=[0, 1], with that enforcement."""
    known = state.load(node.gpus).gpus
    terms = {"policy": "by-memory", "mode": "Memory", "step": "1Gi"}
    shared = [
        {"uuid": known[n].uuid, "enforcement": enforcement.rstrip("_"), **terms}
        for enforcement, numbers in gpus.items()
        for n in numbers
    ]
    cleared = [{"uuid": each["uuid"], "generation": ANY} for each in shared]
    spec = {"shared": shared, "cleared": cleared}
    await node.client.apply(GPU_NODES, ObjectKey("", node.name), {"spec": spec}, manager="operator")


async def levels(node: SimulatedNode) -> dict[str, str | None]:
    """The published memory limit of each shared device."""
    return {
        device.name: device.text(ATTRIBUTE_MEMORY_LIMIT, NVIDIA_DRIVER)
        for one in await node.slices()
        for device in one.spec.devices
        if device.allow_multiple_allocations
    }


async def holding(node: SimulatedNode, **memory: str) -> ResourceClaim:
    """A claim with a share of each of these GPUs (gpu_0="10Gi")."""
    claim = await node.claim()
    results = [
        {
            "request": "gpu",
            "driver": NVIDIA_DRIVER,
            "pool": node.name,
            "device": name.replace("_", "-"),
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"memory": amount},
        }
        for name, amount in memory.items()
    ]
    allocation = {"allocation": {"devices": {"results": results}}}
    return await node.client.patch(CLAIMS, claim.metadata.key, {"status": allocation}, subresource="status")


def edits(node: SimulatedNode, claim: ResourceClaim) -> dict[str, Any]:
    """The edits of the only device in the claim's spec."""
    [path] = [each for each in node.cdi.iterdir() if claim.metadata.uid in each.name]
    [device] = json.loads(path.read_text())["devices"]
    return dict(device["containerEdits"])


async def sharing(node: SimulatedNode) -> GpuSharing | None:
    return (await node.client.get(GPU_NODES, ObjectKey("", node.name))).status.gpus[0].sharing


async def test_a_library_comes_with_each_share_where_the_node_has_it(client: Client) -> None:
    node = SimulatedNode(client, gpus=2)
    await node.create()
    library = node.folder / "libvgpu.so"
    async with node.running(limit_library=str(library)):
        await node.published(2)

        async def told(problem: str) -> bool:
            found = await sharing(node)
            return found is not None and found.library is not None and found.library_problem == problem

        await eventually(lambda: told(f"there is no file {library} on the node"))
        library.write_bytes(A_LIBRARY)
        library.chmod(0o644)
        await eventually(lambda: told(""))
        await share(node, Library=[0, 1])
        await eventually(lambda: _is(node, {"gpu-0": "library", "gpu-1": "library"}))
        claim = await holding(node, gpu_0="10Gi")
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        given = edits(node, claim)
        assert "CUDA_DEVICE_MEMORY_LIMIT=10240m" in given["env"]
        assert {each["containerPath"] for each in given["mounts"]} == {
            "/usr/local/vgpu/libvgpu.so",
            "/etc/ld.so.preload",
        }
        different = await holding(node, gpu_0="10Gi", gpu_1="20Gi")
        error = (await node.prepare(different))[different.metadata.uid].error
        assert "its memory limits differ (10240 MiB, 20480 MiB)" in error

        library.unlink()
        late = await holding(node, gpu_0="10Gi")
        assert f"there is no file {library} on the node" in (await node.prepare(late))[late.metadata.uid].error
    await node.delete()


async def test_the_shares_of_a_gpu_have_an_mps_daemon_while_there_are_any(node: SimulatedNode) -> None:
    async with keeping(node) as mps, node.running(driver_root=mps.root.host):
        await node.published(2)
        await share(node, MPS=[0, 1])
        await eventually(lambda: _is(node, {"gpu-0": "mps", "gpu-1": "mps"}))
        first, second = await holding(node, gpu_0="10Gi"), await holding(node, gpu_0="20Gi")
        for claim, mib in ((first, 10240), (second, 20480)):
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""
            assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mib}M" in edits(node, claim)["env"]
        name = daemon_name([state.load(node.gpus).gpus[0].uuid])
        assert mps.control.ask(mps.folder.pipe(name), "get_default_active_thread_percentage")
        whole = await holding(node, gpu_1="79Gi")
        assert (await node.prepare(whole))[whole.metadata.uid].error == ""
        assert "MPS" not in str(edits(node, whole)), "it leaves no room for another share"
        await node.unprepare(whole)
        two = await holding(node, gpu_0="1Gi", gpu_1="1Gi")
        error = (await node.prepare(two))[two.metadata.uid].error
        assert "it has gpu-0, gpu-1 with MPS, and a container can be the client of only one MPS daemon" in error
        assert modes(node) == [EXCLUSIVE, 0], "nothing was changed for it"

        async def told() -> bool:
            entries = (await node.client.get(CLAIMS, second.metadata.key)).status.devices
            said = [each.data for each in entries if isinstance(each.data, dict)]
            return [(each["memoryLimit"], each["memoryLimitBy"]) for each in said] == [("20480Mi", "mps")]

        await eventually(told)
        await node.unprepare(first)
        await eventually(lambda: len(node.specs()) == 1)
        assert modes(node) == [EXCLUSIVE, 0]
        await node.unprepare(second)
        await eventually(lambda: modes(node) == [0, 0] and not mps.folder.names())


async def test_without_a_keeper_no_gpu_is_shared_by_mps(node: SimulatedNode) -> None:
    async with node.running():
        await node.published(2)
        await share(node, MPS=[0], None_=[1])
        await eventually(lambda: _is(node, {"gpu-1": "none"}))


async def _is(node: SimulatedNode, wanted: dict[str, str]) -> bool:
    return await levels(node) == wanted
