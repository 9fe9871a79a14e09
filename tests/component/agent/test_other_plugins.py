"""Another plugin of the driver on the node: which one serves, and what Node and GpuNode say."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from draco.agent import app
from draco.agent.errors import AnotherPlugin
from draco.agent.plugin import wire
from draco.agent.plugin.api import dra_v1_pb2, registration_pb2
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import NVIDIA_DRIVER
from tests.agents import SimulatedNode, channel, eventually
from tests.doubles.draplugin import RecordingPlugin

pytestmark = pytest.mark.usefixtures("crds")


async def exclusive(node: SimulatedNode) -> dict[str, tuple[str, str]]:
    """Status and message of the conditions Exclusive and Ready."""
    found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    return {
        one.type: (one.status, one.message) for one in found.status.conditions if one.type in ("Exclusive", "Ready")
    }


async def is_said(node: SimulatedNode, *, status: str, ready: str, sentence: str) -> bool:
    told = await exclusive(node)
    if "Exclusive" not in told:
        return False  # nothing is reported yet
    return (told["Exclusive"][0], told["Ready"][0]) == (status, ready) and sentence in told["Exclusive"][1]


async def test_a_plugin_that_comes_later_is_told_on_node_and_gpunode_and_we_keep_the_node(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running(socket_check_s=0.05):
        await node.register()
        await eventually(lambda: is_said(node, status="True", ready="True", sentence=""))
        async with RecordingPlugin(NVIDIA_DRIVER).serving(node.folder):  # it replaces our sockets
            late = "which came after Draco. Draco keeps the node"
            await eventually(lambda: is_said(node, status="False", ready="True", sentence=late))
            [event] = await eventually(lambda: node.events("AnotherPlugin"))
            assert late in event.message
            assert (event.type, event.action) == ("Warning", "KeepNode")
            ours = node.registration_socket.with_name(f"{NVIDIA_DRIVER}-alt.sock")
            await eventually(ours.exists)
            async with channel(ours) as connected:
                info = await wire.unary(connected, wire.REGISTRATION, "GetInfo")(
                    registration_pb2.InfoRequest(), timeout=30
                )
            request = dra_v1_pb2.NodePrepareResourcesRequest(
                claims=[dra_v1_pb2.Claim(namespace=node.namespace, name=claim.metadata.name, uid=claim.metadata.uid)]
            )
            async with channel(Path(info.endpoint)) as connected:
                answer = await wire.unary(connected, wire.DRA_V1, "NodePrepareResources")(request, timeout=45)
            assert answer.claims[claim.metadata.uid].error == ""
        await eventually(lambda: is_said(node, status="True", ready="True", sentence=""))


async def test_to_a_plugin_that_was_first_the_agent_gives_way_and_keeps_what_runs(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not answer while the agent started, so the agent does not end; but it was there first."""
    running, waiting = await node.claim("gpu-0"), await node.claim("gpu-1")
    async with node.running():
        await node.prepare(running)

    async def overlooked(_registry: Path, _driver: str, *, ours: object) -> None:
        return

    monkeypatch.setattr(app, "refuse_beside_others", overlooked)
    async with RecordingPlugin(NVIDIA_DRIVER).serving(node.folder, pod="its-uid") as other:
        task = asyncio.create_task(
            app.run_agent(node.settings(socket_check_s=0.05), client=node.client, library=node.library)
        )
        before = "was served on this node before Draco by"
        await eventually(lambda: is_said(node, status="False", ready="False", sentence=before))
        [event] = await eventually(lambda: node.events("AnotherPlugin"))
        assert event.action == "GiveWay"
        assert not node.registration_socket.exists()
        assert before in (await node.prepare(waiting))[waiting.metadata.uid].error
        assert len(node.specs()) == 1
        assert (await node.unprepare(running))[running.metadata.uid].error == ""
        assert other.calls == []
    await eventually(lambda: is_said(node, status="True", ready="False", sentence=""))
    await node.register()
    await eventually(lambda: is_said(node, status="True", ready="True", sentence=""))
    assert (await node.prepare(waiting))[waiting.metadata.uid].error == ""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_an_agent_that_does_not_start_beside_another_plugin_says_so_on_the_gpunode(node: SimulatedNode) -> None:
    async with node.running():
        await node.register()
        await eventually(lambda: is_said(node, status="True", ready="True", sentence=""))
        served = "is already served on this node by"

        async def refused() -> bool:
            """Repeated, as kubelet restarts it: a late report of the first agent overwrites this one."""
            with pytest.raises(AnotherPlugin):
                await node.run(state_dir=node.folder / "other")
            return await is_said(node, status="False", ready="True", sentence=served)

        await eventually(refused)  # and the first agent is still ready
    async with RecordingPlugin(NVIDIA_DRIVER).serving(node.folder):
        with pytest.raises(AnotherPlugin):
            await node.run()
        assert await is_said(node, status="False", ready="False", sentence=served)
    found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    assert len(found.status.gpus) == 2
    async with node.running():
        await node.register()
        await eventually(lambda: is_said(node, status="True", ready="True", sentence=""))
