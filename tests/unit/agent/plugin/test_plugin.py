"""Serving a driver beside other plugins of it, over real sockets: which one keeps the node, and that no socket is harmed."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from draco.agent.plugin import registration as plugin
from draco.agent.plugin.api import registration_pb2
from draco.agent.plugin.registration import Plugin, sockets
from draco.agent.plugin.unix_sockets import SocketFile, identity, listener
from draco.agent.plugin.wire import REGISTRATION, unary
from draco.agent.state.facts import PluginConflict
from draco.agent.state.node import NodeState
from draco.kube.clock import SystemClock
from tests.agents import channel, eventually
from tests.doubles.draplugin import RecordingPlugin

DRIVER = "gpu.nvidia.com"


class Served:
    """A running plugin, and the conflicts that it reported."""

    def __init__(self, root: Path) -> None:
        self.conflicts: list[PluginConflict | None] = []
        self.where = sockets(root, DRIVER)
        self.state = NodeState(SystemClock())
        self.state.on_fact("conflict", lambda facts: self.conflicts.append(facts.conflict))
        self.plugin = Plugin(self.where, self.state, driver=DRIVER, services=[], clock=SystemClock(), check_s=0.02)

    @property
    def registration(self) -> Path:
        """The socket through which kubelet finds it now."""
        return self.plugin._registry.path

    async def info(self) -> Any:
        """What kubelet gets from GetInfo; it retries while the plugin re-registers."""

        async def asked() -> Any:
            with suppress(grpc.aio.AioRpcError):
                async with channel(self.registration) as connected:
                    return await unary(connected, REGISTRATION, "GetInfo")(registration_pb2.InfoRequest(), timeout=30)

        return await eventually(asked)


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Served]:
    served = Served(root)
    task = asyncio.create_task(served.plugin.run())
    await served.plugin.serving.wait()
    try:
        yield served
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def names(root: Path) -> list[str]:
    """All sockets, including hidden ones."""
    return [path.name for path in root.rglob("*") if path.is_socket()]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def other() -> RecordingPlugin:
    return RecordingPlugin(DRIVER)


async def until_conflict(served: Served) -> PluginConflict:
    await eventually(lambda: served.state.facts.conflict)
    assert served.state.facts.conflict
    return served.state.facts.conflict


async def test_one_that_comes_later_by_a_socket_of_its_own_is_named_and_we_register_again(
    root: Path, other: RecordingPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "REGISTER_AGAIN_S", (0.0, 0.2))
    async with running(root) as served:
        before = identity(served.registration)
        async with other.serving(root, pod="its-uid"):
            conflict = await until_conflict(served)
            assert not conflict.gives_way
            assert f"{DRIVER}-its-uid-reg.sock" in conflict.sentence
            assert f"process {os.getpid()}" in conflict.sentence
            assert "Draco keeps the node and has registered again" in conflict.sentence
            seen: set[SocketFile | None] = {before}

            def registered_twice() -> bool:
                seen.add(identity(served.registration))
                return len(seen - {None}) == 3

            await eventually(registered_twice)
            assert (await served.info()).name == DRIVER
        await eventually(lambda: served.state.facts.conflict is None)
        assert [conflict is not None for conflict in served.conflicts] == [True, False]


async def test_one_that_puts_its_sockets_in_the_place_of_ours_keeps_them_and_we_serve_beside_it(
    root: Path, other: RecordingPlugin
) -> None:
    async with running(root) as served:
        async with other.serving(root):
            theirs = [identity(path) for path in (served.where.registration, served.where.service)]
            conflict = await until_conflict(served)
            assert not conflict.gives_way
            await eventually(lambda: served.registration != served.where.registration and served.registration.exists())
            info = await served.info()
            assert info.name == DRIVER
            assert info.endpoint != str(served.where.service), "kubelet would call the other one"
            assert listener(Path(info.endpoint)) == os.getpid()
            assert [identity(path) for path in (served.where.registration, served.where.service)] == theirs
        await eventually(lambda: served.state.facts.conflict is None)
    assert names(root) == []


async def test_to_one_that_was_there_first_we_give_way_until_it_is_gone(root: Path, other: RecordingPlugin) -> None:
    async with other.serving(root, pod="its-uid"), running(root) as served:
        conflict = await until_conflict(served)
        assert conflict.gives_way
        assert "was served on this node before Draco by" in conflict.sentence
        assert not served.where.registration.exists()
        assert served.plugin.registration.error == conflict.sentence
    async with other.serving(root, pod="its-uid"):
        late = Served(root)
        task = asyncio.create_task(late.plugin.run())
        await until_conflict(late)
    await eventually(late.where.registration.exists)
    assert late.state.facts.conflict is None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_of_two_agents_that_begin_at_the_same_moment_the_later_one_gives_way(root: Path) -> None:
    one, two = Served(root), Served(root)
    for served in (one, two):
        served.plugin._rivals.begin = lambda: None  # type: ignore[method-assign]  # each looked before the other was there
    one.plugin._rivals.since_s, two.plugin._rivals.since_s = 1.0, 2.0
    tasks = [asyncio.create_task(served.plugin.run()) for served in (two, one)]
    assert (await until_conflict(two)).gives_way
    await eventually(lambda: one.state.facts.conflict is None and one.plugin.serving.is_set())
    assert (await one.info()).name == DRIVER
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_where_others_have_all_paths_it_says_so_and_goes_on_when_they_end(root: Path) -> None:
    where = sockets(root, DRIVER)
    alternative = plugin.other_sockets(where)
    assert len(str(alternative.registration)) == len(str(where.registration))
    mute = []
    for path in (where.service, alternative.service):
        path.parent.mkdir(parents=True, exist_ok=True)
        mute.append(await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path))
    async with running(root) as served:
        conflict = await until_conflict(served)
        assert conflict.gives_way
        assert f"{where.service} is served by process" in conflict.sentence
        for server in mute:
            server.close()
            await server.wait_closed()
        await eventually(lambda: served.state.facts.conflict is None)
        assert (await served.info()).endpoint == str(where.service)


async def test_other_drivers_and_what_does_not_answer_contest_nothing(root: Path) -> None:
    async with running(root) as served, RecordingPlugin("gpu.example.com").serving(root):
        silent = await asyncio.start_unix_server(
            lambda _reader, writer: writer.close(), served.registration.with_name("silent.sock")
        )
        looks = served.plugin._rivals
        await eventually(lambda: len(looks._known) == 1 and looks._silent.by_key)
        assert served.conflicts == []
        silent.close()
        await silent.wait_closed()
