"""Selectors scanned over all devices give the same result as asking each device."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.allocation.fleet.columns import MAX_COLUMNS, Columns
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.selectors import FAILS, MAX_SCANS, NO, YES
from draco.cel import AttributePath, compile_selector, device_view
from draco.cel.errors import CompileError, EvaluationError
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from tests.builders import a_slice

D = "gpu.nvidia.com"
OF_D = f"device.attributes['{D}']"
EXPRESSIONS = [
    "true",
    f"device.driver == '{D}'",
    f"{OF_D}.model == 'A'",
    f"{OF_D}.?model.orValue('A') == 'A' && {OF_D}.serial.endsWith('1')",
    f"'model' in {OF_D} ? {OF_D}.model == 'B' : device.capacity['{D}'].memory.compareTo(quantity('2Gi')) > 0",
    f"{OF_D}.exists(name, name == 'serial')",
    f"{OF_D}.cc.isGreaterThan(semver('1.5.0'))",
    "device.allowMultipleAllocations",
    "device.attributes['other'].model == 'A'",
]


def a_gpu(name: str, **values: Any) -> Device:
    attributes: dict[str, DeviceAttribute] = {
        key: DeviceAttribute(string=values[key]) for key in ("model", "serial", "other/model") if key in values
    }
    if "cc" in values:
        attributes["cc"] = DeviceAttribute(version=values["cc"])
    capacity = {"memory": DeviceCapacity(value=values["memory"])} if "memory" in values else {}
    shareable = values.get("shareable")
    return Device(name=name, attributes=attributes, capacity=capacity, allow_multiple_allocations=shareable)


devices = st.builds(
    lambda name, values: a_gpu(name, **values),
    st.sampled_from(["gpu-0", "gpu-1", "gpu-2", "gpu-3"]),
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.sampled_from("ABC"),
            "serial": st.integers(0, 400).map(str),
            "other/model": st.sampled_from("AB"),
            "memory": st.sampled_from(["1Gi", "4Gi"]),
            "cc": st.sampled_from(["1.0.0", "2.0.0", "no version"]),
            "shareable": st.booleans(),
        },
    ),
)
slices = st.builds(
    a_slice,
    st.sampled_from(["node-0", "node-1"]),
    st.lists(devices, max_size=4),
    driver=st.sampled_from([D, "other"]),
    name=st.sampled_from(["a", "b", "c"]),
)


def asked_of_each(expression: str, columns: Columns) -> list[int]:
    outcomes = []
    selector = compile_selector(expression)
    for row, device in enumerate(columns.devices):
        try:
            selected = device is not None and selector.matches(device_view(columns.drivers[row], device))
        except EvaluationError:
            outcomes.append(FAILS)
        else:
            outcomes.append(YES if selected else NO)
    return outcomes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(slices, st.sampled_from(["a", "b", "c"])), max_size=8), st.sampled_from(EXPRESSIONS))
def test_a_scan_says_what_asking_of_each_device_says(changes: list[Any], expression: str) -> None:
    inventory = Inventory()
    for change in changes:
        if isinstance(change, str):
            inventory.remove_slice(change)
        else:
            inventory.put_slice(change)
        assert list(inventory.selectors.scan(expression).outcomes) == asked_of_each(expression, inventory.columns)


COMPARISONS = [
    f"{OF_D}.serial == '7'",
    f"{OF_D}.serial != '7' && {OF_D}.model == 'A'",
    f"{OF_D}.?serial.orValue('7') in ['7', '8', 'none']",
    f"has({OF_D}.serial)",
    f"has({OF_D}.serial) ? '7' == {OF_D}.serial : {OF_D}.model != 'A'",
    f"{OF_D}.serial == '7' || {OF_D}.serial.endsWith('1')",
    f"{OF_D}.serial > '7' || {OF_D}.serial == '1'",
]
serials = st.one_of(
    st.none(),
    st.sampled_from(["7", "8", "9", "17", "new"]).map(lambda text: DeviceAttribute(string=text)),
    st.sampled_from([7, 8]).map(lambda number: DeviceAttribute(int_=number)),
    st.sampled_from(["7.0.0", "7"]).map(lambda text: DeviceAttribute(version=text)),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(serials, st.sampled_from("AB")), max_size=4), st.sampled_from(COMPARISONS))
def test_a_comparison_of_serial_numbers_says_what_asking_of_each_device_says(
    changes: list[Any], expression: str
) -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu(f"gpu-{n}", serial=str(n), model="AB"[n % 2]) for n in range(300)]))
    assert list(inventory.selectors.scan(expression).outcomes) == asked_of_each(expression, inventory.columns)
    for serial, model in changes:
        attributes = {"model": DeviceAttribute(string=model)} | ({} if serial is None else {"serial": serial})
        inventory.put_slice(a_slice("node-1", [Device(name="gpu-0", attributes=attributes)]))
        assert list(inventory.selectors.scan(expression).outcomes) == asked_of_each(expression, inventory.columns)


@pytest.mark.parametrize("gpus", [100, 1000])
def test_devices_are_not_told_apart_by_serial_numbers_that_a_selector_does_not_name(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    seen: list[str] = []

    def view(driver: str, device: Device) -> Any:
        seen.append(device.name)
        return device_view(driver, device)

    monkeypatch.setattr("draco.allocation.fleet.selectors.device_view", view)
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu(f"gpu-{n}", serial=str(n)) for n in range(gpus)]))
    assert sum(scanned(inventory, f"{OF_D}.serial == '7'")) == 1
    assert len(seen) == 2
    inventory.put_slice(a_slice("node-1", [a_gpu("gpu-0", serial="7")]))
    assert sum(scanned(inventory, f"{OF_D}.serial == '7'")) == 2
    assert len(seen) == 2


def scanned(inventory: Inventory, expression: str) -> list[int]:
    """The outcomes of all devices, in row order."""
    scan = inventory.selectors.scan(expression)
    return [scan.outcomes[row] for row, live in enumerate(inventory.columns.live) if live]


def test_a_selector_is_evaluated_once_for_each_combination_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def view(driver: str, device: Device) -> Any:
        seen.append(device.name)
        return device_view(driver, device)

    monkeypatch.setattr("draco.allocation.fleet.selectors.device_view", view)
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu(f"gpu-{n}", model="AB"[n % 2], serial=str(n)) for n in range(100)]))
    inventory.selectors.scan(f"{OF_D}.model == 'A'")
    assert len(seen) == 2
    inventory.put_slice(a_slice("node-1", [a_gpu("gpu-0", model="A")]))
    assert sum(scanned(inventory, f"{OF_D}.model == 'A'")) == 51
    assert len(seen) == 2


def test_a_scan_is_kept_until_a_device_changes() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="A")]))
    first = inventory.selectors.scan("true")
    assert inventory.selectors.scan("true") is first
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="B")]))
    assert inventory.selectors.scan("true") is not first


def test_a_scan_of_more_values_than_a_byte_has_is_right_while_values_come_and_go() -> None:
    inventory = Inventory()
    for n in range(300):
        inventory.put_slice(a_slice("node", [a_gpu("gpu-0", serial=str(n), model="A")], name="one"))
        assert scanned(inventory, f"{OF_D}.serial == '{n}'") == [YES]
    inventory.put_slice(a_slice("node", [a_gpu(f"gpu-{n}", serial=str(n)) for n in range(300)], name="one"))
    assert sum(scanned(inventory, f"{OF_D}.serial.endsWith('7')")) == 30
    inventory.put_slice(a_slice("node", [a_gpu(f"gpu-{n}", serial=str(n % 7)) for n in range(300)], name="one"))
    assert sum(scanned(inventory, f"{OF_D}.serial == '3'")) == 43


def test_a_selector_that_does_not_compile_cannot_be_scanned() -> None:
    for _ in range(2):
        with pytest.raises(CompileError):
            Inventory().selectors.scan("device.nothing")


def test_what_has_no_column_is_evaluated_on_each_device() -> None:
    inventory = Inventory()
    many = {f"name-{n}": DeviceAttribute(int_=n) for n in range(MAX_COLUMNS + 1)}
    inventory.put_slice(a_slice(devices=[Device(name="gpu-0", attributes=many), Device(name="gpu-1")]))
    last = f"name-{MAX_COLUMNS}"
    assert inventory.columns.read(AttributePath("attributes", D, last)) is None
    assert scanned(inventory, f"device.attributes['{D}'][?'{last}'].orValue(0) == {MAX_COLUMNS}") == [YES, NO]


def test_what_is_kept_of_selectors_is_bounded_however_many_there_are() -> None:
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="A")]))
    kept = [inventory.selectors.scan(f"{OF_D}.model != 'N{number}'") for number in range(MAX_SCANS)]
    assert inventory.selectors.scan(f"{OF_D}.model != 'N0'") is kept[0]
    inventory.selectors.scan("true")
    assert inventory.selectors.scan(f"{OF_D}.model != 'N0'") is kept[0]
    assert inventory.selectors.scan(f"{OF_D}.model != 'N1'") is not kept[1], "the longest not asked for is forgotten"


def test_long_selectors_are_kept_up_to_so_many_characters_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one tenant's selectors would fill a worker's memory, and the next question there would count as too large."""
    monkeypatch.setattr("draco.allocation.fleet.selectors.MAX_CHARACTERS", 10_000)
    compiled: list[str] = []

    def compile_counted(expression: str) -> Any:
        compiled.append(expression)
        return compile_selector(expression)

    monkeypatch.setattr("draco.allocation.fleet.selectors.compile_selector", compile_counted)
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="A")]))
    for number in range(40):
        assert scanned(inventory, f"{OF_D}.model == '{number}{'x' * 1_000}'") == [NO]
        assert sum(map(len, inventory.selectors._entries)) <= 10_000
    assert scanned(inventory, compiled[-1]) == [NO]
    assert len(compiled) == 40, "the last ones are kept"


def test_attributes_that_nobody_publishes_take_no_memory_without_bound_and_no_place_from_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("draco.allocation.fleet.columns.MAX_COLUMNS", 20)
    monkeypatch.setattr("draco.allocation.fleet.selectors.MAX_UNPUBLISHED", 8)
    inventory = Inventory()
    inventory.put_slice(a_slice(devices=[a_gpu("gpu-0", model="A")]))
    for number in range(30):
        assert scanned(inventory, f"{OF_D}[?'name-{number}'].orValue('') == 'x'") == [NO]
        assert inventory.columns.unpublished <= 9
    late = {f"name-{number}": DeviceAttribute(string="x") for number in (0, 29)}
    inventory.put_slice(a_slice(devices=[Device(name="gpu-0", attributes=late)]))
    for number in (0, 29):
        assert inventory.columns.get(AttributePath("attributes", D, f"name-{number}")) is not None
        assert scanned(inventory, f"{OF_D}[?'name-{number}'].orValue('') == 'x'") == [YES]


def test_marks_follow_rows_and_are_wiped_with_them() -> None:
    inventory = Inventory()
    marks = inventory.columns.new_marks()
    for n in itertools.count():
        if len(inventory) > 3000:
            break
        inventory.put_slice(a_slice(f"node-{n}", [a_gpu(f"gpu-{i}") for i in range(100)]))
    assert len(marks) == inventory.columns.rows == len(inventory.columns.live)
    marks[:] = inventory.columns.live
    inventory.remove_slice(a_slice("node-1").metadata.name)
    assert sum(marks) == sum(inventory.columns.live) == len(inventory)
