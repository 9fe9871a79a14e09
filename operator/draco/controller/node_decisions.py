"""A decision for each node, kept while the objects that it was made of are the same ones.

Owns the cache, and the pass over all nodes, which yields the event loop. What is decided, and of which objects, its user says.
"""

from collections.abc import Callable, Collection
from operator import is_
from typing import Generic, TypeVar

from draco.controller.loop_watch import CooperativeWork
from draco.controller.view import ClusterView
from draco.kube.watch.store import Change
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.health import HealthPolicy
from draco.resources.api.sharing import SharingPolicy

T = TypeVar("T")


class NodeDecisions(Generic[T]):
    """The last decision for each node with a GpuNode. Must subscribe before everyone who asks because of a change."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._known: dict[str, tuple[tuple[object, ...], T]] = {}
        view.gpu_nodes.subscribe(self._changed)

    @property
    def known(self) -> Collection[T]:
        """All decisions that are kept."""
        return [decision for _, decision in self._known.values()]

    def of(self, node: str, basis: tuple[object, ...], decide: Callable[[], T]) -> T:
        """The decision for a node: the one that is kept, unless an object of its basis was replaced."""
        known = self._known.get(node)
        if known is not None and len(known[0]) == len(basis) and all(map(is_, known[0], basis)):
            return known[1]
        decision = decide()
        self._known[node] = (basis, decision)
        return decision

    async def all(self, decided: Callable[[GpuNode], T]) -> list[T]:
        """What `decided` says of each node with a GpuNode, by name. Yields the event loop in between."""
        cooperative = CooperativeWork(self._view.clock)
        decisions = []
        for key in sorted(self._view.gpu_nodes.store):
            gpu_node = self._view.gpu_nodes.store.get(key)
            if gpu_node is not None:  # it may be gone by now
                decisions.append(decided(gpu_node))
            await cooperative.pause()
        return decisions

    def forget(self, node: str) -> None:
        """Forget the decision for a node."""
        self._known.pop(node, None)

    def _changed(self, change: Change[GpuNode]) -> None:
        if change.after is None:
            self.forget(change.key.name)


def said_by(policy: HealthPolicy | MigPolicy | SharingPolicy) -> tuple[object, ...]:
    """The fields of a policy that decisions depend on."""
    return policy.spec, policy.metadata.uid, policy.metadata.deletion_timestamp
