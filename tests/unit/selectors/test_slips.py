"""What people write that CEL, or a device in CEL, does not have."""

import pytest

from draco.cel import CompileError, compile_selector
from draco.selectors.corrections import corrected

DRIVER = "gpu.nvidia.com"
MEMORY = 'device.capacity["gpu.nvidia.com"].memory'
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
OTHER = 'device.attributes["gpu.example.com"]'


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (f'# not small, and new\n{OTHER}.model == "a"', f'// not small, and new\n{OTHER}.model == "a"'),
        (f'{OTHER}.model == "a" # the old one', f'{OTHER}.model == "a" // the old one'),
        (f'{OTHER}.model === "a"', f'{OTHER}.model == "a"'),
        (f'{OTHER}.model !== "a"', f'{OTHER}.model != "a"'),
        (f'{OTHER}.model is "a"', f'{OTHER}.model == "a"'),
        (f'{OTHER}.model in ("a", "b")', f'{OTHER}.model in ["a", "b"]'),
        (f'{OTHER}.model.toLowerCase() == "a"', f'{OTHER}.model.lowerAscii() == "a"'),
        (f'{OTHER}.model.StartsWith("a")', f'{OTHER}.model.startsWith("a")'),
        (f'{OTHER}.model.matches("*A100*")', f'{OTHER}.model.contains("A100")'),
        (f'{MEMORY}.isGreaterThanOrEqual(quantity("40Gi"))', f'{MEMORY}.compareTo(quantity("40Gi")) >= 0'),
        (f'quantity({MEMORY}) > quantity("40Gi")', f'{MEMORY}.compareTo(quantity("40Gi")) > 0'),
        (f'{MEMORY}.value > quantity("40Gi")', f'{MEMORY}.compareTo(quantity("40Gi")) > 0'),
        (f"{MEMORY} >= 40 * 1024 * 1024 * 1024 && true", f'{MEMORY}.compareTo(quantity("40Gi")) >= 0 && true'),
        (f"{MEMORY} >= 40000 * 1000", f'{MEMORY}.compareTo(quantity("40000000")) >= 0'),
        ('device.attributes.gpu.nvidia.com.uuid == "a"', f'{ATTRIBUTES}.uuid == "a"'),
        ('device.attributes.gpu.nvidia.com.uuid.startsWith("a")', f'{ATTRIBUTES}.uuid.startsWith("a")'),
        ('device.attributes["gpu.nvidia.com/uuid"].string == "a"', f'{ATTRIBUTES}.uuid == "a"'),
        (f'{ATTRIBUTES}.uuid.stringValue == "a"', f'{ATTRIBUTES}.uuid == "a"'),
        ('device.Driver == "gpu.example.com"', 'device.driver == "gpu.example.com"'),
        ('device.attribute["gpu.nvidia.com"].uuid == "a"', f'{ATTRIBUTES}.uuid == "a"'),
    ],
)
def test_a_slip_is_corrected_to_what_compiles(written: str, meant: str) -> None:
    assert corrected(written, DRIVER)[1] == meant
    compile_selector(meant)
    assert corrected(meant, DRIVER) == ([], meant)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (f'{OTHER}.model LIKE "A%"', 'there is no `LIKE` in CEL: write `.contains("…")`'),
        (f'{OTHER}.model ~ "A.*"', 'there is no `~` in CEL: write `.matches("…")`'),
        (f"{OTHER}.model == a100", '`a100` is no variable: if a text is meant, write `"a100"`'),
        ('device.name == "gpu-0"', "a selector sees no device.name, only driver, attributes and capacity"),
        ('device.pool == "node-1"', "and a node by the pod's nodeSelector"),
        (f'{OTHER}.model.matches("*[")', "matches takes a regular expression"),
    ],
)
def test_what_may_mean_several_things_is_told_and_not_corrected(written: str, message: str) -> None:
    [complaint], meant = corrected(written, DRIVER)
    assert message in complaint.message
    assert meant == written
    with pytest.raises(CompileError):
        compile_selector(written)


@pytest.mark.parametrize(
    "written",
    [
        f'{OTHER}.model in ["a"] && ("b" in {OTHER}.models)',
        f'"a" in ({OTHER}.models)',
        f"{OTHER}.models.exists(m, m == {OTHER}.model)",
        f'{OTHER}.models.exists(m, "a" == m)',
        f"cel.bind(m, {OTHER}.model, {OTHER}.other == m)",
        f'{OTHER}.string == "a"',
        f'{OTHER}.model.matches("A.*")',
        f'{OTHER}.text == "a # b"',
        f"{OTHER}.index * 2 == 4 * 5",
        f'{OTHER}.model.includes("a")',
        f"{OTHER}.ecc == true && {OTHER}.model != null",
        "device.allowMultipleAllocations",
        f"{OTHER}.a == {OTHER}.b",
    ],
)
def test_what_is_right_is_left_alone(written: str) -> None:
    assert corrected(written, DRIVER) == ([], written)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (f'{ATTRIBUTES}.type == "GPU"', 'no type is "GPU": the nearest is "gpu"'),
        (f'{ATTRIBUTES}.profile == "1g.10GB"', 'no MIG profile is "1g.10GB": write it as in "1g.10gb"'),
        (f'{ATTRIBUTES}.profile in ["MIG 2g.20gb"]', 'write it as in "2g.20gb"'),
    ],
)
def test_a_value_in_another_form_is_told(written: str, message: str) -> None:
    [complaint], meant = corrected(written, DRIVER)
    assert (message in complaint.message, meant) == (True, written)


@pytest.mark.parametrize(
    "profile", ["1g.5gb", "7g.80gb", "1g.5gb+me", "1g.10gb+gfx", "1c.2g.10gb", "1g.12gb+me.all", "4g.96gb-me"]
)
def test_every_form_of_a_profile_is_left_alone(profile: str) -> None:
    assert corrected(f'{ATTRIBUTES}.profile == "{profile}"', DRIVER)[0] == []
