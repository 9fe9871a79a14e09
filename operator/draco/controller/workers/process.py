"""The operator's handle of the fleet process: start, write, read, end.

Owns the operating system side. `messages` defines the protocol, `pool` the timing.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Final, Self

from draco.controller.workers import messages

_AT_ONCE: Final = 1 << 18
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""The variables it gets: what Python needs. Nothing tells it where the API server is, or how to reach it."""


class ProcessEnded(Exception):
    """The process does not answer any more."""


class FleetProcessHandle:
    """A fleet process as a child of this one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("it must be started with pipes")
        self._process = process
        self._in, self._out = process.stdin, process.stdout

    @classmethod
    async def start(cls, memory_mib: int = messages.MEMORY_MIB) -> Self:
        """Start one whose children may use `memory_mib`. Raises OSError."""
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "draco.controller.workers.fleet_process", str(memory_mib)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    async def send(self, message: messages.Inward) -> None:
        """Send a message; returns when there is room for more. Raises ProcessEnded."""
        try:
            self._in.write(messages.frame(message))
            await self._in.drain()
        except ConnectionError as error:
            raise ProcessEnded("it reads no more") from error

    async def replies(self) -> AsyncIterator[list[messages.Outward]]:
        """Messages from the process, in batches, until it ends. Raises ProcessEnded for an invalid one."""
        frames = messages.FrameReader()
        while data := await self._out.read(_AT_ONCE):
            try:
                said = [messages.outward(body) for body in frames.feed(data)]
            except messages.NotAMessage as error:
                raise ProcessEnded(str(error)) from error
            yield said

    async def end(self) -> None:
        """Kill it; its children end with it."""
        if self._process.returncode is None:
            self._process.kill()
        if not self._in.is_closing():
            self._in.transport.abort()  # nobody reads what is still in the buffer
        await self._process.wait()
        with contextlib.suppress(ConnectionError):  # otherwise asyncio logs a traceback when the pipe is collected
            await self._in.wait_closed()
