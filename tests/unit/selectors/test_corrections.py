"""Selectors as users write them, and those that they meant."""

import pytest

from draco.cel import compile_selector
from draco.mig.known_boards import MODELS
from draco.selectors.corrections import corrected

DRIVER = "gpu.nvidia.com"
MEMORY = 'device.capacity["gpu.nvidia.com"].memory'
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'


@pytest.mark.parametrize(
    ("written", "meant", "rules"),
    [
        ('device.driver == "a" and true', 'device.driver == "a" && true', ["operator"]),
        ('(device.driver == "a") OR (true)', '(device.driver == "a") || (true)', ["operator"]),
        ('not (device.driver == "a")', '!(device.driver == "a")', ["operator"]),
        ("true && not (false)", "true && !(false)", ["operator"]),
        ('device.driver = "a"', 'device.driver == "a"', ["operator"]),
        ('device.driver == "a" & true | false', 'device.driver == "a" && true || false', ["operator", "operator"]),
        (
            f"{ATTRIBUTES}.cudaComputeCapability.isGreaterThan(version('8.0'))",
            f'{ATTRIBUTES}.cudaComputeCapability.isGreaterThan(semver("8.0.0"))',
            ["function", "bad-semver"],
        ),
        (f'{MEMORY}.isGreaterThan(Quantity("1Gi"))', f'{MEMORY}.isGreaterThan(quantity("1Gi"))', ["function"]),
        (
            "device.attributes['resource.kubernetes.io/pcieRoot'] == 'pci0000:00'",
            "device.attributes[\"resource.kubernetes.io\"].pcieRoot == 'pci0000:00'",
            ["attribute-domain"],
        ),
        (
            'device.attributes["gpu.nvidia.com/model"] == "NVIDIA L4"',
            f'{ATTRIBUTES}.productName == "NVIDIA L4"',
            ["attribute-domain"],
        ),
        (f'{MEMORY} >= quantity("40Gi")', f'{MEMORY}.compareTo(quantity("40Gi")) >= 0', ["quantity-comparison"]),
        (f'quantity("40Gi") < {MEMORY}', f'quantity("40Gi").compareTo({MEMORY}) < 0', ["quantity-comparison"]),
        (f'"40Gi" <= {MEMORY}', f'quantity("40Gi").compareTo({MEMORY}) <= 0', ["quantity-comparison"]),
        (f'{MEMORY} == "40Gi"', f'{MEMORY}.compareTo(quantity("40Gi")) == 0', ["quantity-comparison"]),
        (f"{MEMORY} > 42949672960", f'{MEMORY}.compareTo(quantity("42949672960")) > 0', ["quantity-comparison"]),
        (f'{MEMORY} > "40 GB"', f'{MEMORY}.compareTo(quantity("40G")) > 0', ["quantity-comparison"]),
        (
            f'{MEMORY}.compareTo(quantity("40GiB")) >= 0',
            f'{MEMORY}.compareTo(quantity("40Gi")) >= 0',
            ["bad-quantity"],
        ),
        (f'{MEMORY}.isGreaterThan("40Gi")', f'{MEMORY}.isGreaterThan(quantity("40Gi"))', ["quantity-comparison"]),
        (
            'device.capacity["gpu.nvidia.com"].?memory.orValue(quantity("0")) >= quantity("4Gi") || false',
            'device.capacity["gpu.nvidia.com"].?memory.orValue(quantity("0")).compareTo(quantity("4Gi")) >= 0 || false',
            ["quantity-comparison"],
        ),
        (
            'device.attributes["memory"].isGreaterThan(quantity("40Gi"))',
            f'{MEMORY}.isGreaterThan(quantity("40Gi"))',
            ["attribute-domain"],
        ),
        (
            f'{ATTRIBUTES}.memory > "1Gi"',
            f'{MEMORY}.compareTo(quantity("1Gi")) > 0',
            ["capacity-as-attribute", "quantity-comparison"],
        ),
        ('device.attributes.profile == "1g.10gb"', f'{ATTRIBUTES}.profile == "1g.10gb"', ["attribute-domain"]),
        ('device.attributes["mig.nvidia.com"].profile != "x"', f'{ATTRIBUTES}.profile != "x"', ["attribute-domain"]),
        ('device.capacity["gpu.nvidia.com"].uuid == "x"', f'{ATTRIBUTES}.uuid == "x"', ["capacity-as-attribute"]),
        (f'{ATTRIBUTES}.model == "Tesla T4"', f'{ATTRIBUTES}.productName == "Tesla T4"', ["unknown-attribute"]),
        (
            f'{ATTRIBUTES}.vram > "1Gi"',
            f'{MEMORY}.compareTo(quantity("1Gi")) > 0',
            ["unknown-attribute", "quantity-comparison"],
        ),
        (f'{ATTRIBUTES}["product-name"] != "x"', f'{ATTRIBUTES}.productName != "x"', ["unknown-attribute"]),
        (f'{ATTRIBUTES}.parentUuid == "x"', f'{ATTRIBUTES}.parentUUID == "x"', ["unknown-attribute"]),
        (
            f'{ATTRIBUTES}.pcieRoot == "pci0"',
            'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0"',
            ["unknown-attribute"],
        ),
        (
            f'{ATTRIBUTES}.cudaComputeCapability >= "8.0"',
            f'{ATTRIBUTES}.cudaComputeCapability.compareTo(semver("8.0.0")) >= 0',
            ["version-comparison"],
        ),
        (
            f'{ATTRIBUTES}.driverVersion == "550.1.2"',
            f'{ATTRIBUTES}.driverVersion.compareTo(semver("550.1.2")) == 0',
            ["version-comparison"],
        ),
        (
            f'{ATTRIBUTES}.driverVersion.isLessThan(semver("550"))',
            f'{ATTRIBUTES}.driverVersion.isLessThan(semver("550.0.0"))',
            ["bad-semver"],
        ),
    ],
)
def test_what_was_meant_is_found_and_compiles(written: str, meant: str, rules: list[str]) -> None:
    complaints, text = corrected(written, DRIVER)
    assert text == meant
    assert [complaint.rule for complaint in complaints] == rules
    assert compile_selector(text)


@pytest.mark.parametrize(
    "right",
    [
        f'{MEMORY}.compareTo(quantity("40Gi")) >= 0',
        f'{MEMORY}.isGreaterThan(quantity("40Gi")) && {ATTRIBUTES}.productName.contains("H100")',
        f'{ATTRIBUTES}.driverVersion.compareTo(semver("550.1.2")) >= 0',
        f'{ATTRIBUTES}.driverVersion == semver("550.1.2")',
        'device.driver == "gpu.nvidia.com"',
        'has(device.attributes.other) && "gpu.nvidia.com" in device.attributes',
        'device.attributes["other.example"].model == "x"',
        'cel.bind(a, device.attributes["gpu.nvidia.com"], a.?uuid.orValue("") == "x")',
        'device.attributes["resource.kubernetes.io"].numaNode == 0',
        'quantity("40Gi").sub(quantity("1Gi")).compareTo(quantity("2Gi")) > 0',
    ],
)
def test_what_is_right_is_left_alone(right: str) -> None:
    assert corrected(right, DRIVER) == ([], right)


def test_a_name_that_resembles_none_is_told_and_left() -> None:
    [complaint], text = corrected(f"{ATTRIBUTES}.xyzzy == 1", DRIVER)
    assert (complaint.rule, complaint.corrected) == ("unknown-attribute", None)
    assert text == f"{ATTRIBUTES}.xyzzy == 1"


def test_a_domain_that_nobody_knows_is_left_to_the_author() -> None:
    [complaint], _ = corrected('device.attributes["model"] == "x"', None)
    assert complaint.corrected is None
    assert "with the name of the driver" in complaint.message


def test_an_equality_of_quantities_is_questioned() -> None:
    [complaint], _ = corrected(f'{MEMORY} == quantity("80Gi")', DRIVER)
    assert (complaint.rule, complaint.severity) == ("quantity-equality", "warning")


@pytest.mark.parametrize(
    "hostile",
    [
        "(" * 5000,
        "device.attributes[" * 500,
        'device.attributes["memory"] ' * 300,
        '"' * 9999,
        "\\" * 999,
        "`" * 999,
        "device.attributes",
        "device.capacity['a'].b >= ",
        ">= quantity('1')",
        "'\ud800' >= quantity('1')",
        "",
    ],
)
def test_no_text_is_too_odd(hostile: str) -> None:
    complaints, _ = corrected(hostile, DRIVER)
    assert len(complaints) <= 64


@pytest.mark.parametrize(
    "written",
    [
        f'{MEMORY}.compareTo(quantity("40")) >= 0',
        f'quantity("40").compareTo({MEMORY}) < 0',
        f'{MEMORY}.isGreaterThan(quantity("40"))',
        'device.capacity["gpu.example.com"].usableMemory.compareTo(quantity("40")) >= 0',
    ],
)
def test_a_plain_number_of_memory_is_said_to_be_bytes(written: str) -> None:
    complaints, meant = corrected(written, DRIVER)
    assert meant == written  # only the author knows which unit is meant
    assert [each.message for each in complaints if each.rule == "memory-in-bytes"] == [
        'quantity("40") is 40 bytes of memory: write quantity("40Gi") if GiB are meant'
    ]


@pytest.mark.parametrize(
    "written",
    [
        f'{MEMORY}.compareTo(quantity("40Gi")) >= 0',
        f'{MEMORY}.compareTo(quantity("42949672960")) >= 0',
        f'{MEMORY}.compareTo(quantity("0")) > 0',
        'device.capacity["gpu.nvidia.com"].multiprocessors.compareTo(quantity("40")) >= 0',
    ],
)
def test_bytes_that_may_be_meant_are_left_alone(written: str) -> None:
    assert corrected(written, DRIVER) == ([], written)


@pytest.mark.parametrize(
    "written",
    [
        'device.attributes["a.example.com"].and == "x"',
        'device.attributes["a.example.com"].exists(or, or == "x")',
        'device.attributes["a.example.com"].version.version() == 1',
        "not == 1",
        'device.driver == "a=b and c"',
        '"a.example.com/b" in device.attributes',
    ],
)
def test_words_that_stand_for_themselves_are_left_alone(written: str) -> None:
    assert corrected(written, DRIVER)[1] == written


def test_not_without_brackets_is_told_and_not_guessed() -> None:
    [complaint] = corrected('not device.driver == "a"', DRIVER)[0]
    assert (complaint.rule, complaint.corrected) == ("operator", None)
    assert complaint.message == "there is no `not` in CEL: write `!(…)`"


@pytest.mark.parametrize("name", ["index", "minor"])
def test_an_attribute_of_older_drivers_gets_what_to_use_instead(name: str) -> None:
    [complaint] = corrected(f"{ATTRIBUTES}.{name} == 0", DRIVER)[0]
    assert "publishes no" in complaint.message
    assert "choose by `uuid`, or by `pciBusID`" in complaint.message


@pytest.mark.parametrize(
    ("written", "advised"),
    [
        (f"{MEMORY} > 40", f'{MEMORY}.compareTo(quantity("40Gi")) > 0'),
        (f'"40" <= {MEMORY}', f'quantity("40Gi").compareTo({MEMORY}) <= 0'),
        (f"{MEMORY}.isGreaterThan(40)", 'quantity("40Gi")'),
    ],
)
def test_memory_compared_with_a_number_without_unit_is_not_corrected_to_bytes(written: str, advised: str) -> None:
    [complaint], meant = corrected(written, DRIVER)
    assert meant == written
    assert complaint.message.endswith(f"write `{advised}` if GiB are meant")


@pytest.mark.parametrize("name", ["memoryGB", "memory_gib", "vramGB"])
def test_a_name_with_a_unit_is_told_to_be_a_capacity(name: str) -> None:
    [complaint], meant = corrected(f"{ATTRIBUTES}.{name} >= 80", DRIVER)
    assert "compare the capacity `memory` with a unit" in complaint.message
    assert meant == f"{ATTRIBUTES}.{name} >= 80"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (f'{ATTRIBUTES}.productName == "H100"', 'write the full one, or contains("H100")'),
        (f'"H100" == {ATTRIBUTES}.productName', 'write the full one, or contains("H100")'),
        (f'{ATTRIBUTES}.productName in ["NVIDIA L4", "A100"]', '"A100" is no full product name'),
        (f'{ATTRIBUTES}.productName.startsWith("H100")', 'no product name begins with "H100"'),
        (f'{ATTRIBUTES}.productName.contains("a100")', 'product names write "a100" as "A100"'),
        (f'{ATTRIBUTES}.architecture == "ampere"', 'the nearest is "Ampere"'),
        (f'{ATTRIBUTES}.architecture == "Ada"', 'the nearest is "Ada Lovelace"'),
    ],
)
def test_a_value_that_no_gpu_has_is_told_and_not_corrected(written: str, message: str) -> None:
    [complaint], meant = corrected(written, DRIVER)
    assert (complaint.rule, complaint.severity, meant) == ("unknown-value", "warning", written)
    assert message in complaint.message


@pytest.mark.parametrize(
    "written",
    [
        *(f'{ATTRIBUTES}.productName == "{each.product_name}"' for each in MODELS.values()),
        *(f'{ATTRIBUTES}.architecture == "{each.architecture}"' for each in MODELS.values()),
        f'{ATTRIBUTES}.productName.startsWith("NVIDIA A100")',
        f'{ATTRIBUTES}.productName.startsWith("NV")',
        f'{ATTRIBUTES}.productName.contains("4090")',
        f'{ATTRIBUTES}.productName.contains("PCIe")',
        f'{ATTRIBUTES}.productName != "H100"',
        f'{ATTRIBUTES}.architecture == "Rubin"',
        'device.attributes["gpu.example.com"].productName == "h100"',
    ],
)
def test_values_that_a_gpu_may_have_are_left_alone(written: str) -> None:
    assert corrected(written, DRIVER) == ([], written)
