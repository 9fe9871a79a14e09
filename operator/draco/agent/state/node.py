"""The node's current facts, and who is woken by which fact or kind of change.

A part of the agent that learns facts calls `learn`: the state takes over all of them, then calls the subscribers of each in the
order of `wakes`. Anything else it tells as a `NodeChange`. Subscribers read the facts when they run, so several changes may
cause one piece of work. Owns the facts, in the event loop; readers decide what they mean.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, Unpack

import msgspec
import structlog

from draco.agent.record.contents import PreparedClaim
from draco.agent.state.changes import ClaimSettled, NodeChange
from draco.agent.state.facts import NewFacts, NodeFacts
from draco.kube.clock import Clock
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.names import ClaimUid

log = structlog.get_logger()

SETTLE_S = 0.25
"""Delay of reactions to a prepared claim, so that they do not slow the pod's start."""


C = TypeVar("C", bound=NodeChange)


class NodeState:
    """The facts of one node. Call `begin` in the event loop; what threads learn earlier is dropped."""

    def __init__(self, clock: Clock) -> None:
        self.facts = NodeFacts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: dict[str | type[NodeChange], list[Callable[[Any], object]]] = {}
        self._settling: WorkQueue[ClaimUid] = WorkQueue(clock=clock)
        self._claims: dict[ClaimUid, PreparedClaim] = {}  # those that settle

    def begin(self) -> None:
        """Accept facts from threads from now on."""
        self._loop = asyncio.get_running_loop()

    def on(self, kind: type[C], *wakes: Callable[[C], object]) -> None:
        """Call these on each change of that kind, after earlier subscribers."""
        self._wakes.setdefault(kind, []).extend(wakes)

    def on_fact(self, name: str, *wakes: Callable[[NodeFacts], object]) -> None:
        """Call these each time that field of `NodeFacts` is learned, after earlier subscribers."""
        self._wakes.setdefault(name, []).extend(wakes)

    def tell(self, change: NodeChange) -> None:
        """Wake the subscribers of the change's kind."""
        for wake in self._wakes.get(type(change), ()):
            wake(change)

    def learn(self, **facts: Unpack[NewFacts]) -> None:
        """Take over the facts and wake the subscribers of each once, even if the facts are the same as before."""
        self.facts = msgspec.structs.replace(self.facts, **facts)
        for wake in dict.fromkeys(wake for name in facts for wake in self._wakes.get(name, ())):
            wake(self.facts)

    def learn_from_thread(self, **facts: Unpack[NewFacts]) -> None:
        """Like `learn`, soon, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(partial(self.learn, **facts))

    def claim_changed(self, claim: PreparedClaim) -> None:
        """Tell of a settled claim after SETTLE_S: kubelet and the runtime start or end the pod meanwhile. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._settle, claim)

    async def run(self) -> None:
        """Tell of claims as they settle, until cancelled."""
        await run_workers(self._settling, self._settled, workers=1, log=log)

    def _settle(self, claim: PreparedClaim) -> None:
        self._claims[claim.uid] = claim
        self._settling.add_after(claim.uid, SETTLE_S)

    async def _settled(self, uid: ClaimUid) -> None:
        self.tell(ClaimSettled(self._claims[uid]))
        del self._claims[uid]
