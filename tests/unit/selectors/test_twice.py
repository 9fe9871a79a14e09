"""A name that a device publishes with and without its driver's domain: the one with the domain wins, everywhere."""

import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.cel import compile_selector, device_view
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.selectors.known_names import published_twice
from draco.whatif.world import of_files
from tests.builders import a_node, a_slice

DRIVER = "gpu.nvidia.com"
FULL = f"{DRIVER}/model"


def a_text(value: str) -> DeviceAttribute:
    return DeviceAttribute(string=value)


@pytest.mark.parametrize("names", [("model", FULL), (FULL, "model")])
def test_a_selector_meets_the_one_with_the_domain_in_whichever_order(names: tuple[str, str]) -> None:
    values = {"model": a_text("bare"), FULL: a_text("full")}
    device = Device(name="gpu-0", attributes={name: values[name] for name in names})
    assert compile_selector(f'device.attributes["{DRIVER}"].model == "full"').matches(device_view(DRIVER, device))


def test_only_what_differs_is_told() -> None:
    same = Device(name="gpu-0", attributes={"model": a_text("a"), FULL: a_text("a")})
    other = Device(name="gpu-0", attributes={"model": a_text("a"), "b.example.com/model": a_text("b")})
    amounts = Device(
        name="gpu-0", capacity={"memory": DeviceCapacity(value="1"), f"{DRIVER}/memory": DeviceCapacity(value="2")}
    )
    assert [published_twice(DRIVER, each) for each in (same, other, amounts)] == [[], [], ["memory"]]


def test_a_fleet_counts_them_as_they_come_and_go() -> None:
    twice = Device(
        name="gpu-0",
        attributes={"model": a_text("a"), FULL: a_text("b")},
        capacity={"memory": DeviceCapacity(value="1"), f"{DRIVER}/memory": DeviceCapacity(value="2")},
    )
    fleet = Fleet.of(slices=[a_slice("node-0", [twice])], nodes=[a_node()])
    assert {path.id: count for path, count in fleet.inventory.columns.twice.items()} == {"model": 1, "memory": 1}
    fleet.put_slice(a_slice("node-0", [Device(name="gpu-0", attributes={"model": a_text("a"), FULL: a_text("a")})]))
    assert +fleet.inventory.columns.twice == {}


def test_what_is_imagined_of_files_says_so() -> None:
    published = a_slice("node-0", [Device(name="gpu-0", attributes={"model": a_text("a"), FULL: a_text("b")})])
    assert any(
        "node-0/gpu-0 is published with different values of model and" in each
        for each in of_files([(published, "a file")]).notes
    )
    plain = a_slice("node-0", [Device(name="gpu-0", attributes={"model": a_text("a")})])
    assert not any("different values of" in each for each in of_files([(plain, "a file")]).notes)
