"""The verdict, its single reason and its counts, one small cluster after the other."""

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import Cause, CauseCount, Explanation, NodeReason, PendingReason, TaintSeen
from draco.explanation.wording import problem_text, report
from draco.resources.api.claims import (
    AllocatedDeviceStatus,
    AllocationResult,
    CapacityRequirements,
    DeviceAllocationResult,
    DeviceConstraint,
    DeviceRequestAllocationResult,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimStatus,
)
from draco.resources.api.core import NodeSpec, NodeTaint, Pod
from draco.resources.api.meta import Condition, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta
from draco.resources.api.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import SCHEDULING_GATE
from tests.builders import a_claim, a_device_class, a_node, a_pod, a_rule, a_slice
from tests.unit.explanation.clusters import A100, ATTRIBUTES, CAPACITY, GPU, H100, a_fleet, a_gpu, asking


def held(*devices: str, by: str = "job", pods: tuple[str, ...] = ("worker",)) -> ResourceClaim:
    return a_claim(by, on=[f"{GPU}/{device}" for device in devices], reserved_for=pods)


def named(claim: ResourceClaim, name: str) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=ObjectMeta(name=name, namespace="default"))


def count_of(told: Explanation, cause: Cause, request: int = 0) -> CauseCount:
    [count] = [each for each in told.requests[request].causes if each.cause is cause]
    return count


ALL_HELD = ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1")


def test_every_device_is_counted_once_by_what_stands_in_its_way() -> None:
    fleet = Fleet.of(
        slices=[a_slice("node-0", ["gpu-0", "gpu-1", "gpu-2"])],
        nodes=[a_node("node-0")],
        classes=[a_device_class()],
        claims=[a_claim("train", on=["node-0/gpu-0", "node-0/gpu-1"])],
        rules=[a_rule(driver=GPU, pool="node-0", device="gpu-2")],
    )

    told = explain(fleet, [a_claim("wait")])

    assert not told.fits
    assert told.reason is PendingReason.IN_USE
    assert [(count.cause, count.devices) for count in told.requests[0].causes] == [
        (Cause.IN_USE, 2),
        (Cause.TAINTED, 1),
    ]
    assert count_of(told, Cause.TAINTED).taints == [TaintSeen(taint="example.com/broken:NoSchedule", rule="rule")]


def test_a_taint_that_the_slice_and_a_rule_both_have_is_told_once_with_the_rule() -> None:
    taint = DeviceTaint(key="example.com/broken", effect="NoSchedule")
    device = msgspec.structs.replace(a_slice("node-0", ["gpu-0"]).spec.devices[0], taints=[taint])
    fleet = Fleet.of(
        slices=[a_slice("node-0", [device])],
        nodes=[a_node("node-0")],
        classes=[a_device_class()],
        rules=[a_rule(driver=GPU, pool="node-0", device="gpu-0")],
    )
    told = explain(fleet, [a_claim("wait")])
    assert count_of(told, Cause.TAINTED).taints == [TaintSeen(taint="example.com/broken:NoSchedule", rule="rule")]


def test_a_claim_that_fits_is_said_to_fit_and_where() -> None:
    told = explain(a_fleet(), [asking()])
    assert told.fits
    assert told.reason is PendingReason.FITS
    assert told.fits_on == ["n1", "n2"]
    assert told.nodes == []
    assert "as soon as a pod uses them" in str(told)


def test_a_pod_of_which_the_scheduler_has_said_nothing_is_told_so() -> None:
    told = explain(a_fleet(), [asking()], pod=a_pod())
    assert told.fits
    assert "kube-scheduler has not decided yet" in str(told)


def test_nothing_is_known_of_what_keeps_a_pod_that_has_its_devices_but_what_the_scheduler_says() -> None:
    has_it = held("n1/gpu-0")
    before = explain(a_fleet(has_it), [has_it], pod=waiting_pod())
    assert before.summary.endswith("and kube-scheduler has not bound the pod yet.")
    refused = explain(a_fleet(has_it), [has_it], pod=waiting_pod(), scheduler="0/2 nodes are available")
    assert refused.summary.endswith("has not bound the pod yet. See the pod's FailedScheduling Event.")


def test_a_pod_that_names_its_node_is_never_allocated_anything() -> None:
    told = explain(a_fleet(), [asking()], pod=a_pod(node="n1"))
    assert (told.reason, told.fits, told.nearest) == (PendingReason.BYPASSES_SCHEDULER, False, [])
    assert "spec.nodeName: n1" in str(told)
    assert "write a node affinity with matchFields metadata.name instead of nodeName" in str(told)
    held_already = explain(a_fleet(), [a_claim("job", on=[f"{GPU}/n1/gpu-0"])], pod=a_pod(node="n1"))
    assert held_already.reason is PendingReason.ALLOCATED


@pytest.mark.parametrize(("dracos", "why"), [(True, "and Draco allocates"), (False, "kube-scheduler, which allocates")])
def test_a_pod_that_names_its_node_is_told_who_would_allocate_its_claim(dracos: bool, why: str) -> None:
    told = explain(a_fleet_with_a_class(dracos=dracos), [a_claim(device_class="ours")], pod=a_pod(node="node-0"))
    assert told.reason is PendingReason.BYPASSES_SCHEDULER
    assert f"{why} devices only to pods that have no node yet" in str(told)


def a_fleet_with_a_class(*, dracos: bool) -> Fleet:
    """One GPU, and the class "ours", whose claims either Draco or kube-scheduler allocates."""
    plain = a_device_class("ours")
    meta = msgspec.structs.replace(plain.metadata, labels={"draco.dev/allocator": "operator"} if dracos else {})
    return Fleet.of(
        slices=[a_slice("node-0", ["gpu-0"])],
        nodes=[a_node("node-0")],
        classes=[msgspec.structs.replace(plain, metadata=meta)],
    )


@pytest.mark.parametrize(
    ("gates", "dracos", "why"),
    [
        (
            ("kueue.x-k8s.io/admission", "draco.dev/allocation"),
            True,
            "has the scheduling gate kueue.x-k8s.io/admission",
        ),
        (("kueue.x-k8s.io/admission",), False, "until the controller that set the gate removes it"),
        (("draco.dev/allocation",), False, "chart's value operator.allocate"),
        (("draco.dev/allocation",), True, ""),
        ((), True, ""),
    ],
)
def test_a_scheduling_gate_is_named_unless_draco_takes_it_off_with_the_devices_that_are_missing(
    gates: tuple[str, ...], dracos: bool, why: str
) -> None:
    fleet = a_fleet_with_a_class(dracos=dracos)
    told = explain(fleet, [a_claim(device_class="ours")], pod=a_pod(gates=gates))
    assert (told.reason is PendingReason.GATED) is bool(why)
    assert why in str(told)


TOGETHER = "Draco removes it when as many pods of PodGroup default/train as start together have their devices"


@pytest.mark.parametrize(
    ("pod_group", "dracos", "why"),
    [
        ("train", True, TOGETHER),
        ("train", False, TOGETHER),
        ("", True, ""),
    ],
)
def test_a_pod_that_has_its_devices_is_told_that_the_others_of_its_pod_group_have_not(
    pod_group: str, dracos: bool, why: str
) -> None:
    fleet = a_fleet_with_a_class(dracos=dracos)
    claim, pod = a_claim(device_class="ours", on=["node-0/gpu-0"]), a_pod(gates=[SCHEDULING_GATE], pod_group=pod_group)
    told = explain(fleet, [claim], pod=pod)
    assert told.reason is (PendingReason.GATED if why else PendingReason.ALLOCATED)
    assert why in told.summary
    assert [each.claim for each in told.allocated] == ["default/claim"]


def test_holders_are_named_with_their_pods_and_those_that_nobody_uses_first() -> None:
    fleet = a_fleet(held("n1/gpu-0", "n1/gpu-1", "n2/gpu-0"), held("n2/gpu-1", by="idle", pods=()))
    in_use = count_of(explain(fleet, [asking()]), Cause.IN_USE)
    assert in_use.devices == 4
    assert [(holder.claim, holder.idle, holder.consumers, holder.devices) for holder in in_use.holders] == [
        ("default/idle", True, [], 1),
        ("default/job", False, ["pod worker"], 3),
    ]
    assert in_use.holders_total == 2


def test_a_selector_that_says_no_is_told_with_the_values_it_saw() -> None:
    told = explain(a_fleet(), [asking(f'{ATTRIBUTES}.productName == "NVIDIA B200"')])
    assert told.reason is PendingReason.NOTHING_SELECTED
    [own] = [each for each in told.requests[0].causes if each.selector and each.selector.source == "claim default/c"]
    assert own.selector is not None
    assert own.selector.index == 0
    assert {(seen.value, seen.devices) for seen in own.values} == {(H100, 2), (A100, 2)}


def test_one_device_on_which_a_selector_fails_fails_the_claim_on_every_node() -> None:
    odd = a_slice("n3", [Device(name="gpu-0")])
    fleet = a_fleet()
    fleet.put_slice(odd)
    fleet.put_node(a_node("n3"))
    told = explain(fleet, [asking(f'{ATTRIBUTES}.productName == "{H100}"', count=2)])
    assert not told.fits
    assert told.reason is PendingReason.SELECTOR_ERROR
    assert told.fits_on == ["n1"]
    assert "CEL runtime error: no such key: productName" in told.error
    assert count_of(told, Cause.SELECTOR_FAILED).example == f"{GPU}/n3/gpu-0"


def test_too_few_on_each_node_is_told_node_by_node() -> None:
    told = explain(a_fleet(held("n2/gpu-0")), [asking(count=3)])
    assert told.reason is PendingReason.NOT_ENOUGH_ON_ONE_NODE
    assert [(cause.reason, cause.names, cause.free, cause.wanted) for cause in told.nodes] == [
        (NodeReason.NOT_ENOUGH, ["n1"], 2, 3),
        (NodeReason.NOT_ENOUGH, ["n2"], 1, 3),
    ]
    assert told.requests[0].most_free_on_one_node == 2


def test_a_constraint_that_keeps_free_devices_apart_is_named() -> None:
    constraint = DeviceConstraint(match_attribute=f"{GPU}/index")
    told = explain(a_fleet(), [asking(count=2, constraints=[constraint])])
    assert told.reason is PendingReason.CONSTRAINT
    assert [(cause.reason, cause.nodes) for cause in told.nodes] == [(NodeReason.CONSTRAINT, 2)]
    assert f"no 2 have the same {GPU}/index" in str(told)


def test_claims_that_each_fit_alone_but_not_together_are_said_to_compete() -> None:
    claims = [named(asking(count=2), "left"), named(asking(f'{ATTRIBUTES}.productName == "{H100}"'), "right")]
    fleet = a_fleet(held("n2/gpu-0"))
    fleet.put_slice(a_slice("n1", [Device(name="nic-0", allow_multiple_allocations=True)], driver="nic.example.com"))
    told = explain(fleet, claims)
    assert told.reason is PendingReason.NOT_TOGETHER
    assert [request.fits_alone for request in told.requests] == [True, True]
    assert "node n1 is too small: claims left and right need 3 devices together, and beside left there is none" in str(
        told
    )


def test_of_requests_that_fit_one_by_one_the_first_without_a_place_is_named() -> None:
    claim = asking(device_class="any")
    requests = [msgspec.structs.replace(claim.spec.devices.requests[0], name=f"r{number}") for number in range(4)]
    devices = msgspec.structs.replace(claim.spec.devices, requests=requests)
    wanted = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
    told = str(explain(a_fleet(), [wanted]))
    assert (
        "requests r0, r1 and r2 need 3 devices together, and beside the others there is none for r2. Ask for less"
        in told
    )


def test_claims_whose_devices_are_on_different_nodes_are_told_so() -> None:
    claims = [named(asking(f'{ATTRIBUTES}.productName == "{each}"'), each[7:11]) for each in (H100, A100)]
    told = explain(a_fleet(), claims)
    assert told.reason is PendingReason.NOT_TOGETHER
    assert "request gpu of claim H100 fits on n1, request gpu of claim A100 fits on n2" in str(told)


def test_each_alternative_is_explained_by_itself() -> None:
    wanted = asking().spec.devices.requests[0]
    alternatives = [
        DeviceSubRequest(name="big", device_class_name=GPU, count=9),
        DeviceSubRequest(name="mig", device_class_name="mig"),
    ]
    request = msgspec.structs.replace(wanted, exactly=None, first_available=alternatives)
    claim = asking()
    devices = msgspec.structs.replace(claim.spec.devices, requests=[request])
    told = explain(
        a_fleet(), [msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))]
    )
    assert [(each.request, each.wanted, each.free) for each in told.requests] == [("gpu/big", 9, 4), ("gpu/mig", 1, 0)]
    assert "Request gpu/big" in str(told)


def test_all_mode_is_spoilt_by_one_device_in_use() -> None:
    told = explain(a_fleet(held("n1/gpu-0"), held("n2/gpu-0", by="other")), [asking(allocation_mode="All")])
    assert told.reason is PendingReason.IN_USE
    assert [cause.reason for cause in told.nodes] == [NodeReason.ALL_MODE]


def test_what_keeps_a_request_from_every_device_of_a_node_is_named() -> None:
    fleet = a_fleet(held("n2/gpu-0"))
    fleet.put_rule(a_rule("broken", pool="n1", device="gpu-0"))
    told = explain(fleet, [asking(allocation_mode="All")])
    assert [cause.text for cause in told.nodes] == [
        "unable to give request gpu every matching device: not all are free"
    ]
    assert told.summary.startswith(
        "Nodes n1, n2 are unable to give request gpu every matching device: not all are free (1 is in use by default/job (pod "
        "worker); 1 is tainted with example.com/broken:NoSchedule (rule broken)). "
    )


def test_administrative_access_does_not_mind_use() -> None:
    told = explain(a_fleet(held(*ALL_HELD)), [asking(admin_access=True)])
    assert told.fits
    assert told.requests[0].admin_access


def test_a_counter_that_is_short_is_told_with_who_takes_of_it() -> None:
    def part(name: str, size: str) -> Device:
        taken = DeviceCounterConsumption(counter_set="card", counters={"memory": Counter(value=size)})
        return Device(name=name, consumes_counters=[taken], attributes={"size": DeviceAttribute(string=size)})

    fleet = a_fleet(held("cut/half", by="notebook"))
    fleet.put_node(a_node("n3"))
    total = CounterSet(name="card", counters={"memory": Counter(value="40Gi")})
    fleet.put_slice(a_slice("n3", [part("half", "20Gi"), part("whole", "40Gi")], pool="cut", of=2, name="a"))
    spec = ResourceSliceSpec(
        driver=GPU,
        pool=ResourcePool(name="cut", generation=1, resource_slice_count=2),
        node_name="n3",
        shared_counters=[total],
    )
    fleet.put_slice(ResourceSlice(metadata=ObjectMeta(name="b"), spec=spec))

    told = explain(fleet, [asking(f'{ATTRIBUTES}.?size.orValue("") == "40Gi"')])

    assert told.reason is PendingReason.COUNTERS_SHORT
    short = count_of(told, Cause.COUNTERS_SHORT).shortage
    assert short is not None
    assert (short.name, short.needed, short.left, short.total) == ("card/memory", "40Gi", "20Gi", "40Gi")
    assert short.takers == ["half (default/notebook)"]


def test_a_capacity_that_is_short_is_told_with_what_is_left() -> None:
    shared = Device(name="gpu-0", capacity={"memory": DeviceCapacity(value="40Gi")}, allow_multiple_allocations=True)
    result = DeviceRequestAllocationResult(
        request="gpu", driver=GPU, pool="n3", device="gpu-0", share_id="s", consumed_capacity={"memory": "30Gi"}
    )
    holder = ResourceClaim(
        metadata=ObjectMeta(name="job", namespace="default"),
        status=ResourceClaimStatus(allocation=AllocationResult(devices=DeviceAllocationResult(results=[result]))),
    )
    fleet = Fleet.of(
        slices=[a_slice("n3", [shared])], nodes=[a_node("n3")], classes=[a_device_class()], claims=[holder]
    )
    told = explain(fleet, [asking(capacity=CapacityRequirements(requests={"memory": "20Gi"}))])
    assert told.reason is PendingReason.CAPACITY_SHORT
    short = count_of(told, Cause.CAPACITY_SHORT).shortage
    assert short is not None
    assert (short.needed, short.left, short.takers) == ("20Gi", "10Gi", ["default/job"])


def test_what_waiting_never_mends_decides_whatever_is_in_use() -> None:
    """The claim asks for more than any GPU has, and all of them are in use."""
    fleet = a_fleet(held(*ALL_HELD))
    told = explain(fleet, [asking(capacity=CapacityRequirements(requests={"memory": "90Gi"}))])
    assert told.reason is PendingReason.CAPACITY_SHORT
    assert told.summary.startswith("Waiting does not help: ")
    assert "request gpu asks for 90Gi of memory, and no device that it selects has more than 80Gi." in told.summary
    assert told.nearest[0].text == "ask for 80Gi instead of 90Gi of memory in request gpu"
    assert count_of(told, Cause.IN_USE).devices == 4, "what is in use is counted as it is"


def test_a_constraint_that_no_devices_meet_decides_whatever_is_in_use() -> None:
    fleet = a_fleet(held("n1/gpu-0"))
    constraint = DeviceConstraint(match_attribute=f"{GPU}/index")
    told = explain(fleet, [asking(count=2, constraints=[constraint])])
    assert told.reason is PendingReason.CONSTRAINT
    assert f"no 2 have the same {GPU}/index" in told.summary
    assert "DropConstraint" in [each.kind for each in told.nearest]


def test_all_nodes_that_waiting_does_not_help_on_are_counted_and_devices_as_they_are() -> None:
    fleet = a_fleet(held("n1/gpu-0"))
    for number in range(3, 13):
        fleet.put_node(a_node(f"n{number}"))
        fleet.put_slice(a_slice(f"n{number}", [a_gpu("gpu-0", H100, "80Gi"), a_gpu("gpu-1", H100, "80Gi")]))
    told = explain(fleet, [asking(count=2, constraints=[DeviceConstraint(match_attribute=f"{GPU}/index")])])
    assert told.summary.startswith("Waiting does not help: 12 nodes (")
    assert told.summary.endswith("(24 devices: 1 in use, 23 free)")


def test_what_waiting_mends_is_told_as_it_is() -> None:
    told = explain(a_fleet(held(*ALL_HELD)), [asking()])
    assert (told.reason, told.stays) == (PendingReason.IN_USE, "")
    big = f'{CAPACITY}.memory.compareTo(quantity("80Gi")) >= 0'
    large_and_busy = explain(a_fleet(held("n1/gpu-0", "n1/gpu-1")), [asking(big, count=2)])
    assert (large_and_busy.reason, large_and_busy.stays) == (PendingReason.IN_USE, "")


def test_one_node_of_many_on_which_waiting_helps_is_enough() -> None:
    fleet = a_fleet(held(*ALL_HELD))
    for number in range(3, 13):
        fleet.put_node(a_node(f"n{number}"))
        fleet.put_slice(a_slice(f"n{number}", [a_gpu("gpu-0", H100, "80Gi"), a_gpu("gpu-1", H100, "80Gi")]))
    asks = asking(count=2, constraints=[DeviceConstraint(match_attribute=f"{GPU}/index")])
    assert explain(fleet, [asks]).stays != ""
    fleet.put_node(a_node("n13"))
    fleet.put_slice(a_slice("n13", [a_gpu("gpu-0", H100, "80Gi"), a_gpu("other-0", H100, "80Gi")]))
    fleet.put_claim(held("n13/gpu-0", by="other"))
    assert explain(fleet, [asks]).stays == ""


def test_a_gpu_of_which_a_part_would_do_is_said_to_be_for_one_claim_at_a_time() -> None:
    asks = asking(capacity=CapacityRequirements(requests={"memory": "4Gi"}))
    told = explain(a_fleet(held(*ALL_HELD)), [asks])
    assert "in use by default/job (pod worker), and published for one claim at a time" in told.summary
    assert "one claim at a time" not in explain(a_fleet(held(*ALL_HELD)), [asking()]).summary


def test_devices_on_nodes_where_the_pod_may_not_go_are_told_apart() -> None:
    fleet = a_fleet()
    tainted = NodeSpec(taints=[NodeTaint(key="team", value="a", effect="NoSchedule")])
    fleet.put_node(msgspec.structs.replace(a_node("n1"), spec=tainted))
    told = explain(fleet, [asking(f'{ATTRIBUTES}.productName == "{H100}"')], pod=a_pod(claims=["c"]))
    assert told.reason is PendingReason.NODE_RULES
    assert count_of(told, Cause.NODE_RULES).devices == 2
    assert {cause.reason for cause in told.nodes} == {NodeReason.NO_DEVICES, NodeReason.TAINTED}


@pytest.mark.parametrize(
    ("published", "cause"),
    [
        ([a_slice("n3", of=2)], Cause.POOL_INCOMPLETE),
        ([a_slice("n3", ["gpu-0", "gpu-0"])], Cause.POOL_INVALID),
        ([a_slice("n3", generation=1), a_slice("n3", [], generation=2)], Cause.POOL_OBSOLETE),
    ],
)
def test_devices_of_pools_that_do_not_count_are_counted_still(published: list[ResourceSlice], cause: Cause) -> None:
    fleet = Fleet.of(slices=published, nodes=[a_node("n3")], classes=[a_device_class()])
    told = explain(fleet, [asking()])
    assert told.reason is PendingReason.POOL_BROKEN
    assert count_of(told, cause).devices == 2


def test_who_is_ahead_of_a_nodes_own_slices_is_named() -> None:
    parts = [a_slice("n3", [f"gpu-{n}"], name=f"part-{n}", of=2) for n in range(2)]
    intruder = a_slice("n4", [], pool="n3", name="intruder", generation=10**9)
    fleet = Fleet.of(slices=[*parts, intruder], nodes=[a_node("n3"), a_node("n4")], classes=[a_device_class()])
    assert explain(fleet, [asking()]).requests[0].free == 2
    fleet.remove_slice("part-1")
    told = explain(fleet, [asking()])
    assert count_of(told, Cause.POOL_OBSOLETE).text == (
        "in slices older than their pool's newest generation, which is published by slice intruder for node n4"
    )


def test_devices_of_a_node_that_is_gone_are_counted_still() -> None:
    told = explain(Fleet.of(slices=[a_slice("gone")], classes=[a_device_class()]), [asking()])
    assert told.reason is PendingReason.NO_NODE
    assert count_of(told, Cause.NO_NODE).devices == 2
    assert told.summary.endswith("Start node gone again, or delete its ResourceSlices.")


def test_a_class_that_is_missing_and_a_cluster_without_devices_are_told() -> None:
    assert explain(a_fleet(), [asking(device_class="gpu.nvidia.co")]).reason is PendingReason.CLASS_MISSING
    empty = Fleet.of(nodes=[a_node("n1")], classes=[a_device_class()])
    assert explain(empty, [asking()]).reason is PendingReason.NO_DEVICES


def test_a_claim_that_is_missing_or_going_is_told_before_all_else() -> None:
    pod = a_pod(claims=["c", "d"])
    told = explain(a_fleet(), [asking()], pod=pod)
    assert told.reason is PendingReason.CLAIM_MISSING
    assert "default/d does not exist" in str(told)
    going = explain(a_fleet(), [a_claim("c", deleting=True, reserved_for=["first"])])
    assert going.reason is PendingReason.CLAIM_DELETING
    assert going.summary == (
        "Claim default/c is being deleted, which ends when nobody uses it any more (pod first). Create it again when it is gone, "
        "unless a template makes it."
    )
    has_node = explain(a_fleet(), [a_claim("c", deleting=True, on=[f"{GPU}/n1/gpu-0"])], pod=a_pod(node="n1"))
    assert has_node.reason is PendingReason.ALLOCATED, "kubelet starts it all the same"


def waiting_pod(**selector: str) -> Pod:
    pod = a_pod(claims=["job"])
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector))


def on_node(claim: ResourceClaim, node: str) -> ResourceClaim:
    allocation = claim.status.allocation
    assert allocation is not None
    only = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
    bound = msgspec.structs.replace(
        allocation, node_selector=NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[only])])
    )
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=bound))


def test_an_allocated_claim_whose_nodes_the_pod_cannot_go_to_is_told() -> None:
    claim = on_node(held("n1/gpu-0"), "n1")
    told = explain(a_fleet(claim), [claim], pod=waiting_pod(rack="7"))
    assert told.reason is PendingReason.BOUND_ELSEWHERE
    assert told.allocated[0].nodes == "metadata.name=n1"
    assert told.summary.endswith("Give the pod a claim of its own, or permit it these nodes.")
    assert explain(a_fleet(claim), [claim], pod=waiting_pod()).reason is PendingReason.ALLOCATED


def test_a_claim_is_looked_at_only_where_the_pods_allocated_claims_can_be_reached() -> None:
    bound = on_node(held("n1/gpu-0"), "n1")
    fleet = a_fleet(bound, held("n1/gpu-1", by="other"))
    told = explain(fleet, [bound, asking()])
    assert not told.fits
    assert NodeReason.ALLOCATION in {cause.reason for cause in told.nodes}
    assert count_of(told, Cause.NODE_RULES).devices == 2


def test_a_claim_whose_devices_are_not_ready_is_told_with_what_it_waits_for() -> None:
    claim = held("n1/gpu-0")
    allocation = claim.status.allocation
    assert allocation is not None
    [result] = allocation.devices.results
    binding = msgspec.structs.replace(result, binding_conditions=["attached"], binding_failure_conditions=["broken"])
    devices = msgspec.structs.replace(allocation.devices, results=[binding])
    status = msgspec.structs.replace(claim.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    waiting = msgspec.structs.replace(claim, status=status)
    told = explain(a_fleet(), [waiting])
    assert told.reason is PendingReason.WAITING_FOR_BINDING
    assert told.allocated[0].waiting_for == ["gpu-0: attached"]

    reported = AllocatedDeviceStatus(
        driver=GPU, pool="n1", device="gpu-0", conditions=[Condition(type="broken", status="True")]
    )
    failed = msgspec.structs.replace(waiting, status=msgspec.structs.replace(status, devices=[reported]))
    assert "could not be made ready" in str(explain(a_fleet(), [failed]))


def test_a_claim_that_as_many_use_as_may_is_told() -> None:
    claim = held("n1/gpu-0", pods=tuple(f"pod-{number}" for number in range(256)))
    told = explain(a_fleet(claim), [claim], pod=waiting_pod())
    assert told.reason is PendingReason.RESERVED_BY_OTHERS


def test_a_paragraph_is_bounded_and_ends_with_the_nearest_miss() -> None:
    fleet = a_fleet(
        *(held(device, by=f"a-claim-with-a-long-name-{number}" * 4) for number, device in enumerate(ALL_HELD))
    )
    long = " && ".join(f'{ATTRIBUTES}.productName != "{number:040}"' for number in range(40))
    told = explain(fleet, [asking(long)], scheduler="x " * 3000)
    assert len(str(told)) <= 1000
    assert told.nearest
    assert str(told).endswith(f"{told.nearest[0].text[1:]}.")


def test_the_report_tells_every_count_node_cause_and_nearest_miss() -> None:
    told = explain(
        a_fleet(held("n2/gpu-0")), [asking(count=2, constraints=[DeviceConstraint(match_attribute=f"{GPU}/index")])]
    )
    assert told.nearest
    text = "\n".join(report(told))
    for count in told.requests[0].causes:
        assert f"{count.devices} {count.text}" in text
    assert all(cause.text in text for cause in told.nodes)
    assert all(miss.text[1:] in text for miss in told.nearest)


def test_what_the_summary_says_is_not_said_again_below_it() -> None:
    """Neither the decisive problem nor the suggested change is repeated; new problems keep their heading."""
    told = explain(a_fleet(), [asking(count=33)])
    lines = list(report(told))
    for text in map(problem_text, told.problems):
        assert "\n".join(lines).count(text) <= 1
    assert "Problems" not in lines
    held_up = explain(a_fleet(held("n1/gpu-0", "n2/gpu-0")), [asking(count=2)])
    lines = list(report(msgspec.structs.replace(held_up, nodes=[], requests=[])))
    first, *others = (each.text for each in held_up.nearest)
    assert f"  {first}" not in lines
    assert "Any one of these would do" not in lines
    assert ("Any one of these would do as well" in lines) == bool(others)
    assert [line for line in lines if any(each in line for each in others)] == lines[len(lines) - len(others) :]
