"""Reads a live cluster once into what allocation depends on, with notes about what could not be read."""

import asyncio
from collections.abc import Iterable

from draco.allocation.fleet.fleet import Fleet
from draco.cli.input.reading import Reader
from draco.explanation.refused_creation import EVENT_REASON
from draco.kube.connect.client import Client
from draco.kube.discovery import kubernetes_minor
from draco.mig_policy.decide import SeenNode, spread_pools_of
from draco.mig_policy.matching import preempting_policies, spreading_policies
from draco.resources.api.core import Node, Pod, PodDisruptionBudget
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.slices import ResourceSlice, by_pool
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    DEVICE_LIMITS,
    DEVICE_RESERVATIONS,
    EVENTS,
    GPU_NODES,
    MIG_POLICIES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    TAINT_RULES,
)
from draco.resources.names import PoolKey
from draco.whatif.world import World


async def read_cluster(client: Client) -> World:
    """Read the cluster behind a client. Raises KubeError or CommandError."""
    reader = Reader(client)
    slices = await reader.slices()
    async with asyncio.TaskGroup() as tasks:
        nodes = tasks.create_task(reader.all(NODES))
        classes = tasks.create_task(reader.all(DEVICE_CLASSES))
        claims = tasks.create_task(reader.all(CLAIMS))
        pods = tasks.create_task(reader.all_if_allowed(PODS, "which pods use or wait for a claim is not known"))
        templates = tasks.create_task(
            reader.all_if_allowed(CLAIM_TEMPLATES, "claims not yet created from templates are not known")
        )
        rules = tasks.create_task(_rules(reader))
        limits = tasks.create_task(_limits(reader))
        own_policies = tasks.create_task(
            reader.all_if_served(MIG_POLICIES, "preemption and the spreading of claims are not known")
        )
        minor = tasks.create_task(kubernetes_minor(client))
    fleet = Fleet.of(
        slices=slices, rules=rules.result(), nodes=nodes.result(), classes=classes.result(), claims=claims.result()
    )
    found_limits, namespaces = limits.result()
    policies = own_policies.result() or []
    budgets, reservations = await _of_preemption(reader) if preempting_policies(policies) else ([], [])
    return World(
        server=str(client.connection.server),
        kubernetes_minor=minor.result(),
        fleet=fleet,
        pods={pod.metadata.key: pod for pod in pods.result()},
        templates={template.metadata.key: template for template in templates.result()},
        limits=found_limits,
        namespaces=namespaces,
        policies=policies,
        budgets=budgets,
        reservations=reservations,
        spread=await _spread(reader, policies, nodes.result(), slices),
        creation_failures=await _creation_failures(reader, pods.result()),
        notes=sorted(reader.unread),
    )


async def _rules(reader: Reader) -> list[DeviceTaintRule]:
    """The DeviceTaintRules in the newest served version; none if the cluster does not serve the kind."""
    for kind in TAINT_RULES:
        rules = await reader.all_if_served(kind, "taints of rules are not taken into account")
        if rules is not None:
            return rules
    return []


async def _limits(reader: Reader) -> tuple[list[DeviceLimit], dict[str, dict[str, str]]]:
    """The DeviceLimits, and the labels of all namespaces, by which they select."""
    consequence = "whether a limit keeps a claim waiting is not known"
    limits = await reader.all_if_served(DEVICE_LIMITS, consequence)
    if not limits:
        return [], {}
    namespaces = await reader.all_if_allowed(NAMESPACES, consequence)
    return limits, {each.metadata.name: each.metadata.labels for each in namespaces}


async def _spread(
    reader: Reader, policies: Iterable[MigPolicy], nodes: Iterable[Node], slices: Iterable[ResourceSlice]
) -> frozenset[PoolKey]:
    """The pools whose nodes are filled evenly. GpuNodes are read only if a policy asks for spreading."""
    if not spreading_policies(policies):
        return frozenset()
    consequence = "the spreading of claims over nodes is not taken into account"
    gpu_nodes = await reader.all_if_served(GPU_NODES, consequence) or []
    by_name, parts = {each.metadata.name: each for each in nodes}, by_pool(slices)

    def seen(gpu_node: GpuNode) -> SeenNode:
        return SeenNode.of(gpu_node, by_name.get(gpu_node.metadata.name), parts.get(gpu_node.pool, ()))

    return spread_pools_of(map(seen, gpu_nodes), policies)


async def _of_preemption(reader: Reader) -> tuple[list[PodDisruptionBudget], list[DeviceReservation]]:
    """What restricts preemption: PodDisruptionBudgets, and DeviceReservations, which protect pods by their own priority."""
    consequence = "which pods PodDisruptionBudgets protect from preemption is not known"
    budgets = await reader.all_if_allowed(POD_DISRUPTION_BUDGETS, consequence)
    consequence = "which pods DeviceReservations protect from preemption is not known"
    return budgets, await reader.all_if_served(DEVICE_RESERVATIONS, consequence) or []


async def _creation_failures(reader: Reader, pods: Iterable[Pod]) -> dict[str, str]:
    """Why a claim could not be created from its template, by pod UID."""
    if not any(pod.pending and len(pod.claims) < len(pod.spec.resource_claims) for pod in pods):
        return {}
    events = await reader.all_if_allowed(
        EVENTS, "why claims cannot be created is not known", {"fieldSelector": f"reason={EVENT_REASON}"}
    )
    events.sort(key=lambda event: event.event_time or str(event.metadata.creation_timestamp))
    return {each.involved_object.uid: each.message for each in events if each.involved_object is not None}
