"""What this replica has observed of the agents' leases, and for how long, on its own clock.

Owns the watch of these leases and the times of their changes. Every replica watches, so that the next leader has this history.
Decides nothing, writes nothing.

- Timestamps in a lease are never read, only whether it changes: an agent's clock may be wrong by minutes.
- A lease in the first list may be of any age: its silence counts from then, and it does not count as renewed.
- Silence counts only while the connection to the API server was uninterrupted: an outage hits the agents as well.
- A deleted lease stays known until its node is gone: deleting it does not revive a dead agent.
- A new pool gets the duration of a lease: its agent publishes first, and then creates its lease.
"""

from collections.abc import Iterable

import msgspec

from draco.controller.view import BY_POOL, ClusterView
from draco.health.fencing import AgentSigns
from draco.kube.connect.client import Client
from draco.kube.listeners import Listeners
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.core import Lease, LeaseSpec, Node
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey, is_true
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import LEASES
from draco.resources.names import AGENT_LEASE_PREFIX, LABEL_AGENT_LEASE, NodeName, PoolKey, agent_lease_name

DEFAULT_LEASE_S = 20
"""For a lease without a duration."""


class SeenLease(msgspec.Struct):
    """One agent's lease. `since`: when it was last seen to change, or first seen; `renewed`: the former only."""

    spec: LeaseSpec
    driver: str
    since: float
    renewed: float | None = None

    @property
    def lease_s(self) -> float:
        """Its duration."""
        return float(self.spec.lease_duration_seconds or DEFAULT_LEASE_S)


class AgentLeases:
    """The leases in `namespace`, and what they tell about each agent. `run` watches them."""

    def __init__(self, client: Client, view: ClusterView, *, namespace: str) -> None:
        self.informer: Informer[Lease] = Informer(
            client, LEASES, namespace=namespace, label_selector=LABEL_AGENT_LEASE, clock=view.clock
        )
        self._namespace = namespace
        self._view = view
        self._seen: dict[NodeName, SeenLease] = {}
        self._appeared: dict[PoolKey, float] = {}
        self.listeners = Listeners[[]]()
        """Called when an agent appears, or renews after it was overdue or while it is fenced."""
        self.informer.subscribe(self._lease_changed, reads=lambda lease: (lease.spec, lease.metadata.labels))
        view.slices.subscribe(self._slice_changed)
        view.nodes.subscribe(self._node_changed)

    def key(self, node: NodeName) -> ObjectKey:
        """The key of the node's lease."""
        return ObjectKey(self._namespace, agent_lease_name(node))

    def pool(self, node: NodeName) -> PoolKey | None:
        """The pool of the node's agent, None if unknown."""
        gpu_node = self.gpu_node(node)
        seen = self._seen.get(node)
        driver = (seen.driver if seen else "") or (gpu_node.status.driver if gpu_node else "")
        return PoolKey(driver, node) if driver else None

    def gpu_node(self, node: NodeName) -> GpuNode | None:
        """The GpuNode that the node's agent reports into."""
        return self._view.gpu_nodes.store.get(ObjectKey("", node))

    def signs(self) -> Iterable[AgentSigns]:
        """What is known of each agent now. Empty until the leases have been listed."""
        if not self.informer.synced.is_set():
            return
        for node in self._nodes():
            if (pool := self.pool(node)) is not None:
                yield self._signs(node, pool)

    def is_news(self, node: NodeName, lease: Lease | None) -> bool:
        """Whether a lease read directly differs from the one observed; if so, take it in."""
        seen = self._seen.get(node)
        if lease is None or seen is None or lease.spec == seen.spec:
            return False
        self._take(node, lease)
        return True

    def _nodes(self) -> list[NodeName]:
        reported = (NodeName(each.metadata.name) for each in self._view.gpu_nodes.store.values())
        return list(dict.fromkeys([*self._seen, *reported]))

    def _signs(self, node: NodeName, pool: PoolKey) -> AgentSigns:
        seen = self._seen.get(node)
        parts = self._view.current_slices_of(pool)
        gpu_node = self.gpu_node(node)
        reports = gpu_node is not None and self._exists(node)
        offers = reports and bool(parts)
        fenced = self._view.is_fenced(pool)
        unseen = AgentSigns(
            node=node, lease_s=DEFAULT_LEASE_S, silent_s=None, reports=reports, offers=offers, fenced=fenced
        )
        if seen is None:
            return unseen
        now = self._view.clock.monotonic()
        steady = self.informer.steady_since
        counted_from = max(seen.since, self._appeared.get(pool, 0.0), now if steady is None else steady)
        return msgspec.structs.replace(
            unseen,
            lease_s=seen.lease_s,
            silent_s=now - counted_from,
            renewed_s=None if seen.renewed is None else now - seen.renewed,
            consistent=gpu_node is not None and _is_current(gpu_node, parts),
        )

    def _exists(self, node: NodeName) -> bool:
        return self._view.nodes.store.get(ObjectKey("", node)) is not None

    def _lease_changed(self, change: Change[Lease]) -> None:
        node = node_of(change.versions[-1])
        if node is None:
            return
        if change.after is None:
            if not self._exists(node):
                self._seen.pop(node, None)
        else:
            self._take(node, change.after)

    def _take(self, node: NodeName, lease: Lease) -> None:
        now = self._view.clock.monotonic()
        before = self._seen.get(node)
        driver = lease.metadata.labels.get(LABEL_AGENT_LEASE, "")
        if before is not None and before.spec == lease.spec:
            before.driver = driver
            return
        renewed = now if self.informer.synced.is_set() or before is not None else None
        self._seen[node] = SeenLease(lease.spec, driver, since=now, renewed=renewed)
        if before is None or now - before.since >= before.lease_s / 2 or self._view.is_fenced(PoolKey(driver, node)):
            self.listeners.tell()

    def _node_changed(self, change: Change[Node]) -> None:
        node = NodeName(change.key.name)
        if change.after is None and self.informer.store.get(self.key(node)) is None:
            self._seen.pop(node, None)

    def _slice_changed(self, change: Change[ResourceSlice]) -> None:
        for pool in {item.pool for item in change.versions}:
            if not self._view.slices.store.by_index(BY_POOL, pool):
                self._appeared.pop(pool, None)
            elif change.before is None and len(self._view.slices.store.by_index(BY_POOL, pool)) == 1:
                self._appeared[pool] = self._view.clock.monotonic()


def node_of(lease: Lease) -> NodeName | None:
    """The node whose agent renews the lease: its owner, if the lease has the name for that node. None otherwise."""
    name = lease.metadata.name
    owners = [each.name for each in lease.metadata.owner_references if each.kind == "Node"]
    # If somebody removed the owner, a lease name that is not shortened also tells the node.
    known = (each for each in (*owners, name.removeprefix(AGENT_LEASE_PREFIX)) if agent_lease_name(each) == name)
    return next(map(NodeName, known), None)


def _is_current(gpu_node: GpuNode, parts: list[ResourceSlice]) -> bool:
    """Whether the agent's report matches what is published."""
    published = is_true(gpu_node.status.conditions, "Published")
    return published and all(each.spec.pool.generation == gpu_node.status.pool_generation for each in parts)
