"""A fleet followed change by change, and who holds what."""

import itertools
from collections.abc import Iterator

import pytest

from draco.allocation.errors import AllocationError
from draco.allocation.fitting import first_fitting
from draco.allocation.fleet import Fleet
from draco.resources.classes import DeviceClass
from draco.resources.meta import ObjectKey, ObjectMeta
from draco.resources.names import NVIDIA_DEVICE_CLASS
from tests.builders import a_claim, a_device_key, a_node, a_rule, a_slice

CLASS = DeviceClass(metadata=ObjectMeta(name=NVIDIA_DEVICE_CLASS))


def ids() -> Iterator[str]:
    return map(str, itertools.count())


def test_a_fleet_knows_what_it_was_given_and_forgets_what_is_removed() -> None:
    claim = a_claim(on=["node-0/gpu-0"])
    fleet = Fleet.of(slices=[a_slice()], rules=[a_rule()], nodes=[a_node()], classes=[CLASS], claims=[claim])
    assert len(fleet.inventory) == 2
    assert fleet.node_names == ["node-0"]
    assert dict(fleet.nodes) == {"node-0": a_node()}
    assert dict(fleet.classes) == {NVIDIA_DEVICE_CLASS: CLASS}
    assert dict(fleet.claims) == {claim.metadata.key: claim}
    for _ in range(2):  # what is not known is removed without complaint
        fleet.remove_slice(a_slice().metadata.name)
        fleet.remove_rule("rule")
        fleet.remove_node("node-0")
        fleet.remove_class(NVIDIA_DEVICE_CLASS)
        fleet.remove_claim(claim.metadata.key)
    assert len(fleet.inventory) == 0
    assert not fleet.node_names
    assert not fleet.nodes
    assert not fleet.classes
    assert not fleet.claims
    assert not list(fleet.state.devices())


def test_holders_are_the_claims_that_hold_a_device_or_a_share_of_it() -> None:
    device = a_device_key("node-0/gpu-0")
    fleet = Fleet.of(
        claims=[a_claim(name, on=["node-0/gpu-0"]) for name in ("b", "a")]
        + [a_claim("looks", on=["node-0/gpu-0"], admin_access=True), a_claim("waits")]
    )
    assert fleet.holders(device) == [ObjectKey("default", "a"), ObjectKey("default", "b")]
    fleet.remove_claim(ObjectKey("default", "a"))
    assert fleet.holders(device) == [ObjectKey("default", "b")]
    fleet.put_claim(a_claim("b", on=["node-0/gpu-1"]))
    assert fleet.holders(device) == []
    assert fleet.holders(a_device_key("node-0/gpu-1")) == [ObjectKey("default", "b")]


def test_the_first_node_by_name_that_fits_is_found() -> None:
    fleet = Fleet.of(
        slices=[a_slice(node) for node in ("node-c", "node-a", "node-b")],
        nodes=[a_node(node) for node in ("node-c", "node-a", "node-b")],
        classes=[CLASS],
        claims=[a_claim("holds", on=["node-a/gpu-0", "node-a/gpu-1"])],
    )
    found = first_fitting(fleet, [a_claim()], share_ids=ids())
    assert found is not None
    node, [result] = found
    assert node.metadata.name == "node-b"
    assert [device.pool for device in result.devices.results] == ["node-b"]


def test_nodes_are_tried_in_the_order_in_which_they_are_given() -> None:
    fleet = Fleet.of(slices=[a_slice(node) for node in ("node-a", "node-b")], classes=[CLASS])
    nodes = [a_node("node-z"), a_node("node-b"), a_node("node-a")]
    found = first_fitting(fleet, [a_claim()], nodes, share_ids=ids())
    assert found is not None
    assert found[0] == nodes[1]
    assert first_fitting(fleet, [a_claim()], nodes[:1], share_ids=ids()) is None


def test_an_invalid_pool_rules_out_its_node_only() -> None:
    broken = a_slice("node-a", ["gpu-0", "gpu-0"])
    fleet = Fleet.of(slices=[broken, a_slice("node-b")], nodes=[a_node("node-a"), a_node("node-b")], classes=[CLASS])
    found = first_fitting(fleet, [a_claim()], share_ids=ids())
    assert found is not None
    assert found[0].metadata.name == "node-b"
    fleet.remove_slice(a_slice("node-b").metadata.name)
    assert first_fitting(fleet, [a_claim()], share_ids=ids()) is None


def test_an_error_that_no_node_can_help_is_raised() -> None:
    fleet = Fleet.of(slices=[a_slice()], nodes=[a_node()])
    with pytest.raises(AllocationError, match="could not retrieve device class"):
        first_fitting(fleet, [a_claim()], share_ids=ids())
