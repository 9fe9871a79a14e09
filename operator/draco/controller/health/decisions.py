"""Decides what HealthPolicies make of each node's faults, from the current view.

Owns the reading of the view for health policies; `node_decisions` keeps the decisions. Conditions run here, on the event loop:
administrators write them, one takes at most some tens of milliseconds, and the loop is yielded in between. Writes nothing.
"""

import asyncio
from collections.abc import Mapping

from draco.controller.loop_watch import CooperativeWork
from draco.controller.node_decisions import NodeDecisions, said_by
from draco.controller.view import BY_POOL, ClusterView
from draco.health.conditions import condition_of, load
from draco.health.policy import NodeHealth, ReadyPolicy, SeenGpus, decide_node, first_asked_first, ready
from draco.mig_policy.matching import whole_gpus
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import HealthPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device, own_slices


class HealthDecisions:
    """Decisions by node, made on demand. Must subscribe before everyone who asks because of a change."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._policies: tuple[ReadyPolicy, ...] | None = None
        self._version = 0  # of the policies and classes
        view.health_policies.subscribe(self._forget_policies, reads=said_by)
        view.classes.subscribe(self._forget_policies)
        self._decisions: NodeDecisions[NodeHealth] = NodeDecisions(view)

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
        return await self._decisions.all(lambda gpu_node: self._decided(gpu_node, policies))

    def whole_gpus(self, gpu_node: GpuNode) -> Mapping[str, Device]:
        """The node's GPUs by UUID, each as it is published or would be as a whole."""
        name, status = gpu_node.metadata.name, gpu_node.status
        slices = own_slices(self._view.slices.store.by_index(BY_POOL, gpu_node.pool), name)
        devices = [device for each in slices for device in each.spec.devices]
        return whole_gpus(devices, status.gpus, driver=status.driver)

    def _decided(self, gpu_node: GpuNode, policies: tuple[ReadyPolicy, ...]) -> NodeHealth:
        name = gpu_node.metadata.name
        if not policies:
            self._decisions.forget(name)
            return NodeHealth(node=name)
        node = self._view.nodes.store.get(ObjectKey("", name))
        slices = self._view.slices.store.by_index(BY_POOL, gpu_node.pool)

        def made() -> NodeHealth:
            labels = node.metadata.labels if node else {}
            seen = SeenGpus(gpu_node=gpu_node, labels=labels, devices=self.whole_gpus(gpu_node))
            return decide_node(seen, policies)

        return self._decisions.of(name, (policies, gpu_node, node, *slices), made)

    def _class_of(self, policy: HealthPolicy) -> DeviceClass | None:
        name = policy.spec.device_class_name
        return self._view.classes.store.get(ObjectKey("", name)) if name else None

    def _forget_policies(self, _: object) -> None:
        self._version += 1
        self._policies = None
