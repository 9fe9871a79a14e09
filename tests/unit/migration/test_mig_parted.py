"""Layouts of mig-parted as MigPolicies, and what of them is left out."""

from typing import Any

import msgspec
import pytest

from draco.cli.input.mig_policy_checks import refusal
from draco.mig.known_boards import MODELS
from draco.migration.conversion import FormatError, Rest
from draco.migration.device_ids import PRODUCTS
from draco.migration.mig_parted import convert, read
from draco.resources.api.draco import LayoutInstances, MigMode, MigPolicy


def an_entry(**fields: Any) -> dict[str, Any]:
    enabled = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    return enabled | {name.replace("_", "-"): value for name, value in fields.items()}


def converted(*entries: dict[str, Any], name: str = "all-1g.10gb") -> tuple[list[MigPolicy], list[Rest]]:
    conversion = convert(read({"version": "v1", "mig-configs": {name: list(entries)}}))
    policies = [each for each in conversion.objects if isinstance(each, MigPolicy)]
    for each in policies:
        assert not refusal(each, {"spec": msgspec.to_builtins(each.spec)})
    return policies, list(conversion.rests)


def rest(*entries: dict[str, Any]) -> str:
    policies, (only,) = converted(*entries)
    assert not policies
    return str(only)


def test_a_layout_of_all_gpus_becomes_a_static_policy_for_the_nodes_with_its_label() -> None:
    (policy,), rests = converted(an_entry(mig_devices={"1g.10gb": 2, "3g.40gb": 1, "2g.20gb": 0}))
    assert not rests
    assert policy.metadata.name == "all-1g.10gb"
    assert policy.spec.mode is MigMode.STATIC
    assert policy.spec.node_selector is not None
    assert policy.spec.node_selector.match_labels == {"nvidia.com/mig.config": "all-1g.10gb"}
    assert not policy.spec.device_selectors
    (layout,) = policy.spec.layouts
    assert layout.instances == [LayoutInstances(profile="1g.10gb", count=2), LayoutInstances(profile="3g.40gb")]
    assert layout.name == policy.spec.layout == "all-1g-10gb"


def test_mig_off_becomes_mode_disabled() -> None:
    (policy,), rests = converted({"devices": "all", "mig-enabled": False}, name="all-disabled")
    assert (policy.spec.mode, policy.spec.layouts, policy.spec.layout, rests) == (MigMode.DISABLED, [], "", [])


def test_a_filter_selects_boards_by_their_product_name() -> None:
    eighty, forty = (
        an_entry(device_filter=["0x233010DE", "0x20b210de"]),
        an_entry(device_filter="0x20B010DE", mig_devices={"1g.10gb": 4}),
    )
    (first, second), rests = converted(eighty, forty)
    assert not rests
    assert [first.metadata.name, second.metadata.name] == [
        "all-1g.10gb-h100-80gb-hbm3",
        "all-1g.10gb-a100-sxm4-40gb",
    ]
    (selector,) = first.spec.device_selectors
    assert selector.cel is not None
    assert selector.cel.expression == (
        'device.attributes["gpu.nvidia.com"].productName in ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"]'
    )


def test_layouts_whose_names_differ_in_a_sign_become_different_policies() -> None:
    names = ["all-1g.24gb.me", "all-1g.24gb-me", "all-1g.24gb.me.all"]
    found = convert(read({"version": "v1", "mig-configs": {name: [an_entry()] for name in names}}))
    assert [each.metadata.name for each in found.objects] == names


def test_only_the_layouts_named_are_converted() -> None:
    given = read({"version": "v1", "mig-configs": {"one": [an_entry()], "two": [an_entry()]}})
    assert [each.metadata.name for each in convert(given, ["two"]).objects] == ["two"]
    with pytest.raises(FormatError, match="there is no layout tow; did you mean two"):
        convert(given, ["tow"])


def test_gpus_by_index_are_named_and_not_guessed() -> None:
    found = rest(an_entry(devices=[0, 1]), an_entry(devices=[4], mig_devices={"2g.20gb": 3}))
    assert found.startswith(
        "all-1g.10gb: it divides the GPUs 0, 1, 4 by their index, which means other GPUs on another node"
    )
    assert found.endswith(
        "Write MigPolicies with device selectors, or with the UUIDs of the other GPUs in spec.exclude."
    )


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([an_entry(mig_devices={})], "it switches MIG on without instances"),
        ([an_entry(mig_devices={"1c.3g.40gb": 3})], "1c.3g.40gb is a part of an instance's compute slices"),
        ([an_entry(device_filter="0x123410DE")], "no product is known for device-filter 0x123410DE"),
        ([an_entry(), an_entry(mig_devices={"2g.20gb": 3})], "several entries are for the same boards"),
        ([an_entry(), an_entry(device_filter="0x233010DE")], "several entries are for the same boards"),
        ([an_entry(device_filter="0x233010DE")] * 2, "several entries are for 0x233010DE"),
        ([], "it has no entries"),
    ],
)
def test_what_has_no_equal_is_named_with_what_to_do(entries: list[dict[str, Any]], why: str) -> None:
    assert why in rest(*entries)


def test_a_layout_that_the_named_board_cannot_have_is_named_with_the_nearest() -> None:
    found = rest(an_entry(device_filter="0x233010DE", mig_devices={"1g.10gb": 8}))
    assert "the nearest that can exist is 7 x 1g.10gb" in found
    (policy,), rests = converted(an_entry(device_filter=["0x233010DE", "0x233110DE"], mig_devices={"1g.10gb": 8}))
    assert not rests, "Draco has no table of the other board, which is judged where the policy applies"
    assert policy.spec.layouts


def test_a_filter_with_an_unknown_board_keeps_those_that_are_known() -> None:
    (policy,), (left,) = converted(an_entry(device_filter=["0x233010DE", "0x123410DE"]))
    assert "H100 80GB HBM3" in str(policy.spec.device_selectors)
    assert "0x123410DE" in str(left)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "this is no configuration of mig-parted: expected `object`, got `array`"),
        ({"mig-configs": {}}, "object missing required field `version`"),
        ({"version": "v2"}, "its version is 'v2', and only v1 is known"),
        ({"version": "v1", "mig-config": {}}, "object contains unknown field `mig-config`"),
        ({"version": "v1", "mig-configs": {"a": [an_entry(devices="some")]}}, "entry 1 of layout a: devices is 'some'"),
        ({"version": "v1", "mig-configs": {"a": [an_entry(mig_enabled=False)]}}, "mig-devices must be empty"),
        ({"version": "v1", "mig-configs": {"a": [an_entry(mig_devices=None)]}}, "mig-devices must be there"),
        ({"version": "v1", "mig-configs": {"a": [an_entry(mig_devices={"1g.10gb": -1})]}}, "must not be negative"),
        ({"version": "v1", "mig-configs": {"a": [an_entry(mig_devices={"1g10gb": 1})]}}, "'1g10gb' is no MIG profile"),
        (
            {"version": "v1", "mig-configs": {"a": [an_entry(device_filter="H100")]}},
            "device-filter H100 is no device ID",
        ),
    ],
)
def test_what_mig_parted_refuses_is_refused_with_the_place(document: object, why: str) -> None:
    with pytest.raises(FormatError) as refused:
        read(document)
    assert why in str(refused.value)


def test_each_product_of_a_known_board_with_mig_has_its_device_id() -> None:
    named = {product for products in PRODUCTS.values() for product in products}
    assert {
        MODELS[each].product_name for each in ("A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200", "A30")
    } <= named
