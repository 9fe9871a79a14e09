"""`draco selector`: what an expression reads, costs and answers, and one sentence for each bad line or file."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draco import cli
from draco.cel import compile_selector
from draco.cli.output import lines_of
from draco.cli.selector import cases as selector_cases
from draco.cli.selector import devices as selector_devices
from draco.cli.selector.command import command
from draco.resources.api.slices import Device, DeviceAttribute
from tests.builders import a_slice

Json = dict[str, Any]
PRODUCT = 'device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"'


def case(expression: str = "true", **device: Any) -> Json:
    return {"expression": expression, "device": {"driver": "gpu.example.com", **device}}


def answer(line: bytes | Json) -> Json:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    [told] = selector_cases.evaluated([text])
    assert told.endswith(b"\n")
    decoded: Json = json.loads(told)
    return decoded


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.run(["selector", *arguments]) == status
    output = capsys.readouterr()
    return output.out if status == 0 else output.out + output.err


def test_an_expression_is_told_by_what_it_reads_and_may_cost(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "check", 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0')
    assert "reads     capacity gpu.nvidia.com/memory\n" in told
    assert "of 1,000,000\n" in told
    assert "accepted  in new objects by Kubernetes 1.34 and newer\n" in told


def test_an_expression_that_reads_nothing_or_everything_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing of the device" in shown(capsys, "check", "true")
    assert "all attributes" in shown(capsys, "check", 'device.attributes["a.example"].exists(k, k == "b")')


def test_a_compile_error_is_kubernetes_own_with_a_mark_at_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    memory = 'device.capacity["gpu.nvidia.com"].memory >= quantity("40Gi")'
    told = shown(capsys, "check", memory, status=1)
    [_, source, mark, wrong, meant] = told.splitlines()
    assert "found no matching overload for '_>=_' applied to '(kubernetes.Quantity, kubernetes.Quantity)'" in told
    assert source[mark.index("^") :].startswith(">=")
    assert wrong == "`>=` does not compare a quantity"
    assert meant == 'Probably meant: device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'
    assert "Error:" not in told


def test_what_cannot_be_corrected_is_told_with_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "check", "device.capacity['memory'].compareTo(quantity('40Gi')) > 0", status=1)
    assert told.endswith("with the name of the driver that publishes it\n")


def test_what_only_some_releases_accept_is_told_with_the_refusal_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = shown(capsys, "check", "[3, 1].sort() == [1, 3]")
    assert "refused   in new objects by Kubernetes 1.34: " in told
    assert "accepted  in new objects by Kubernetes 1.35 and newer\n" in told


def test_what_needs_a_feature_gate_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "check", 'device.attributes["a.example"].names.exists(n, n == "b")', status=1)
    assert "with the feature gate DRAListTypeAttributes" in told


def test_an_expression_that_may_cost_too_much_is_refused_as_by_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    costly = "[1,2,3,4,5,6,7,8,9,10]"
    for _ in range(7):
        costly = f"[1,2,3,4,5,6,7,8,9,10].map(x, {costly})"
    told = shown(capsys, "check", f"size({costly}) > 0", status=1)
    assert "refused   in new objects by Kubernetes 1.34 and newer: too complex, exceeds cost limit" in told


def test_an_expression_may_stand_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "selector.cel"
    file.write_text("device.driver ==\n  'gpu.example.com'\n")
    told: Json = json.loads(shown(capsys, "check", "-f", str(file), "-o", "json"))
    assert told["reads"] == ["driver"]
    assert told["acceptedBy"] == ["1.34", "1.35", "1.36", "1.37"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"x" * 30_000, "expression is too long"),
        (b"x" + "\u00e9".encode() * 15_000, "expression is too long"),
    ],
)
def test_a_file_that_holds_no_expression_is_told_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, sentence: str
) -> None:
    file = tmp_path / "selector.cel"
    file.write_bytes(content)
    assert sentence in shown(capsys, "check", "-f", str(file), status=1)


@pytest.mark.parametrize("arguments", [["check"], ["check", "true", "--cases", "-"], ["eval"]])
def test_a_command_line_names_one_source_of_expressions(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert "Give one expression" in shown(capsys, *arguments, status=2)


def test_a_case_is_answered_by_match_compile_error_or_error() -> None:
    assert answer(case('device.driver == "gpu.example.com"')) == {"match": True}
    assert answer(case("false")) == {"match": False}
    assert answer(case("1 +"))["compileError"].startswith("compilation failed: ERROR: <input>:1:4: Syntax error")
    assert answer(case('device.attributes["gpu.example.com"].nosuch == 1')) == {"error": "no such key: nosuch"}


def test_a_case_names_attributes_and_capacities_as_a_slice_does() -> None:
    own = 'device.attributes["gpu.example.com"]'
    device = {
        "attributes": {"i": {"int": 1}, "b": {"bool": True}, "s": {"string": "x"}, "v": {"version": "1.2.3"}},
        "capacity": {
            "memory": {"value": "40Gi"},
            "other.io/bare": "1k",
            "number": {"value": 2},
            "nothing": {"value": None},
        },
        "allowMultipleAllocations": True,
    }
    for expression in (
        f'{own}.i == 1 && {own}.b && {own}.s == "x" && {own}.v == semver("1.2.3")',
        'device.capacity["gpu.example.com"].memory == quantity("40Gi")',
        'device.capacity["other.io"].bare == quantity("1000")',
        'device.capacity["gpu.example.com"].number == quantity("2")',
        'device.capacity["gpu.example.com"].nothing == quantity("0")',
        "device.allowMultipleAllocations",
    ):
        assert answer(case(expression, **device)) == {"match": True}, expression


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff\n", "malformed"),
        (b"[" * 100_000, "not a case"),
        (b'{"expression": 1}', "$.expression"),
        (b'{"expression": "true"}', 'no "device"'),
        (b'{"expression": "true", "device": {}}', "driver"),
        (
            b'{"expression": "true", "device": {"driver": "a", "attributes": {"x": {"int": "1"}}}}',
            "$.device.attributes",
        ),
        (b'{"expression": "true", "device": {"driver": "a", "capacity": {"memory": "40 GB"}}}', "capacity memory"),
        (
            b'{"expression": "true", "device": {"driver": "a", "capacity": {"memory": {"value": []}}}}',
            "capacity memory",
        ),
        (b'{"expression": "true", "device": {"driver": "a", "attributes": {"x": {}}}}', "attribute x"),
        (b"x" * (selector_cases.LONGEST_LINE + 1), "longer than"),
    ],
)
def test_a_malformed_line_is_an_error_that_names_what_is_wrong(line: bytes, named: str) -> None:
    assert named in answer(line)["error"]


def test_the_rest_goes_on_after_a_line_that_is_far_too_long() -> None:
    good = json.dumps(case()).encode()
    stream = io.BytesIO(b"x" * (3 * selector_cases.LONGEST_LINE) + b"\n" + good + b"\n" + good)
    told = [json.loads(line) for line in selector_cases.evaluated(lines_of(stream, selector_cases.LONGEST_LINE))]
    assert ["match" in each for each in told] == [False, True, True]


def test_each_case_is_answered_before_the_next_is_read() -> None:
    taken = []

    def lines() -> Any:
        for number in range(2):
            taken.append(number)
            yield json.dumps(case()).encode()

    answers = selector_cases.evaluated(lines())
    next(answers)
    assert taken == [0]


def test_cases_can_be_checked_without_devices() -> None:
    lines = [b'{"expression": "device.driver == \'a\'"}', b'{"expression": "nosuch"}', b"nonsense"]
    read, refused, malformed = map(json.loads, selector_cases.checked(lines))
    assert read == {"reads": ["driver"], "estimatedCost": 3, "costLimit": 1_000_000}
    assert "undeclared reference to 'nosuch'" in refused["compileError"]
    assert malformed["error"].startswith("not a case")


def test_devices_that_agree_in_what_is_read_are_counted_together() -> None:
    slices = [a_slice("node-0", [f"gpu-{index}" for index in range(8)]), a_slice("node-1", [Device(name="gpu-0")])]
    groups = selector_devices.folded(selector_devices.outcomes(compile_selector(PRODUCT), slices))
    assert [(group.first.answer, len(group.devices)) for group in groups] == [("true", 8), ("error", 1)]
    assert selector_devices.summary(groups).startswith("8 of 9 devices match, and 1 makes it fail: ")
    text = "\n".join(selector_devices.group_lines(groups))
    assert "and 4 more" in text
    assert "attribute gpu.nvidia.com/productName = NVIDIA H100 80GB HBM3" in text
    assert "attribute gpu.nvidia.com/productName = absent" in text
    assert "no such key: productName" in text


def test_only_the_newest_generation_of_a_pool_is_asked() -> None:
    slices = [a_slice("node-0", ["old"]), a_slice("node-0", ["new"], generation=2)]
    found = selector_devices.outcomes(compile_selector("true"), slices)
    assert [outcome.device.device for outcome in found] == ["new"]


def test_a_device_that_no_selector_can_be_evaluated_on_shows_its_error() -> None:
    broken = Device(name="gpu-0", attributes={"driverVersion": DeviceAttribute(version="x")})
    [outcome] = selector_devices.outcomes(compile_selector("true"), [a_slice("node-0", [broken])])
    assert outcome.answer == "error"
    assert "driverVersion" in str(outcome.error)


def test_devices_of_files_are_shown_in_each_output(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).parents[3] / "manifests/examples/foreign-driver/devices.yaml")
    expression = 'device.attributes["gpu.example.com"].model == "Example 9000"'
    assert shown(capsys, "eval", "-f", file, expression).startswith("2 of 2 devices match.\ntrue  2 devices: ")
    wide = shown(capsys, "eval", "-f", file, "-o", "wide", expression).splitlines()
    assert wide[0] == "true   gpu.example.com/rack-1/card-0  attribute gpu.example.com/model = Example 9000"
    document = json.loads(shown(capsys, "eval", "-f", file, "-o", "json", expression))
    assert document["devices"][1] == {
        "driver": "gpu.example.com",
        "pool": "rack-1",
        "device": "card-1",
        "match": True,
        "read": {"attribute gpu.example.com/model": "Example 9000"},
    }


def test_a_selector_that_fails_on_a_device_ends_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).parents[3] / "manifests/examples/foreign-driver/devices.yaml")
    told = shown(capsys, "eval", "-f", file, 'device.attributes["gpu.example.com"].nosuch == 1', status=1)
    assert "no such key: nosuch" in told


def test_a_selector_that_fails_on_a_device_is_told_as_it_must_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "slice.yaml"
    devices: list[dict[str, object]] = [
        {"name": "unified"},
        {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}},
    ]
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-0", "pool": pool, "devices": devices}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    wanted = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"
    assert cli.run(["selector", "eval", wanted, "-f", str(file)]) == 1
    assert capsys.readouterr().err == f'Write "memory" in device.capacity["gpu.nvidia.com"] && {wanted}.\n'
    del devices[1]
    file.write_text(json.dumps({**head, "spec": spec}))
    assert cli.run(["selector", "eval", wanted, "-f", str(file)]) == 1
    assert capsys.readouterr().err == "No device publishes the capacity gpu.nvidia.com/memory.\n"


def test_files_without_devices_are_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).parents[3] / "manifests/examples/foreign-driver/pending-pod.yaml")
    assert "holds no ResourceSlice" in shown(capsys, "eval", "-f", file, "true", status=1)


def test_an_expression_is_read_from_standard_input() -> None:
    for arguments in (["check", "-"], ["check", "-f", "-"]):
        result = CliRunner().invoke(command, arguments, input='device.driver == "x"\n')
        assert result.exit_code == 0, result.output
        assert "reads     driver" in result.stdout


def test_a_constant_that_always_fails_is_not_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    written = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40 GB")) >= 0'
    told = shown(capsys, "check", written, status=1)
    assert 'but       "40 GB" is not a quantity, so the selector fails on every device\n' in told
    assert told.count('quantity("40G")') == 1, "what to write is in what was probably meant"
    assert json.loads(shown(capsys, "check", written, "-o", "json", status=1))["advice"]


def test_what_is_wrong_in_an_expression_that_does_not_compile_is_told_if_only_its_author_can_correct_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = shown(capsys, "check", 'device.capacity["memory"].compareTo(quantity("40Gi")) >= 0', status=1)
    assert told.splitlines()[-1] == (
        '`memory` is in the place of a domain, so it names nothing: write `device.capacity["DRIVER"].memory` with the name of '
        "the driver that publishes it"
    )


def test_what_is_probably_not_meant_is_told_beside_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "check", 'device.attributes["gpu.nvidia.com"].model == "x"')
    assert "but       gpu.nvidia.com publishes no `model`\n" in told
    assert 'Probably meant: device.attributes["gpu.nvidia.com"].productName == "x"' in told


def test_an_expression_that_matches_nothing_is_told_what_was_meant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "slice.yaml"
    device = {"name": "gpu-0", "attributes": {"productName": {"string": "x"}}}
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-0", "pool": pool, "devices": [device]}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    told = shown(capsys, "eval", 'device.attributes["gpu.nvidia.com"].model == "x"', "-f", str(file), status=1)
    assert "publishes no `model`" in told
    assert (
        shown(capsys, "eval", 'device.attributes["gpu.nvidia.com"].productName == "x"', "-f", str(file)).count("\n") > 0
    )


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('device.driver == "gpu.nvidia.co"', 'Write device.driver == "gpu.nvidia.com".'),
        (
            'device.attributes["gpu.nvidia.com"].serial in ["abd"]',
            'Write device.attributes["gpu.nvidia.com"].serial == "abc".',
        ),
        ('device.attributes["gpu.nvidia.com"].serial.startsWith("b")', 'serial is "abc"'),
        ('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0', "the largest is 81559Mi. Write"),
    ],
)
def test_an_expression_that_matches_nothing_is_told_what_is_published(
    tmp_path: Path, expression: str, said: str
) -> None:
    file = tmp_path / "slice.yaml"
    device = {
        "name": "gpu-0",
        "attributes": {"serial": {"string": "abc"}},
        "capacity": {"memory": {"value": "81559Mi"}},
    }
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-0", "pool": pool, "devices": [device]}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    assert said in CliRunner().invoke(command, ["eval", expression, "-f", str(file)]).stderr


def test_a_name_that_is_published_twice_is_no_certain_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "slice.yaml"
    both = {"model": {"string": "a100"}, "gpu.example.com/model": {"string": "h100"}, "index": {"int": 0}}
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "attributes": both}, {"name": "gpu-1", "attributes": {"model": {"string": "h100"}}}]
    spec = {"driver": "gpu.example.com", "nodeName": "node-0", "pool": pool, "devices": devices}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    assert cli.run(["selector", "eval", 'device.attributes["gpu.example.com"].model == "h100"', "-f", str(file)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("2 of 2 devices match.")
    assert told.err.startswith(
        "gpu.example.com/node-0/gpu-0 is published with different values of model and gpu.example.com/model:"
    )
    assert cli.run(["selector", "eval", 'device.attributes["gpu.example.com"].index == 0', "-f", str(file)]) == 1
    assert "different values" not in capsys.readouterr().err
