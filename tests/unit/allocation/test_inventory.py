"""An inventory that follows slices change by change equals one built from all of them together."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.columns import MAX_COLUMNS, Columns
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.node_selection import selects
from draco.cel import AttributePath
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from draco.resources.api.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
)
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import a_device, a_node, a_rule, a_slice

MODEL = AttributePath("attributes", NVIDIA_DRIVER, "model")


def a_gpu(name: str = "gpu-0", **attributes: Any) -> Device:
    return Device(name=name, attributes={key: DeviceAttribute(string=value) for key, value in attributes.items()})


def the_view(inventory: Inventory, node: str = "node-0") -> Any:
    [view] = inventory.views(a_node(node))
    return view


def names(inventory: Inventory, node: str = "node-0") -> list[str]:
    return [candidate.key.device for view in inventory.views(a_node(node)) for candidate in view.candidates]


slices = st.builds(
    a_slice,
    st.sampled_from(["node-0", "node-1"]),
    st.lists(st.builds(a_gpu, st.sampled_from(["gpu-0", "gpu-1", "gpu-2"]), model=st.sampled_from("AB")), max_size=3),
    name=st.sampled_from(["a", "b", "c"]),
    pool=st.sampled_from(["pool-0", "pool-1"]),
    generation=st.integers(1, 2),
    of=st.integers(1, 2),
)
rules = st.builds(
    a_rule, st.sampled_from(["x", "y"]), pool=st.sampled_from([None, "pool-0"]), device=st.sampled_from([None, "gpu-1"])
)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put_slice"), slices),
        st.tuples(st.just("remove_slice"), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("put_rule"), rules),
        st.tuples(st.just("remove_rule"), st.sampled_from(["x", "y"])),
    ),
    max_size=12,
)


def seen(inventory: Inventory) -> list[Any]:
    """Everything that a search can see, without the numbers of rows and codes."""
    return [
        (view.key, view.incomplete, view.invalid, [(each.key, each.device, each.taints) for each in view.candidates])
        for node in ("node-0", "node-1")
        for view in inventory.views(a_node(node))
    ]


@settings(max_examples=200, deadline=None)
@given(changes)
def test_change_by_change_gives_what_building_anew_gives(steps: list[tuple[str, Any]]) -> None:
    inventory = Inventory()
    known_slices: dict[str, Any] = {}
    known_rules: dict[str, Any] = {}
    for step, what in steps:
        known = known_slices if step.endswith("slice") else known_rules
        if step.startswith("put"):
            known[what.metadata.name] = what
        else:
            known.pop(what, None)
        getattr(inventory, step)(what)
        seen(inventory)  # fills the caches, so that one that is kept too long is noticed
    anew = Inventory()
    for each in known_slices.values():
        anew.put_slice(each)
    for rule in known_rules.values():
        anew.put_rule(rule)
    assert seen(inventory) == seen(anew)
    assert len(inventory) == len(anew) == sum(len(each.spec.devices) for each in known_slices.values())
    codes = inventory.columns.read(MODEL)
    assert codes is not None
    models = {
        (codes.codes[each.row], each.device.attributes["model"].string)
        for node in ("node-0", "node-1")
        for view in inventory.views(a_node(node))
        for each in view.candidates
    }
    assert len(models) == len({code for code, _ in models}) == len({model for _, model in models})


def test_a_device_that_did_not_change_keeps_its_row() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="A"), a_gpu("gpu-1", model="A")]))
    before = [candidate.row for candidate in the_view(inventory).candidates]
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="A"), a_gpu("gpu-1", model="B")]))
    after = [candidate.row for candidate in the_view(inventory).candidates]
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_equal_values_are_kept_once_and_have_one_code() -> None:
    columns = Columns()
    one, first = columns.add("d", a_gpu("a", model="A"))
    other, second = columns.add("d", a_gpu("b", model="A"))
    codes = columns.read(AttributePath("attributes", "d", "model"))
    assert codes is not None
    assert codes.codes[one] == codes.codes[other] != 0
    assert first.attributes["model"] is second.attributes["model"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DeviceAttribute(int_=1), DeviceAttribute(bool_=True)),
        (DeviceAttribute(int_=0), DeviceAttribute(bool_=False)),
        (DeviceAttribute(string="1.0.0"), DeviceAttribute(version="1.0.0")),
    ],
)
def test_values_of_different_types_never_share_a_code(one: DeviceAttribute, other: DeviceAttribute) -> None:
    columns = Columns()
    rows = [columns.add("d", Device(name="a", attributes={"x": value}))[0] for value in (one, other)]
    codes = columns.read(AttributePath("attributes", "d", "x"))
    assert codes is not None
    assert codes.codes[rows[0]] != codes.codes[rows[1]]


def test_a_full_name_and_a_bare_one_in_the_drivers_domain_are_one_path() -> None:
    columns = Columns()
    bare, _ = columns.add("d", a_gpu("a", model="A"))
    full, _ = columns.add("d", a_gpu("b", **{"d/model": "A"}))
    codes = columns.read(AttributePath("attributes", "d", "model"))
    assert codes is not None
    assert codes.codes[bare] == codes.codes[full] != 0


def test_a_code_is_never_used_again_for_another_value() -> None:
    columns = Columns()
    codes = columns.read(AttributePath("attributes", "d", "serial"))
    assert codes is not None
    given_ = set()
    for serial in map(str, range(50)):
        row, kept = columns.add("d", a_gpu("a", serial=serial))
        given_.add(codes.codes[row])
        columns.remove(row, "d", kept)
    assert len(given_) == 50
    assert codes.empty


def test_a_driver_of_countless_attribute_names_gets_no_countless_columns() -> None:
    columns = Columns()
    rows = [columns.add("d", a_gpu("a", **{f"name-{n}": "x"})) for n in range(MAX_COLUMNS + 10)]
    late = AttributePath("attributes", "d", f"name-{MAX_COLUMNS + 9}")
    assert columns.read(late) is None
    for row, device in rows[:-1]:
        columns.remove(row, "d", device)
    assert columns.read(late) is None  # the device with the attribute is still there, without a code
    columns.remove(rows[-1][0], "d", rows[-1][1])
    assert columns.read(late) is not None


def test_devices_whose_attributes_fail_every_selector_are_told_apart() -> None:
    columns = Columns()
    row, kept = columns.add("d", Device(name="a", attributes={"v": DeviceAttribute(version="one")}))
    assert row in columns.irregular
    columns.remove(row, "d", kept)
    assert not columns.irregular


# --- pools ---


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=["old"], name="a", generation=1))
    inventory.put_slice(a_slice(devices=["new"], name="b", generation=2))
    assert names(inventory) == ["new"]
    inventory.remove_slice("b")
    assert names(inventory) == ["old"]


def test_a_pool_with_a_slice_missing_is_incomplete() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(name="a", of=2))
    assert the_view(inventory).incomplete
    inventory.put_slice(a_slice(devices=["gpu-2"], name="b", of=2))
    assert not the_view(inventory).incomplete


def test_a_pool_of_which_another_node_has_a_newer_generation_is_obsolete_if_only_part_of_it_is_here() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice("node-0", ["old"], name="a", pool="p", generation=1, of=2))
    inventory.put_slice(a_slice("node-1", ["new"], name="b", pool="p", generation=2, of=1))
    assert inventory.views(a_node("node-0")) == []
    inventory.put_slice(a_slice("node-0", ["old"], name="a", pool="p", generation=1, of=1))
    assert names(inventory) == ["old"]


@pytest.mark.parametrize(
    ("devices", "counter_sets", "reason"),
    [
        (["gpu-0", "gpu-0"], ["set"], "duplicate device name gpu-0"),
        (["gpu-0"], ["set", "set"], "duplicate counter set name set"),
        (
            [a_device("gpu-0", consumes_counters=[DeviceCounterConsumption(counter_set="no")])],
            [],
            "counter set no not found",
        ),
        (
            [
                a_device(
                    consumes_counters=[DeviceCounterConsumption(counter_set="set", counters={"n": Counter(value="1")})]
                )
            ],
            ["set"],
            "counter n not found in counter set set",
        ),
    ],
)
def test_a_pool_is_invalid(devices: list[Any], counter_sets: list[str], reason: str) -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=devices, name="a", of=2))
    counters = [CounterSet(name=name, counters={"memory": Counter(value="1")}) for name in counter_sets]
    inventory.put_slice(a_slice(devices=[], name="b", of=2, shared_counters=counters))
    assert the_view(inventory).invalid == reason


def test_pools_are_tried_by_driver_and_name_and_those_with_binding_conditions_last() -> None:
    inventory = Inventory()
    for driver, pool in itertools.product(["b.example.com", "a.example.com"], ["q", "p"]):
        binding = ["ready"] if (driver, pool) == ("a.example.com", "p") else []
        device = a_device("gpu", binding_conditions=binding)
        inventory.put_slice(a_slice("node-0", [device], driver=driver, pool=pool, name=f"{driver}-{pool}"))
    assert [str(view.key) for view in inventory.views(a_node("node-0"))] == [
        "a.example.com/q", "b.example.com/p", "b.example.com/q", "a.example.com/p",
    ]  # fmt: skip


def test_slices_are_tried_by_name_and_devices_in_their_order() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=["z", "y"], name="b", of=2))
    inventory.put_slice(a_slice(devices=["x", "w"], name="a", of=2))
    assert names(inventory) == ["x", "w", "z", "y"]


# --- nodes ---


def test_every_kind_of_node_selection_reaches_its_nodes() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice("node-0", ["named"], name="a"))
    inventory.put_slice(a_slice("", ["everywhere"], pool="all", name="b", all_nodes=True))
    per_device = [a_device("mine", node_name="node-0"), a_device("theirs", node_name="node-1")]
    inventory.put_slice(a_slice("", per_device, pool="each", name="c", per_device_node_selection=True))
    term = NodeSelectorTerm(
        match_fields=[NodeSelectorRequirement(key="metadata.name", operator="In", values=["node-1"])]
    )
    selector = NodeSelector(node_selector_terms=[term])
    inventory.put_slice(a_slice("", ["selected"], pool="some", name="d", node_selector=selector))
    inventory.put_slice(a_slice("", ["nobody"], pool="none", name="e"))
    assert names(inventory, "node-0") == ["everywhere", "mine", "theirs", "named"]
    assert names(inventory, "node-1") == ["everywhere", "mine", "theirs", "selected"]
    assert names(inventory, "node-2") == ["everywhere"]


def test_a_device_whose_slice_leaves_its_node_to_it_is_of_that_node() -> None:
    inventory = Inventory()
    devices = [a_device("mine", node_name="node-0"), a_device("anywhere", all_nodes=True)]
    inventory.put_slice(a_slice("", devices, pool="each", per_device_node_selection=True))
    [[mine], [anywhere]] = [inventory.rows(DeviceKey(NVIDIA_DRIVER, "each", each.name)) for each in devices]
    assert [inventory.node_of(row) for row in (mine, anywhere)] == ["node-0", ""]
    assert (inventory.nodes["node-0"], inventory.nodes[""]) == ([mine], [anywhere])


def test_nothing_is_left_of_a_pool_without_slices() -> None:
    inventory = Inventory()
    published = a_slice()
    inventory.put_slice(published)
    inventory.remove_slice(published.metadata.name)
    assert not len(inventory)
    assert not list(inventory.pools)
    assert inventory.pool(PoolKey(NVIDIA_DRIVER, "node-0")) is None


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ["a", "b"], True), ("In", ["b"], False), ("NotIn", ["a"], False), ("NotIn", ["b"], True),
        ("Exists", [], True), ("DoesNotExist", [], False), ("Gt", ["1"], False), ("Lt", ["1"], False),
    ],
)  # fmt: skip
def test_a_label_is_compared(operator: str, values: list[str], holds: bool) -> None:
    node = a_node()
    node.metadata.labels["zone"] = "a"
    expression = NodeSelectorRequirement(key="zone", operator=operator, values=values)
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[expression])])
    assert selects(selector, node) is holds


def test_a_label_key_may_have_a_domain() -> None:
    node = a_node()
    node.metadata.labels["topology.example.com/zone"] = "a"
    expression = NodeSelectorRequirement(key="topology.example.com/zone", operator="In", values=["a"])
    assert selects(NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[expression])]), node)


@pytest.mark.parametrize(
    ("key", "operator", "values"),
    [
        ("zone", "In", []), ("zone", "Exists", ["a"]), ("zone", "Gt", ["one"]), ("zone", "Gt", ["1", "2"]),
        ("zone", "Near", ["a"]), ("-zone", "Exists", []), ("zone", "In", ["-a"]),
        ("-a.example.com/zone", "Exists", []), ("/zone", "Exists", []), ("a/b/zone", "Exists", []),
    ],
)  # fmt: skip
def test_a_node_selector_that_is_not_valid_is_an_error(key: str, operator: str, values: list[str]) -> None:
    expression = NodeSelectorRequirement(key=key, operator=operator, values=values)
    with pytest.raises(AllocationError):
        selects(NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[expression])]), a_node())


# --- taints ---


def test_taints_come_from_slices_and_rules_and_only_those_that_keep_claims_away() -> None:
    own = [DeviceTaint(key="own", effect="NoSchedule"), DeviceTaint(key="noted", effect="None")]
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_device("gpu-0", taints=own), a_device("gpu-1")]))
    inventory.put_rule(a_rule("rule", device="gpu-1"))
    first, second = the_view(inventory).candidates
    assert [taint.key for taint in first.taints] == ["own"]
    assert len(second.taints) == 1
    inventory.remove_rule("rule")
    assert not the_view(inventory).candidates[1].taints


def test_capacity_is_kept_with_its_own_policy() -> None:
    columns = Columns()
    plain = DeviceCapacity(value="1Gi")
    _, first = columns.add("d", Device(name="a", capacity={"memory": plain}))
    _, second = columns.add("d", Device(name="b", capacity={"memory": DeviceCapacity(value="1024Mi")}))
    assert first.capacity["memory"] == plain
    assert second.capacity["memory"].value == "1024Mi"


@pytest.mark.parametrize("distinct", [3, 300, 9000])
def test_one_row_is_told_for_each_value_that_marked_rows_have(distinct: int) -> None:
    inventory = Inventory()
    products = [str(number % distinct) for number in range(9500)]
    for start in range(0, len(products), 100):
        gpus = [
            a_device(f"gpu-{start}-{n}", product=product) for n, product in enumerate(products[start : start + 100])
        ]
        inventory.put_slice(a_slice(f"node-{start}", [*gpus, Device(name=f"other-{start}")], name=str(start)))
    column = inventory.columns.read(AttributePath("attributes", NVIDIA_DRIVER, "productName"))
    assert column is not None
    marks = bytes(bool(live) and row % 3 != 0 for row, live in enumerate(inventory.columns.live))
    code_of = {row: code for row, code in enumerate(column.codes) if marks[row] and code}
    told = column.examples(marks, 2000)
    in_order = list(dict.fromkeys(code_of.values()))
    assert [code_of[row] for row in told] == in_order[:2000]
