"""Decides in which form every node's GPUs are to be published, from the current view.

Owns the reading of the view for SharingPolicies; `node_decisions` keeps the decisions. Writes nothing.
"""

from collections.abc import Sequence

from draco.controller.node_decisions import NodeDecisions, said_by
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.watch.store import Change
from draco.mig_policy.matching import oldest_first
from draco.resources.api.claims import ResourceClaim
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
        view.sharing_policies.subscribe(self._forget_rules, reads=said_by)
        self._decisions: NodeDecisions[NodeForms] = NodeDecisions(view)

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
        return await self._decisions.all(lambda gpu_node: self._decided(gpu_node, rules))

    def judged(self, gpu_node: GpuNode, claims: Sequence[ResourceClaim]) -> NodeForms:
        """The decision if these claims hold devices of the node."""
        return self._made(gpu_node, self.rules, claims)

    def _decided(self, gpu_node: GpuNode, rules: Sequence[SharingRules]) -> NodeForms:
        name, pool = gpu_node.metadata.name, gpu_node.pool
        node = self._view.nodes.store.get(ObjectKey("", name))
        slices = own_slices(self._view.slices.store.by_index(BY_POOL, pool), name)
        claims = self._view.claims.store.by_index(BY_POOL, pool)
        basis = (rules, gpu_node, node, *slices, *claims)
        return self._decisions.of(name, basis, lambda: self._made(gpu_node, rules, claims))

    def _made(self, gpu_node: GpuNode, rules: Sequence[SharingRules], claims: Sequence[ResourceClaim]) -> NodeForms:
        name = gpu_node.metadata.name
        node = self._view.nodes.store.get(ObjectKey("", name))
        slices = own_slices(self._view.slices.store.by_index(BY_POOL, gpu_node.pool), name)
        labels = node.metadata.labels if node else {}
        devices = [device for each in slices for device in each.spec.devices]
        return decide(SharableNode(gpu_node=gpu_node, labels=labels, devices=devices, claims=claims), rules)

    def _forget_rules(self, _: Change[SharingPolicy]) -> None:
        self._rules = None
