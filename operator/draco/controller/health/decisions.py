"""Decides what HealthPolicies make of each node's faults, from the current view.

Owns the reading of the view for health policies and the cache of decisions: a node is decided again when an object that its
decision depends on is replaced. Conditions run here, on the event loop: administrators write them, one takes at most some tens of
milliseconds, and the loop is yielded in between. Writes nothing.
"""

import asyncio
from collections.abc import Mapping
from operator import is_

from draco.controller.loop_watch import CooperativeWork
from draco.controller.view import BY_POOL, ClusterView
from draco.health.conditions import condition_of, load
from draco.health.policy import NodeHealth, ReadyPolicy, SeenGpus, decide_node, first_asked_first, ready
from draco.kube.watch.store import Change
from draco.mig_policy.matching import whole_gpus
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.health import HealthPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device, own_slices


class HealthDecisions:
    """Decisions by node, made on demand. Must subscribe before everyone who asks because of a change."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._policies: tuple[ReadyPolicy, ...] | None = None
        self._version = 0  # of the policies and classes
        self._known: dict[str, tuple[tuple[object, ...], NodeHealth]] = {}
        view.health_policies.subscribe(self._forget_policies, reads=said_by)
        view.classes.subscribe(self._forget_policies)
        view.gpu_nodes.subscribe(self._forget_node)

    async def policies(self) -> tuple[ReadyPolicy, ...]:
        """The compiled policies in evaluation order. Their status may be outdated."""
        while self._policies is None:
            version = self._version
            policies = first_asked_first(self._view.health_policies.store.values())
            if policies:
                await asyncio.to_thread(load)  # loading the grammar takes a quarter of a second
            cooperative = CooperativeWork(self._view.clock)
            for policy in policies:
                for rule in policy.spec.rules:
                    condition_of(rule.condition)  # cached for `ready`
                    await cooperative.pause()
            made = tuple(ready(policy, self._class_of(policy)) for policy in policies)
            if version == self._version:
                self._policies = made
        return self._policies

    async def of(self, node: str) -> NodeHealth | None:
        """The decision for a node; None without a GpuNode."""
        policies = await self.policies()
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", node))
        return self._decided(gpu_node, policies) if gpu_node else None

    async def all(self) -> list[NodeHealth]:
        """The decisions for all nodes with a GpuNode, by name. Yields the event loop in between."""
        policies = await self.policies()
        cooperative = CooperativeWork(self._view.clock)
        decisions = []
        for key in sorted(self._view.gpu_nodes.store):
            gpu_node = self._view.gpu_nodes.store.get(key)
            if gpu_node is not None:  # it may be gone by now
                decisions.append(self._decided(gpu_node, policies))
            await cooperative.pause()
        return decisions

    def whole_gpus(self, gpu_node: GpuNode) -> Mapping[str, Device]:
        """The node's GPUs by UUID, each as it is published or would be as a whole."""
        name, status = gpu_node.metadata.name, gpu_node.status
        slices = own_slices(self._view.slices.store.by_index(BY_POOL, gpu_node.pool), name)
        devices = [device for each in slices for device in each.spec.devices]
        return whole_gpus(devices, status.gpus, driver=status.driver)

    def _decided(self, gpu_node: GpuNode, policies: tuple[ReadyPolicy, ...]) -> NodeHealth:
        name = gpu_node.metadata.name
        if not policies:
            self._known.pop(name, None)
            return NodeHealth(node=name)
        node = self._view.nodes.store.get(ObjectKey("", name))
        slices = self._view.slices.store.by_index(BY_POOL, gpu_node.pool)
        basis = (policies, gpu_node, node, *slices)
        known = self._known.get(name)
        if known is not None and len(known[0]) == len(basis) and all(map(is_, known[0], basis)):
            return known[1]
        labels = node.metadata.labels if node else {}
        seen = SeenGpus(gpu_node=gpu_node, labels=labels, devices=self.whole_gpus(gpu_node))
        decision = decide_node(seen, policies)
        self._known[name] = (basis, decision)
        return decision

    def _class_of(self, policy: HealthPolicy) -> DeviceClass | None:
        name = policy.spec.device_class_name
        return self._view.classes.store.get(ObjectKey("", name)) if name else None

    def _forget_policies(self, _: object) -> None:
        self._version += 1
        self._policies = None

    def _forget_node(self, change: Change[GpuNode]) -> None:
        if change.after is None:
            self._known.pop(change.key.name, None)


def said_by(policy: HealthPolicy | MigPolicy) -> tuple[object, ...]:
    """The fields of a policy that decisions depend on."""
    return policy.spec, policy.metadata.uid, policy.metadata.deletion_timestamp
