"""The supply counts every device once, by the first obstacle that any claim would meet."""

import msgspec
import pytest

from draco.allocation.fleet.supply import SupplyState, count_supply
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_claim, a_device, a_node, a_rule, a_slice

EIGHT = [f"gpu-{i}" for i in range(8)]


def states(
    slices: list[ResourceSlice],
    *,
    rules: tuple[DeviceTaintRule, ...] = (),
    claims: tuple[ResourceClaim, ...] = (),
    nodes: tuple[Node, ...] = (a_node("node-0"), a_node("node-1")),
) -> dict[SupplyState, int]:
    counted = count_supply(slices, rules, claims, {node.metadata.name: node for node in nodes})
    return {state: count for (driver, state), count in counted.items() if driver == NVIDIA_DRIVER}


def test_the_counts_of_a_mixed_cluster_add_up() -> None:
    claims = tuple(a_claim(f"job-{i}", on=[f"node-0/gpu-{i}"]) for i in range(7))
    rule = a_rule(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-7")
    slices = [a_slice("node-0", EIGHT), a_slice("node-1", EIGHT), a_slice("node-1", driver="gpu.example.com")]
    assert states(slices, rules=(rule,), claims=claims) == {
        SupplyState.IN_USE: 7,
        SupplyState.TAINTED: 1,
        SupplyState.FREE: 8,
    }


def test_administrative_access_does_not_use_a_device_up() -> None:
    monitor = a_claim("monitor", on=["node-0/gpu-0"], admin_access=True)
    assert states([a_slice()], claims=(monitor,)) == {SupplyState.FREE: 2}


@pytest.mark.parametrize(("effect", "state"), [("None", SupplyState.FREE), ("NoExecute", SupplyState.TAINTED)])
def test_only_blocking_effects_count(effect: str, state: SupplyState) -> None:
    device = a_device(taints=[DeviceTaint(key="example.com/x", effect=effect)])
    assert states([a_slice(devices=[device])]) == {state: 1}


def test_a_device_that_draco_allocates_is_free_to_be_allocated() -> None:
    device = a_device(taints=[DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")])
    assert states([a_slice(devices=[device])]) == {SupplyState.FREE: 1}


def test_a_rule_without_a_selector_hits_nothing_and_an_empty_one_everything() -> None:
    nothing = msgspec.structs.replace(a_rule(), spec=msgspec.structs.replace(a_rule().spec, device_selector=None))
    assert states([a_slice()], rules=(nothing,)) == {SupplyState.FREE: 2}
    assert states([a_slice()], rules=(a_rule(),)) == {SupplyState.TAINTED: 2}


def test_a_rule_for_a_whole_pool_taints_that_pool_alone() -> None:
    rule = a_rule(driver=NVIDIA_DRIVER, pool="node-0")
    assert states([a_slice("node-0"), a_slice("node-1")], rules=(rule,)) == {
        SupplyState.TAINTED: 2,
        SupplyState.FREE: 2,
    }


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (a_node("node-0", ready=False), SupplyState.NODE_NOT_READY),
        (a_node("node-0", unschedulable=True), SupplyState.NODE_CORDONED),
        (a_node("other"), SupplyState.NODE_MISSING),
    ],
)
def test_devices_of_nodes_that_take_no_pods_are_counted_apart(node: Node, state: SupplyState) -> None:
    assert states([a_slice("node-0")], nodes=(node,)) == {state: 2}


def test_devices_of_no_node_need_none() -> None:
    assert states([a_slice("", ["far-0"], pool="fabric", all_nodes=True)], nodes=()) == {SupplyState.FREE: 1}


def test_a_pool_of_which_a_slice_is_missing_is_incomplete() -> None:
    assert states([a_slice("node-0", of=2)]) == {SupplyState.POOL_INCOMPLETE: 2}


def test_an_older_generation_does_not_count() -> None:
    slices = [a_slice("node-0", EIGHT, generation=1), a_slice("node-0", ["gpu-0"], generation=2)]
    assert states(slices) == {SupplyState.FREE: 1}


def test_a_shareable_device_is_not_used_up_by_one_claim() -> None:
    device = a_device("gpu-0", allow_multiple_allocations=True)
    claims = (a_claim("job", on=["node-0/gpu-0"]),)
    assert states([a_slice(devices=[device])], claims=claims) == {SupplyState.FREE: 1}
