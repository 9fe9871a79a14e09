"""Kills programs and restarts them: operators, their fleet processes, agents and kubelets.

Owns when a killed program comes back. `came_of` counts only kills of running programs.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.adversary.cluster import processes
from tests.adversary.cluster.cluster import OPERATORS, Cluster
from tests.adversary.cluster.manifests import Document

POLL_S = 0.01
CAUGHT_WITHIN_S = 3.0
"""How long to wait for a child that is answering a question."""


class Killing:
    """Kills on one cluster. `soon` runs something after a number of seconds."""

    def __init__(
        self, cluster: Cluster, soon: Callable[[float, Callable[[], Awaitable[None]]], None], came_of: Counter[str]
    ) -> None:
        self._cluster = cluster
        self._soon = soon
        self._came_of = came_of
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "kill: operator": self._operator,
            "kill: both operators": self._both,
            "kill: leader stops for a while": self._pause_leader,
            "kill: fleet process": self._fleet,
            "kill: child with questions": self._child,
            "kill: agent": self._agent,
            "kill: kubelet": self._kubelet,
        }

    async def _kill_for(self, name: str, back_in_s: float) -> None:
        if name not in self._cluster.running:
            return
        await asyncio.to_thread(self._cluster.kill, name)
        self._came_of["programs killed"] += 1
        self._soon(back_in_s, lambda: asyncio.to_thread(self._cluster.start, name))

    async def _operator(self, arguments: Document) -> None:
        leader = self._cluster.holder()
        others = [name for name in OPERATORS if name != leader and name in self._cluster.running]
        wanted = leader if arguments["who"] == "leader" or not others else others[0]
        await self._kill_for(wanted, arguments["back_in_s"])

    async def _both(self, arguments: Document) -> None:
        for name in OPERATORS:
            await self._kill_for(name, arguments["back_in_s"])

    async def _pause_leader(self, arguments: Document) -> None:
        """Suspend the leader with SIGSTOP: it may sleep past its lease and wake up believing that it leads."""
        name = self._cluster.holder()
        pid = self._cluster.pid(name)
        if name not in self._cluster.running or pid is None:
            return
        self._cluster.observer.lease.killed(time.monotonic())
        self._cluster.observer.programs.may_end(name)
        self._cluster.stop_for_a_while(name, pid)

        async def go_on() -> None:
            if self._cluster.let_go_on(name, pid):
                self._cluster.observer.lease.resumed()

        self._soon(arguments["back_in_s"], go_on)

    async def _fleet(self, _: Document) -> None:
        """Kill the leader's fleet process, and with it the questions queued there."""
        if any(processes.kill(each) for each in self._fleets()):
            self._came_of["fleet processes killed"] += 1

    async def _child(self, _arguments: Document) -> None:
        """Kill a child of the fleet process while it answers a question."""
        for _ in range(round(CAUGHT_WITHIN_S / POLL_S)):
            answering = [
                one for each in self._fleets() for one in processes.children(each) if processes.is_running(one)
            ]
            if answering:
                self._came_of["children killed at a question"] += processes.kill(answering[0])
                return
            await asyncio.sleep(POLL_S)

    def _fleets(self) -> list[int]:
        pid = self._cluster.pid(self._cluster.holder())
        return [] if pid is None else [each for each in processes.children(pid) if processes.is_fleet(each)]

    async def _agent(self, arguments: Document) -> None:
        await self._kill_for(self._cluster.agents[arguments["node"]], arguments["back_in_s"])

    async def _kubelet(self, arguments: Document) -> None:
        await self._kill_for(f"kubelet-{arguments['node']}", arguments["back_in_s"])
