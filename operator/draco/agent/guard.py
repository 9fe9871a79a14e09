"""One plugin per driver and node: refuses to start beside another one.

Owns finding who else serves the driver, and the lock that keeps two agents from one state folder. Changes nothing of theirs.
"""

import asyncio
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
import msgspec

from draco.agent.api import registration_pb2
from draco.agent.errors import AnotherPlugin
from draco.agent.wire import REGISTRATION, unary

DIAL_TIMEOUT_S = 2.0


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another plugin of the driver. `pid` is 0 when it lives in a process namespace we cannot see."""

    socket: Path
    endpoint: str
    pid: int = 0
    command: str = ""

    def __str__(self) -> str:
        who = f", process {self.pid} ({self.command or 'unknown command'})" if self.pid else ""
        return f"{self.socket} (serving {self.endpoint}{who})"


async def peers(registry: Path, driver: str) -> list[Peer]:
    """The live plugins of `driver` in kubelet's registry folder. A socket that nobody answers is left over and not counted."""
    found = await asyncio.gather(*(_ask(path, driver) for path in _sockets(registry)))
    return [peer for peer in found if peer is not None]


async def refuse_beside_others(registry: Path, driver: str) -> None:
    """Raise AnotherPlugin, naming it, when somebody else serves the driver on this node."""
    found = await peers(registry, driver)
    if found:
        raise AnotherPlugin(
            f"Driver {driver} is already served on this node by {'; '.join(map(str, found))}. Two plugins of one driver "
            "would hand out the same GPUs twice: remove that one, or run Draco under another driver name (--driver)."
        )


def _sockets(registry: Path) -> list[Path]:
    try:
        return sorted(path for path in registry.rglob("*.sock") if path.is_socket())
    except OSError:
        return []


async def _ask(path: Path, driver: str) -> Peer | None:
    pid = _peer_pid(path)
    if pid is None:
        return None
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            info = await unary(channel, REGISTRATION, "GetInfo")(registration_pb2.InfoRequest(), timeout=DIAL_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return None  # not a plugin, or one that hangs: kubelet could not register it either
    if info.name != driver:
        return None
    return Peer(socket=path, endpoint=info.endpoint or str(path), pid=pid, command=_command(pid))


def _peer_pid(path: Path) -> int | None:
    """The process that listens on a socket (0: not visible to us); None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(DIAL_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:200]


class ProcessLock:
    """Held as long as the agent runs; the kernel gives it up with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise AnotherPlugin(
                f"Another Draco agent (process {holder}) works with {self._path.parent}; stop it, or give this one its "
                "own state folder."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
