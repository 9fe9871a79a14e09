"""The device plugin's replicas as SharingPolicies, and what of them is left out."""

from typing import Any

import pytest

from draco.mig.known_boards import MODELS
from draco.migration.conversion import FormatError
from draco.migration.device_plugin import LABEL, PluginSharing, convert, read
from draco.resources.api.claims import DeviceClass
from draco.resources.api.meta import LabelSelector
from draco.resources.api.sharing import Enforcement, SharingMode, SharingPolicy, SharingPolicySpec


def sharing(way: str = "timeSlicing", name: str = "nvidia.com/gpu", replicas: int = 8, **fields: Any) -> PluginSharing:
    resource = {"name": name, "replicas": replicas} | {
        key: value for key, value in fields.items() if key != "renameByDefault"
    }
    renamed = {key: value for key, value in fields.items() if key == "renameByDefault"}
    return read(
        {"version": "v1", "flags": {"migStrategy": "none"}, "sharing": {way: {"resources": [resource], **renamed}}}
    )


def test_replicas_become_the_number_of_shares() -> None:
    found = convert({"": sharing(replicas=4)})
    assert not found.rests
    (policy,) = found.objects
    assert isinstance(policy, SharingPolicy)
    assert policy.spec == SharingPolicySpec(mode=SharingMode.COUNT, count=4)


def test_a_config_map_has_a_policy_for_the_nodes_with_each_key() -> None:
    found = convert({"A100_40gb": sharing(), "none": read({"version": "v1"}), "t4": sharing(name="gpu")})
    assert [each.metadata.name for each in found.objects] == ["a100-40gb", "t4"]
    policy = found.objects[0]
    assert isinstance(policy, SharingPolicy)
    assert policy.spec.node_selector == LabelSelector(match_labels={LABEL: "A100_40gb"})


def test_a_renamed_resource_is_served_by_a_class_of_shares_and_said_to_be_no_fence() -> None:
    found = convert({"a": sharing(renameByDefault=True), "b": sharing(renameByDefault=True)})
    (served,) = [each for each in found.objects if isinstance(each, DeviceClass)]
    assert served.spec.extended_resource_name == "nvidia.com/gpu.shared"
    (rest,) = found.rests
    assert "let the class that serves nvidia.com/gpu select !device.allowMultipleAllocations" in str(rest)


def test_mps_gives_parts_of_the_memory_of_a_named_board() -> None:
    (unknown,) = convert({"": sharing("mps", replicas=10)}).rests
    assert "gives each pod 1/10 of a GPU's memory by MPS" in str(unknown)
    assert str(unknown).endswith("name it with --board.")
    found = convert({"": sharing("mps", replicas=10)}, MODELS["H100-80GB"])
    (policy,) = found.objects
    assert isinstance(policy, SharingPolicy)
    assert (policy.spec.mode, policy.spec.default, policy.spec.enforcement) == (
        SharingMode.MEMORY,
        "8155Mi",
        Enforcement.MPS,
    )
    assert "NVIDIA H100 80GB HBM3" in str(policy.spec.device_selectors)
    assert ["10 % of the threads" in str(each) for each in found.rests] == [True]


def test_what_the_device_plugin_ignores_is_said() -> None:
    found = convert({"": sharing(devices=[0, "1:0"], rename="nvidia.com/other")})
    assert len(found.objects) == 1
    assert [str(each) for each in found.rests] == [
        "shared: the device plugin ignores devices and rename of nvidia.com/gpu, and so does the policy."
    ]


def test_shares_of_mig_devices_are_named() -> None:
    found = convert({"": sharing(name="nvidia.com/mig-1g.5gb", renameByDefault=True)})
    assert not found.objects
    (rest,) = found.rests
    assert str(rest) == (
        "shared: it shares nvidia.com/mig-1g.5gb. For MIG devices, write a SharingPolicy with migDevices: true for nodes with a "
        "static layout; Draco serves no other resource."
    )


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("text", "this is no configuration of NVIDIA's device plugin: expected `object`, got `str`"),
        ({"version": "v2"}, "its version is 'v2', and only v1 is known"),
        ({"version": "v1", "sharing": {"timeSlicing": {}}}, "missing required field `resources`"),
        (
            {"version": "v1", "sharing": {"mps": {"resources": []}, "timeSlicing": {"resources": []}}},
            "which exclude each other: remove one",
        ),
        (
            {"version": "v1", "sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 1}]}}},
            "resource gpu has 1 replicas: it must have 2 or more",
        ),
    ],
)
def test_what_the_device_plugin_refuses_is_refused(document: object, why: str) -> None:
    with pytest.raises(FormatError) as refused:
        read(document)
    assert why in str(refused.value)
