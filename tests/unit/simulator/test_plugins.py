"""The plugin watcher of a simulated kubelet: calls to a plugin that leaves meanwhile."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from draco.agent.plugin.api import registration_pb2
from draco.agent.plugin.wire import DRA_V1, REGISTRATION, handlers
from draco.kube.clock import SystemClock
from draco.resources.names import ClaimUid
from draco_local.simulator.kubelet.ledger import ClaimRecord
from draco_local.simulator.kubelet.plugins import SERVICE, PluginError, Plugins
from tests.agents import eventually

DRIVER = "gpu.example.com"
CLAIM = ClaimRecord(ClaimUid("uid"), "default", "claim", [DRIVER])


class SlowPlugin:
    """A registered plugin that answers no call about claims."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.asked = asyncio.Event()
        self.server = grpc.aio.server()
        self.server.add_insecure_port(f"unix:{socket}")
        registry = {"GetInfo": self._info, "NotifyRegistrationStatus": self._notified}
        calls = {"NodePrepareResources": self._never, "NodeUnprepareResources": self._never}
        self.server.add_generic_rpc_handlers([handlers(REGISTRATION, registry), handlers(DRA_V1, calls)])

    async def _info(self, _request: Any, _context: Any) -> Any:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self.socket), supported_versions=[SERVICE]
        )

    async def _notified(self, _request: Any, _context: Any) -> Any:
        return registration_pb2.RegistrationStatusResponse()

    async def _never(self, _request: Any, _context: Any) -> Any:
        self.asked.set()
        await asyncio.Event().wait()


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
async def plugins(root: Path) -> AsyncIterator[Plugins]:
    made = Plugins(root, clock=SystemClock(), registered=lambda _: None, poll_s=0.02)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def plugin(root: Path, plugins: Plugins) -> AsyncIterator[SlowPlugin]:
    made = SlowPlugin(root / "plugins_registry" / f"{DRIVER}-reg.sock")
    await made.server.start()
    await eventually(lambda: plugins.drivers() == {DRIVER})
    yield made
    await made.server.stop(None)


async def test_a_call_to_a_plugin_that_leaves_fails_so_that_it_is_made_again(
    plugins: Plugins, plugin: SlowPlugin
) -> None:
    """The kubelet then closes its connection, which ends the call like a cancellation."""
    call = asyncio.create_task(plugins.prepare(DRIVER, [CLAIM]))
    await plugin.asked.wait()
    plugin.socket.unlink()
    with pytest.raises(PluginError, match="unregistered during the call"):
        await asyncio.wait_for(call, 20)


async def test_a_call_that_is_cancelled_is_cancelled(plugins: Plugins, plugin: SlowPlugin) -> None:
    call = asyncio.create_task(plugins.prepare(DRIVER, [CLAIM]))
    await plugin.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
