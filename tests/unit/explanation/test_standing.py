"""Allocations compared with what exists: a pod that has its node and its claims, and cannot start."""

from typing import Any

import msgspec
import pytest

from draco.allocation.configurations import VERSION
from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import Explanation, ObstacleKind, PendingReason
from draco.explanation.wording import brief, report
from draco.resources.api.claims import AllocatedDeviceStatus, ResourceClaim
from draco.resources.api.core import Node, Pod
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaintRule, DeviceToleration
from draco.resources.names import ATTRIBUTE_TIME_SLICING, LABEL_HOSTNAME
from tests import builders
from tests.builders import a_claim, a_device_class, a_node, a_pod, a_rule, a_slice, as_shares
from tests.mig_claims import MIG_CLASS, a_mig_pool, a_partition
from tests.unit.explanation.clusters import GPU, a_fleet

HERE = f"{GPU}/n1/gpu-0"


def a_pod_on(node: str = "n1", *, phase: str = "Pending") -> Pod:
    pod = a_pod(node=node)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))


def told(*claims: ResourceClaim, fleet: Fleet | None = None, pod: Pod | None = None) -> Explanation:
    """The explanation of a pod with the first claim; the fleet has the others, too."""
    there = a_fleet() if fleet is None else fleet
    for each in claims:
        there.put_claim(each)
    return explain(there, claims[:1], pod=pod or a_pod_on())


def a_divided_fleet() -> Fleet:
    return Fleet.of(slices=a_mig_pool("node-0", 1), nodes=[a_node()], classes=[a_device_class(), MIG_CLASS])


def a_board(name: str, uuid: str) -> Device:
    return Device(name=name, attributes={"uuid": DeviceAttribute(string=uuid)})


def configured(claim: ResourceClaim, **sharing: Any) -> ResourceClaim:
    return builders.configured(claim, {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": sharing})


def test_a_pod_with_what_is_there_is_only_starting() -> None:
    found = told(a_claim(on=[HERE]))
    assert found.reason is PendingReason.ALLOCATED
    assert found.obstacles == []


def test_a_driver_that_has_gone_is_named_with_where_there_is_room() -> None:
    fleet = a_fleet()
    fleet.remove_slice(
        next(entry.name for pool in fleet.inventory.pools if pool.key == (GPU, "n1") for entry in pool.entries)
    )
    found = told(a_claim(on=[HERE]), fleet=fleet)
    assert found.reason is PendingReason.DEVICE_UNUSABLE
    assert found.summary == (
        f"Claim default/claim is allocated {HERE}, but driver {GPU} publishes nothing on n1 now. Start the driver there, or "
        "delete the pod, so that its claim is allocated again (there is room on n2)."
    )


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_a_device_whose_name_another_board_has_now_is_told_with_both(phase: str) -> None:
    """For example, a new node has the name of a deleted one, and a pod there still has the old GPU."""
    fleet = Fleet.of(slices=[a_slice("n1", [a_board("gpu-0", "GPU-new")])], nodes=[a_node("n1")])
    claim = a_claim(on=[HERE])

    def prepared_on(board: str) -> Explanation:
        said = AllocatedDeviceStatus(driver=GPU, pool="n1", device="gpu-0", data={"uuid": board})
        status = msgspec.structs.replace(claim.status, devices=[said])
        return told(msgspec.structs.replace(claim, status=status), fleet=fleet, pod=a_pod_on(phase=phase))

    assert prepared_on("GPU-new").obstacles == []
    [found] = prepared_on("GPU-old").obstacles
    assert found.kind is ObstacleKind.OTHER_BOARD
    assert found.text == "the claim was prepared on board GPU-old, and the device is now board GPU-new"
    assert "by force if its machine is gone" in found.remedy


def test_a_device_that_is_not_published_any_more_is_named_with_those_that_are() -> None:
    found = told(a_claim(on=[f"{GPU}/n1/gpu-7"]))
    assert [each.kind for each in found.obstacles] == [ObstacleKind.NOT_PUBLISHED]
    assert f"driver {GPU} does not publish gpu-7 in pool n1 any more; it has gpu-0, gpu-1" in found.summary


def test_a_node_that_is_gone_is_named_before_its_devices() -> None:
    fleet = a_fleet()
    fleet.remove_node("n1")
    found = told(a_claim(on=[HERE]), fleet=fleet)
    assert [each.kind for each in found.obstacles] == [ObstacleKind.NODE_GONE]
    assert "node n1 does not exist any more" in found.summary


def reached(claim: ResourceClaim, key: str, value: str) -> ResourceClaim:
    """The claim with an allocation that only the nodes with that label, or that name, can use."""
    only = NodeSelectorRequirement(key=key, operator="In", values=[value])
    named = key == "metadata.name"
    term = NodeSelectorTerm(match_fields=[only]) if named else NodeSelectorTerm(match_expressions=[only])
    assert claim.status.allocation is not None
    allocation = msgspec.structs.replace(
        claim.status.allocation, node_selector=NodeSelector(node_selector_terms=[term])
    )
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))


def test_a_node_s_label_is_not_its_name() -> None:
    claim = reached(a_claim(on=[HERE]), LABEL_HOSTNAME, "short")
    fleet = a_fleet()
    fleet.put_node(a_node("n1", hostname="short"))
    assert explain(fleet, [claim]).obstacles == []
    fleet.remove_slice(
        next(entry.name for pool in fleet.inventory.pools if pool.key == (GPU, "n1") for entry in pool.entries)
    )
    assert "publishes nothing on n1 now" in explain(fleet, [claim]).summary
    fleet.put_node(a_node("n2", hostname="short"))
    assert "publishes nothing in pool n1 now" in explain(fleet, [claim]).summary


def test_a_pod_whose_node_cannot_reach_its_device_is_told_so() -> None:
    found = told(reached(a_claim(on=[HERE]), "metadata.name", "n1"), pod=a_pod_on("n2"))
    assert [each.kind for each in found.obstacles] == [ObstacleKind.OUT_OF_REACH]
    assert f"only nodes with metadata.name=n1 reach {HERE}, and the pod has the node n2" in found.summary
    assert "make it again without spec.nodeName" in found.summary


def test_a_node_that_is_not_ready_starts_no_pod() -> None:
    fleet = a_fleet()
    fleet.put_node(a_node("n1", ready=False))
    found = told(a_claim(on=[HERE]), fleet=fleet)
    assert [each.kind for each in found.obstacles] == [ObstacleKind.NODE_NOT_READY]
    assert "node n1 is not Ready. Repair the node, or delete the pod, by force if its machine is gone" in found.summary
    assert told(a_claim(on=[HERE]), fleet=fleet, pod=a_pod_on(phase="Running")).obstacles == []
    fleet.put_node(Node(metadata=ObjectMeta(name="n1")))
    assert told(a_claim(on=[HERE]), fleet=fleet).obstacles == [], "a file may say nothing of it"


def test_a_device_of_an_older_generation_is_not_published_any_more() -> None:
    fleet = a_fleet()
    fleet.put_slice(a_slice("n1", ["gpu-5"], generation=2, name="newer"))
    found = told(a_claim(on=[HERE]), fleet=fleet)
    assert [each.kind for each in found.obstacles] == [ObstacleKind.NOT_PUBLISHED]
    assert "does not publish gpu-0 in pool n1 any more; it has gpu-5." in found.summary


def test_several_devices_with_one_obstacle_are_told_once() -> None:
    fleet = Fleet.of(nodes=[a_node("n1")], classes=[a_device_class()])
    found = told(a_claim(on=[HERE, f"{GPU}/n1/gpu-1"]), fleet=fleet)
    assert [each.kind for each in found.obstacles] == [ObstacleKind.DRIVER_SILENT]
    assert "more obstacle" not in found.summary


@pytest.mark.parametrize(
    ("users", "remedy"),
    [
        (["a"], "delete the pod, so that its claim is allocated again"),
        (["b", "a"], "delete all pods that use the claim (a, b), so that it is allocated again"),
        ([], "delete the claim and make it again: no pod uses it"),
    ],
)
def test_a_claim_is_allocated_again_when_the_last_of_its_pods_is_gone(users: list[str], remedy: str) -> None:
    claim = a_claim(on=[f"{GPU}/n1/gpu-7"], reserved_for=users)
    assert [each.remedy for each in explain(a_fleet(claim), [claim]).obstacles] == [remedy]


def test_two_claims_with_one_device_are_both_named() -> None:
    found = told(a_claim(on=[HERE]), a_claim("other", on=[HERE]))
    assert [each.kind for each in found.obstacles] == [ObstacleKind.GIVEN_TWICE]
    assert f"{HERE} is allocated to default/other as well" in found.summary


@pytest.mark.parametrize("mine", ["gpu-0", a_partition("0:1g.10gb@0")])
def test_a_gpu_and_a_part_of_it_are_the_same_hardware(mine: str) -> None:
    theirs = a_partition("0:1g.10gb@0") if mine == "gpu-0" else "node-0/gpu-0"
    own = "node-0/gpu-0" if mine == "gpu-0" else mine
    found = told(a_claim(on=[own]), a_claim("other", on=[theirs]), fleet=a_divided_fleet(), pod=a_pod_on("node-0"))
    assert [each.kind for each in found.obstacles] == [ObstacleKind.GIVEN_TWICE]
    assert "is allocated to default/other as well" in found.summary


def test_two_parts_of_one_gpu_are_in_nobodys_way() -> None:
    claims = [a_claim(on=[a_partition("0:1g.10gb@0")]), a_claim("other", on=[a_partition("0:1g.10gb@1")])]
    assert told(*claims, fleet=a_divided_fleet(), pod=a_pod_on("node-0")).reason is PendingReason.ALLOCATED


def test_administrative_access_is_in_nobodys_way() -> None:
    looks = a_claim("looks", on=[HERE], admin_access=True)
    assert told(looks, a_claim("works", on=[HERE])).reason is PendingReason.ALLOCATED
    assert told(a_claim("works", on=[HERE]), looks).reason is PendingReason.ALLOCATED


def tainting(effect: str) -> DeviceTaintRule:
    return a_rule("broken", pool="n1", device="gpu-0", effect=effect)


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_that_came_after_the_allocation_is_named_unless_it_is_tolerated(effect: str) -> None:
    fleet = a_fleet()
    fleet.put_rule(tainting(effect))
    found = told(a_claim(on=[HERE]), fleet=fleet)
    assert [each.kind for each in found.obstacles] == [ObstacleKind.TAINTED]
    assert f"{HERE} has been tainted with example.com/broken" in found.summary
    tolerant = a_claim(on=[HERE], tolerations=[DeviceToleration(operator="Exists")])
    assert told(tolerant, fleet=fleet).reason is PendingReason.ALLOCATED


@pytest.mark.parametrize(
    ("taint", "remedy"),
    [
        (
            "draco.dev/xid",
            (
                "Wait until the taint is lifted: its agent does when the GPU's fault is over, and draco status says what the GPU "
                "needs; or delete the pod"
            ),
        ),
        (
            "draco.dev/operator-allocated",
            "Lift the taint by its MigPolicy (spec.allocator: Scheduler), or delete the pod",
        ),
        ("draco.dev/foreign-instance", "Lift the taint by removing the GPU instance there"),
        ("example.com/broken", "Lift the taint, or delete the pod"),
    ],
)
def test_nobody_is_told_to_lift_what_draco_would_set_again(taint: str, remedy: str) -> None:
    fleet = a_fleet()
    fleet.put_rule(a_rule("broken", taint=taint, pool="n1", device="gpu-0"))
    assert f". {remedy}" in told(a_claim(on=[HERE]), fleet=fleet).summary


def test_a_taint_that_keeps_nobody_away_is_none() -> None:
    fleet = a_fleet()
    fleet.put_rule(tainting("None"))
    assert told(a_claim(on=[HERE]), fleet=fleet).reason is PendingReason.ALLOCATED


def test_a_configuration_that_kubelet_would_be_refused_is_named() -> None:
    found = told(configured(a_claim(on=[HERE]), strategy="Mps"))
    assert found.reason is PendingReason.DEVICE_UNUSABLE
    assert found.summary == (
        "Claim default/claim is allocated, but the claim's configuration for request gpu cannot be carried out, because "
        "sharing.strategy is Mps: there are TimeSlicing and MPS. Correct it in a new claim."
    )


def test_a_time_slice_that_the_allocated_gpu_cannot_have_is_named() -> None:
    fleet = a_fleet()
    no = {ATTRIBUTE_TIME_SLICING: DeviceAttribute(bool_=False)}
    fleet.put_slice(a_slice("n1", [Device(name="gpu-0", attributes=no)], driver=GPU))
    long = configured(a_claim(on=[HERE]), strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
    assert "because it asks for time slices of Long, and the board or the driver" in told(long, fleet=fleet).summary
    assert told(long).obstacles == []


def of_two_minds(claim: ResourceClaim) -> ResourceClaim:
    """A claim with two shares, of which the configuration concerns the first."""
    made = configured(claim, strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
    assert made.status.allocation is not None
    devices = made.status.allocation.devices
    results = [msgspec.structs.replace(each, request=f"r{number}") for number, each in enumerate(devices.results)]
    config = [msgspec.structs.replace(each, requests=["r0"]) for each in devices.config]
    allocation = msgspec.structs.replace(
        made.status.allocation, devices=msgspec.structs.replace(devices, results=results, config=config)
    )
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, allocation=allocation))


def test_a_share_with_another_time_slice_than_its_neighbour_is_named() -> None:
    """Prepare refuses it, and kube-scheduler does not know."""

    def share(name: str, interval: str) -> ResourceClaim:
        made = as_shares(a_claim(name, on=[HERE]), name, memory="1Gi")
        return configured(made, strategy="TimeSlicing", timeSlicingConfig={"interval": interval})

    plain = as_shares(a_claim("plain", on=[HERE]), "plain", memory="1Gi")
    found = told(share("claim", "Short"), share("other", "Long"))
    assert found.reason is PendingReason.DEVICE_UNUSABLE
    assert found.summary == (
        "Claim default/claim is allocated, but it asks for time slices of Short on gpu-0, and claim default/other has another "
        "share of it with time slices of Long. Give it the same configuration in a new claim, or wait until that one has ended."
    )
    assert "with time slices of Default" in told(share("claim", "Short"), plain).summary
    assert told(share("claim", "Long"), share("other", "Long")).obstacles == []
    both = as_shares(a_claim("both", on=[HERE]), "s1", "s2")
    assert told(configured(both, strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})).obstacles == []
    assert told(of_two_minds(both)).summary == (
        "Claim default/both is allocated, but it asks for time slices of Long on one share of gpu-0, and for time slices of "
        "Default on another. Make a new claim with the same configuration for both, or with different GPUs by the constraint "
        "distinctAttribute: gpu.nvidia.com/uuid."
    )
    wrong = configured(as_shares(a_claim("wrong", on=[HERE]), "wrong", memory="1Gi"), strategy="Mps")
    assert told(share("claim", "Long"), wrong).obstacles == []


def test_all_that_is_in_the_way_is_listed() -> None:
    claims = [configured(a_claim(on=[HERE]), strategy="Mps"), a_claim("other", on=[HERE])]
    lines = list(report(told(*claims)))
    at = lines.index("Also in the way")
    assert lines[at + 1].startswith("  The claim's configuration for request gpu cannot be carried out")


def test_a_pod_that_runs_has_its_devices_whatever_is_published() -> None:
    """It is told what has changed, but this is no reason to wait."""
    fleet = a_fleet()
    fleet.put_rule(tainting("NoSchedule"))
    claim = configured(a_claim(on=[HERE, f"{GPU}/n1/gpu-7"]), strategy="Mps")
    found = told(claim, fleet=fleet, pod=a_pod_on(phase="Running"))
    assert found.reason is PendingReason.ALLOCATED
    assert [each.kind for each in found.obstacles] == [ObstacleKind.NOT_PUBLISHED]
    [_, line] = brief(found)
    assert line.startswith(f"Changed since then: Driver {GPU} does not publish gpu-7 in pool n1 any more")
