"""The node's current facts, and who is woken by which kind of change.

A part of the agent that learns something tells a `NodeChange`. The state first takes over all facts of the change, then calls the
subscribers of its kind in the order of `wakes`. Subscribers read the facts when they run, so several changes may cause one piece
of work. Owns the facts, in the event loop; readers decide what they mean.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import structlog

from draco.agent.record.contents import PreparedClaim
from draco.agent.state.changes import ClaimSettled, Fact, NodeChange
from draco.agent.state.facts import NodeFacts
from draco.kube.clock import Clock
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.names import ClaimUid

log = structlog.get_logger()

SETTLE_S = 0.25
"""Delay of reactions to a prepared claim, so that they do not slow the pod's start."""


C = TypeVar("C", bound=NodeChange)


class NodeState:
    """The facts of one node. Call `begin` in the event loop; what threads tell earlier is dropped."""

    def __init__(self, clock: Clock) -> None:
        self.facts = NodeFacts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: dict[type[NodeChange], list[Callable[[Any], object]]] = {}
        self._settling: WorkQueue[ClaimUid] = WorkQueue(clock=clock)
        self._claims: dict[ClaimUid, PreparedClaim] = {}  # those that settle

    def begin(self) -> None:
        """Accept changes from threads from now on."""
        self._loop = asyncio.get_running_loop()

    def on(self, kind: type[C], *wakes: Callable[[C], object]) -> None:
        """Call these on each change of that kind, after earlier subscribers."""
        self._wakes.setdefault(kind, []).extend(wakes)

    def tell(self, change: NodeChange) -> None:
        """Take over the change's facts and wake the subscribers of its kind."""
        if isinstance(change, Fact):
            self.facts = msgspec.structs.replace(self.facts, **msgspec.structs.asdict(change))
        for wake in self._wakes.get(type(change), ()):
            wake(change)

    def tell_from_thread(self, change: NodeChange) -> None:
        """Like `tell`, soon, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.tell, change)

    def claim_changed(self, claim: PreparedClaim) -> None:
        """Tell of a settled claim after SETTLE_S: kubelet and the runtime are about to start or end the pod."""
        self._claims[claim.uid] = claim
        self._settling.add_after(claim.uid, SETTLE_S)

    async def run(self) -> None:
        """Tell of claims as they settle, until cancelled."""
        await run_workers(self._settling, self._settled, workers=1, log=log)

    async def _settled(self, uid: ClaimUid) -> None:
        self.tell(ClaimSettled(self._claims[uid]))
        del self._claims[uid]
