"""Fleet processes without the time for imports: one process imports everything and forks the others.

Owns only how they start: each runs the product's own `main`. Tests use it for operators, of which there are hundreds; tests of
the workers themselves start processes as the operator does.
"""

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from draco.cel import compile_selector
from draco.controller.workers import fleet_process
from draco.controller.workers.messages import MEMORY_MIB
from draco.controller.workers.process import FleetProcessHandle


class _Forked:
    """A forked process with asyncio's interface for subprocesses."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter) -> None:
        self.pid, self.stdout, self.stdin = pid, stdout, stdin
        self.returncode: int | None = None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the nursery reaps it, and so frees its pid, only at the next request

    async def wait(self) -> int:
        with suppress(ConnectionError):
            while await self.stdout.read(1 << 16):
                pass
        self.returncode = -signal.SIGKILL
        return self.returncode


@functools.cache
def _nursery() -> socket.socket:
    """The socket on which this process requests fleet processes: one nursery serves all its tests and ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen([sys.executable, "-m", "tests.doubles.nursery"], stdin=theirs.fileno())
    return ours


async def start() -> FleetProcessHandle:
    """Start a fleet process, as `FleetProcessHandle.start` does."""
    nursery = _nursery()
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(nursery, [b"f"], [theirs.fileno()])
    pid = int.from_bytes(await asyncio.to_thread(nursery.recv, 4), sys.byteorder)
    return FleetProcessHandle(_Forked(pid, *await asyncio.open_connection(sock=ours)))  # type: ignore[arg-type]


def _fork(asked: socket.socket) -> None:
    """Fork a fleet process for each connection received, until the requester's end is closed."""
    while True:
        _, connections, _, _ = socket.recv_fds(asked, 1, 1)
        if not connections:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        [connection] = connections
        pid = os.fork()
        if not pid:
            os.dup2(connection, 0)
            os.dup2(connection, 1)
            os.close(connection)
            sys.argv[1:] = [str(MEMORY_MIB)]
            try:
                fleet_process.main()
            finally:
                os._exit(0)
        os.close(connection)
        asked.send(pid.to_bytes(4, sys.byteorder))


if __name__ == "__main__":
    compile_selector("true")
    _fork(socket.socket(fileno=0))
