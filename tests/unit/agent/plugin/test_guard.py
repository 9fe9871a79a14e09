"""Finding another plugin of the same driver on the node, over real sockets."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from draco.agent.errors import AnotherPlugin, SettingsError
from draco.agent.plugin import guard
from draco.agent.plugin.api import registration_pb2
from draco.agent.plugin.guard import SERVING_SINCE, OtherPlugins, ProcessLock, peers, refuse_beside_others
from draco.agent.plugin.unix_sockets import identity
from draco.agent.plugin.wire import REGISTRATION, handlers
from tests.doubles.clock import ManualClock

DRIVER = "gpu.nvidia.com"


@asynccontextmanager
async def a_plugin(path: Path, driver: str, *, since_s: float | None = None) -> AsyncIterator[list[Path]]:
    asked: list[Path] = []

    async def info(_request: Any, context: Any) -> Any:
        asked.append(path)
        if since_s is not None:
            context.set_trailing_metadata(((SERVING_SINCE, str(since_s)),))
        return registration_pb2.PluginInfo(type="DRAPlugin", name=driver, endpoint="/plugins/dra.sock")

    async def status(_request: Any, _context: Any) -> Any:
        return registration_pb2.RegistrationStatusResponse()

    path.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(REGISTRATION, {"GetInfo": info, "NotifyRegistrationStatus": status}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield asked
    finally:
        await server.stop(0)


async def test_a_live_plugin_of_the_driver_is_found_under_any_socket_name(tmp_path: Path) -> None:
    async with a_plugin(tmp_path / "nvidia" / "some-uid.sock", DRIVER):
        [peer] = await peers(tmp_path, DRIVER)
        assert (peer.socket.name, peer.endpoint, peer.pid) == ("some-uid.sock", "/plugins/dra.sock", os.getpid())
        assert "python" in peer.command or "pytest" in peer.command
        with pytest.raises(AnotherPlugin, match=rf"serving /plugins/dra.sock, process {os.getpid()} \(.*--driver"):
            await refuse_beside_others(tmp_path, DRIVER)


async def test_plugins_of_other_drivers_and_dead_or_mute_sockets_are_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as mute:
        dead.bind(str(tmp_path / "dead.sock"))
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen()
        (tmp_path / "file.sock").touch()
        async with a_plugin(tmp_path / "other.sock", "gpu.example.com"):
            await asyncio.wait_for(refuse_beside_others(tmp_path, DRIVER), 60)
    await refuse_beside_others(tmp_path / "nothing-here", DRIVER)


async def test_whoever_was_there_before_we_served_was_first_and_who_comes_later_was_not(tmp_path: Path) -> None:
    rivals = OtherPlugins(tmp_path, DRIVER, clock=ManualClock())
    async with a_plugin(tmp_path / "early.sock", DRIVER) as asked:
        rivals.begin()
        async with a_plugin(tmp_path / "late.sock", DRIVER), a_plugin(tmp_path / "other.sock", "gpu.example.com"):
            found = await rivals.look(ours=[])
            assert {one.socket.name: rivals.was_first(one) for one in found} == {"early.sock": True, "late.sock": False}
            assert await rivals.look(ours=[]) == found
            assert len(asked) == 1, "each is asked once"
            ours = identity(tmp_path / "late.sock")
            assert ours
            assert [one.socket.name for one in await rivals.look(ours=[ours])] == ["early.sock"]
        assert [one.socket.name for one in await rivals.look(ours=[])] == ["early.sock"]
    assert await rivals.look(ours=[]) == []


async def test_of_two_agents_that_begin_together_the_one_that_served_earlier_was_first(tmp_path: Path) -> None:
    clock = ManualClock()
    await clock.advance(100)
    rivals = OtherPlugins(tmp_path, DRIVER, clock=clock)
    async with (
        a_plugin(tmp_path / "a.sock", DRIVER, since_s=99.5),
        a_plugin(tmp_path / "b.sock", DRIVER, since_s=100.5),
    ):
        rivals.begin()  # both sockets exist, and both agents see each other's
        found = {one.socket.name: rivals.was_first(one) for one in await rivals.look(ours=[])}
        with pytest.raises(AnotherPlugin) as refused:
            await refuse_beside_others(tmp_path, DRIVER)
        assert refused.value.ours
    assert found == {"a.sock": True, "b.sock": False}


async def test_a_socket_that_does_not_answer_is_asked_again_after_a_while(tmp_path: Path) -> None:
    clock = ManualClock()
    rivals = OtherPlugins(tmp_path, DRIVER, clock=clock)
    path = tmp_path / "slow.sock"
    rivals.begin()
    with socket.socket(socket.AF_UNIX) as starting:
        starting.bind(str(path))
        assert await rivals.look(ours=[]) == []
    known = identity(path)
    path.unlink()
    async with a_plugin(path, DRIVER) as asked:
        if identity(path) == known:  # a reused inode counts as the same file, which is not asked every time
            assert await rivals.look(ours=[]) == []
            assert asked == []
        await clock.advance(1)
        assert [one.socket for one in await rivals.look(ours=[])] == [path]


def test_the_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / "agent.lock"
    hold = (
        "import sys; from pathlib import Path; from draco.agent.plugin.guard import ProcessLock\n"
        "with ProcessLock(Path(sys.argv[1])): print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AnotherPlugin, match=rf"process {holder.pid}\) uses {path.parent}"), ProcessLock(path):
            pass
        holder.kill()
        holder.wait()
    with ProcessLock(path):
        assert path.read_text() == str(os.getpid())


def test_an_agent_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    path = tmp_path / "agent.lock"
    with ProcessLock(path), pytest.raises(AnotherPlugin, match="process unknown"), ProcessLock(path):
        pass
    with ProcessLock(path):
        pass


def test_a_folder_that_cannot_be_written_is_one_sentence_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(SettingsError, match=r"cannot be written: Not a directory .*; .* --state-dir names another"),
        ProcessLock(tmp_path / "file" / "folder" / "agent.lock"),
    ):
        pass
    with pytest.raises(SettingsError, match="/proc/1 cannot be written"), ProcessLock(Path("/proc/1/agent.lock")):
        pass


async def test_a_silent_socket_is_asked_again_after_pauses_that_double_up_to_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = ManualClock(), list[float]()

    async def silence(*_: object) -> tuple[bool, None]:
        asked.append(clock.monotonic())
        return False, None

    monkeypatch.setattr(guard, "_ask", silence)
    looks = OtherPlugins(tmp_path, DRIVER, clock=clock)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        for _ in range(100):
            await looks.look(ours=())
            await clock.advance(1)
    assert [later - sooner for sooner, later in pairwise(asked)] == [1, 2, 4, 8, 16, 30, 30]
