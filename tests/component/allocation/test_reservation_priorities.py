"""Reservations keep devices according to their PriorityClass, and unused ones only as long as a MigPolicy permits."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from draco.controller.reservations import reconciler
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import CLAIMS, DEVICE_RESERVATIONS, MIG_POLICIES, PODS
from draco.resources.names import SCHEDULING_GATE
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation import preempting
from tests.component.allocation.lab import ALLOCATING, CLASS, RIGHTS, Guarded, make_claim, until_allocated
from tests.component.allocation.preempting import events_of, of_priority, permit, staying
from tests.component.allocation.test_reservations import reserve, until_reserved
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import make_member, make_template
from tests.component.simulator.test_nodes import make_pod, running, until_running
from tests.requests import RefusedError, call

priorities = preempting.priorities
LOW, MIDDLE, HIGH = map(of_priority, ("low", "middle", "high"))


async def until_told(client: Client, namespace: str, reason: str, about: str) -> str:
    """Wait for the Event and return its note."""

    async def told() -> str | None:
        return (await events_of(client, namespace, reason)).get(about)

    return await until(told, what=f"the Event {reason} of {about}")


async def test_a_pod_of_a_higher_priority_gets_what_a_reservation_keeps_unused_and_the_reservation_waits(
    guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """All eight GPUs are reserved, two of them are used by a pod of a low priority, which the reservation's own protects."""
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        key = await reserve(handed_over, namespace, "train", count=8, **MIDDLE)
        reservation = await until_reserved(handed_over, key, 8)
        assert (reservation.status.priority, reservation.status.preemption_policy) == (50, "PreemptLowerPriority")
        await make_template(handed_over, namespace, "one", gpus=1)
        await make_member(handed_over, namespace, "low", template="one", **LOW)
        await make_member(handed_over, namespace, "high", template="one", **HIGH)
        await until_running(handed_over, namespace, "high")
        await until_reserved(handed_over, key, 7)
        assert await staying(handed_over, namespace) == {"low", "high"}
        assert (await handed_over.get(PODS, ObjectKey(namespace, "low"))).spec.node_name == ""

        said = await until_told(handed_over, namespace, "Preempted", "train")
        assert said.endswith(
            "which no pod used: 1 pod of priority 100 gets them; the reservation's own priority is 50. "
            "Its claim waits for others."
        )


async def test_a_reservation_gets_the_gpus_of_pods_of_a_lower_priority(
    guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_template(handed_over, namespace, "four", gpus=4)
        await make_member(handed_over, namespace, "low", template="four", **LOW)
        await make_member(handed_over, namespace, "high", template="four", **HIGH)
        await until_running(handed_over, namespace, "low", "high")
        key = await reserve(handed_over, namespace, "train", count=2, **MIDDLE)
        await until_reserved(handed_over, key, 2)
        assert await staying(handed_over, namespace) == {"high"}
        assert await until_told(handed_over, namespace, "Preempted", "low") == (
            "Evicted, because a reservation of priority 50 gets devices that it holds; its own priority is 10."
        )


async def test_what_no_pod_uses_for_longer_than_the_policy_permits_goes_to_others_and_does_not_come_back(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy's hour lasts three seconds here."""
    monkeypatch.setattr(reconciler, "lasting", lambda text: timedelta(seconds=3 if text else 0))
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        key = await reserve(handed_over, namespace, "train", count=8)
        await until_reserved(handed_over, key, 8)
        await make_pod(handed_over, namespace, "uses", "train-3")
        await until_running(handed_over, namespace, "uses")
        await make_claim(handed_over, namespace, "waits")
        limit = {"spec": {"reservations": {"longestIdle": "1h"}}}
        await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), limit)
        await until_allocated(handed_over, namespace, "waits")

        async def lost() -> DeviceReservation | None:
            found = await handed_over.get(DEVICE_RESERVATIONS, key)
            return found if found.status.conditions[0].reason == "Unused" and found.status.reserved == 1 else None

        found = await until(lost, what="that what is unused is lost")
        assert (found.status.in_use, found.status.idle) == (1, [])
        assert found.status.message.startswith("7 claims were deleted: no pod used them")

        async def left() -> set[str]:
            return {each.metadata.name for each in await handed_over.list(CLAIMS, namespace=namespace)}

        async def only_used() -> bool:
            return await left() == {"train-3", "waits"}

        await until(only_used, what="the end of the other claims")
        said = await until_told(handed_over, namespace, "ReservationUnused", "train")
        assert "are used by no pod and lose their devices from" in said
        assert "deleted: no pod used" in await until_told(handed_over, namespace, "ReservationLost", "train")
        await handed_over.patch(DEVICE_RESERVATIONS, key, {"spec": {"count": 2}})
        await until_reserved(handed_over, key, 2)


async def test_a_claim_by_name_gets_nothing_before_the_gate_of_its_pod_goes_and_loses_what_it_had_before_it_came(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "named")
        await until_allocated(handed_over, namespace, "named")
        gates = [{"name": "example.com/admission"}, {"name": SCHEDULING_GATE}]
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": "named"}]}
        await handed_over.create(
            PODS, {"metadata": {"name": "pod", "namespace": namespace}, "spec": {**spec, "schedulingGates": gates}}
        )

        async def given_back() -> bool:
            return (await handed_over.get(CLAIMS, ObjectKey(namespace, "named"))).status.allocation is None

        await until(given_back, what="that it has no device")
        await make_claim(handed_over, namespace, "after")  # it is allocated later than that one would be
        await until_allocated(handed_over, namespace, "after")
        assert await given_back()
        await handed_over.patch(PODS, ObjectKey(namespace, "pod"), {"spec": {"schedulingGates": gates[1:]}})
        await until_running(handed_over, namespace, "pod")


TENANT = "a-tenant-who-reserves"


@pytest.mark.parametrize(
    ("may_use", "name", "says"),
    [
        ([], "draco-test-high", "you may not use PriorityClass draco-test-high for a reservation"),
        (["draco-test-low"], "draco-test-high", "you may not use PriorityClass draco-test-high for a reservation"),
        (["draco-test-high"], "draco-test-high", ""),
        (["system-node-critical"], "system-node-critical", "system classes are for the system's own pods"),
        ([], "", ""),
    ],
)
async def test_who_names_a_priority_class_needs_the_right_to_use_it(
    control_plane: ControlPlane, guarded: Guarded, namespace: str, may_use: list[str], name: str, says: str
) -> None:
    rules = [{"apiGroups": ["draco.dev"], "resources": ["devicereservations"], "verbs": ["create"]}]
    if may_use:
        use = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["use"]}
        rules.append({**use, "resourceNames": may_use})
    role = f"{namespace}-reserves"
    subject = {"kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
    call(control_plane, "POST", RIGHTS["ClusterRole"], {"metadata": {"name": role}, "rules": rules})
    binding = {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
    call(control_plane, "POST", RIGHTS["ClusterRoleBinding"], binding)
    try:
        assert says in await asyncio.to_thread(_refusal, control_plane, namespace, name)
        assert says or not await asyncio.to_thread(_refusal, control_plane, namespace, name)
    finally:
        for kind in ("ClusterRoleBinding", "ClusterRole"):
            call(control_plane, "DELETE", f"{RIGHTS[kind]}/{role}")


def _refusal(plane: ControlPlane, namespace: str, priority_class: str) -> str:
    """Why the API server refuses a tenant's reservation; "" if it does not. Waits for new rights to take effect."""
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    spec: dict[str, Any] = {"template": {"spec": {"devices": {"requests": [request]}}}}
    spec |= {"priorityClassName": priority_class} if priority_class else {}
    body = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "DeviceReservation",
        "metadata": {"generateName": "r-", "namespace": namespace},
        "spec": spec,
    }
    path = f"{DEVICE_RESERVATIONS.path(namespace=namespace)}?dryRun=All"
    deadline = time.monotonic() + 10
    while True:
        try:
            call(plane, "POST", path, body, headers={"Impersonate-User": TENANT})
        except RefusedError as error:
            is_new = "cannot create resource" in str(error)
            if not is_new or time.monotonic() > deadline:
                return str(error)
            time.sleep(0.05)
            continue
        return ""
