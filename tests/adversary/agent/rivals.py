"""Other plugins on the adversary's node, with real Unix sockets; and the agent's own sockets, without gRPC on them.

Owns who listens where, who was there first, and whose socket is whose. What a plugin would answer at registration is said by the
machine, in place of the call: the loop of the machine waits for nobody outside it. Files, their names, and who listens on them
are real.
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
"""A file, whatever its name."""


class Rival(msgspec.Struct, kw_only=True):
    """A plugin of somebody else. `born` is when it came, compared with the starts of our agents."""

    driver: str
    paths: list[Path]
    nodes: list[Node]
    sockets: list[Any]
    born: int
    speaks: bool
    since_s: float | None = None
    """When an agent of ours says that it began to serve; None when it is none."""
    hidden: bool = False
    """Another one has put its socket in the place of this one's."""

    @property
    def contends(self) -> bool:
        """Whether it is known as a plugin of our driver."""
        return self.speaks and not self.hidden and self.driver == DRIVER


class Rivals:
    """The other plugins of one node."""

    def __init__(self, registry: Path, services: Path) -> None:
        self.registry = registry
        self.services = services
        self.live: list[Rival] = []
        self.born = 0

    def come(self, names: list[Path], *, driver: str = DRIVER, speaks: bool, since_s: float | None = None) -> None:
        """One begins to serve, in place of whatever is there: so plugins do that are written in Go."""
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
        """It ends; its sockets stay behind unless it does so cleanly."""
        self.live.remove(rival)
        for one in rival.sockets:
            one.close()
        for path, node in zip(rival.paths, rival.nodes, strict=True):
            if cleanly and path.exists() and _node(path) == node:
                path.unlink()

    def all_go(self, *, cleanly: bool) -> None:
        """None is left."""
        for rival in list(self.live):
            self.go(rival, cleanly=cleanly)

    def harmed(self) -> str:
        """Whose socket is not where it was bound; "" while nobody's is missing."""
        for rival in self.live:
            for path, node in zip(rival.paths, rival.nodes, strict=True):
                if not path.exists() or _node(path) != node:
                    return f"the socket {path.name}, on which another plugin listens, was taken away"
        return ""

    def registered(self) -> list[Path]:
        """The sockets by which kubelet finds somebody who listens, and is none of these: so it is our agent."""
        theirs = {node for rival in self.live for node in rival.nodes}
        found = [path for path in sorted(self.registry.iterdir()) if path.is_socket() and path.name[0] != "."]
        return [path for path in found if _node(path) not in theirs and _listens(path)]

    async def asked(self, path: Path, one: SocketFile, driver: str) -> tuple[bool, OtherPlugin | None]:
        """In place of the call at registration."""
        rival = next((each for each in self.live if path in each.paths), None)
        if rival is None or not rival.speaks:
            return False, None
        if rival.driver != driver:
            return True, None
        return True, OtherPlugin(socket=path, endpoint="elsewhere", identity=one, pid=1, since_s=rival.since_s)

    def drain(self) -> None:
        """Take up all who have called."""
        for rival in self.live:
            for one in rival.sockets:
                _drain(one)


class Server:
    """In place of a gRPC server: it listens, and that is all."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def add_generic_rpc_handlers(self, _handlers: Any) -> None:
        """Nobody calls through it here."""

    def add_insecure_port(self, address: str) -> int:
        self._socket = _listening(Path(address.removeprefix("unix:")))
        return 1

    async def start(self) -> None:
        """It listens already."""

    async def stop(self, _grace: float | None = None) -> None:
        self.close()

    def close(self) -> None:
        """As the kernel does when the process ends."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@contextmanager
def sockets_beside(rivals: Rivals) -> Iterator[None]:
    """While this lasts agents serve on such servers, and ask these rivals. A dead one takes no socket file away."""

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
