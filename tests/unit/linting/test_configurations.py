"""Findings about opaque configurations for NVIDIA's driver, in claims and classes."""

from typing import Any

import pytest
import yaml

from tests.unit.linting.test_rules import CLAIM, OF_NVIDIA, checked, corrected, rules


def a_configured_claim(device_class: str, parameters: Any, *, requests: list[str] | None = None) -> str:
    config = {"requests": requests or [], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    asked = [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]
    return yaml.safe_dump(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "gpu"},
            "spec": {"devices": {"requests": asked, "config": [config]}},
        }
    )


SLICES = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing"},
}


@pytest.mark.parametrize(
    ("device_class", "parameters", "requests", "said"),
    [
        ("gpu.nvidia.com", SLICES, [], ""),
        ("gpu.nvidia.com", SLICES, ["gpu"], ""),
        ("of.our.own", SLICES, ["gpu"], ""),
        ("of.our.own", {**SLICES, "sharing": {"strategy": "Mps"}}, [], "error: sharing.strategy is Mps"),
        ("of.our.own", {**SLICES, "sharing": {"strategy": "MPS"}}, [], ""),
        (
            "gpu.nvidia.com",
            {**SLICES, "sharring": {}},
            [],
            "error: GpuConfig has no field sharring; did you mean sharing?",
        ),
        ("gpu.nvidia.com", [SLICES], [], "error: its parameters are a list"),
        ("mig.nvidia.com", SLICES, ["gpu"], "error: GpuConfig is not for a MIG device: write MigDeviceConfig"),
        ("mig.nvidia.com", SLICES, [], "warning: GpuConfig is for whole GPUs, and the claim asks only for MIG devices"),
        (
            "gpu.nvidia.com",
            {**SLICES, "kind": "MigDeviceConfig"},
            [],
            "warning: MigDeviceConfig is for MIG devices, and the claim asks only for whole GPUs",
        ),
        ("mig.nvidia.com", {**SLICES, "sharing": {"strategy": "Mps"}}, [], "error: sharing.strategy is Mps"),
        ("mig.nvidia.com", {**SLICES, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}, ["gpu"], ""),
    ],
)
def test_a_configuration_that_a_node_would_refuse_is_found_when_it_is_written(
    device_class: str, parameters: Any, requests: list[str], said: str
) -> None:
    result = checked(a_configured_claim(device_class, parameters, requests=requests))
    found = [
        f"{each.severity}: {each.message}".replace("this configuration cannot be carried out: ", "")
        for each in result.findings
    ]
    assert len(found) == bool(said)
    assert all(each.startswith(said) for each in found)


@pytest.mark.parametrize("named", [["gpu"], []])
def test_mps_on_several_mig_devices_of_a_request_is_found_when_it_is_written(named: list[str]) -> None:
    parameters = {**SLICES, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}
    manifest = yaml.safe_load(a_configured_claim("mig.nvidia.com", parameters, requests=named))
    manifest["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    [found] = checked(yaml.safe_dump(manifest)).findings
    assert "MPS on 2 MIG devices of one request" in found.message
    assert "a container can be the client of only one" in found.message


def test_a_configuration_of_a_class_is_looked_at_and_one_for_another_driver_is_not() -> None:
    def of_driver(driver: str) -> str:
        config = {"opaque": {"driver": driver, "parameters": {**SLICES, "sharing": {"strategy": "Mps"}}}}
        spec = {"selectors": [{"cel": {"expression": OF_NVIDIA}}], "config": [config]}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "shared"}}
        return yaml.safe_dump({**head, "spec": spec})

    assert rules(of_driver("gpu.nvidia.com")) == {"opaque-configuration"}
    assert rules(of_driver("nic.example.com")) == set()
    assert rules(of_driver("mig.nvidia.com")) == {"opaque-configuration"}


@pytest.mark.parametrize(
    ("first", "second", "has_no_effect"),
    [
        ({}, {}, True),
        ({"requests": ["gpu"]}, {}, True),
        ({"requests": ["gpu"]}, {"requests": ["gpu"]}, True),
        ({"requests": ["gpu/a"]}, {"requests": ["gpu"]}, True),
        ({"requests": ["gpu"]}, {"requests": ["gpu/a"]}, False),
        ({"requests": ["gpu", "other"]}, {"requests": ["gpu"]}, False),
        ({}, {"requests": ["gpu"]}, False),
        ({}, {"kind": "MigDeviceConfig"}, False),
        ({"driver": "nic.example.com"}, {}, False),
    ],
)
def test_a_configuration_that_a_later_one_overrides_is_told(
    first: dict[str, Any], second: dict[str, Any], has_no_effect: bool
) -> None:
    """A claim that asks for TimeSlicing and for MPS gets the later one."""

    def config(strategy: str, asked: dict[str, Any]) -> dict[str, Any]:
        parameters = {**SLICES, "kind": asked.get("kind", "GpuConfig"), "sharing": {"strategy": strategy}}
        opaque = {"driver": asked.get("driver", "gpu.nvidia.com"), "parameters": parameters}
        return {"opaque": opaque, **{name: each for name, each in asked.items() if name == "requests"}}

    tree = yaml.safe_load(CLAIM)
    tree["spec"]["devices"]["config"] = [config("TimeSlicing", first), config("TimeSlicing", second)]
    told = "config[1] overrides this one for the same devices, so it has no effect: leave one of the two out"
    assert (told in [each.message for each in checked(yaml.safe_dump(tree)).findings]) is has_no_effect


@pytest.mark.parametrize("driver", ["mig.nvidia.com", "gpu.nvdia.com"])
def test_a_configuration_for_a_driver_that_there_is_not_is_told(driver: str) -> None:
    """Kubernetes hands it to nobody, so the pod starts without it."""
    text = a_configured_claim("gpu.nvidia.com", SLICES, requests=[]).replace(
        "driver: gpu.nvidia.com", f"driver: {driver}"
    )
    [found] = checked(text).findings
    assert found.severity == "warning"
    assert found.message == f"no driver is called {driver}, so this configuration has no effect: write gpu.nvidia.com"
    [changed] = corrected(text)
    assert changed["spec"]["devices"]["config"][0]["opaque"]["driver"] == "gpu.nvidia.com"
