"""Pods with Draco's scheduling gate: kube-scheduler ignores them until Draco has allocated their claims.

On a whole control plane; the operator has the chart's account and rights.
"""

from pathlib import Path

import pytest

from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import Invalid
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, EVENTS, PODS
from draco.resources.names import SCHEDULING_GATE
from tests.component.allocation.lab import ALLOCATING, Guarded, events_of, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.simulator.test_nodes import make_pod, running, until_running

GATE = {"name": SCHEDULING_GATE}
FOREIGN = {"name": "example.com/admission"}
ALL = 8
"""GPUs of the node that is handed over."""


async def until_gated(client: Client, namespace: str, name: str) -> None:
    async def is_gated() -> bool:
        pod = await client.get(PODS, ObjectKey(namespace, name))
        return any(each.reason == "SchedulingGated" for each in pod.status.conditions)

    await until(is_gated, what=f"the condition of {name}")


async def test_the_gate_goes_once_the_claim_has_its_gpu_and_until_then_the_scheduler_does_not_look(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        for number in range(ALL):
            await make_claim(handed_over, namespace, f"all-{number}")
        for number in range(ALL):
            await until_allocated(handed_over, namespace, f"all-{number}")
        await make_claim(handed_over, namespace, "late")
        await make_pod(handed_over, namespace, "pod", "late", schedulingGates=[GATE])

        async def explained() -> bool:
            return any("in use" in each for each in await events_of(handed_over, namespace, "pod"))

        await until(explained, what="the Event that says what the pod waits for")
        await until_gated(handed_over, namespace, "pod")
        events = await handed_over.list(EVENTS, namespace=namespace)
        assert "FailedScheduling" not in {each.reason for each in events}
        await handed_over.delete(CLAIMS, ObjectKey(namespace, "all-0"))
        await until_running(handed_over, namespace, "pod")


async def test_a_pod_that_others_hold_too_gets_nothing_before_they_let_it_go(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """As Kueue holds pods that wait for quota."""
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "first")
        await until_allocated(handed_over, namespace, "first")
        await make_template(handed_over, namespace, "one", gpus=1)
        for name, gates in (("held", [FOREIGN, GATE]), ("other", [GATE])):
            await make_member(handed_over, namespace, name, template="one", schedulingGates=gates)
        await until_running(handed_over, namespace, "other")  # the older one would have been served first
        assert len(await allocated_claims(handed_over, namespace)) == len(["first", "other"])
        await handed_over.patch(PODS, ObjectKey(namespace, "held"), {"spec": {"schedulingGates": [GATE]}})
        await until_running(handed_over, namespace, "held")


async def test_a_pod_whose_claims_are_not_dracos_is_let_go_at_once(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "plain", device_class="gpu.nvidia.com")
        await make_pod(handed_over, namespace, "pod", "plain", schedulingGates=[GATE])
        await until_running(handed_over, namespace, "pod")


async def test_of_a_pod_the_operators_account_takes_only_its_own_gate(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    own = {"op": "remove", "path": "/spec/schedulingGates/1"}
    key = ObjectKey(namespace, "pod")
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "first")
        await until_allocated(handed_over, namespace, "first")  # by now the policies are enforced
    await make_claim(handed_over, namespace, "claim")
    await make_pod(handed_over, namespace, "pod", "claim", schedulingGates=[FOREIGN, GATE])
    async with await connect(guarded.kubeconfig) as connection:
        operator = Client(connection)
        for change in (
            {"op": "replace", "path": "/spec/containers/0/image", "value": "another"},
            {"op": "add", "path": "/metadata/labels", "value": {"app": "other"}},
            {"op": "remove", "path": "/spec/schedulingGates/0"},
        ):
            with pytest.raises(Invalid, match=r"may only remove the scheduling gate draco.dev/allocation from a pod"):
                await operator.patch(PODS, key, [own, change])
        found = await operator.patch(PODS, key, [own])
        assert [each.name for each in found.spec.scheduling_gates] == [FOREIGN["name"]]


async def test_what_is_no_longer_as_it_was_when_the_gate_goes_stays_so(handed_over: Client, namespace: str) -> None:
    """Somebody else removed the gate, or a new pod has the same name: Draco's write changes nothing."""
    key = ObjectKey(namespace, "pod")
    await make_claim(handed_over, namespace, "claim", device_class="gpu.nvidia.com")
    await make_pod(handed_over, namespace, "pod", "claim", schedulingGates=[GATE])
    seen = await handed_over.get(PODS, key)
    let_go = {"metadata": {"uid": seen.metadata.uid}, "spec": {"schedulingGates": [FOREIGN]}}
    with pytest.raises(Invalid, match="only deletion is allowed"):
        await handed_over.patch(PODS, key, let_go)
    let_go = {"metadata": {"uid": "another"}, "spec": {"schedulingGates": None}}
    with pytest.raises(Invalid, match=r"metadata\.uid: .* field is immutable"):
        await handed_over.patch(PODS, key, let_go)
    assert (await handed_over.get(PODS, key)).spec == seen.spec
