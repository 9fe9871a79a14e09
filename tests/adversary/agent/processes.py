"""Agents side by side in one event loop, each of which can die alone like a process.

Owns which agent each task belongs to, and what a dying agent loses: its locks are released, its files stay. Also checks what
only this module can see: an agent changes nothing while it does not hold the node.
"""

import asyncio
import contextvars
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self
from unittest import mock

from draco.agent import app
from draco.agent.hardware.nvml import Nvml
from draco.agent.plugin import handover
from draco.agent.plugin.guard import ProcessLock
from draco.agent.plugin.handover import NextAgent
from draco.agent.usage import limit_keeper, reading
from draco.kube.clock import Clock
from tests.adversary.agent.surroundings import Death
from tests.adversary.agent.threads import Threads

POLL_S = 0.5
SELDOM_S = 20.0
"""Poll interval of a standby agent while the other is not told to end. Long, because each poll costs time here."""
CHANGES = (
    "before nvmlDeviceCreateGpuInstance",
    "before nvmlGpuInstanceCreateComputeInstance",
    "before nvmlComputeInstanceDestroy",
    "before nvmlGpuInstanceDestroy",
    "before nvmlDeviceSetMigMode",
    "before nvmlDeviceSetComputeMode",
    "before nvidia-smi",
    "before mps quit",
    "before write",
    "before overwrite",
)


class Process:
    """One agent's process. `hands_over`: whether its version hands over to the next agent."""

    def __init__(self, death: Death) -> None:
        self.death = death
        self.hands_over = True
        self.tasks: set[asyncio.Task[Any]] = set()
        self.servers: list[Any] = []
        self.lock: ProcessLock | None = None
        self.threads = Threads()
        self.trespasses: list[str] = []
        self.context = contextvars.copy_context()
        self.context.run(_CURRENT.set, self)

    def step(self, point: str) -> None:
        """One step of its work."""
        self.death.step(point)
        if point.startswith(CHANGES) and not self.holds:
            self.trespasses.append(point)

    @property
    def holds(self) -> bool:
        """Whether it holds the node's lock."""
        return self.lock is not None and self.lock._descriptor >= 0

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """End as SIGKILL does: nothing it started has any effect from here on, and the kernel releases its locks."""
        self.death.dead = True
        loop.run_until_complete(_ended(self.tasks))
        for server in self.servers:
            server.close()
        if self.lock is not None:
            self.lock.release()


_CURRENT: ContextVar[Process] = ContextVar("process")


def current() -> Process:
    """The process whose work runs now."""
    return _CURRENT.get()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    while open_ := [task for task in tasks if not task.done()]:
        for task in open_:
            task.cancel()
        await asyncio.wait(open_, timeout=1.0)


def owned(
    loop: asyncio.AbstractEventLoop, coro: Any, context: contextvars.Context | None = None
) -> "asyncio.Task[Any]":
    """Task factory: registers each task with the process that creates it."""
    task = asyncio.Task(coro, loop=loop, context=context)
    process = (contextvars.copy_context() if context is None else context).get(_CURRENT)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


class _Lock(ProcessLock):
    def acquire(self) -> None:
        super().acquire()
        current().lock = self


class _Next(NextAgent):
    def __enter__(self) -> Self:
        current().death.step("before standing by")
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if current().death.dead:
            os.close(self._descriptor)
        else:
            super().__exit__(*raised)

    def has_registered(self) -> None:
        current().death.step("before it says that it has registered")
        super().has_registered()


async def _hand_over(folder: Path, clock: Clock, **options: Any) -> None:
    current().death.step("before it hands over")
    if current().hands_over:
        await handover.hand_over(folder, clock, **options)
    current().death.step("after it handed over")


def _executor(*_args: Any, **_options: Any) -> Any:
    return current().threads.executor()


async def _in_place(work: Any, *given: Any) -> Any:
    """Stands in for asyncio.to_thread, so that a sequence repeats exactly."""
    return work(*given)


@contextmanager
def looking_often() -> Iterator[None]:
    """Let a standby agent poll often within the block, from its next poll on."""
    with mock.patch.object(app, "POLL_S", POLL_S):
        yield


@contextmanager
def side_by_side() -> Iterator[None]:
    """Allow agents to run side by side within the block."""
    with (
        mock.patch.object(app, "ProcessLock", _Lock),
        mock.patch.object(app, "NextAgent", _Next),
        mock.patch.object(app, "hand_over", _hand_over),
        mock.patch.object(app, "POLL_S", SELDOM_S),
        mock.patch.object(limit_keeper, "DaemonExecutor", _executor),
        mock.patch.object(reading, "DaemonExecutor", _executor),
        mock.patch.object(asyncio, "to_thread", _in_place),
        mock.patch.object(Nvml, "aside", lambda _, work: work()),
        mock.patch.object(app, "CLOSING_S", 0.0),  # threads have ended already, or hang
        mock.patch.object(handover, "POLL_S", POLL_S),
    ):
        yield
