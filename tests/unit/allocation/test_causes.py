"""Why a claim is pending: each cause is counted where it belongs, and said in words that claim no more than is known."""

import msgspec
import pytest

from draco.allocation import Causes, DeviceState, Supply, explain_pending, survey
from draco.allocation.causes import confined_to_driver
from draco.resources.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.classes import DeviceClass, DeviceClassSpec
from draco.resources.core import Node, Pod, PodCondition, PodStatus
from draco.resources.meta import ObjectMeta
from draco.resources.names import NVIDIA_DRIVER
from draco.resources.slices import DeviceCounterConsumption, ResourceSlice
from draco.resources.taints import DeviceTaint, DeviceTaintRule, DeviceToleration
from tests.builders import a_claim, a_device, a_node, a_pod, a_rule, a_slice

EIGHT = [f"gpu-{i}" for i in range(8)]


def a_class(name: str = NVIDIA_DRIVER, *, driver: str = NVIDIA_DRIVER) -> DeviceClass:
    expression = f"device.driver == '{driver}' && device.attributes['{driver}'].type == 'gpu'"
    return DeviceClass(
        metadata=ObjectMeta(name=name),
        spec=DeviceClassSpec(selectors=[DeviceSelector(cel=CelSelector(expression=expression))]),
    )


def asking(claim: ResourceClaim, **changes: object) -> ResourceClaim:
    """The claim with its one request changed."""
    request = claim.spec.devices.requests[0]
    assert request.exactly is not None
    exactly = msgspec.structs.replace(request.exactly, **changes)
    devices = msgspec.structs.replace(claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def supply_of(
    slices: list[ResourceSlice],
    *,
    rules: tuple[DeviceTaintRule, ...] = (),
    claims: tuple[ResourceClaim, ...] = (),
    nodes: tuple[Node, ...] = (a_node("node-0"), a_node("node-1")),
) -> Supply:
    return survey(slices, rules, claims, {node.metadata.name: node for node in nodes})


def explained(supply: Supply, claim: ResourceClaim | None = None, pods: tuple[Pod, ...] = ()) -> Causes:
    return explain_pending(claim or a_claim(), supply, {NVIDIA_DRIVER: a_class()}, pods)


def test_a_missing_class_is_named_with_the_closest_there_is() -> None:
    causes = explained(supply_of([a_slice()]), a_claim(device_class="gpu.nvidia.con"))
    assert causes.reason == "ClassMissing"
    assert str(causes) == (
        'Cannot be allocated: DeviceClass "gpu.nvidia.con" does not exist; the closest there is is "gpu.nvidia.com".'
    )


def test_a_missing_class_without_a_near_one_is_just_named() -> None:
    causes = explained(supply_of([a_slice()]), a_claim(device_class="tpu"))
    assert str(causes) == 'Cannot be allocated: DeviceClass "tpu" does not exist.'


def test_no_devices_at_all() -> None:
    causes = explained(supply_of([]))
    assert causes.reason == "NoDevices"
    assert str(causes) == (
        "Cannot be allocated: no devices of gpu.nvidia.com are published: check that the driver runs on its nodes."
    )


def test_no_devices_of_the_driver_while_another_publishes() -> None:
    causes = explained(supply_of([a_slice(driver="gpu.example.com")]))
    assert "no devices of gpu.nvidia.com are published (published: gpu.example.com)" in str(causes)


def test_devices_in_use_are_counted_and_their_holders_named() -> None:
    holders = tuple(a_claim(f"job-{i}", on=[f"node-0/gpu-{i}"]) for i in range(5))
    causes = explained(supply_of([a_slice("node-0", EIGHT[:5])], claims=holders))
    assert causes.reason == "InUse"
    assert str(causes) == (
        "Cannot be allocated: none of the 5 devices of gpu.nvidia.com is free: "
        "5 in use by other claims (default/job-0, default/job-1, default/job-2 and 2 more)."
    )


def test_the_causes_of_a_mixed_cluster_add_up() -> None:
    claims = tuple(a_claim(f"job-{i}", on=[f"node-0/gpu-{i}"]) for i in range(7))
    rule = a_rule(taint="draco.dev/maintenance", driver=NVIDIA_DRIVER, pool="node-0", device="gpu-7")
    supply = supply_of([a_slice("node-0", EIGHT), a_slice("node-1", EIGHT)], rules=(rule,), claims=claims)
    (request,) = explained(supply).requests
    assert dict(request.devices) == {DeviceState.IN_USE: 7, DeviceState.TAINTED: 1, DeviceState.FREE: 8}
    assert request.total == 16
    assert "of 16 devices of gpu.nvidia.com: 7 in use by other claims" in str(request)
    assert "1 tainted draco.dev/maintenance:NoSchedule" in str(request)
    assert "8 free, so the claim's selectors, constraints and capacity or what else the pod asks of a node" in str(
        request
    )
    assert "does not evaluate" in str(request)


def test_administrative_access_does_not_use_a_device_up() -> None:
    monitor = a_claim("monitor", on=["node-0/gpu-0"], admin_access=True)
    (request,) = explained(supply_of([a_slice()], claims=(monitor,))).requests
    assert dict(request.devices) == {DeviceState.FREE: 2}


def test_a_claim_with_administrative_access_is_not_kept_out_by_use() -> None:
    holder = a_claim("job", on=["node-0/gpu-0"])
    (request,) = explained(supply_of([a_slice()], claims=(holder,)), a_claim(admin_access=True)).requests
    assert dict(request.devices) == {DeviceState.FREE: 2}


def test_a_tolerated_taint_does_not_count() -> None:
    supply = supply_of([a_slice()], rules=(a_rule(driver=NVIDIA_DRIVER),))
    (kept_out,) = explained(supply).requests
    assert dict(kept_out.devices) == {DeviceState.TAINTED: 2}
    tolerant = asking(a_claim(), tolerations=[DeviceToleration(operator="Exists")])
    (let_in,) = explained(supply, tolerant).requests
    assert dict(let_in.devices) == {DeviceState.FREE: 2}


@pytest.mark.parametrize(("effect", "state"), [("None", DeviceState.FREE), ("NoExecute", DeviceState.TAINTED)])
def test_only_blocking_effects_count(effect: str, state: DeviceState) -> None:
    device = a_device(taints=[DeviceTaint(key="example.com/x", effect=effect)])
    (request,) = explained(supply_of([a_slice(devices=[device])])).requests
    assert dict(request.devices) == {state: 1}


def test_a_rule_without_a_selector_hits_nothing_and_an_empty_one_everything() -> None:
    nothing = msgspec.structs.replace(a_rule(), spec=msgspec.structs.replace(a_rule().spec, device_selector=None))
    (request,) = explained(supply_of([a_slice()], rules=(nothing,))).requests
    assert dict(request.devices) == {DeviceState.FREE: 2}
    (request,) = explained(supply_of([a_slice()], rules=(a_rule(),))).requests
    assert dict(request.devices) == {DeviceState.TAINTED: 2}


@pytest.mark.parametrize(
    ("node", "state", "text"),
    [
        (a_node("node-0", ready=False), DeviceState.NODE_NOT_READY, "2 on nodes that are not ready"),
        (a_node("node-0", unschedulable=True), DeviceState.NODE_CORDONED, "2 on cordoned nodes"),
        (a_node("other"), DeviceState.NODE_MISSING, "2 on nodes that do not exist"),
    ],
)
def test_devices_of_nodes_that_take_no_pods_are_counted_apart(node: Node, state: DeviceState, text: str) -> None:
    causes = explained(supply_of([a_slice("node-0")], nodes=(node,)))
    assert dict(causes.requests[0].devices) == {state: 2}
    assert causes.reason == state
    assert text in str(causes)


def test_a_pool_of_which_a_slice_is_missing_is_incomplete() -> None:
    causes = explained(supply_of([a_slice("node-0", of=2)]))
    assert dict(causes.requests[0].devices) == {DeviceState.POOL_INCOMPLETE: 2}
    assert "2 in pools that are not completely published (node-0)" in str(causes)


def test_an_older_generation_does_not_count() -> None:
    slices = [a_slice("node-0", EIGHT, generation=1), a_slice("node-0", ["gpu-0"], generation=2)]
    (request,) = explained(supply_of(slices)).requests
    assert request.total == 1


def test_a_shareable_device_is_not_used_up_by_one_claim() -> None:
    device = a_device("gpu-0", allow_multiple_allocations=True)
    supply = supply_of([a_slice(devices=[device])], claims=(a_claim("job", on=["node-0/gpu-0"]),))
    assert supply.states() == {(NVIDIA_DRIVER, DeviceState.FREE): 1}


def test_more_wanted_than_any_node_has_free_is_said_as_a_fact() -> None:
    claims = (a_claim("job", on=["node-0/gpu-0"]),)
    supply = supply_of([a_slice("node-0"), a_slice("node-1")], claims=claims)
    causes = explained(supply, asking(a_claim(), count=3))
    assert causes.reason == "NotEnoughOnOneNode"
    assert "3 free, but 3 are wanted and no node has more than 2 free" in str(causes)


def test_devices_of_no_node_count_for_every_node() -> None:
    slices = [a_slice("node-0"), a_slice("", ["far-0"], pool="fabric", all_nodes=True)]
    causes = explained(supply_of(slices), asking(a_claim(), count=3))
    assert causes.reason == "NotMatching"


def test_partitions_are_named_as_a_possible_reason() -> None:
    partition = a_device("gpu-0-mig", consumes_counters=[DeviceCounterConsumption(counter_set="gpu-0")])
    assert "partitions in use on the same GPU" in str(explained(supply_of([a_slice(devices=[partition])])))


def test_the_mode_that_wants_all_devices_is_explained() -> None:
    causes = explained(supply_of([a_slice()]), asking(a_claim(), allocation_mode="All"))
    assert 'mode "All" needs every matching device' in str(causes)


def test_the_schedulers_own_words_are_passed_on() -> None:
    said = PodCondition(type="PodScheduled", status="False", message="0/1 nodes are available: 1 Insufficient cpu.")
    pod = a_pod("train", status=PodStatus(phase="Pending", conditions=[said]))
    assert str(explained(supply_of([a_slice()]), pods=(pod,))).endswith(
        " The scheduler says of pod train: 0/1 nodes are available: 1 Insufficient cpu."
    )


def test_a_pod_that_no_scheduler_looked_at_is_named() -> None:
    assert str(explained(supply_of([a_slice()]), pods=(a_pod("train"),))).endswith(
        " No scheduler has looked at pod train yet."
    )


def test_every_request_is_explained_and_equal_texts_are_said_once() -> None:
    claim = a_claim()
    request = claim.spec.devices.requests[0]
    assert request.exactly is not None
    elsewhere = msgspec.structs.replace(request.exactly, device_class_name="nic")
    missing = msgspec.structs.replace(request, name="nic", exactly=elsewhere)
    twin = msgspec.structs.replace(request, name="gpu-2")
    devices = msgspec.structs.replace(claim.spec.devices, requests=[request, twin, missing])
    claim = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
    causes = explained(supply_of([a_slice()]), claim)
    assert str(causes).startswith("Cannot be allocated: Request gpu, gpu-2: of 2 devices")
    assert 'Request nic: DeviceClass "nic" does not exist.' in str(causes)
    assert causes.reason == "ClassMissing"


@pytest.mark.parametrize(
    ("expression", "driver"),
    [
        ('device.driver == "gpu.nvidia.com"', "gpu.nvidia.com"),
        ("device.driver == 'a.b' && device.attributes['a.b'].x == 1", "a.b"),
        ('device.driver == "a.b" || device.driver == "c.d"', ""),
        ('device.driver == "a.b" && x || y', ""),
        ('device.driver == "a.b" ? true : true', ""),
        ('device.driver != "a.b"', ""),
        ('!(device.driver == "a.b")', ""),
        ('device.driver == "a.b" == false', ""),
        ("true", ""),
    ],
)
def test_a_driver_is_only_read_from_an_expression_that_plainly_names_it(expression: str, driver: str) -> None:
    assert confined_to_driver(expression) == driver


def test_without_a_driver_in_the_class_all_devices_count() -> None:
    anything = DeviceClass(metadata=ObjectMeta(name=NVIDIA_DRIVER))
    supply = supply_of([a_slice(), a_slice("node-1", driver="gpu.example.com")])
    causes = explain_pending(a_claim(), supply, {NVIDIA_DRIVER: anything})
    assert causes.requests[0].total == 4
    assert "of 4 devices: 4 free" in str(causes)
