"""Karpenter adds nodes for Draco's claims, and keeps nodes that have reserved devices.

Karpenter decides by what `draco autoscale template` says a new node will have; the agent publishes what the node has.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draco.allocation.ownership.holds import DO_NOT_DISRUPT
from draco.controller.allocation.writing import holds
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_RESERVATIONS, EVENTS, MIG_POLICIES, NODES, PODS
from draco.resources.names import NVIDIA_DRIVER
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.allocation.test_reservations import reserve, until_reserved
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.requests import call
from tests.scale.karpenter import GPUS, agents, karpenter, node_claims, nodes_of, remove_nodes, until_nodes

POLICY = {
    "apiVersion": "draco.dev/v1alpha1",
    "kind": "MigPolicy",
    "metadata": {"name": "draco"},
    "spec": {"mode": "Disabled", "allocator": "Operator"},
}
PATIENCE_S = 180.0
BROKEN = "example.com/broken"


@pytest.fixture
async def scaled(
    request: pytest.FixtureRequest,
    control_plane: ControlPlane,
    guarded: Guarded,
    cluster: Client,
    namespace: str,
    tmp_path: Path,
) -> AsyncIterator[Client]:
    """A cluster without nodes, to which Karpenter adds some; with the parameter "Operator", their GPUs are handed over."""
    handed_over = getattr(request, "param", "") == "Operator"
    if handed_over:
        await cluster.create(MIG_POLICIES, {name: POLICY[name] for name in ("metadata", "spec")})
    with karpenter(control_plane, tmp_path, policy=POLICY if handed_over else None):
        async with agents(cluster):
            yield cluster
            for path in ("/api/v1", "/apis/resource.k8s.io/v1"):
                kind = "pods" if path == "/api/v1" else "resourceclaims"
                call(control_plane, "DELETE", f"{path}/namespaces/{namespace}/{kind}?gracePeriodSeconds=0")
            remove_nodes(control_plane)
            await until_nodes(cluster, 0)
    if handed_over:
        await cluster.delete(MIG_POLICIES, ObjectKey("", "draco"))


draco_allocates = pytest.mark.parametrize("scaled", ["Operator"], indirect=True)


async def until_running(client: Client, namespace: str, *pods: str) -> None:
    async def look() -> bool:
        found = [await client.get(PODS, ObjectKey(namespace, name)) for name in pods]
        return all(each.status.phase == "Running" for each in found)

    await until(look, what=f"pods {', '.join(pods)} run", within_s=PATIENCE_S)


async def test_a_pending_claim_makes_a_node_appear_on_which_its_pod_runs(
    control_plane: ControlPlane, scaled: Client, namespace: str
) -> None:
    await make_template(scaled, namespace, "two", gpus=2, device_class=NVIDIA_DRIVER)
    for name in ("first", "second"):
        await make_member(scaled, namespace, name, template="two")
    (node,) = await until_nodes(scaled, 1, within_s=PATIENCE_S)
    await until_running(scaled, namespace, "first", "second")
    used = [each.key for claim in await allocated_claims(scaled, namespace) for each in claim.results]
    assert {each.pool for each in used} == {node}
    assert len(set(used)) == 4
    labels = (await scaled.get(NODES, ObjectKey("", node))).metadata.labels
    assert labels["node.kubernetes.io/instance-type"] == "gpus-8x"  # not the cheaper type without GPUs


@draco_allocates
async def test_a_gang_brings_as_many_nodes_as_it_needs_and_starts_together(
    control_plane: ControlPlane, guarded: Guarded, scaled: Client, namespace: str
) -> None:
    async with an_operator(guarded, ALLOCATING):
        await make_template(scaled, namespace, "node", gpus=GPUS)
        gang: dict[str, Any] = {
            "labels": {"kueue.x-k8s.io/pod-group-name": "train"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
        }
        names = [f"train-{number}" for number in range(3)]
        for name in names:
            await make_member(scaled, namespace, name, template="node", **gang)
        await until_running(scaled, namespace, *names)
        assert len(await nodes_of(scaled)) == len(node_claims(control_plane)) == len(names)
        assert len(await allocated_claims(scaled, namespace)) == len(names)


@draco_allocates
async def test_a_node_with_a_reservation_stays_until_the_reservation_ends(
    control_plane: ControlPlane,
    guarded: Guarded,
    scaled: Client,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holds, "RELEASE_AFTER_S", 0.5)
    async with an_operator(guarded, ALLOCATING):
        await make_template(scaled, namespace, "one", gpus=1)
        await make_member(scaled, namespace, "pod", template="one")
        (node,) = await until_nodes(scaled, 1, within_s=PATIENCE_S)
        await until_running(scaled, namespace, "pod")
        key = await reserve(scaled, namespace, "later", count=2)
        await until_reserved(scaled, key, 2)

        async def held() -> bool:
            return DO_NOT_DISRUPT in (await scaled.get(NODES, ObjectKey("", node))).metadata.annotations

        await until(held, what="the annotation of the node")
        await scaled.delete(PODS, ObjectKey(namespace, "pod"))

        async def blocked() -> bool:
            events = call(control_plane, "GET", "/api/v1/namespaces/default/events")["items"]  # some concern no object
            said = [each["message"] for each in events if each["reason"] == "DisruptionBlocked"]
            return any(DO_NOT_DISRUPT in each for each in said)

        # Karpenter repeats an event about a node only every two minutes; without the hold, the empty node goes in about ten
        # seconds.
        # seconds.
        await until(blocked, what="Karpenter finds the empty node and leaves it", within_s=PATIENCE_S + 60)
        assert await nodes_of(scaled) == {node}
        assert len(await scaled.list(CLAIMS, namespace=namespace)) == 2
        await scaled.delete(DEVICE_RESERVATIONS, key)
        await until_nodes(scaled, 0, within_s=PATIENCE_S)


async def test_an_isolated_gpu_counts_as_free_until_a_claim_holds_it_and_the_event_of_the_pod_that_waits_says_so(
    guarded: Guarded, scaled: Client, namespace: str, taint: Callable[[str, str], None]
) -> None:
    async with an_operator(guarded, ALLOCATING):
        for name, gpus in (("most", GPUS - 1), ("one", 1)):
            await make_template(scaled, namespace, name, gpus=gpus, device_class=NVIDIA_DRIVER)
        await make_member(scaled, namespace, "uses-most", template="most")
        (node,) = await until_nodes(scaled, 1, within_s=PATIENCE_S)
        await until_running(scaled, namespace, "uses-most")
        (claim,) = await allocated_claims(scaled, namespace)
        (free,) = {f"gpu-{number}" for number in range(GPUS)} - {each.key.device for each in claim.results}
        taint(node, free)
        await make_member(scaled, namespace, "waits", template="one")
        await until(
            partial(said, scaled, namespace, "waits", "Nominated", node),
            what="Karpenter counts on it",
            within_s=PATIENCE_S,
        )
        counts = f"Karpenter ignores device taints and treats {node} as free; it may not add a node."
        await until(partial(said, scaled, namespace, "waits", "ClaimPending", counts), what="Draco's Event")
        assert await nodes_of(scaled) == {node}
        await hold(scaled, namespace)
        await until_running(scaled, namespace, "waits")
        assert len(await nodes_of(scaled)) == 2


@pytest.fixture
def taint(control_plane: ControlPlane) -> Iterator[Callable[[str, str], None]]:
    """Taint a device with a rule, as an administrator does."""
    rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"

    def add(pool: str, device: str) -> None:
        selector = {"driver": NVIDIA_DRIVER, "pool": pool, "device": device}
        tainted = {"key": BROKEN, "value": "yes", "effect": "NoSchedule"}
        spec = {"deviceSelector": selector, "taint": tainted}
        call(control_plane, "POST", rules, {"metadata": {"name": "broken"}, "spec": spec})

    yield add
    call(control_plane, "DELETE", f"{rules}/broken")


async def said(client: Client, namespace: str, pod: str, reason: str, text: str) -> bool:
    events = await client.list(EVENTS, namespace=namespace)
    about = [each for each in events if each.involved_object and each.involved_object.name == pod]
    return any(each.reason == reason and text in each.message for each in about)


async def hold(client: Client, namespace: str) -> None:
    """Run a pod whose claim takes the tainted GPU, as in docs/how-to/autoscalers.md."""
    exactly = {"deviceClassName": NVIDIA_DRIVER, "tolerations": [{"key": BROKEN, "operator": "Exists"}]}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    await client.create(CLAIM_TEMPLATES, {"metadata": {"name": "held", "namespace": namespace}, "spec": spec})
    await make_member(client, namespace, "holds", template="held")
    await until_running(client, namespace, "holds")
