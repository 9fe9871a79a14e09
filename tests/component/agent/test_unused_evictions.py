"""From simulated processes to an eviction: the agent finds out that nobody uses a GPU, and the operator evicts its pod."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from draco.agent.usage import unused
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_LIMITS, GPU_USAGES, NAMESPACES, PODS
from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.accidents import by_hand
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_usage import FAST, PART, compute, reported
from tests.component.controller.replicas import an_operator, until

pytestmark = pytest.mark.usefixtures("crds")


async def a_pod(node: SimulatedNode, name: str, claim: ResourceClaim) -> ResourceClaim:
    """A pod that has run for a day, for which the claim is reserved."""
    spec = {
        "nodeName": node.name,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim.metadata.name}],
    }
    made = await node.client.create(PODS, {"metadata": {"name": name, "namespace": node.namespace}, "spec": spec})
    status = {"phase": "Running", "startTime": ago(hours=24)}
    await node.client.patch(PODS, made.metadata.key, {"status": status}, subresource="status")
    users = [{"resource": "pods", "name": name, "uid": made.metadata.uid}]
    return await node.client.patch(CLAIMS, claim.metadata.key, {"status": {"reservedFor": users}}, subresource="status")


def ago(**lasting: float) -> str:
    return (datetime.now(UTC) - timedelta(**lasting)).isoformat(timespec="seconds")


async def exists(node: SimulatedNode, pod: str) -> bool:
    try:
        return (await node.client.get(PODS, ObjectKey(node.namespace, pod))).metadata.deletion_timestamp is None
    except NotFound:
        return False


async def two_hours_later(node: SimulatedNode) -> None:
    """As if the agent had been away for a moment after two hours without use."""
    said = (await reported(node)).status.unused
    unused_long: list[dict[str, Any]] = [
        {
            "uuid": one.uuid,
            "namespace": one.namespace,
            "claim": one.claim,
            "claimUID": one.claim_uid,
            "since": ago(hours=2),
        }
        for one in said
    ]
    status = {"time": ago(seconds=30), "unused": unused_long}
    await node.client.patch(GPU_USAGES, ObjectKey("", node.name), {"status": status}, subresource="status")


async def test_a_pod_whose_program_only_waits_is_evicted_after_a_restart_of_its_agent(
    node: SimulatedNode, api_server: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a MIG device and on a whole GPU; a busy neighbour on the other MIG device stays."""
    monkeypatch.setattr(unused, "REPORTED_AFTER", timedelta(0))
    by_hand.set_mode(node.gpus, 0, 1)
    waits = await a_pod(node, "waits", await node.claim(PART))
    busy = await a_pod(node, "busy", await node.claim(PART.replace("-19-0", "-19-1")))
    whole = await a_pod(node, "whole", await node.claim("gpu-1"))
    async with node.running(**FAST):
        await node.register()
        for claim in (waits, busy, whole):
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        first, second = sorted(state.load(node.gpus).gpus[0].instances, key=lambda one: one.start)
        compute(node, 11, waits, gpu_instance=first.id, compute_instance=0)
        compute(node, 12, busy, gpu_instance=second.id, compute_instance=0, utilization=30)
        compute(node, 13, whole, gpu=1)

        async def reports(*claims: ResourceClaim) -> bool:
            found = {one.claim_uid for one in (await reported(node)).status.unused}
            return found == {claim.metadata.uid for claim in claims}

        await eventually(lambda: reports(waits, whole))
    await two_hours_later(node)
    async with node.running(**FAST), an_operator(api_server):
        await node.register()
        labels = {"metadata": {"labels": {"tenant": node.namespace}}}
        await node.client.patch(NAMESPACES, ObjectKey("", node.namespace), labels)
        spec = {
            "namespaceSelector": {"matchLabels": {"tenant": node.namespace}},
            "unused": {"evictAfter": "1h", "notice": "0m"},
        }
        await node.client.create(DEVICE_LIMITS, {"metadata": {"name": node.namespace}, "spec": spec})
        try:

            async def are_gone() -> bool:
                return not (await exists(node, "waits") or await exists(node, "whole"))

            await until(are_gone, what="the evictions")
            assert await exists(node, "busy")
        finally:
            await node.client.delete(DEVICE_LIMITS, ObjectKey("", node.namespace))
