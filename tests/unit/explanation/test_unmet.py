"""Requests that no node could satisfy even if unused: only what is proven, naming what is published or compared."""

import pytest
from msgspec.structs import replace

from draco.explanation.explain import explain
from draco.explanation.model import Explanation, UnmetRequest
from draco.resources.api.claims import DeviceRequest, DeviceSubRequest
from tests.builders import a_claim
from tests.unit.explanation.clusters import ATTRIBUTES, GPU, H100, a_class, a_fleet, asking

ALL_HELD = a_claim("job", on=[f"{GPU}/{each}" for each in ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1")])
AN_H100 = f'{ATTRIBUTES}.productName == "{H100}"'


def unmet(found: Explanation) -> list[tuple[str, str, int, int]]:
    return [(each.product, each.profile, each.count, each.published) for each in found.unmet]


def test_more_than_any_node_has_is_unmet_by_what_they_have() -> None:
    found = explain(a_fleet(), [asking(AN_H100, count=3)])
    assert found.unmet == [
        UnmetRequest(claim="default/c", request="gpu", device_class=GPU, product=H100, profile="", count=3, published=2)
    ]
    assert str(found).startswith(
        "Request gpu wants 3 devices on one node, and no node has more than 2 that it selects."
    )
    assert f"or add a node with 3 {H100}" in str(found)
    assert len(str(found)) <= 300


def test_devices_that_are_in_use_are_not_unmet() -> None:
    found = explain(a_fleet(ALL_HELD), [asking(count=2)])
    assert (found.fits, found.unmet) == (False, [])


def test_several_products_are_none() -> None:
    assert unmet(explain(a_fleet(), [asking(count=3)])) == [("", "", 3, 4)]


def test_what_is_not_published_at_all_is_named_as_the_selectors_do() -> None:
    wanted = f'{ATTRIBUTES}.productName == "NVIDIA H200" && {ATTRIBUTES}.profile == "1g.18gb"'
    assert unmet(explain(a_fleet(), [asking(wanted, count=2)])) == [("NVIDIA H200", "1g.18gb", 2, 0)]


def test_more_gpus_than_any_server_has_are_nothing_to_wait_for() -> None:
    assert unmet(explain(a_fleet(), [asking(count=16)])) == [("", "", 16, 4)]
    found = explain(a_fleet(), [asking(count=17)])
    assert (found.unmet, "add a node" in str(found)) == ([], False)


def test_a_misspelled_selector_is_told_as_such_and_not_as_a_node_to_add() -> None:
    found = explain(a_fleet(), [asking(f'{ATTRIBUTES}.productName == "NVIDIA H1O0"')])
    assert unmet(found) == [("NVIDIA H1O0", "", 1, 0)]
    assert "add a node" not in str(found)


@pytest.mark.parametrize(("second", "expected"), [(1, []), (4, [("NVIDIA H200", "", 1, 0)])])
def test_of_alternatives_the_first_counts_where_none_could_be_met(second: int, expected: object) -> None:
    wanted = asking(f'{ATTRIBUTES}.productName == "NVIDIA H200"').spec.devices.requests[0].exactly
    assert wanted is not None
    choices = [
        DeviceSubRequest(name="best", device_class_name=GPU, selectors=wanted.selectors),
        DeviceSubRequest(name="else", device_class_name=GPU, count=second),
    ]
    claim = asking()
    devices = replace(claim.spec.devices, requests=[DeviceRequest(name="gpu", first_available=choices)])
    assert unmet(explain(a_fleet(), [replace(claim, spec=replace(claim.spec, devices=devices))])) == expected


def test_a_look_without_taking_and_a_selector_that_does_not_compile_prove_nothing() -> None:
    assert unmet(explain(a_fleet(), [asking(count=3, admin_access=True)])) == []
    broken = a_fleet()
    broken.put_class(a_class("broken", "device.driver =="))
    assert unmet(explain(broken, [asking(device_class="broken", count=3)])) == []
