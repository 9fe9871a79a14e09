"""A label of a node becomes a selector that is true of a GPU exactly where the label has the value."""

import pytest

from draco.migration.node_labels import selector

ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
SIZE = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{}Mi"))'


@pytest.mark.parametrize(
    ("label", "operator", "values", "expected"),
    [
        ("gpu.present", "In", ["true"], ""),
        ("gpu.product", "Exists", [], ""),
        ("gpu.product", "In", ["A", "B"], f'{ATTRIBUTES}.productName.replace(" ", "-") in ["A", "B"]'),
        ("gpu.product", "NotIn", ["A"], f'{ATTRIBUTES}.productName.replace(" ", "-") != "A"'),
        ("gpu.family", "In", ["ada-lovelace"], f'{ATTRIBUTES}.architecture == "Ada Lovelace"'),
        ("gpu.family", "NotIn", ["volta", "turing"], f'!({ATTRIBUTES}.architecture in ["Volta", "Turing"])'),
        ("gpu.compute.major", "In", ["9"], f"{ATTRIBUTES}.cudaComputeCapability.major() == 9"),
        ("cuda.driver-version.minor", "Lt", ["5"], f"{ATTRIBUTES}.driverVersion.minor() < 5"),
        ("cuda.runtime.major", "Gt", ["11"], f"{ATTRIBUTES}.cudaDriverVersion.major() > 11"),
        ("gpu.memory", "Gt", ["40000"], f"{SIZE.format(40001)} >= 0"),
        ("gpu.memory", "Lt", ["40000"], f"{SIZE.format(40000)} < 0"),
        ("gpu.memory", "In", ["15109"], f"{SIZE.format(15109)} >= 0 && {SIZE.format(15110)} < 0"),
        (
            "gpu.memory",
            "NotIn",
            ["1", "5"],
            f"!(({SIZE.format(1)} >= 0 && {SIZE.format(2)} < 0) || ({SIZE.format(5)} >= 0 && {SIZE.format(6)} < 0))",
        ),
    ],
)
def test_labels_with_an_attribute(label: str, operator: str, values: list[str], expected: str) -> None:
    assert selector(f"nvidia.com/{label}", operator, values) == expected


@pytest.mark.parametrize(
    ("label", "operator", "values"),
    [
        ("gpu.count", "In", ["8"]),
        ("gpu.present", "In", ["false"]),
        ("gpu.product", "DoesNotExist", []),
        ("gpu.product", "In", ['A"']),
        ("gpu.product", "Gt", ["1"]),
        ("gpu.family", "In", ["hopper", "undefined"]),
        ("gpu.compute.major", "In", ["09"]),
        ("gpu.memory", "In", ["80Gi"]),
        ("gpu.memory", "DoesNotExist", []),
        ("cuda.driver.rev", "In", ["05"]),
    ],
)
def test_labels_without_an_equal(label: str, operator: str, values: list[str]) -> None:
    assert selector(f"nvidia.com/{label}", operator, values) is None
