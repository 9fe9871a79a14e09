"""Where groups of claims go, one after the other."""

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.placing.groups.place import place
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import PoolKey
from tests.builders import a_claim, a_device_class, a_node, a_pod, a_slice
from tests.doubles.placing import a_placer

CLASS = "gpu.draco.dev"
TAINT = DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")


def ours(name: str) -> Device:
    attribute = DeviceAttribute(string="operator")
    return Device(name=name, attributes={"draco.dev/allocator": attribute}, taints=[TAINT])


def a_fleet(*claims: ResourceClaim, nodes: int = 2) -> Fleet:
    """Nodes with one GPU that Draco allocates and one that kube-scheduler allocates."""
    device_class = a_device_class(CLASS)
    labels = {"draco.dev/allocator": "operator"}
    device_class = msgspec.structs.replace(
        device_class, metadata=msgspec.structs.replace(device_class.metadata, labels=labels)
    )
    names = [f"node-{number}" for number in range(nodes)]
    return Fleet.of(
        nodes=[a_node(name) for name in names],
        slices=[a_slice(name, [ours("gpu-0"), "gpu-1"]) for name in names],
        classes=[device_class, a_device_class()],
        claims=claims,
    )


def devices(fleet: Fleet, *groups: ClaimGroup, held: tuple[ResourceClaim, ...] = ()) -> list[list[str]]:
    return [
        [
            f"{each.pool}/{each.device}"
            for results in placement.results
            for result in results
            for each in result.devices.results
        ]
        for placement in place(a_placer(fleet), groups, held)
    ]


def group(name: str, **more: object) -> ClaimGroup:
    return ClaimGroup([msgspec.structs.replace(GroupMember([a_claim(name, device_class=CLASS)]), **more)])


def test_each_group_gets_what_those_before_it_have_left_and_only_what_is_dracos() -> None:
    fleet = a_fleet()
    found = devices(fleet, group("a"), group("b"), group("c"))
    assert found == [["node-0/gpu-0"], ["node-1/gpu-0"], []]
    for number, searched in enumerate(("(1 node searched)", "(2 nodes searched)"), start=1):
        groups = [group(name) for name in "abc"[: number + 1]]
        placed = place(a_placer(a_fleet(nodes=number)), groups, [])
        assert placed[number].why_not.endswith(f"for it {searched}.")


def test_afterwards_the_fleet_is_as_it_was() -> None:
    fleet = a_fleet(a_claim("theirs", on=["gpu.nvidia.com/node-0/gpu-0"]))
    held = a_claim("on-its-way", device_class=CLASS, on=["gpu.nvidia.com/node-1/gpu-0"])
    assert devices(fleet, group("a"), held=(held,)) == [[]]
    assert devices(fleet, group("a")) == [["node-1/gpu-0"]]
    assert list(fleet.claims) == [a_claim("theirs").metadata.key]


def test_a_pod_says_on_which_nodes_its_claims_may_be() -> None:
    pod = a_pod("pod")
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector={"zone": "b"}))
    fleet = a_fleet()
    assert devices(fleet, group("a", pods=[pod])) == [[]]
    node = a_node("node-1")
    fleet.put_node(msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels={"zone": "b"})))
    assert devices(fleet, group("a", pods=[pod])) == [["node-1/gpu-0"]]


def test_a_group_without_a_place_is_counted_in_what_it_has_pods_or_claims_of_a_reservation() -> None:
    claims = [a_claim(name, device_class=CLASS) for name in "abc"]
    of_pods = ClaimGroup(
        [GroupMember([each], [a_pod(each.metadata.name)]) for each in claims], 3, name="PodGroup train"
    )
    reserved = ClaimGroup([GroupMember([each]) for each in claims], 3, name="DeviceReservation night")
    whys = [each.why_not for each in place(a_placer(a_fleet()), [of_pods, reserved], [])]
    assert whys == [
        f"{name} needs devices for 3 {noun} at once; even if nobody else had any, only 2 of 3 get some, on 2 nodes that they "
        "may use."
        for name, noun in (("PodGroup train", "pods"), ("DeviceReservation night", "claims"))
    ]


@pytest.mark.parametrize(("nodes", "said"), [(1, "1 of 3 gets some, on 1 node"), (2, "2 of 3 get some, on 2 nodes")])
def test_what_a_group_would_get_agrees_with_its_number(nodes: int, said: str) -> None:
    members = [GroupMember([a_claim(name, device_class=CLASS)]) for name in "abc"]
    (found,) = place(a_placer(a_fleet(nodes=nodes)), [ClaimGroup(members, 3, name="PodGroup train")], [])
    assert said in found.why_not


def test_nodes_that_are_out_are_passed_by() -> None:
    assert devices(a_fleet(), group("a", without=["node-0"])) == [["node-1/gpu-0"]]


def test_claims_of_a_member_are_on_one_node_or_nowhere() -> None:
    pair = ClaimGroup([GroupMember([a_claim("one", device_class=CLASS), a_claim("two", device_class=CLASS)])])
    assert devices(a_fleet(), pair, group("after")) == [[], ["node-0/gpu-0"]]


def test_a_class_that_is_gone_is_said() -> None:
    fleet = a_fleet()
    fleet.remove_class(CLASS)
    (placement,) = place(a_placer(fleet), [group("a")], [])
    assert "could not retrieve device class gpu.draco.dev" in placement.why_not


def test_what_keeps_kube_scheduler_away_is_no_cause_for_a_claim_of_dracos_and_is_for_others() -> None:
    fleet = a_fleet(*(a_claim(f"holder-{n}", on=[f"gpu.nvidia.com/node-{n}/gpu-0"]) for n in range(2)))
    assert "operator-allocated" not in str(explain(fleet, [a_claim("a", device_class=CLASS)]))
    fleet = a_fleet(*(a_claim(f"holder-{n}", on=[f"gpu.nvidia.com/node-{n}/gpu-1"]) for n in range(2)))
    assert "operator-allocated" in str(explain(fleet, [a_claim("b")]))


def test_of_a_pod_that_starts_with_others_it_is_said_that_draco_allocates_all_at_once() -> None:
    fleet, claim = a_fleet(), a_claim("a", device_class=CLASS)
    not_yet = "and Draco has not allocated its claims yet"
    assert not_yet in str(explain(fleet, [claim], pod=a_pod("pod", claims=["a"])))
    mixed, both = a_pod("pod", claims=["a", "b"]), [claim, a_claim("b")]
    assert not_yet in str(explain(fleet, both, pod=mixed, scheduler="cannot allocate all claims"))
    pod = a_pod("pod", claims=["a"], labels={"kueue.x-k8s.io/pod-group-name": "train"})
    said = str(explain(fleet, [claim], pod=pod))
    assert "Draco allocates all of Kueue pod group default/train or none of it" in said
    assert len(said) <= 300


def test_nodes_are_filled_one_after_the_other_unless_their_policy_spreads_claims() -> None:
    fleet = a_fleet()
    for name in ("node-0", "node-1"):
        fleet.put_slice(a_slice(name, [ours("gpu-0"), ours("gpu-1")], generation=2))
    groups = [group("a"), group("b")]
    pools = [PoolKey("gpu.nvidia.com", name) for name in ("node-0", "node-1")]
    assert devices(fleet, *groups) == [["node-0/gpu-0"], ["node-0/gpu-1"]]
    spread = place(a_placer(fleet), groups, [], spread=pools)
    assert {each.devices.results[0].pool for found in spread for (each,) in found.results} == {"node-0", "node-1"}
