"""Fleet processes without the time that their imports take: forked by one process that has imported everything already.

Owns how they come to be, and nothing of what they do: each runs the product's own `main`. Operators in tests use it, of which
there are hundreds; tests of the workers themselves start processes as the operator does.
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
    """A forked process, as asyncio shows those that it starts."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter) -> None:
        self.pid, self.stdout, self.stdin = pid, stdout, stdin
        self.returncode: int | None = None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # its number is nobody else's before the next one is asked for

    async def wait(self) -> int:
        with suppress(ConnectionError):
            while await self.stdout.read(1 << 16):
                pass
        self.returncode = -signal.SIGKILL
        return self.returncode


@functools.cache
def _nursery() -> socket.socket:
    """Where this process asks for fleet processes: one nursery for all of its tests, which ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen([sys.executable, "-m", "tests.doubles.nursery"], stdin=theirs.fileno())
    return ours


async def start() -> FleetProcessHandle:
    """A fleet process, as `FleetProcessHandle.start` has it."""
    nursery = _nursery()
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(nursery, [b"f"], [theirs.fileno()])
    pid = int.from_bytes(await asyncio.to_thread(nursery.recv, 4), sys.byteorder)
    return FleetProcessHandle(_Forked(pid, *await asyncio.open_connection(sock=ours)))  # type: ignore[arg-type]


def _fork(asked: socket.socket) -> None:
    """Fork a fleet process for each connection that is handed in, until nobody can ask any more."""
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
