"""Finds out again what containers get of the driver, whenever another was read.

Owns the thread: asking the toolkit may take seconds, and must keep no process from ending. What is asked is `common_edits`'s.
"""

import asyncio
from contextlib import suppress
from functools import partial

from draco.agent.containers.common_edits import CommonEdits
from draco.agent.state.changes import EditsFound, GpusRead
from draco.agent.state.node import NodeState
from draco.agent.threads import DaemonExecutor
from draco.kube.clock import Clock


class EditsRefresh:
    """Of one node."""

    def __init__(self, edits: CommonEdits, state: NodeState, *, clock: Clock) -> None:
        self._edits = edits
        self._state = state
        self._clock = clock
        self._woken = asyncio.Event()

    def gpus_read(self, _change: GpusRead) -> None:
        """The driver may be another."""
        self._woken.set()

    async def run(self) -> None:
        """Find out until cancelled."""
        executor = DaemonExecutor("edits", monotonic=self._clock.monotonic)
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                version = self._state.facts.view.driver_version
                # Files go as they are read while another driver is installed: the next reading tells.
                with suppress(OSError):
                    if version != "" and await executor.run(partial(self._edits.outdated, version)):
                        await executor.run(partial(self._edits.refresh, version))
                        self._state.tell(EditsFound(self._edits.problem))
        finally:
            executor.close()
