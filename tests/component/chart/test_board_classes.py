"""DeviceClasses per board: one for whole GPUs and one for each MIG profile in the table of known boards."""

import json
import re
from typing import Any

import msgspec
import pytest
import yaml

from draco.allocation.ownership.classes import OfDriver, class_fault
from draco.cel import compile_selector, device_view
from draco.linting.rules.classes import sample_devices
from draco.mig.known_boards import BOARDS
from draco.resources.api.claims import DeviceClass
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.names import ATTRIBUTE_ALLOCATOR, NVIDIA_DRIVER
from draco_local.cluster.controlplane import ControlPlane
from scripts import render_manifests
from tests.component.chart.rendering import CHART, refusal, render
from tests.requests import call

FAMILIES: dict[str, dict[str, Any]] = yaml.safe_load((CHART / "files" / "boards.yaml").read_text())
OF_A_BOARD = re.compile(r"(gpu|mig-[a-z0-9.-]+?)\.(" + "|".join(FAMILIES) + r")\.draco\.dev")


def classes(*boards: str) -> dict[str, dict[str, Any]]:
    """The chart's classes for these boards, by name."""
    wanted = ("--set", f"operator.boardClasses={{{','.join(boards)}}}") if boards else ()
    rendered = render("--set", "operator.allocate=true", *wanted)
    found = {each["metadata"]["name"]: each for each in rendered if each["kind"] == "DeviceClass"}
    return {name: each for name, each in found.items() if OF_A_BOARD.fullmatch(name)}


def handed_over() -> list[Device]:
    own = {ATTRIBUTE_ALLOCATOR: DeviceAttribute(string="operator")}
    return [msgspec.structs.replace(each, attributes=each.attributes | own) for each in sample_devices()]


def test_the_chart_knows_the_boards_of_the_table() -> None:
    assert (CHART / "files" / "boards.yaml").read_text() == render_manifests.boards()
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["operator"]["properties"]["boardClasses"]["items"]["enum"]
    assert known == sorted(FAMILIES)
    assert {name for each in FAMILIES.values() for name in each["profiles"]} == {
        profile.name for board in BOARDS.values() for profile in board.profiles
    }


def test_without_being_asked_for_there_are_none() -> None:
    assert classes() == {}
    assert "operator.boardClasses needs operator.allocate" in refusal("--set", "operator.boardClasses={h100}")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_class_selects_its_profile_of_its_board_and_only_what_draco_allocates(family: str) -> None:
    found = classes(family)
    assert len(found) == 1 + len(FAMILIES[family]["profiles"])
    samples = [OfDriver(NVIDIA_DRIVER, each) for each in sample_devices()]
    for name, each in found.items():
        assert class_fault(msgspec.convert(each, DeviceClass), samples) is None
        (selector,) = each["spec"]["selectors"]
        compiled = compile_selector(selector["cel"]["expression"])
        selected = [one for one in handed_over() if compiled.matches(device_view(NVIDIA_DRIVER, one))]
        products = {str(one.attributes["productName"].value) for one in selected}
        assert products
        assert all(FAMILIES[family]["product"] in product for product in products)
        profiles = {one.attributes["profile"].value if "profile" in one.attributes else "" for one in selected}
        (profile,) = profiles
        assert name == f"{f'mig-{profile}'.replace('+', '.') if profile else 'gpu'}.{family}.draco.dev"
    assert not any(compile_selector(each["spec"]["selectors"][0]["cel"]["expression"]).matches(device_view(*plain))
                   for each in found.values() for plain in samples)  # fmt: skip


def test_a_class_selects_what_agents_publish_under_another_name_of_the_driver() -> None:
    driver = "gpu.example.com"
    own = ("--set", f"driver={driver},operator.allocate=true,operator.boardClasses={{h100}}")
    found = [each for each in render(*own) if each["kind"] == "DeviceClass"]
    assert {"gpu.nvidia.com", "mig.nvidia.com", "gpu.draco.dev", "mig.draco.dev", "gpu.h100.draco.dev"} <= {
        each["metadata"]["name"] for each in found
    }
    for each in found:
        (selector,) = each["spec"]["selectors"]
        compiled = compile_selector(selector["cel"]["expression"])
        assert any(compiled.matches(device_view(driver, one)) for one in handed_over())


def test_the_api_server_takes_all_of_them(api_server: ControlPlane) -> None:
    found = classes(*FAMILIES)
    assert len(found) == sum(1 + len(each["profiles"]) for each in FAMILIES.values())
    for each in found.values():
        call(api_server, "POST", "/apis/resource.k8s.io/v1/deviceclasses?dryRun=All", each)
