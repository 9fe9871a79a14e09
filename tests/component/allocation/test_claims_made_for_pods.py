"""A claim made for a pod from a template is allocated before the pod's status names it, by Kubernetes' own rule.

kube-controller-manager creates the claim, and names it in the pod's status a moment later. Here that moment is extended: it is
stopped, and the test creates the claim in its place.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from draco.resources.names import ANNOTATION_POD_CLAIM, SCHEDULING_GATE
from draco_local.cluster.controlplane import CONTROLLER_MANAGER, ControlPlane
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.simulator.test_nodes import running, until_running


@contextmanager
def no_controller_manager(plane: ControlPlane) -> Iterator[None]:
    """Stop kube-controller-manager within the block."""
    plane.kill(CONTROLLER_MANAGER)
    try:
        yield
    finally:
        plane.start_again(CONTROLLER_MANAGER)


async def make_claim_for(client: Client, pod: Pod, name: str) -> ResourceClaim:
    """Create the pod's claim as kube-controller-manager does."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid, "controller": True}
    meta = {
        "name": name,
        "namespace": pod.metadata.namespace,
        "annotations": {ANNOTATION_POD_CLAIM: "gpu"},
        "ownerReferences": [owner],
    }
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}
    return await client.create(CLAIMS, {"metadata": meta, "spec": spec})


@pytest.fixture
async def waits(guarded: Guarded, handed_over: Client, namespace: str, folder: Path) -> AsyncIterator[ObjectKey]:
    """A pod that is not created yet; its template, nodes, and an operator that allocates."""
    await make_template(handed_over, namespace, "one", gpus=1)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        yield ObjectKey(namespace, "pod")


async def test_it_is_allocated_and_the_gate_gone_before_the_status_names_it_and_kubernetes_names_the_same(
    control_plane: ControlPlane, handed_over: Client, namespace: str, waits: ObjectKey
) -> None:
    with no_controller_manager(control_plane):
        gate = {"name": SCHEDULING_GATE}
        await make_member(handed_over, namespace, waits.name, template="one", schedulingGates=[gate])
        await make_claim_for(handed_over, await handed_over.get(PODS, waits), "made")
        await until_allocated(handed_over, namespace, "made")

        async def let_go() -> bool:
            return not (await handed_over.get(PODS, waits)).spec.scheduling_gates

        await until(let_go, what="a pod without Draco's gate")
        assert not (await handed_over.get(PODS, waits)).status.resource_claim_statuses
    await until_running(handed_over, namespace, waits.name)
    (named,) = (await handed_over.get(PODS, waits)).status.resource_claim_statuses
    assert named.resource_claim_name == "made"
    assert [each.metadata.name for each in await handed_over.list(CLAIMS, namespace=namespace)] == ["made"]


async def test_of_two_for_one_entry_none_is_allocated_but_the_one_that_kubernetes_names(
    control_plane: ControlPlane, handed_over: Client, namespace: str, waits: ObjectKey
) -> None:
    """A tenant may create another claim that pretends to be the pod's. Both exist before Draco may consider the pod."""
    with no_controller_manager(control_plane):
        gate = {"name": "example.com/admission"}
        await make_member(handed_over, namespace, waits.name, template="one", schedulingGates=[gate])
        pod = await handed_over.get(PODS, waits)
        for name in ("first", "second"):
            await make_claim_for(handed_over, pod, name)
        await handed_over.patch(PODS, waits, {"spec": {"schedulingGates": None}})
        await make_claim(handed_over, namespace, "later")
        await until_allocated(handed_over, namespace, "later")
        assert [each.metadata.name for each in await allocated_claims(handed_over, namespace)] == ["later"]
    await until_running(handed_over, namespace, waits.name)
    (named,) = (await handed_over.get(PODS, waits)).status.resource_claim_statuses
    have_devices = {each.metadata.name for each in await allocated_claims(handed_over, namespace)}
    assert have_devices == {"later", named.resource_claim_name}


async def test_what_was_allocated_for_a_pod_that_then_uses_another_is_given_back(
    control_plane: ControlPlane, handed_over: Client, namespace: str, waits: ObjectKey
) -> None:
    """kube-controller-manager died after creating a claim and before naming it; the next one did not know of it."""
    with no_controller_manager(control_plane):
        await make_member(handed_over, namespace, waits.name, template="one")
        pod = await handed_over.get(PODS, waits)
        await make_claim_for(handed_over, pod, "first")
        await until_allocated(handed_over, namespace, "first")
        await make_claim_for(handed_over, pod, "second")
        named = [{"name": "gpu", "resourceClaimName": "second"}]
        await handed_over.patch(PODS, waits, {"status": {"resourceClaimStatuses": named}}, subresource="status")
        await until_allocated(handed_over, namespace, "second")

        async def given_back() -> bool:
            return [each.metadata.name for each in await allocated_claims(handed_over, namespace)] == ["second"]

        await until(given_back, what="the first claim without devices")
    await until_running(handed_over, namespace, waits.name)
    assert [each.metadata.name for each in await allocated_claims(handed_over, namespace)] == ["second"]
