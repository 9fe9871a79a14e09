"""One agent replaces another on a node that kubelet watches: kubelet always has a plugin, and no call fails."""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from draco.agent.app import run_agent
from draco.agent.errors import AnotherPlugin
from draco.agent.plugin.guard import ProcessLock
from draco.agent.plugin.handover import NextAgent, hand_over, stands_by
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import ATTRIBUTE_TIME_SLICING, NVIDIA_DRIVER, ClaimUid
from draco_local.cluster import ports
from draco_local.simulator.accidents import by_hand
from draco_local.simulator.gpus import state
from draco_local.simulator.kubelet.ledger import ClaimRecord
from draco_local.simulator.kubelet.plugins import Plugins
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.agents import SimulatedNode, eventually

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
async def node(client: Client) -> AsyncIterator[SimulatedNode]:
    node = SimulatedNode(client, gpus=2)
    await node.create()
    yield node
    await node.delete()


@asynccontextmanager
async def kubelet_of(node: SimulatedNode) -> AsyncIterator[Plugins]:
    """A kubelet's plugin watcher, which calls the plugin that registered last."""
    watcher = Plugins(node.folder, clock=SystemClock(), registered=lambda _: None, poll_s=0.02)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        await ended(task)


def an_agent(node: SimulatedNode, **settings: Any) -> "asyncio.Task[None]":
    return asyncio.create_task(
        run_agent(node.settings(**settings), client=node.client, library=SimulatedNvml(node.gpus))
    )


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def exclusive(node: SimulatedNode) -> bool:
    """The GpuNode's condition Exclusive: whether no other plugin serves the driver."""
    reported = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    return any((one.type, one.status) == ("Exclusive", "True") for one in reported.status.conditions)


def on_record(claim: ResourceClaim) -> ClaimRecord:
    meta = claim.metadata
    return ClaimRecord(uid=ClaimUid(meta.uid), namespace=meta.namespace, name=meta.name, drivers=[NVIDIA_DRIVER])


async def test_kubelet_always_has_a_plugin_and_no_call_fails(node: SimulatedNode) -> None:
    held, *others = [await node.claim("gpu-0"), *[await node.claim("gpu-1") for _ in range(2)]]
    missing = asyncio.Event()
    async with kubelet_of(node) as kubelet:
        first = an_agent(node)
        await eventually(lambda: NVIDIA_DRIVER in kubelet.drivers())
        assert await kubelet.prepare(NVIDIA_DRIVER, [on_record(held)]) == {}
        specs = node.specs()

        async def watched() -> None:
            while True:
                if NVIDIA_DRIVER not in kubelet.drivers():
                    missing.set()
                await asyncio.sleep(0)

        rounds, agent = 0, first

        async def worked() -> None:
            nonlocal rounds
            while True:
                claim = on_record(others[rounds % 2])
                assert await kubelet.prepare(NVIDIA_DRIVER, [claim]) == {}
                assert await kubelet.unprepare(NVIDIA_DRIVER, [claim]) == {}
                rounds += 1

        watching, working = asyncio.create_task(watched()), asyncio.create_task(worked())
        try:
            for _ in range(3):
                following = an_agent(node, takes_over=True)
                await eventually(lambda: stands_by(node.folder / "agent"))
                await ended(agent)
                agent, before = following, rounds
                await eventually(lambda before=before: working.done() or rounds > before + 2)
            if working.done():
                working.result()
            assert not missing.is_set()
            assert set(specs) <= set(node.specs())
            assert await kubelet.unprepare(NVIDIA_DRIVER, [on_record(held)]) == {}
        finally:
            for task in (watching, working, agent):
                task.cancel()
            await asyncio.gather(watching, working, agent, return_exceptions=True)


async def test_one_that_follows_an_agent_which_dies_serves_at_once(node: SimulatedNode) -> None:
    with ProcessLock(node.folder / "agent" / "agent.lock"):  # the kernel releases it when the process ends, as here
        following = an_agent(node, takes_over=True)
        await eventually(lambda: stands_by(node.folder / "agent"))
    try:
        await eventually(node.answers)
        claim = await node.claim("gpu-0")
        assert not (await node.prepare(claim))[claim.metadata.uid].error
    finally:
        await ended(following)


async def test_calls_wait_for_an_agent_that_has_registered_and_is_not_the_nodes_yet(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    lock = ProcessLock(node.folder / "agent" / "agent.lock")
    lock.acquire()
    following = an_agent(node, takes_over=True)
    try:
        await eventually(lambda: stands_by(node.folder / "agent"))
        leaving = asyncio.create_task(hand_over(node.folder / "agent", SystemClock(), calls=lambda: 0))
        await eventually(node.answers)
        await node.register()
        await leaving
        asked = asyncio.create_task(node.prepare(claim))
        done, _ = await asyncio.wait({asked}, timeout=0.3)
        assert not done
        assert node.specs() == []
        lock.release()
        assert not (await asked)[claim.metadata.uid].error
        assert len(node.specs()) == 1
    finally:
        lock.release()
        await ended(following)


async def test_one_that_stands_by_is_ready_and_touches_nothing(node: SimulatedNode) -> None:
    port = ports.pick()
    async with node.running():

        async def probed() -> bool:
            """Whether the serving agent has found out, and on record, which GPUs can have time slices."""
            devices = [device for each in await node.slices() for device in each.spec.devices]
            return bool(devices) and all(ATTRIBUTE_TIME_SLICING in device.attributes for device in devices)

        await eventually(probed)
        before = (node.checkpoint.read_bytes(), sorted(each.name for each in node.registration_socket.parent.iterdir()))
        following = an_agent(node, takes_over=True, listen=("127.0.0.1", port))
        try:
            async with aiohttp.ClientSession() as session:

                async def ready() -> bool:
                    with suppress(aiohttp.ClientError):
                        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                            return answer.status == 200
                    return False

                await eventually(ready)
            sockets = sorted(each.name for each in node.registration_socket.parent.iterdir())
            assert (node.checkpoint.read_bytes(), sockets) == before
        finally:
            await ended(following)


async def test_one_that_is_not_called_gives_up_and_says_who_serves(node: SimulatedNode) -> None:
    async with node.running():
        await eventually(lambda: exclusive(node))
        with pytest.raises(AnotherPlugin, match="Another Draco agent"):
            await node.run(takes_over=True, stand_by_s=0.2)
        assert await exclusive(node)


async def test_a_third_agent_is_refused(node: SimulatedNode) -> None:
    async with node.running():
        following = an_agent(node, takes_over=True)
        try:
            await eventually(lambda: stands_by(node.folder / "agent"))
            with pytest.raises(AnotherPlugin, match="one serves, one stands by"):
                await node.run(takes_over=True)
        finally:
            await ended(following)


async def test_without_being_told_to_follow_it_refuses_to_start(node: SimulatedNode) -> None:
    async with node.running():
        with pytest.raises(AnotherPlugin, match="Another Draco agent"):
            await node.run()


async def test_one_that_leaves_answers_its_calls_before_its_socket_goes(node: SimulatedNode) -> None:
    folder = node.folder / "agent"
    folder.mkdir(parents=True)
    calls = 1
    with NextAgent(folder) as place:
        place.has_registered()
        leaving = asyncio.create_task(hand_over(folder, SystemClock(), calls=lambda: calls))
        done, _ = await asyncio.wait({leaving}, timeout=0.5)
        assert place.called
        assert not done
        calls = 0
        async with asyncio.timeout(5):
            await leaving


async def test_who_looks_for_the_next_agent_does_not_keep_it_from_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.next").touch()
    looking = os.open(tmp_path / "agent.next", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("draco.agent.plugin.handover.time.sleep", lambda _: os.close(looking))
    with NextAgent(tmp_path):
        assert stands_by(tmp_path)


async def test_one_that_begins_to_stand_by_while_the_other_leaves_is_called(tmp_path: Path) -> None:
    with NextAgent(tmp_path):
        leaving = asyncio.create_task(hand_over(tmp_path, SystemClock(), calls=lambda: 0))
        await eventually((tmp_path / "agent.leaving").exists)
        (tmp_path / "agent.leaving").unlink()  # as an agent does that takes it for a leftover
        await eventually((tmp_path / "agent.leaving").exists)
        leaving.cancel()


async def test_one_that_was_called_waits_until_the_other_has_ended(node: SimulatedNode) -> None:
    lock = ProcessLock(node.folder / "agent" / "agent.lock")
    lock.acquire()
    following = an_agent(node, takes_over=True, stand_by_s=0.3)
    try:
        await eventually(lambda: stands_by(node.folder / "agent"))
        (node.folder / "agent" / "agent.leaving").touch()
        done, _ = await asyncio.wait({following}, timeout=1.0)
        assert not done
        lock.release()
        await eventually(node.answers)
    finally:
        lock.release()
        await ended(following)


async def test_an_agent_keeps_the_nodes_record_until_its_work_on_instances_has_ended(node: SimulatedNode) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def step(point: str) -> None:
        if point == "before nvmlDeviceCreateGpuInstanceWithPlacement":
            begun.set()
            go_on.wait(60)

    by_hand.set_mode(node.gpus, 0, 1)
    library = SimulatedNvml(node.gpus, step=step)
    serving = asyncio.create_task(run_agent(node.settings(), client=node.client, library=library))
    await eventually(node.answers)
    claim = await node.claim("gpu-0-mig-1g10gb-19-3")
    asked = asyncio.create_task(node.prepare(claim))
    await eventually(begun.is_set)
    serving.cancel()
    await asyncio.wait({serving, asked}, timeout=60)
    with pytest.raises(AnotherPlugin, match="Another Draco agent"):
        await node.run()
    go_on.set()

    async def free() -> bool:
        with suppress(AnotherPlugin), ProcessLock(node.folder / "agent" / "agent.lock"):
            return True
        return False

    await eventually(free)
    async with node.running():
        assert not (await node.prepare(claim))[claim.metadata.uid].error
        assert len(state.load(node.gpus).gpus[0].instances) == 1
    await asyncio.gather(asked, serving, return_exceptions=True)
