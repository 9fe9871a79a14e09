"""Reading `-f`: files, folders and standard input; older versions; and what is said about unreadable input."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draco import cli
from draco.cli.input.manifests import decode_all, read_manifests
from draco.cli.simulate.scenarios import answers
from draco.resources.written.limits import refusal
from draco.resources.written.manifests import ManifestError, decode, expand
from tests.differential.scenarios import a_scenario
from tests.unit.cli.test_simulate import CLUSTER, a_claim, a_pod, a_slice, a_template

Json = dict[str, Any]


def names(*files: Path | str) -> list[str]:
    return [item.metadata.name for item, _ in decode_all(read_manifests([str(file) for file in files]), "default")]


def test_files_and_folders_are_read_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.yaml").write_text(yaml.safe_dump_all([a_claim("third"), a_claim("fourth")]))
    (folder / "a.json").write_text(json.dumps(a_claim("second")))
    (folder / "notes.txt").write_text("not a manifest: [")
    (tmp_path / "first.yml").write_text(yaml.safe_dump(a_claim("first")))
    assert names(tmp_path / "first.yml", folder) == ["first", "second", "third", "fourth"]


def test_standard_input_is_read_by_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [a_claim("one"), a_claim("two")]})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert names("-") == ["one", "two"]


def test_what_has_no_part_in_it_is_left_out_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.yaml"
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    file.write_text(yaml.safe_dump_all([service, a_claim("one")]))
    assert names(file) == ["one"]
    assert "Left out:" in (said := capsys.readouterr().err)
    assert f"{file}, document 1 (line 1): Service of v1 is not used for device allocation" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfea: 1", "line 1: this is not UTF-8 text; save the file as UTF-8."),
        (b"- a\n- b\n", "document 1 (line 1): this is a list, not an object with apiVersion, kind and metadata."),
        (b"just words", "this is a string, not an object"),
        (b"kind: ResourceClaim\nmetadata: {name: a}", "apiVersion is missing; write for example"),
        (b"apiVersion: v1\nkind: [Pod]", "kind must be a string, not a list."),
        (b"apiVersion: v1\nkind: Pod\nmetadata: {}", "Pod: metadata.name is missing; give the object a name."),
        (b"apiVersion: v1\nkind: List\nitems: 3", "items of List must be a list of objects."),
        (b"apiVersion: v1\nkind: List\nitems: [3]", "item 1: this is a number, not an object"),
        (b"apiVersion: v1\nkind: ResourceClaim\nmetadata: {name: a}", "write `apiVersion: resource.k8s.io/v1`"),
        (b"apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClaim", "known versions: v1, v1beta1, v1beta2"),
        (b"apiVersion: v1\nkind: Pood", "did you mean Pod?"),
        (
            (
                b"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\n"
                b"spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: b, capacity: {requests: {m: 1x}}}}]}}"
            ),
            'ResourceClaim a: spec.devices.requests[0].exactly.capacity.requests[m] "1x" is not a quantity',
        ),
        (
            (
                b"apiVersion: resource.k8s.io/v1alpha3\nkind: DeviceTaintRule\nmetadata: {name: a}\n"
                b"spec: {taint: {key: a, effect: None}, deviceSelector: {deviceClassName: gpu}}"
            ),
            "DeviceTaintRule a: spec.deviceSelector.deviceClassName was removed in Kubernetes 1.35",
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    assert cli.run(["simulate", "-f", str(file)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith(f"Error: {file}")
    assert error.count("\n") == 1


def test_what_an_api_server_refuses_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slice.yaml"
    file.write_text(yaml.safe_dump(a_slice("node-0", "gpu-0", "gpu-0")))
    with pytest.raises(ManifestError, match=r'ResourceSlice node-0: spec\.devices has 2 devices of the name "gpu-0"'):
        names(file)


def test_files_that_are_not_there_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "-f", str(tmp_path / "none.yaml")]) == 1
    assert capsys.readouterr().err == f"Error: {tmp_path}/none.yaml: no such file or directory.\n"
    assert cli.run(["simulate", "-f", str(tmp_path)]) == 1
    assert "has no files that end in .yaml, .yml or .json" in capsys.readouterr().err
    assert cli.run(["simulate", "-f", "-", "-f", "-"]) == 2


ODD: tuple[Any, ...] = (None, "", "x", -1, 0, 1.5, 10**30, True, [], [None], {}, {"a": None}, {"": {}}, "\u00e9" * 70)


def spoiled(value: Any, source: random.Random) -> Any:
    """The value with a part replaced, removed or duplicated."""
    if isinstance(value, dict) and value and source.random() < 0.85:
        key = source.choice(list(value))
        changed = dict(value)
        if source.random() < 0.1:
            del changed[key]
        else:
            changed[key] = spoiled(value[key], source)
        return changed
    if isinstance(value, list) and value and source.random() < 0.85:
        index = source.randrange(len(value))
        if source.random() < 0.1:
            return [*value, value[index]]
        return [*value[:index], spoiled(value[index], source), *value[index + 1 :]]
    return source.choice(ODD)


WHOLE = [
    *CLUSTER,
    a_claim("held", 1, "node-0/gpu-0"),
    a_template("t"),
    a_pod("p", {"name": "a", "resourceClaimName": "b"}),
]
FUZZ = settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(seed=st.integers(0, 2**64 - 1))
def test_spoiled_manifests_are_read_or_refused_in_a_sentence(seed: int) -> None:
    source = random.Random(seed)
    manifest = source.choice(WHOLE)
    for _ in range(source.randrange(1, 4)):
        manifest = spoiled(manifest, source)
    said = "f"
    try:
        for each, where in expand(manifest, source="f"):
            refusal(decode(each, source=where))
    except ManifestError as error:
        said = str(error)
    assert said.startswith("f")
    assert "\n" not in said


@FUZZ
@given(seed=st.integers(0, 2**64 - 1))
def test_spoiled_scenarios_have_one_answer_line_each(seed: int) -> None:
    source = random.Random(seed)
    scenario: Any = a_scenario(source, "s")
    for _ in range(source.randrange(1, 4)):
        scenario = spoiled(scenario, source)
    [line] = answers([json.dumps(scenario).encode()])
    answer = json.loads(line)
    assert answer.keys() == {"name", "results", "error"}
    assert answer["results"] is None or answer["error"] is None
