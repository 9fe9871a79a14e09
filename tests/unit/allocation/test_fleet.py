"""A fleet that follows changes one by one, and who holds its devices."""

import itertools
import random
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.capacity import arithmetic, is_left, most, taken
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.fleet import FREE, HELD, SHARED, Fleet
from draco.allocation.fleet.node_rows import NodeRows
from draco.allocation.fleet.pools import Pool, SliceState, is_device_for
from draco.allocation.search.allocate import first_fitting
from draco.resources.api.claims import CapacityRequirements, DeviceClass
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.slices import CapacityRange, CapacityRequestPolicy, Device, DeviceCapacity
from draco.resources.names import NVIDIA_DEVICE_CLASS
from tests.builders import a_claim, a_device_key, a_node, a_rule, a_slice, as_shares
from tests.mig_claims import a_mig_claim, a_mig_pool
from tests.unit.allocation.worlds import a_world, put, remove

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
    for _ in range(2):  # removing what is unknown is no error
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


def test_a_share_in_transfer_between_two_claims_is_consumed_once() -> None:
    device = a_device_key("node-0/gpu-0")
    fleet = Fleet()
    gib = 10**9 << 30
    for name, share_id in (("gives", "one"), ("takes", "one"), ("other", "two")):
        fleet.put_claim(as_shares(a_claim(name, on=["node-0/gpu-0"]), share_id, memory="10Gi"))
    assert fleet.state.consumed(device) == {"memory": 20 * gib}
    fleet.remove_claim(ObjectKey("default", "gives"))
    assert fleet.state.consumed(device) == {"memory": 20 * gib}
    fleet.remove_claim(ObjectKey("default", "takes"))
    assert fleet.state.consumed(device) == {"memory": 10 * gib}


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


def rows_of(fleet: Fleet) -> Counter[Any]:
    """What is known of each row, without the row numbers."""
    inventory, slice_states, short = fleet.inventory, fleet.inventory.slice_states, fleet.short
    rows = [row for row, live in enumerate(inventory.columns.live) if live]
    taints = inventory.taints.codes
    alike = {code: inventory.taints_of(row) for row in rows if (code := taints[row])}
    for row in rows:
        meaning = [(taint.key, taint.value, taint.effect) for taint in inventory.taints_of(row)]
        same = [(taint.key, taint.value, taint.effect) for taint in alike.get(taints[row], ())]
        assert meaning == same
    return Counter(
        (
            inventory.key(row), repr(inventory.columns.devices[row]), inventory.node_of(row), fleet.held[row],
            slice_states[row], short[row], fleet.arithmetic[row], repr(inventory.taints_of(row)),
            row in inventory.nodes[inventory.node_of(row)], row in inventory.rows(inventory.key(row)),
        )
        for row in rows
    )  # fmt: skip


def seen(fleet: Fleet) -> Any:
    """Everything that a fleet can be asked."""
    return (
        rows_of(fleet),
        fleet.node_names,
        [fleet.nodes, fleet.classes, fleet.claims],
        {device: (fleet.holders(device), fleet.state.consumed(device)) for device in fleet.state.devices()},
        {node: len(fleet.inventory.nodes[node]) for node in ("", *fleet.node_names)},
        fleet.inventory.has_invalid_node_selectors,
    )


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(number=st.integers(0, (1 << 64) - 1))
def test_a_fleet_that_followed_changes_is_as_one_built_at_once(number: int) -> None:
    source = random.Random(number)
    objects, _ = a_world(source)
    other, _ = a_world(source)
    fleet = Fleet()
    known: dict[tuple[str, ...], Any] = {}
    for raw in source.sample([*objects, *other, *objects], 2 * len(objects) + len(other)):
        meta = raw["metadata"]
        name = (raw["kind"], meta.get("namespace", ""), meta["name"])
        if source.random() < 0.3:
            remove(fleet, raw)
            known.pop(name, None)
        else:
            put(fleet, raw)
            known[name] = raw
        if source.random() < 0.1:
            rows_of(fleet)  # brought up to date only when asked for
    anew = Fleet()
    for raw in known.values():
        put(anew, raw)
    for told, expected in zip(seen(fleet), seen(anew), strict=True):
        assert told == expected


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(number=st.integers(0, (1 << 64) - 1))
def test_what_is_known_of_rows_is_what_is_known_of_their_devices(number: int) -> None:
    objects, _ = a_world(random.Random(number))
    fleet = Fleet()
    for raw in objects:
        put(fleet, raw)
    inventory, slice_states, short = fleet.inventory, fleet.inventory.slice_states, fleet.short
    tried = {}
    if not inventory.has_invalid_node_selectors:
        for node in fleet.nodes.values():
            views = inventory.views(node)
            counters = Counters(views, fleet.state)
            for view in views:
                for candidate in view.candidates:
                    takes = bool(candidate.device.consumes_counters)
                    paid = candidate.device.allow_multiple_allocations and fleet.state.shares(candidate.key)
                    tried[candidate.row] = not takes or bool(paid) or counters.suffice(candidate)
                    if not candidate.spec.per_device_node_selection or is_device_for(candidate.device, node):
                        assert inventory.node_of(candidate.row) in {"", node.metadata.name}
    for row in [row for row, live in enumerate(inventory.columns.live) if live]:
        key, device = inventory.key(row), inventory.columns.devices[row]
        assert device is not None
        held = HELD if fleet.state.holds(key) else SHARED if fleet.state.shares(key) else FREE
        assert fleet.held[row] == held
        assert fleet.arithmetic[row] == arithmetic(device)
        if short[row] and row in tried:
            assert not tried[row]
        specs = [entry.spec for entry in inventory.pool(key[:2]).entries]  # type: ignore[union-attr,arg-type]
        if row in tried and all(spec.node_name or spec.all_nodes for spec in specs):
            assert slice_states[row] == SliceState.CURRENT
        newest = max(spec.pool.generation for spec in specs)
        assert slice_states[row] != SliceState.OBSOLETE or inventory.entry(row).spec.pool.generation < newest


def test_a_partition_is_short_of_counters_while_another_holds_them() -> None:
    partitions: list[Any] = [
        {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": amount}}}]}
        for name, amount in (("half-0", "2"), ("half-1", "2"), ("whole", "4"))
    ]
    counters = {"sharedCounters": [{"name": "card", "counters": {"slices": {"value": "4"}}}]}
    fleet = Fleet()
    put(fleet, published("devices", {"devices": partitions}))
    put(fleet, published("counters", counters))
    assert shorts(fleet) == []
    fleet.put_claim(a_claim(on=["d/p/half-0"]))
    assert shorts(fleet) == ["half-0", "whole"] or shorts(fleet) == ["whole"]
    fleet.put_claim(a_claim("other", on=["d/p/half-1"]))
    assert "whole" in shorts(fleet)
    fleet.remove_slice("counters")
    assert shorts(fleet) == []
    put(fleet, published("counters", counters))
    fleet.remove_claim(ObjectKey("default", "claim"))
    fleet.remove_claim(ObjectKey("default", "other"))
    assert shorts(fleet) == []


def published(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": "d", "nodeName": "node-0", "pool": pool, **spec},
    }


def shorts(fleet: Fleet) -> list[str]:
    return sorted(fleet.inventory.key(row).device for row, short in enumerate(fleet.short) if short)


def test_devices_stand_in_their_pool_as_its_newest_generation_does() -> None:
    fleet = Fleet.of(slices=[a_slice()])

    def stand() -> set[tuple[int, str]]:
        live, slice_states = fleet.inventory.columns.live, fleet.inventory.slice_states
        rows = [row for row in range(len(live)) if live[row]]
        return {(fleet.inventory.entry(row).spec.pool.generation, SliceState(slice_states[row]).name) for row in rows}

    assert stand() == {(1, "CURRENT")}
    fleet.put_slice(a_slice(generation=2, of=2))
    assert stand() == {(1, "OBSOLETE"), (2, "INCOMPLETE")}
    fleet.put_slice(a_slice(generation=2, of=2, name="rest"))
    assert stand() == {(1, "OBSOLETE"), (2, "INVALID")}  # the devices of the new slices have the same names
    fleet.put_slice(a_slice(devices=["gpu-2"], generation=2, of=2, name="rest"))
    assert stand() == {(1, "OBSOLETE"), (2, "CURRENT")}
    fleet.remove_slice(a_slice().metadata.name)
    assert stand() == {(2, "CURRENT")}


def test_nodes_are_told_apart_by_what_a_column_has_for_their_devices() -> None:
    fleet = Fleet.of(
        slices=[a_slice(f"node-{n}", ["gpu-0", "gpu-1", "gpu-2"]) for n in range(4)]
        + [a_slice("", ["x"], pool="network", all_nodes=True)],
        claims=[a_claim("a", on=["node-1/gpu-0", "node-2/gpu-2"]), a_claim("b", on=["node-3/gpu-1", "node-3/gpu-2"])],
    )
    names = ["node-3", "node-2", "node-1", "node-0", "unknown"]
    assert fleet.inventory.nodes.profiles(fleet.held, names) == {
        bytes([0, 1, 1]): ["node-3"],
        bytes([0, 0, 1]): ["node-2"],
        bytes([1, 0, 0]): ["node-1"],
        bytes([0, 0, 0]): ["node-0"],
        b"": ["unknown"],
    }
    assert len(fleet.inventory.nodes[""]) == 1


def test_columns_are_read_node_by_node_while_slices_come_and_go() -> None:
    fleet = Fleet()
    for n in (0, 1, 0, 2, 1):
        for part in range(2):
            devices = [f"gpu-{part}-{n}-{i}" for i in range(2 + n)]
            fleet.put_slice(a_slice(f"node-{n}", devices, name=f"{n}-{part}", of=2))
        fleet.put_slice(a_slice("", [f"x-{i}" for i in range(n + 1)], pool="network", all_nodes=True))
        inventory = fleet.inventory
        column = bytes(row % 251 for row in range(inventory.columns.rows))
        for name in ["", "node-0", "node-1", "node-2", "unknown"]:
            there = [column[row] for row in inventory.nodes[name]]
            assert list(inventory.nodes.profiles(column, [name])) == [bytes(there)]
            assert inventory.nodes.read(name, bytearray(column)) == bytes(there)
            assert inventory.nodes.read(name, array("i", list(column))) == tuple(there)
    fleet.remove_slice("0-1")
    assert len(fleet.inventory.nodes.read("node-0", bytes(inventory.columns.rows))) == 2


def test_the_pools_that_are_not_plain_are_known_after_each_change() -> None:
    fleet = Fleet()
    others = fleet.inventory.others

    def known() -> set[str]:
        assert fleet.inventory.others == {pool.key: pool for pool in fleet.inventory.pools if not pool.plain}
        return {key.pool for key in fleet.inventory.others}

    fleet.put_slice(a_slice("node-0", ["gpu-0"]))
    assert known() == set()
    fleet.put_slice(a_slice("", ["x"], pool="network", all_nodes=True))
    assert known() == {"network"}
    fleet.put_slice(a_slice("node-0", ["gpu-0"], of=2))
    assert known() == {"network", "node-0"}
    fleet.put_slice(a_slice("node-0", ["gpu-0"]))
    fleet.remove_slice("unknown")
    assert known() == {"network"}
    fleet.remove_slice(a_slice("", ["x"], pool="network", all_nodes=True).metadata.name)
    assert known() == set()
    assert not others


def test_nothing_is_left_to_be_worked_out_in_a_fleet_that_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a settled fleet answer without computing what the fleet itself could have computed."""
    worked: list[str] = []
    for owner, name in ((Fleet, "_count_again"), (NodeRows, "_look_up"), (Pool, "slice_states")):
        monkeypatch.setattr(owner, name, noting(worked, name, getattr(owner, name)))
    fleet = Fleet.of(nodes=[a_node()], classes=[CLASS])
    pools = [each for number in range(3) for each in a_mig_pool(f"node-{number}", 1)]
    held = a_mig_claim("held", "1g.10gb", "0:1g.10gb@0")
    for change in (
        *(partial(fleet.put_slice, each) for each in [*pools, a_slice("node-9")]),
        partial(fleet.put_claim, held),
        partial(fleet.remove_slice, a_slice("node-9").metadata.name),
    ):
        change()
        fleet.settle()
        worked.clear()
        answers = (fleet.short, fleet.inventory.slice_states, dict(fleet.inventory.others))
        marks = bytes(len(fleet.inventory))
        assert {node: fleet.inventory.nodes.read(node, marks) for node in fleet.inventory.nodes.names}
        assert worked == []
        fleet.settle()
        assert (fleet.short, fleet.inventory.slice_states, dict(fleet.inventory.others)) == answers


def noting(worked: list[str], name: str, function: Any) -> Any:
    def noted(*arguments: Any) -> Any:
        worked.append(name)
        return function(*arguments)

    return noted


@pytest.mark.parametrize(
    ("policy", "largest"),
    [
        (None, "81559Mi"),
        (CapacityRequestPolicy(default="1Gi"), "81559Mi"),
        (CapacityRequestPolicy(default="1Gi", valid_range=CapacityRange(min="1Gi", step="1Gi")), "79Gi"),
        (CapacityRequestPolicy(default="3Gi", valid_range=CapacityRange(min="3Gi", step="5Gi")), "78Gi"),
        (CapacityRequestPolicy(default="1Gi", valid_range=CapacityRange(min="1Gi", max="40Gi")), "40Gi"),
        (CapacityRequestPolicy(default="1Gi", valid_range=CapacityRange(min="1Gi", max="40Gi", step="1Gi")), "40Gi"),
        (CapacityRequestPolicy(default="8Gi", valid_values=["8Gi", "40Gi", "80Gi"]), "40Gi"),
    ],
)
def test_the_most_of_a_capacity_is_what_still_fits_when_it_is_rounded_up(
    policy: CapacityRequestPolicy | None, largest: str
) -> None:
    capacity = DeviceCapacity(value="81559Mi", request_policy=policy)
    device = Device(name="gpu-0", allow_multiple_allocations=True, capacity={"memory": capacity})
    assert str(most(capacity)) == largest

    def fits(bytes_: int) -> bool:
        amounts = taken(CapacityRequirements(requests={"memory": str(bytes_)}), device)
        return amounts is not None and is_left(amounts, device)

    assert fits(most(capacity).value())
    assert not fits(most(capacity).value() + 1)
