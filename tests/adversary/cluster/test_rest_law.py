"""The law of rest: each pod runs or has an Event with the true cause of its waiting."""

import pytest

from draco.allocation.configurations import RefusedConfiguration
from tests.adversary.cluster.machine import ONE_AFTER_ANOTHER_S, REST_WITHIN_S, lasting
from tests.adversary.cluster.manifests import Member
from tests.adversary.cluster.observer.rest import is_said_to_fit, unexplained
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.test_observer import (
    GPU,
    OTHER,
    PARTS,
    Document,
    a_claim,
    a_rule,
    a_slice,
    a_world,
    told,
    whole,
)

REFUSED = "0/3 nodes are available: 3 cannot allocate all claims."


SHORT = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled"


def a_pod(
    *,
    message: str = REFUSED,
    node: str = "",
    phase: str = "Pending",
    waiting: str = "",
    label: str = "",
    by: str = "Kueue",
    group: str = "",
    claim: str = "",
    also: str = "",
    reason: str = "Unschedulable",
) -> Document:
    conditions = [] if node else [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]
    status: Document = {"phase": phase, "conditions": conditions}
    if waiting:
        status["containerStatuses"] = [{"state": {"waiting": {"message": waiting}}}]
    metadata: Document = {"name": "p", "namespace": "default", "uid": "p", "resourceVersion": "1"}
    metadata |= {"labels": Member(label, "2", by=by).labels if label else {}}
    uses = [{"name": each, "resourceClaimName": each} for each in (claim, also)[: 2 if also else 1]]
    spec = {"nodeName": node, "resourceClaims": uses, "schedulingGroup": {"podGroupName": group}}
    if reason == "SchedulingGated":
        spec["schedulingGates"] = [{"name": "draco.dev/allocation"}]
    return {"metadata": metadata, "spec": spec, "status": status}


def a_pod_group(least: int) -> tuple[str, Document]:
    metadata = {"name": "g", "namespace": "default", "uid": "g", "resourceVersion": "1"}
    return "pod group", {"metadata": metadata, "spec": {"schedulingPolicy": {"gang": {"minCount": least}}}}


GATED = a_pod(message="Scheduling is blocked due to non-empty scheduling gates", claim="c1", reason="SchedulingGated")
DRACOS = {**a_claim(1), "spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.draco.dev"}}]}}}
HAS_ITS_DEVICE = ("claim", {**a_claim(1, "a"), "spec": DRACOS["spec"]})
HELD_BACK = GATED | {"spec": GATED["spec"] | {"schedulingGates": [{"name": "example.com/admission"}]}}
GATED_MEMBER = a_pod(message="Scheduling is blocked", claim="c1", reason="SchedulingGated", group="g")
GATED_MEMBER_OF_BOTH = a_pod(
    message="Scheduling is blocked", claim="c1", also="c2", reason="SchedulingGated", group="g"
)
THEIRS = (
    "claim",
    {**a_claim(2), "spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}},
)
TOGETHER = "as many pods of PodGroup default/g as start together have their devices"
SICK = {"node": {"gpus": [{"error": 15}]}}
REFUSED_BY_ITS_DRIVER = str(RefusedConfiguration("gpu", "the claim", "there is no kind Nothing"))
REST = {
    "nobody says why": (True, a_pod(), []),
    "its driver cannot do what it asks for": (False, a_pod(node="node", waiting=REFUSED_BY_ITS_DRIVER), []),
    "it is said why": (False, a_pod(), [told("All 4 devices that request gpu selects are in use by other claims.")]),
    "it is said to fit": (True, a_pod(), [told("All claims can be allocated on node.")]),
    "a taint that is nowhere": (
        True,
        a_pod(),
        [told("The only device that request gpu selects is tainted with k:NoSchedule.")],
    ),
    "a taint that is there": (
        False,
        a_pod(),
        [told("The only device that request gpu selects is tainted with k=v:NoSchedule."), ("rule", a_rule()), PARTS],
    ),
    "a holder that holds nothing": (
        True,
        a_pod(),
        [told("The only device that request gpu selects is in use by default/c1 (pod x).")],
    ),
    "a holder that holds": (
        False,
        a_pod(),
        [told("The only device that request gpu selects is in use by default/c1 (pod x)."), ("claim", a_claim(1, "a"))],
    ),
    "another class is missing": (
        True,
        a_pod(message="request r: device class no.such does not exist"),
        [told("All 2 devices that request gpu selects are in use by other claims.")],
    ),
    "its PodGroup is short of pods": (False, a_pod(message=SHORT, claim="c1"), [("claim", a_claim(1, "a"))]),
    "its PodGroup is short of pods, and it of devices": (
        True,
        a_pod(message=SHORT, claim="c1"),
        [("claim", a_claim(1))],
    ),
    "it has its devices, and something else is wrong": (True, a_pod(claim="c1"), [("claim", a_claim(1, "a"))]),
    "its own PodGroup": (
        False,
        a_pod(group="g"),
        [told("Draco allocates all of PodGroup default/g or none of it.")],
    ),
    "its own label": (
        False,
        a_pod(label="g"),
        [told("Draco allocates all of Kueue pod group default/g or none of it.")],
    ),
    "its own JobSet": (
        False,
        a_pod(label="g", by="JobSet"),
        [told("Draco allocates all of JobSet default/g or none of it.")],
    ),
    "its LeaderWorkerSet's other group": (
        True,
        a_pod(label="g", by="LeaderWorkerSet"),
        [told("Draco allocates all of LeaderWorkerSet group default/g-1 or none of it.")],
    ),
    "another PodGroup": (
        True,
        a_pod(label="g"),
        [told("Draco allocates all of PodGroup default/g or none of it.")],
    ),
    "a group though it is in none": (
        True,
        a_pod(),
        [told("Draco allocates all of Kueue pod group default/g or none of it.")],
    ),
    "it is gated and nobody says why": (True, GATED, [("claim", DRACOS)]),
    "others hold it back": (False, HELD_BACK, [("claim", DRACOS)]),
    "it is gated and it is said why": (
        False,
        GATED,
        [("claim", DRACOS), told("All 4 devices that request gpu selects are in use by other claims.")],
    ),
    "it is gated by what is nowhere": (
        True,
        GATED,
        [("claim", DRACOS), told("The only device that request gpu selects is tainted with k:NoSchedule.")],
    ),
    "it keeps its gate with a device": (
        True,
        GATED,
        [HAS_ITS_DEVICE, told("All claims are allocated.")],
    ),
    "it keeps its gate with a device, its PodGroup is short of pods, and it is told so": (
        False,
        GATED_MEMBER,
        [HAS_ITS_DEVICE, a_pod_group(2), told(f"Draco removes it when {TOGETHER}.")],
    ),
    "it keeps its gate with a device, its PodGroup is short of pods, and it is told something else": (
        True,
        GATED_MEMBER,
        [HAS_ITS_DEVICE, a_pod_group(2), told("All claims are allocated.")],
    ),
    "it keeps its gate with a device, and its PodGroup has enough pods": (
        True,
        GATED_MEMBER,
        [HAS_ITS_DEVICE, a_pod_group(1), told(f"Draco removes it when {TOGETHER}.")],
    ),
    "it keeps its gate with a device, its PodGroup has enough pods, and it lacks kube-scheduler's": (
        True,
        GATED_MEMBER_OF_BOTH,
        [HAS_ITS_DEVICE, THEIRS, a_pod_group(1), told(f"Draco removes it when {TOGETHER}.")],
    ),
    "it keeps its gate, its PodGroup has enough pods, and it lacks what is Draco's": (
        False,
        GATED_MEMBER_OF_BOTH,
        [("claim", DRACOS), THEIRS, a_pod_group(1), told("All 4 devices that request gpu selects are in use.")],
    ),
    "it keeps its gate with a device, and its PodGroup is not there": (
        True,
        GATED_MEMBER,
        [HAS_ITS_DEVICE, told(f"Draco removes it when {TOGETHER}.")],
    ),
    "it keeps its gate and wants nothing of Draco's": (
        True,
        GATED,
        [("claim", {**a_claim(1), "spec": {"devices": {}}}), told("All 4 devices are in use.")],
    ),
    "it runs": (False, a_pod(phase="Running", node="node"), []),
    "a sick GPU is refused": (
        False,
        a_pod(node="node", waiting="Claim a/c was allocated a device that takes no new work: gpu-1 (Xid79: ...)"),
        [],
    ),
    "it does not start": (True, a_pod(node="node", waiting="GPU is lost"), []),
}


@pytest.mark.parametrize("case", REST)
def test_at_rest_each_pod_runs_or_is_told_why_not(case: str) -> None:
    wrong, pod, objects = REST[case]
    world = a_world(("pod", pod), *objects)
    assert bool(list(unexplained(world, {}))) is wrong


def test_a_scheduler_is_doubted_only_where_no_device_is_in_its_way() -> None:
    def doubted(case: str) -> bool:
        _, pod, objects = REST[case]
        [wrong] = unexplained(a_world(("pod", pod), *objects), {})
        return is_said_to_fit(wrong)

    assert doubted("it is said to fit")
    assert doubted("it has its devices, and something else is wrong")
    assert not doubted("nobody says why")
    assert not doubted("a taint that is nowhere")


def test_a_pod_may_wait_for_a_sick_node_that_says_so() -> None:
    world = a_world(("pod", a_pod(node="node", waiting="GPU is lost")))
    assert not list(unexplained(world, SICK))


@pytest.mark.parametrize("there", [GPU, OTHER])
def test_a_pod_may_wait_for_a_board_that_was_replaced(there: str) -> None:
    waiting = "Claim default/c was allocated gpu-0, which this node does not have (it has: gpu-1); delete the pod."
    world = a_world(("slice", a_slice(whole())), ("pod", a_pod(node="node", waiting=waiting)))
    assert bool(list(unexplained(world, {"node": {"gpus": [{"uuid": there}]}}))) is (there == GPU)


def test_what_has_just_begun_when_the_time_is_over_gets_a_little_more() -> None:
    old, fresh = Suspicion("not explained", "a", "waits"), Suspicion("not explained", "b", "does not start")
    over = REST_WITHIN_S + 1.0
    assert lasting({old: 20.0, fresh: over - 30.0}, over) == [old]
    assert lasting({fresh: over - 30.0}, over) == []
    later = over + ONE_AFTER_ANOTHER_S
    assert lasting({fresh: later}, later) == [fresh]


def test_a_scheduler_that_forgot_a_pod_whose_gate_went_is_started_afresh() -> None:
    ungated = GATED | {"spec": GATED["spec"] | {"schedulingGates": None}}
    [wrong] = unexplained(a_world(HAS_ITS_DEVICE, ("pod", ungated)), {})
    assert "has not looked at it since its last gate went" in wrong.text
    assert is_said_to_fit(wrong)
