"""What `draco withdraw` removes from a cluster, and what it leaves alone."""

from typing import Any

import msgspec
import pytest

from draco.agent.publish.slices import slice_name
from draco.cli.withdraw.plan import FieldManager, ManagedClaim, ManagedMeta, Written, plan
from draco.maintenance.draining.eviction_requests import eviction_request_for
from draco.maintenance.taint_rules import rule_for
from draco.resources.api.core import Lease
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.jobs import Job
from draco.resources.api.meta import Condition, ObjectMeta, OwnerReference
from draco.resources.api.taints import DeviceTaint
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import (
    ANNOTATION_HELD,
    FIELD_MANAGER_AGENT,
    LABEL_AGENT_LEASE,
    LABEL_MAINTENANCE,
    LABEL_RESERVATION,
    NVIDIA_DRIVER,
    SCHEDULING_GATE,
    DeviceKey,
)
from tests.builders import MOMENT, a_claim, a_device, a_maintenance, a_node, a_pod, a_rule, a_slice

SYSTEM, JOB_SPACE = "draco-system", "draco-jobs"
OURS = a_slice("node-0", name=slice_name("node-0", NVIDIA_DRIVER, 0))


def taken_back(**found: Any) -> list[str]:
    return [str(each) for each in plan(Written(job_namespace=JOB_SPACE, **found)).reversals]


def a_managed_claim(
    manager: str = "", *, owner: str = "", labels: dict[str, str] | None = None, **fields: Any
) -> ManagedClaim:
    claim = a_claim(**fields)
    owners = [OwnerReference(api_version="draco.dev/v1alpha1", kind=owner, name="x", uid="x", controller=True)]
    meta = ManagedMeta(
        **msgspec.structs.asdict(claim.metadata)
        | {"labels": labels or {}, "owner_references": owners if owner else []},
        managed_fields=[FieldManager(manager=manager, subresource="status")] if manager else [],
    )
    return ManagedClaim(metadata=meta, spec=claim.spec, status=claim.status)


def test_slices_of_another_plugin_of_the_same_driver_stay() -> None:
    others = [
        a_slice("node-1", name="node-1-gpu.nvidia.com-x7k2p"),
        a_slice("", pool="rack", name="rack-gpu.nvidia.com-000"),
    ]
    assert taken_back(slices=[OURS, *others]) == [f"resourceslice/{OURS.metadata.name} deleted"]


def test_devices_vanish_before_the_rules_that_keep_claims_off_them() -> None:
    device = DeviceKey(NVIDIA_DRIVER, "node-0", "gpu-0")
    own, persons = rule_for(a_maintenance("mend"), device), a_rule("theirs", device="gpu-0")
    made = plan(Written(job_namespace=JOB_SPACE, slices=[OURS], rules=[own, persons], rule_kind=TAINT_RULES[0]))
    assert [str(each) for each in made.reversals] == [
        f"resourceslice/{OURS.metadata.name} deleted",
        f"devicetaintrule/{own.metadata.name} deleted",
    ]
    assert made.isolated == (device,)
    assert made.stays == ("1 DeviceTaintRule that people made stay (theirs): see them with `draco taint list`.",)


@pytest.mark.parametrize("key", ["draco.dev/maintenance", "example.com/rma"])
def test_a_device_that_its_agent_isolates_is_in_maintenance_too(key: str) -> None:
    observed = DeviceTaint(key="draco.dev/ecc", effect="NoSchedule")
    asked = DeviceTaint(key=key, effect="NoSchedule")
    slices = [
        a_slice(
            "node-0",
            [a_device("gpu-0", taints=[observed]), a_device("gpu-1", taints=[observed, asked])],
            name=OURS.metadata.name,
        )
    ]
    assert plan(Written(slices=slices)).isolated == (DeviceKey(NVIDIA_DRIVER, "node-0", "gpu-1"),)


def test_off_a_node_goes_what_draco_set_and_nothing_that_a_person_did() -> None:
    node = a_node()
    annotations = {
        ANNOTATION_HELD: "karpenter.sh/do-not-disrupt",
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
    }
    node = msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, annotations=annotations),
        status=msgspec.structs.replace(
            node.status, conditions=[Condition(type="Drained", status="True", reason="DeviceMaintenance")]
        ),
    )
    held, told = plan(Written(job_namespace=JOB_SPACE, nodes=[node])).reversals
    assert held.patch == {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": None, ANNOTATION_HELD: None}}}
    assert told.manager == "draco-operator"
    others = [Condition(type="Drained", status="True", reason="KubectlDrain")]
    theirs = msgspec.structs.replace(
        node, metadata=a_node().metadata, status=msgspec.structs.replace(node.status, conditions=others)
    )
    assert taken_back(nodes=[theirs]) == []


def test_off_a_pod_goes_one_gate() -> None:
    (gate,) = plan(
        Written(job_namespace=JOB_SPACE, pods=[a_pod(gates=["a", SCHEDULING_GATE, "b"]), a_pod(gates=["a"])])
    ).reversals
    assert gate.patch == {"spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}]}}
    (alone,) = plan(Written(job_namespace=JOB_SPACE, pods=[a_pod(gates=[SCHEDULING_GATE])])).reversals
    assert alone.patch == {"spec": {"schedulingGates": None}}


def test_requests_that_another_made_for_a_pod_to_leave_stay() -> None:
    ours = msgspec.json.decode(msgspec.json.encode(eviction_request_for(a_pod())), type=EvictionRequest)
    theirs = msgspec.structs.replace(ours, spec=msgspec.structs.replace(ours.spec, requester="example.com/other"))
    assert taken_back(eviction_requests=[ours, theirs]) == [f"evictionrequest/{ours.metadata.key} deleted"]


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (a_managed_claim(FIELD_MANAGER_AGENT), ["resourceclaim/default/claim without its devices' states"]),
        (a_managed_claim("dra-driver-nic"), []),
        (
            a_managed_claim(owner="DeviceReservation", labels={LABEL_RESERVATION: "x"}),
            ["resourceclaim/default/claim deleted"],
        ),
        (
            a_managed_claim(
                owner="DeviceReservation", labels={LABEL_RESERVATION: "x"}, reserved_for=["pod"], on=["node-0/gpu-0"]
            ),
            [],
        ),
        (a_managed_claim(owner="DeviceReservation", labels={LABEL_RESERVATION: "x"}, deleting=True), []),
        (a_managed_claim(labels={LABEL_RESERVATION: "x"}), []),
        (a_managed_claim(labels={LABEL_MAINTENANCE: "u"}), []),
        (
            a_managed_claim(labels={LABEL_MAINTENANCE: "u"}, namespace=JOB_SPACE),
            ["resourceclaim/draco-jobs/claim deleted"],
        ),
    ],
    ids=[
        "reported",
        "reported by another",
        "reserved",
        "reserved and used",
        "on its way",
        "labelled",
        "elsewhere",
        "of a Job",
    ],
)
def test_of_claims_go_those_that_draco_made_and_what_agents_said(claim: ManagedClaim, expected: list[str]) -> None:
    assert taken_back(claims=[claim]) == expected


def test_in_its_own_namespace_jobs_and_leases_of_draco_go() -> None:
    def meta(name: str, **labels: str) -> ObjectMeta:
        return ObjectMeta(name=name, namespace=SYSTEM, labels=labels)

    leases = [
        Lease(metadata=meta("draco-operator")),
        Lease(metadata=meta("draco-agent-a", **{LABEL_AGENT_LEASE: "x"})),
        Lease(metadata=meta("others")),
    ]
    jobs = [Job(metadata=meta("work", **{LABEL_MAINTENANCE: "u"})), Job(metadata=meta("backup"))]
    jobs.append(Job(metadata=msgspec.structs.replace(jobs[0].metadata, name="ends", deletion_timestamp=MOMENT)))
    assert taken_back(jobs=jobs, leases=leases) == [
        "job/draco-system/work deleted",
        "lease/draco-system/draco-operator deleted",
        "lease/draco-system/draco-agent-a deleted",
    ]


def test_what_pods_use_stays_and_is_named() -> None:
    used = [a_managed_claim(name=f"c{number}", on=["node-0/gpu-0"], reserved_for=["pod"]) for number in range(5)]
    idle = a_managed_claim(name="idle", on=["node-0/gpu-1"])
    elsewhere = a_managed_claim(name="nic", on=["nic.example.com/node-0/nic-0"], reserved_for=["pod"])
    made = plan(Written(job_namespace=JOB_SPACE, slices=[OURS], claims=[*used, idle, elsewhere]))
    assert [each for each in made.reversals if each.kind.kind == "ResourceClaim"] == []
    in_use, without_pod = made.stays
    assert in_use.startswith(
        "5 claims of running pods keep their GPUs (default/c0, default/c1, default/c2 and 2 more): without an"
    )
    assert without_pod.startswith("1 claim without a pod keep the GPUs that they have (default/idle)")
