"""One plugin per driver and node: finds others, knows which was first, and keeps two agents from one state folder.

Owns the detection of other plugins of the driver, at start and while we serve. Changes nothing of theirs; `registration` acts on
the result. The plugin that served first keeps the node. Any plugin found in our first look was first. Agents of ours that started
together exchange their start times in the metadata of their answers at registration, which kubelet does not read.
"""

import asyncio
import fcntl
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
import msgspec

from draco.agent.errors import AnotherPlugin, SettingsError
from draco.agent.files import advice
from draco.agent.plugin.api import registration_pb2
from draco.agent.plugin.unix_sockets import DIAL_TIMEOUT_S, SocketFile, identity, listener
from draco.agent.plugin.wire import REGISTRATION, unary
from draco.kube.clock import Clock
from draco.kube.connect.retry import Pauses
from draco.resources.texts import shown

SERVING_SINCE = "draco-serving-since"
"""Metadata of an agent's answer: when it began to serve, in seconds of the node's monotonic clock."""
ASK_AGAIN_S = 30.0
"""The longest pause before a socket without an answer is asked again; pauses double from one second."""


class OtherPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """Another plugin of the driver. `pid` 0: not visible. `since_s`: when it began to serve, None if it is no agent of ours."""

    socket: Path
    endpoint: str
    identity: SocketFile
    pid: int = 0
    command: str = ""
    since_s: float | None = None

    def __str__(self) -> str:
        who = f", process {self.pid} ({self.command or 'unknown command'})" if self.pid else ""
        return f"{self.socket} (serving {self.endpoint}{who})"


async def peers(registry: Path, driver: str) -> list[OtherPlugin]:
    """The live plugins of `driver` in kubelet's registry folder. A socket without a listener is a leftover and does not count."""
    found = await asyncio.gather(*(_ask(path, one, driver) for path, one in _sockets(registry).items()))
    return [peer for _, peer in found if peer is not None]


async def refuse_beside_others(registry: Path, driver: str, *, ours: Collection[SocketFile] = ()) -> None:
    """Raise AnotherPlugin, naming it, if another plugin serves the driver on this node. `ours` are our own sockets."""
    found = [peer for peer in await peers(registry, driver) if peer.identity not in ours]
    if found:
        raise AnotherPlugin(
            f"Driver {driver} is already served on this node by {'; '.join(map(str, found))}. Two plugins of one driver "
            "would hand out the same GPUs twice: remove that one, or run Draco under another driver name (--driver).",
            ours=any(peer.since_s is not None for peer in found),
        )


class OtherPlugins:
    """The other plugins of the driver while we serve it. Each socket is asked once, unless it does not answer."""

    def __init__(self, registry: Path, driver: str, *, clock: Clock) -> None:
        self.since_s = 0.0
        self._registry = registry
        self._driver = driver
        self._clock = clock
        self._earlier: Collection[SocketFile] = frozenset()
        self._known: dict[SocketFile, OtherPlugin | None] = {}
        self._silent: Pauses[SocketFile] = Pauses(clock.monotonic, first_s=1.0, longest_s=ASK_AGAIN_S)

    def begin(self) -> None:
        """Mark the start of serving: plugins that exist now were first."""
        self.since_s = self._clock.monotonic()
        self._earlier = frozenset(_sockets(self._registry).values())

    def was_first(self, peer: OtherPlugin) -> bool:
        """Whether it served the driver before we did."""
        if peer.since_s is not None:
            return peer.since_s < self.since_s
        return peer.identity in self._earlier

    async def look(self, *, ours: Collection[SocketFile]) -> list[OtherPlugin]:
        """The plugins of the driver that exist now, except `ours`."""
        there = {path: one for path, one in _sockets(self._registry).items() if one not in ours}
        present = frozenset(there.values())
        self._known = {one: peer for one, peer in self._known.items() if one in present}
        for one in self._silent.by_key.keys() - present:
            self._silent.forget(one)
        asked = {path: one for path, one in there.items() if one not in self._known and not self._silent.left_s(one)}
        answers = await asyncio.gather(*(_ask(path, one, self._driver) for path, one in asked.items()))
        for one, (answered, peer) in zip(asked.values(), answers, strict=True):
            if answered:
                self._known[one] = peer
            else:
                self._silent.begin(one, "no answer")
        found = [(path, peer) for path, one in there.items() if (peer := self._known.get(one)) is not None]
        live = await asyncio.gather(*(asyncio.to_thread(listener, path) for path, _ in found))
        return [peer for (_, peer), pid in zip(found, live, strict=True) if pid is not None]


def _sockets(registry: Path) -> Mapping[Path, SocketFile]:
    """The sockets that kubelet takes for plugins: all whose name does not begin with a dot."""
    found: dict[Path, SocketFile] = {}
    with suppress(OSError):
        for path in sorted(registry.rglob("*")):
            with suppress(OSError):
                if not path.name.startswith(".") and path.is_socket() and (one := identity(path)) is not None:
                    found[path] = one
    return found


async def _ask(path: Path, one: SocketFile, driver: str) -> tuple[bool, OtherPlugin | None]:
    """Whether the socket answered, and the plugin, if it is of the driver."""
    pid = await asyncio.to_thread(listener, path)
    if pid is None:
        return False, None
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            call = unary(channel, REGISTRATION, "GetInfo")(registration_pb2.InfoRequest(), timeout=DIAL_TIMEOUT_S)
            info, metadata = await call, await call.trailing_metadata()
    except grpc.aio.AioRpcError:
        return False, None  # not a plugin, or it hangs: kubelet could not register it either
    if info.name != driver:
        return True, None
    since_s: float | None = None
    for key, value in metadata or ():
        with suppress(ValueError):
            since_s = float(value) if key == SERVING_SINCE else since_s
    endpoint = shown(info.endpoint) or str(path)
    return True, OtherPlugin(
        socket=path, endpoint=endpoint, identity=one, pid=pid, command=_command(pid), since_s=since_s
    )


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return shown(b" ".join(words).decode(errors="replace").strip()[:200])


class ProcessLock:
    """Held while the agent runs; the kernel releases it when the process ends in any way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Take it. Raises AnotherPlugin, which names the holder, or SettingsError if the folder is not writable."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(
                f"The agent's folder {self._path.parent} cannot be written: {advice(error)}. It must be a folder of the "
                "node that survives reboots; --state-dir names another one."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise AnotherPlugin(
                f"Another Draco agent (process {holder}) uses {self._path.parent}; stop it, or give this agent its own "
                "state folder. To have an agent wait for another and follow it, use --take-over.",
                ours=True,
            ) from None
        self._descriptor = descriptor
        with suppress(OSError):  # a full disk must not keep an agent from unpreparing claims
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Release it, if it was taken."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
