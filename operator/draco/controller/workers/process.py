"""The fleet process, as the operator sees it: started, written to, read from, ended.

Owns the operating system's side. What is said is `messages`, when is `pool`.
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
"""All that it is given: what Python needs to find itself. Where the API server is, and how to reach it, is not among it."""


class ProcessEnded(Exception):
    """It does not answer any more."""


class FleetProcessHandle:
    """A fleet process as a child of this one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("it must be started with pipes")
        self._process = process
        self._in, self._out = process.stdin, process.stdout

    @classmethod
    async def start(cls, memory_mib: int = messages.MEMORY_MIB) -> Self:
        """Start one whose children may take so much memory. Raises OSError."""
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
        """Its number."""
        return self._process.pid

    async def send(self, message: messages.Inward) -> None:
        """Say something; returns when there is room for more. Raises ProcessEnded."""
        try:
            self._in.write(messages.frame(message))
            await self._in.drain()
        except ConnectionError as error:
            raise ProcessEnded("it reads no more") from error

    async def replies(self) -> AsyncIterator[list[messages.Outward]]:
        """What it says, several at a time, until it ends. Raises ProcessEnded where that is no message."""
        frames = messages.FrameReader()
        while data := await self._out.read(_AT_ONCE):
            try:
                said = [messages.outward(body) for body in frames.feed(data)]
            except messages.NotAMessage as error:
                raise ProcessEnded(str(error)) from error
            yield said

    async def end(self) -> None:
        """End it; its children end with it."""
        if self._process.returncode is None:
            self._process.kill()
        if not self._in.is_closing():
            self._in.transport.abort()  # nobody reads what it was still to hear
        await self._process.wait()
        with contextlib.suppress(ConnectionError):  # else asyncio logs it, with a traceback, when the pipe is forgotten
            await self._in.wait_closed()
