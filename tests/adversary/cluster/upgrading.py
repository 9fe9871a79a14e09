"""Upgrades as Kubernetes does them: start the next program, and tell the old one to end when the next is ready.

Owns the steps of an upgrade and what stops it. If the next program is not ready in time or one of the two dies, the old one is
not told to end, as in a stalled rolling update.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tests.adversary.cluster.cluster import OPERATORS, Cluster
from tests.adversary.cluster.manifests import Document
from tests.adversary.cluster.observer.suspicion import Suspicion

POLL_S = 0.1
READY_WITHIN_POLLS = 600

Soon = Callable[[float, Callable[[], Awaitable[None]]], None]


class Upgrades:
    """Upgrades on one cluster. `soon` runs something later, `pause` waits at most the given seconds."""

    def __init__(self, cluster: Cluster, soon: Soon, pause: Callable[[float], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._soon = soon
        self._pause = pause

    async def agent(self, arguments: Document) -> None:
        """Upgrade a node's agent."""
        node = arguments["node"]
        serving = self._cluster.agents[node]
        following = await asyncio.to_thread(self._cluster.start_next_agent, node)
        if following:
            self._soon(0.0, lambda: self._follow(node, serving, following, arguments))

    async def _follow(self, node: str, serving: str, following: str, arguments: Document) -> None:
        cluster = self._cluster
        for _ in range(READY_WITHIN_POLLS):
            if cluster.stands_by(node) or not {serving, following} <= cluster.running:
                break
            await asyncio.sleep(POLL_S)
        else:
            cluster.observer.violated(Suspicion("not upgraded", following, f"{following} does not stand by"))
        await self._pause(arguments["beside_s"])
        if not {serving, following} <= cluster.running or cluster.agents[node] != serving:
            return
        if arguments["dies"]:
            await asyncio.to_thread(cluster.kill, serving if arguments["dies"] == "the old" else following)
            return
        cluster.observer.upgrade_began(node)
        await self._end(serving)
        cluster.observer.upgrade_ended(node)

    async def operator(self, arguments: Document) -> None:
        """Upgrade one replica of the operator."""
        idle = [name for name in OPERATORS if name not in self._cluster.running]
        if len(idle) != 1:
            return
        await asyncio.to_thread(self._cluster.start, idle[0])
        self._soon(arguments["beside_s"], lambda: self._replace(idle[0], arguments["who"]))

    async def _replace(self, fresh: str, who: str) -> None:
        leader = self._cluster.holder()
        running = self._cluster.running - self._cluster.stopped
        followers = [name for name in OPERATORS if name in running - {leader, fresh}]
        old = leader if who == "leader" or not followers else followers[0]
        if fresh in running and old in running and old != fresh and len(running & set(OPERATORS)) == len(OPERATORS):
            await self._end(old)

    async def _end(self, name: str) -> None:
        if not await asyncio.to_thread(self._cluster.end, name):
            self._cluster.observer.violated(
                Suspicion("did not end", name, f"{name} was told to end, and did not in time")
            )
