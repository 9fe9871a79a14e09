"""Other plugins on the adversary's node, with real Unix sockets, and the agent's own sockets without gRPC.

Owns which plugin listens where, which came first, and whose each socket is. The machine supplies a plugin's answer at
registration in place of the call, because its event loop waits for nothing outside. The socket files, their names and their
listeners are real.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from draco.agent.plugin import guard, unix_sockets
from draco.agent.plugin import registration as plugin
from draco.agent.plugin.guard import OtherPlugin
from draco.agent.plugin.unix_sockets import SocketFile
from tests.adversary.agent.processes import current
from tests.adversary.agent.surroundings import DRIVER

Node = tuple[int, int]
"""Device and inode of a file."""


class Rival(msgspec.Struct, kw_only=True):
    """Another plugin. `born` is its place in the order of all starts, the agents' included."""

    driver: str
    paths: list[Path]
    nodes: list[Node]
    sockets: list[Any]
    born: int
    speaks: bool
    since_s: float | None = None
    """Since when it says it serves, if it is an agent of Draco; None for any other plugin."""
    hidden: bool = False
    """Whether another plugin has replaced its socket."""

    @property
    def contends(self) -> bool:
        """Whether agents can see that it serves their driver."""
        return self.speaks and not self.hidden and self.driver == DRIVER


class Rivals:
    """The other plugins of one node."""

    def __init__(self, registry: Path, services: Path) -> None:
        self.registry = registry
        self.services = services
        self.live: list[Rival] = []
        self.born = 0

    def come(self, names: list[Path], *, driver: str = DRIVER, speaks: bool, since_s: float | None = None) -> None:
        """A plugin starts to serve and replaces existing sockets, as plugins in Go do."""
        self.born += 1
        rival = Rival(driver=driver, paths=[], nodes=[], sockets=[], born=self.born, speaks=speaks, since_s=since_s)
        for path in names:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            for other in self.live:
                if path in other.paths:
                    at = other.paths.index(path)
                    del other.paths[at], other.nodes[at]
                    other.hidden = True
            rival.sockets.append(_listening(path))
            rival.paths.append(path)
            rival.nodes.append(_node(path))
        self.live.append(rival)

    def go(self, rival: Rival, *, cleanly: bool) -> None:
        """A plugin ends; its sockets stay behind unless it ends cleanly."""
        self.live.remove(rival)
        for one in rival.sockets:
            one.close()
        for path, node in zip(rival.paths, rival.nodes, strict=True):
            if cleanly and path.exists() and _node(path) == node:
                path.unlink()

    def all_go(self, *, cleanly: bool) -> None:
        """All plugins end."""
        for rival in list(self.live):
            self.go(rival, cleanly=cleanly)

    def harmed(self) -> str:
        """Names a plugin's socket that was removed or replaced; "" if there is none."""
        for rival in self.live:
            for path, node in zip(rival.paths, rival.nodes, strict=True):
                if not path.exists() or _node(path) != node:
                    return f"the socket {path.name}, on which another plugin listens, was taken away"
        return ""

    def registered(self) -> list[Path]:
        """The registration sockets on which the agent listens: all that have a listener other than these plugins."""
        theirs = {node for rival in self.live for node in rival.nodes}
        found = [path for path in sorted(self.registry.iterdir()) if path.is_socket() and path.name[0] != "."]
        return [path for path in found if _node(path) not in theirs and _listens(path)]

    async def asked(self, path: Path, one: SocketFile, driver: str) -> tuple[bool, OtherPlugin | None]:
        """Answers the registration call for a plugin."""
        rival = next((each for each in self.live if path in each.paths), None)
        if rival is None or not rival.speaks:
            return False, None
        if rival.driver != driver:
            return True, None
        return True, OtherPlugin(socket=path, endpoint="elsewhere", identity=one, pid=1, since_s=rival.since_s)

    def drain(self) -> None:
        """Accept and close all pending connections."""
        for rival in self.live:
            for one in rival.sockets:
                _drain(one)


class Server:
    """Stands in for a gRPC server: it only listens."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def add_generic_rpc_handlers(self, _handlers: Any) -> None:
        """Ignored: nothing calls through this server."""

    def add_insecure_port(self, address: str) -> int:
        self._socket = _listening(Path(address.removeprefix("unix:")))
        return 1

    async def start(self) -> None:
        """Nothing to do: it listens already."""

    async def stop(self, _grace: float | None = None) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket, as the kernel does when a process ends."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@contextmanager
def sockets_beside(rivals: Rivals) -> Iterator[None]:
    """Let agents serve on such servers and ask these rivals within the block. A dead agent removes no socket file."""

    def server() -> Server:
        made = Server()
        current().servers.append(made)
        return made

    def mortal(work: Callable[..., Any], what: str) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            death = current().death
            death.step(f"before {what}")
            done = work(*given)
            death.step(f"after {what}")
            return done

        return step

    async def in_place(work: Callable[..., Any], *given: Any) -> Any:
        rivals.drain()
        return work(*given)

    with (
        mock.patch.object(plugin, "grpc", SimpleNamespace(aio=SimpleNamespace(server=server))),
        mock.patch.object(plugin, "show", mortal(unix_sockets.show, "show")),
        mock.patch.object(plugin, "withdraw", mortal(unix_sockets.withdraw, "withdraw")),
        mock.patch.object(guard, "_ask", rivals.asked),
        mock.patch.object(guard, "asyncio", SimpleNamespace(gather=asyncio.gather, to_thread=in_place)),
    ):
        yield


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.listen(128)
    made.setblocking(False)
    return made


def _drain(one: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            one.accept()[0].close()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _node(path: Path) -> Node:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
