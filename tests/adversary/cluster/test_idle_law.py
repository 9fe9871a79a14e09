"""The law of idle GPUs: at rest, nothing waits while suitable GPUs are free."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.cluster.manifests import Member
from tests.adversary.cluster.observer.idle import beside_free
from tests.adversary.cluster.observer.programs import Programs
from tests.adversary.cluster.test_observer import DRIVER, Document, a_slice, a_world, whole

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DRACOS = {"key": "draco.dev/operator-allocated", "effect": "NoSchedule"}
Objects = list[tuple[str, Document]]


def a_node(title: str = "node", *, ready: str = "True", **spec: Any) -> tuple[str, Document]:
    metadata = {"name": title, "uid": title, "resourceVersion": "1"}
    conditions = [{"type": "Ready", "status": ready}]
    return "node", {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}


def gpus(count: int, *more: Document, pool: str = "node") -> tuple[str, Document]:
    return "slice", a_slice(
        *(whole(f"gpu-{each}", f"{pool}-{each}", taints=[DRACOS, *more]) for each in range(count)), pool=pool
    )


def a_claim(
    title: str, *, count: int = 1, on: str = "", device_class: str = "gpu.draco.dev", waited_s: float = 30, **more: Any
) -> tuple[str, Document]:
    made = (NOW - timedelta(seconds=waited_s)).isoformat()
    metadata = {"name": title, "namespace": "default", "uid": title, "resourceVersion": "5", "creationTimestamp": made}
    exactly = {"deviceClassName": device_class, "count": count, **more.pop("exactly", {})}
    given = [{"request": "r", "driver": DRIVER, "pool": "node", "device": on}] if on else []
    return "claim", {
        "metadata": metadata | more.pop("metadata", {}),
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}], **more}},
        "status": {"allocation": {"devices": {"results": given}}} if on else {},
    }


def a_pod(
    title: str, *claims: str, gang: int = 0, topology: str = "", labels: Any = None, **spec: Any
) -> tuple[str, Document]:
    member = Member("g", str(gang), topology)
    metadata: Document = {"name": title, "namespace": "default", "uid": f"pod {title}", "resourceVersion": "1"}
    metadata |= {"labels": {**(member.labels if gang else {}), **(labels or {})}}
    metadata |= {"annotations": member.annotations if gang else {}}
    uses = [{"name": each, "resourceClaimName": each} for each in claims or (title,)]
    return "pod", {"metadata": metadata, "spec": {"resourceClaims": uses, **spec}, "status": {"phase": "Pending"}}


def a_gang(size: int, *, count: int = 1, **pod: Any) -> Objects:
    titles = [f"m{each}" for each in range(size)]
    return [*(a_claim(each, count=count) for each in titles), *(a_pod(each, gang=size, **pod) for each in titles)]


def a_more(title: str) -> Objects:
    """One more pod of a gang of one."""
    return [a_claim(title), a_pod(title, gang=1)]


def a_limit(namespace: str, *classes: str, **limits: int) -> tuple[str, Document]:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    metadata = {"name": "limit", "uid": "limit", "resourceVersion": "1"}
    spec = {"namespaceSelector": selector, "limits": limits, "deviceClassNames": list(classes)}
    return "limit", {"metadata": metadata, "spec": spec}


def a_reservation(count: int, *claims: str, on: str = "", **spec: Any) -> Objects:
    metadata = {"name": "evening", "namespace": "default", "uid": "evening", "resourceVersion": "1"}
    owner = {"kind": "DeviceReservation", "name": "evening", "uid": "evening", "controller": True}
    own = {"ownerReferences": [owner], "labels": {"draco.dev/reservation": "evening"}}
    made = [a_claim(each, on=on, metadata=own) for each in claims]
    return [("reservation", {"metadata": metadata, "spec": {"count": count, **spec}}), *made]


def told(reason: str, note: str = "", about: str = "lone") -> tuple[str, Document]:
    metadata = {"name": "e", "namespace": "default", "uid": "e", "resourceVersion": "1"}
    return "event", {"metadata": metadata, "regarding": {"uid": about}, "reason": reason, "note": note}


def a_takeover(device: str) -> tuple[str, Document]:
    given = {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "node", "device": device}]}}
    metadata = {"name": "r", "namespace": "default", "uid": "r", "resourceVersion": "1"}
    return "reservation", {
        "metadata": metadata,
        "spec": {},
        "status": {"takeovers": [{"uid": "x", "allocation": given}]},
    }


LONE = [a_claim("lone"), a_pod("lone")]
OTHER_TAINT = {"key": "draco.dev/maintenance", "effect": "NoSchedule"}
CASES: dict[str, tuple[bool, Objects]] = {
    "a pod, and a GPU": (True, [a_node(), gpus(1), *LONE]),
    "a pod, and none": (False, [a_node(), gpus(1), a_claim("held", on="gpu-0"), *LONE]),
    "a pod, and one that it may not have": (False, [a_node(), gpus(1, OTHER_TAINT), *LONE]),
    "a pod, and one that is on its way to another": (False, [a_node(), gpus(1), a_takeover("gpu-0"), *LONE]),
    "a pod, and one of the scheduler's": (False, [a_node(), ("slice", a_slice(whole())), *LONE]),
    "a pod, and one on a node that takes none": (False, [a_node(unschedulable=True), gpus(1), *LONE]),
    "a pod, and one on a node that is not ready": (False, [a_node(ready="False"), gpus(1), *LONE]),
    "a claim without a pod, and a GPU": (True, [a_node(), gpus(1), a_claim("lone")]),
    "a claim that is deleted, and a GPU": (
        False,
        [a_node(), gpus(1), a_claim("lone", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})],
    ),
    "a claim made for a pod that is not there, and a GPU": (
        False,
        [a_node(), gpus(1), a_claim("lone", metadata={"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "p"}]})],
    ),
    "a gang, and as many GPUs": (True, [a_node(), gpus(8), *a_gang(8)]),
    "a gang, and all but one": (False, [a_node(), gpus(8), a_claim("held", on="gpu-7"), *a_gang(8)]),
    "a gang, and GPUs of two nodes": (
        True,
        [a_node(), a_node("other"), gpus(2), gpus(2, pool="other"), *a_gang(2, count=2)],
    ),
    "a gang, and none with enough of them": (
        False,
        [a_node(), a_node("other"), gpus(3), gpus(3, pool="other"), *a_gang(2, count=4)],
    ),
    "a gang of which one has devices, and as many GPUs as the others want": (
        True,
        [a_node(), gpus(3), *a_gang(3), a_claim("m0", on="gpu-0")],
    ),
    "a gang of which one has devices, and fewer": (
        False,
        [a_node(), gpus(2), *a_gang(3), a_claim("m0", on="gpu-0")],
    ),
    "a gang that is whole, and one GPU for two more": (
        True,
        [a_node(), gpus(2), *a_gang(1), a_claim("m0", on="gpu-0"), *a_more("m1"), *a_more("m2")],
    ),
    "a gang that is not complete": (False, [a_node(), gpus(8), *a_gang(8)[1:8], *a_gang(8)[9:]]),
    "a gang that is to be somewhere": (False, [a_node(), gpus(8), *a_gang(8, topology="rack")]),
    "a pod that is to be somewhere": (False, [a_node(), gpus(1), LONE[0], a_pod("lone", nodeSelector={"a": "b"})]),
    "a pod with the gate of somebody else": (
        False,
        [a_node(), gpus(1), LONE[0], a_pod("lone", schedulingGates=[{"name": "example.com/a"}])],
    ),
    "a pod with Draco's gate": (
        True,
        [a_node(), gpus(1), LONE[0], a_pod("lone", schedulingGates=[{"name": "draco.dev/allocation"}])],
    ),
    "a pod that may take over": (
        False,
        [a_node(), gpus(1), LONE[0], a_pod("lone", labels={"draco.dev/reservation": "r"})],
    ),
    "pods that share a claim": (False, [a_node(), gpus(1), *LONE, a_pod("other", "lone")]),
    "a claim with selectors": (
        False,
        [a_node(), gpus(1), a_claim("lone", exactly={"selectors": [{"cel": {"expression": "false"}}]})],
    ),
    "a claim with constraints": (False, [a_node(), gpus(1), a_claim("lone", constraints=[{"matchAttribute": "a"}])]),
    "a claim of the scheduler's": (False, [a_node(), gpus(1), a_claim("lone", device_class="gpu.nvidia.com")]),
    "a limit forbids it": (False, [a_node(), gpus(1), *LONE, a_limit("default", devices=0)]),
    "a limit forbids one more": (
        False,
        [a_node(), gpus(2), a_claim("held", on="gpu-0"), *LONE, a_limit("default", devices=1)],
    ),
    "a limit permits it": (
        True,
        [a_node(), gpus(2), a_claim("held", on="gpu-0"), *LONE, a_limit("default", devices=2)],
    ),
    "a limit says more than how many devices": (
        False,
        [a_node(), gpus(1), *LONE, a_limit("default", devices=9, memorySlices=9)],
    ),
    "a limit is about others": (True, [a_node(), gpus(1), *LONE, a_limit("elsewhere", devices=0)]),
    "a limit is about other classes": (
        True,
        [a_node(), gpus(1), *LONE, a_limit("default", "mig.draco.dev", devices=0)],
    ),
    "a reservation, and as many GPUs": (True, [a_node(), gpus(2), *a_reservation(2, "r0", "r1")]),
    "a reservation, and not as many": (False, [a_node(), gpus(1), *a_reservation(2, "r0", "r1")]),
    "a reservation that is not whole": (False, [a_node(), gpus(2), *a_reservation(2, "r0")]),
    "a reservation that has ended": (
        False,
        [a_node(), gpus(2), *a_reservation(2, "r0", "r1", expiresAt="2025-01-01T00:00:00+00:00")],
    ),
    "a reservation that is to be somewhere": (
        False,
        [a_node(), gpus(2), *a_reservation(2, "r0", "r1", topology="sameNode")],
    ),
    "a reservation that has all": (False, [a_node(), gpus(2), *a_reservation(1, "r0", on="gpu-0")]),
    "it could not run where it was": (False, [a_node(), gpus(1), *LONE, told("AllocationTakenBack")]),
    "nobody could find out": (
        False,
        [a_node(), gpus(1), *LONE, told("ClaimPending", "it takes more than 2 s", "pod lone")],
    ),
    "something is kept for one that has waited long": (
        False,
        [a_node(), gpus(1), *LONE, a_claim("long", count=9, waited_s=1000)],
    ),
    "another waits that goes before, and nobody may leave for it": (
        True,
        [a_node(), gpus(1), *LONE, a_claim("large", count=9), a_pod("large")],
    ),
    "another waits that goes before, and somebody may leave for it": (
        False,
        [a_node(), gpus(1), *LONE, a_claim("large", count=9), a_pod("large", priority=100)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_at_rest_nobody_waits_for_what_is_free_and_would_do(case: str) -> None:
    wrong, objects = CASES[case]
    assert bool(list(beside_free(a_world(*objects), NOW))) is wrong


def test_a_pod_that_has_succeeded_does_not_count_in_a_pod_group() -> None:
    cases: list[tuple[bool, Document]] = [(True, {}), (False, {"schedulingGroup": {"podGroupName": "g"}})]
    for wrong, group in cases:
        (_, done), waits = a_pod("m0", gang=2, **group), [a_pod("m1", gang=2, **group), a_claim("m1")]
        done["status"]["phase"] = "Succeeded"
        metadata = {"name": "g", "namespace": "default", "uid": "g", "resourceVersion": "1"}
        pod_group = {"metadata": metadata, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        objects: Objects = [a_node(), gpus(1), ("pod", done), *waits, ("pod group", pod_group)]
        assert bool(list(beside_free(a_world(*objects), NOW))) is wrong


@pytest.mark.parametrize("event", ["allocation.late", "allocation.not_woken"])
def test_an_operator_is_never_late_because_nothing_woke_it(event: str, tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    programs = Programs(lambda _: True)
    programs.started("operator-0", os.getpid(), log)
    log.write_text(json.dumps({"event": event, "level": "warning"}) + "\n")
    assert [each.law for each in programs.look()] == ["error logged"]
