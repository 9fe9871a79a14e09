"""What the node is like now, and who is woken by which kind of change.

A part of the agent that learns something tells a `NodeChange`. The state first takes over the facts that the change brings, all
at once, and then wakes those who follow its kind, in the order in which `wakes` names them. Whoever is woken reads the facts as
they are by then: several changes may make one piece of work. Owns the facts, in the event loop; what they mean is for their
readers to decide.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from draco.agent.record.contents import PreparedClaim
from draco.agent.state.changes import ClaimSettled, Fact, NodeChange
from draco.agent.state.facts import NodeFacts

SETTLE_S = 0.25
"""How long what follows from a prepared claim waits, so that it takes no time from the start of the pod."""


C = TypeVar("C", bound=NodeChange)


class NodeState:
    """The facts of one node. `begin` it in the event loop; what threads tell before is not heard."""

    def __init__(self) -> None:
        self.facts = NodeFacts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: dict[type[NodeChange], list[Callable[[Any], object]]] = {}

    def begin(self) -> None:
        """Hear threads from now on."""
        self._loop = asyncio.get_running_loop()

    def on(self, kind: type[C], *wakes: Callable[[C], object]) -> None:
        """Call these with each change of that kind, after those that were named before."""
        self._wakes.setdefault(kind, []).extend(wakes)

    def tell(self, change: NodeChange) -> None:
        """Take over what is known anew, and wake who follows that kind of change."""
        if isinstance(change, Fact):
            self.facts = msgspec.structs.replace(self.facts, **msgspec.structs.asdict(change))
        for wake in self._wakes.get(type(change), ()):
            wake(change)

    def tell_from_thread(self, change: NodeChange) -> None:
        """The same, soon, for what is learned in any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.tell, change)

    def claim_changed(self, claim: PreparedClaim) -> None:
        """Tell of a claim a little later: kubelet and the runtime are about to start the pod, or to end it."""
        asyncio.get_running_loop().call_later(SETTLE_S, self.tell, ClaimSettled(claim))
