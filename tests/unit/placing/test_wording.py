"""What is said about a claim that Draco allocates: the place, the next best, and why that lost."""

from draco.placing.wording import placement_lines
from draco.resources.names import PoolKey
from tests.builders import a_claim, a_pod, a_slice
from tests.unit.placing.test_place import CLASS, a_fleet, ours


def test_a_claim_that_waits_is_told_where_it_would_go_and_what_was_next() -> None:
    fleet = a_fleet()
    claim = a_claim("a", device_class=CLASS)
    chosen, next_best = placement_lines(fleet, [claim])
    assert chosen.startswith("Draco would place it now: gpu-0 on node-0 (")
    assert (
        next_best == "The next best is gpu-0 on node-1: It is as good: of equal places Draco takes the first by name."
    )
    assert not fleet.claims


def test_where_claims_are_spread_it_would_go_to_the_node_of_which_less_is_in_use() -> None:
    names, there = ["node-0", "node-1"], a_claim("there", device_class=CLASS, on=["gpu.nvidia.com/node-0/gpu-0"])
    fleet = a_fleet(there)
    for name in names:
        fleet.put_slice(a_slice(name, [ours("gpu-0"), ours("gpu-1")]))
    claim = a_claim("a", device_class=CLASS)
    spread = [PoolKey("gpu.nvidia.com", name) for name in names]
    assert placement_lines(fleet, [claim])[0].startswith("Draco would place it now: gpu-1 on node-0 (")
    assert placement_lines(fleet, [claim], spread=spread)[0].startswith("Draco would place it now: gpu-0 on node-1 (")


def test_an_allocated_claim_is_judged_as_things_are_now_and_keeps_its_devices() -> None:
    claim = a_claim("a", device_class=CLASS, on=["gpu.nvidia.com/node-1/gpu-0"])
    fleet = a_fleet(claim)
    chosen, _ = placement_lines(fleet, [claim])
    assert chosen.startswith("The cluster has changed since then; now Draco would choose: gpu-0 on node-0 (")
    assert list(fleet.state.devices()) == [each.key for each in claim.results]
    same = a_claim("a", device_class=CLASS, on=["gpu.nvidia.com/node-0/gpu-0"])
    assert placement_lines(a_fleet(same), [same])[0].startswith("Now Draco would choose the same place")


def test_of_a_pod_in_a_group_only_what_holds_without_the_group_is_told() -> None:
    claim = a_claim("a", device_class=CLASS, on=["gpu.nvidia.com/node-1/gpu-0"])
    pod = a_pod("a", labels={"kueue.x-k8s.io/pod-group-name": "train"})
    chosen, _ = placement_lines(a_fleet(claim), [claim], pod)
    assert chosen.startswith("If it were not in a group, Draco would place it now: gpu-0 on node-0 (")


def test_where_there_is_no_other_place_that_is_said_and_of_others_claims_nothing() -> None:
    assert placement_lines(a_fleet(nodes=1), [a_claim("a", device_class=CLASS)])[1] == "There is no other place for it."
    assert placement_lines(a_fleet(), [a_claim("theirs")]) == []
