"""Finding another plugin of the same driver on the node, over real sockets."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from draco.agent.api import registration_pb2
from draco.agent.errors import AnotherPlugin
from draco.agent.guard import ProcessLock, peers, refuse_beside_others
from draco.agent.wire import REGISTRATION, handlers

DRIVER = "gpu.nvidia.com"


@asynccontextmanager
async def a_plugin(path: Path, driver: str) -> AsyncIterator[None]:
    async def info(_request: Any, _context: Any) -> Any:
        return registration_pb2.PluginInfo(type="DRAPlugin", name=driver, endpoint="/plugins/dra.sock")

    async def status(_request: Any, _context: Any) -> Any:
        return registration_pb2.RegistrationStatusResponse()

    path.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(REGISTRATION, {"GetInfo": info, "NotifyRegistrationStatus": status}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
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
            await asyncio.wait_for(refuse_beside_others(tmp_path, DRIVER), 10)
    await refuse_beside_others(tmp_path / "nothing-here", DRIVER)


def test_the_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "state" / "agent.lock"
    hold = (
        "import sys; from pathlib import Path; from draco.agent.guard import ProcessLock\n"
        "with ProcessLock(Path(sys.argv[1])): print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AnotherPlugin, match=rf"process {holder.pid}\) works with {path.parent}"), ProcessLock(path):
            pass
        holder.kill()
        holder.wait()
    with ProcessLock(path):
        assert path.read_text() == str(os.getpid())
