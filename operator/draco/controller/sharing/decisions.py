"""Decides in which form every node's GPUs are to be published, from the current view.

Owns the reading of the view for SharingPolicies and the cache of decisions: a node is decided again when an object that its
decision depends on is replaced. Deciding a large fleet yields the event loop. Writes nothing.
"""

from collections.abc import Sequence
from operator import is_

from draco.controller.loop_watch import CooperativeWork
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.watch.store import Change
from draco.mig_policy.matching import oldest_first
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.api.sharing import SharingPolicy
from draco.resources.api.slices import own_slices
from draco.sharing.decide import NodeForms, SharableNode, SharingRules, decide, sharing_rules


class SharingDecisions:
    """Decisions by node, made on demand. Must subscribe before everyone who asks because of a change."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._rules: tuple[SharingRules, ...] | None = None
        self._known: dict[str, tuple[tuple[object, ...], NodeForms]] = {}
        view.sharing_policies.subscribe(self._forget_rules, reads=_said_by)
        view.gpu_nodes.subscribe(self._forget_node)

    @property
    def rules(self) -> Sequence[SharingRules]:
        """The compiled policies, oldest first. Their status may be outdated."""
        if self._rules is None:
            self._rules = tuple(map(sharing_rules, oldest_first(self._view.sharing_policies.store.values())))
        return self._rules

    def of(self, node: str) -> NodeForms | None:
        """The decision for a node; None without a GpuNode."""
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", node))
        return self._decided(gpu_node, self.rules) if gpu_node else None

    async def all(self) -> list[NodeForms]:
        """The decisions for all nodes with a GpuNode, by name. Yields the event loop in between."""
        rules = self.rules
        work = CooperativeWork(self._view.clock)
        decisions = []
        for key in sorted(self._view.gpu_nodes.store):
            gpu_node = self._view.gpu_nodes.store.get(key)
            if gpu_node is not None:  # it may be gone by now
                decisions.append(self._decided(gpu_node, rules))
            await work.pause()
        return decisions

    def _decided(self, gpu_node: GpuNode, rules: Sequence[SharingRules]) -> NodeForms:
        name, pool = gpu_node.metadata.name, gpu_node.pool
        node = self._view.nodes.store.get(ObjectKey("", name))
        slices = own_slices(self._view.slices.store.by_index(BY_POOL, pool), name)
        claims = self._view.claims.store.by_index(BY_POOL, pool)
        basis = (rules, gpu_node, node, *slices, *claims)
        known = self._known.get(name)
        if known is not None and len(known[0]) == len(basis) and all(map(is_, known[0], basis)):
            return known[1]
        seen = SharableNode(
            gpu_node=gpu_node,
            labels=node.metadata.labels if node else {},
            devices=[device for each in slices for device in each.spec.devices],
            claims=claims,
        )
        decision = decide(seen, rules)
        self._known[name] = (basis, decision)
        return decision

    def _forget_rules(self, _: Change[SharingPolicy]) -> None:
        self._rules = None

    def _forget_node(self, change: Change[GpuNode]) -> None:
        if change.after is None:
            self._known.pop(change.key.name, None)


def _said_by(policy: SharingPolicy) -> tuple[object, ...]:
    """What a decision reads of a policy."""
    return policy.spec, policy.metadata.uid, policy.metadata.deletion_timestamp
