"""`draco lint`: what it prints and writes, its exit status, and one clear sentence for any file, however hostile."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, seed, settings
from hypothesis import strategies as some

from draco import cli
from draco.cli.lint import text as lint_text
from draco.cli.lint.command import check, command

OLD = """# kept
apiVersion: resource.k8s.io/v1beta1 # also kept
kind: ResourceClaim
metadata: {name: gpu}
spec:
  devices:
    requests:
      - name: gpu
        deviceClassName: gpu.nvidia.com
"""
NEW = """# kept
apiVersion: resource.k8s.io/v1 # also kept
kind: ResourceClaim
metadata: {name: gpu}
spec:
  devices:
    requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
"""
LEFT = OLD + "      - name: other\n"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    file = tmp_path / "claim.yaml"
    file.write_text(OLD)
    return file


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.run(["lint", *arguments]) == status
    output = capsys.readouterr()
    return output.out + output.err


def squeezed(text: str) -> str:
    """The text without the alignment of trailing comments, which may move."""
    return "\n".join(" ".join(line.split()) if " #" in line else line for line in text.split("\n"))


def test_findings_are_told_with_file_line_severity_and_rule(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    lines = shown(capsys, "-f", str(old), status=1).splitlines()
    assert lines[0].startswith(f"{old}:2: warning: resource.k8s.io/v1beta1 is deprecated")
    assert lines[0].endswith("(api-version)")
    assert lines[1].startswith(f"{old}:9: error: deviceClassName of a request is under `exactly`")
    assert "+          deviceClassName: gpu.nvidia.com" in lines
    assert lines[-1] == "--fix corrects 2 of 2."
    assert old.read_text() == OLD


def test_fix_writes_the_corrected_text(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    told = shown(capsys, "-f", str(old), "--fix")
    assert squeezed(old.read_text()) == NEW
    assert told.endswith("Corrected 2 of 2; 0 left to you.\n")
    assert shown(capsys, "-f", str(old)) == "Nothing to correct.\n"


def test_what_is_left_after_a_fix_is_an_error(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    old.write_text(LEFT)
    assert shown(capsys, "-f", str(old), "--fix", status=1).endswith("Corrected 2 of 3; 1 left to you.\n")


def test_only_warnings_are_no_failure(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    old.write_text(NEW.replace("k8s.io/v1 ", "k8s.io/v1beta2 "))
    assert "warning" in shown(capsys, "-f", str(old))


def test_the_diff_and_the_text_are_printed_alone(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    assert shown(capsys, "-f", str(old), "-o", "diff", status=1).startswith(f"--- {old}\n+++ {old}\n@@")
    assert squeezed(shown(capsys, "-f", str(old), "-o", "yaml", status=1)) == NEW


def test_json_has_every_finding_and_the_corrected_files(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    document = json.loads(shown(capsys, "-f", str(old), "-o", "json", status=1))
    assert document["findings"][1] == {
        "file": str(old),
        "line": 9,
        "severity": "error",
        "rule": "exactly-missing",
        "message": "deviceClassName of a request is under `exactly` since v1beta2",
        "corrected": True,
    }
    [file] = document["files"]
    assert squeezed(file["corrected"]) == NEW


def test_standard_input_is_corrected_to_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OLD.encode())))
    assert squeezed(shown(capsys, "-f", "-", "--fix")) == NEW


def test_a_folder_is_checked_as_one_application(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "claim.yaml").write_text(NEW)
    (tmp_path / "pod.yml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
        "  - {name: c, resources: {claims: [{name: gpu}]}}\n"
    )
    (tmp_path / "notes.txt").write_text("not read")
    told = shown(capsys, "-f", str(tmp_path), status=1)
    assert f"{tmp_path}/pod.yml:6: error: the container takes gpu" in told
    assert "+  - name: gpu" in told
    assert "+    resourceClaimName: gpu" in told


def test_an_empty_folder_and_a_missing_file_are_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "has no files that end in .yaml, .yml or .json" in shown(capsys, "-f", str(tmp_path), status=1)
    assert "no such file" in shown(capsys, "-f", str(tmp_path / "nosuch"), status=1)


def test_line_ends_of_another_system_stay(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    old.write_bytes(OLD.replace("\n", "\r\n").encode())
    shown(capsys, "-f", str(old), "--fix")
    written = old.read_bytes()
    assert b"exactly:\r\n" in written
    assert written.count(b"\n") == written.count(b"\r\n")


def test_documents_without_a_finding_stay_byte_for_byte() -> None:
    other = "---\nkind:   Service\napiVersion:    v1 #   as it is\nspec: { a : b }\n"
    after = check({"a": OLD + other}, kubernetes=36).after["a"]
    assert after.endswith(other)


@pytest.mark.parametrize("rule", ["separator", "indentation", "quotes"])
def test_what_copying_broke_is_repaired(rule: str) -> None:
    broken = {
        "separator": OLD + "\u2013\u2013\u2013\n" + OLD,
        "indentation": OLD.replace("\n  devices", "\n\u00a0\u00a0devices"),
        "quotes": OLD.replace("{name: gpu}", "{name: \u201cgpu\u201d}"),
    }[rule]
    checked = check({"a": broken}, kubernetes=36)
    assert rule in {told.rule for told in checked.findings}
    assert check({"a": checked.after["a"]}, kubernetes=36).findings == []


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: b: c\n", "several fields are on one line"),
        ("{", "not valid YAML"),
        ("\tkey: value\n  other: x", "indented with tabs"),
        ("- " * 3000, "nested"),
        ("&x\na: *x\n", "inside the value that it repeats"),
        (BOMB, "its aliases expanded"),
        ("[" * 3000, "nested"),
        ("a: 1\na: 2\n", 'the key "a" is already in line 1'),
        ("a: *nosuch\n", "there is no &nosuch before it"),
        ("a: !!python/object:os.system x\n", "means nothing to Kubernetes"),
        ("kind: {{ .Values.kind }}\n", "template"),
        ("a: \x00\n", "U+0000 is not allowed in YAML"),
        ("just text\n", "this is not a manifest"),
        ("%YAML 9.9\n---\na: 1\n", "not a manifest"),
        ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: 5\nspec: [1]\n", "must be a mapping"),
        (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\nspec: {devices: {requests: 5}}\n",
            "is a list",
        ),
        ("apiVersion: [1]\nkind: {a: b}\n", "missing"),
        (
            "kind: Pod\napiVersion: v1\nspec: {containers: [1, {resources: 5}], resourceClaims: {a: b}}\n",
            "must be a mapping",
        ),
        ("? [1, 2]\n: x\n", "a key must be a string"),
        ("a: 2001-99-99\nb: 1e999999\nc: 0x\n", ""),
        ("x" * 2_100_000, "more than 2,000,000 characters"),
    ],
)
def test_a_hostile_file_is_told_in_a_sentence(content: str, words: str) -> None:
    checked = check({"file": content}, kubernetes=36)
    assert any(words in told.message for told in checked.findings)
    assert checked.after["file"] == content or any(told.corrected for told in checked.findings)


def test_a_file_that_is_not_text_is_told_so(capsys: pytest.CaptureFixture[str], old: Path) -> None:
    old.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in shown(capsys, "-f", str(old), status=1)


@pytest.mark.parametrize("count", ["1e1", "0b11", "010"])
def test_what_text_stands_for_is_what_kubectl_takes_it_for_also_once_it_is_corrected(count: str) -> None:
    text = NEW.replace("k8s.io/v1 ", "k8s.io/v1beta2 ") + f"          count: {count}\n"
    checked = check({"f": text}, kubernetes=36)
    assert [told.rule for told in checked.findings] == ["api-version"]
    assert f"count: {count}\n" in checked.after["f"]


def test_a_document_is_corrected_in_several_steps_around_its_comments() -> None:
    claim = NEW.replace("{name: gpu}", "{name: shared}")
    pod = (
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: first}\nspec:\n  resourceClaims:\n  #  - name: gpu\n"
        "      resourceClaimName: shared\n  containers:\n  - {name: main, resources: {claims: [{name: gpu}]}}\n"
    )
    after = check({"f": claim + pod}, kubernetes=36).after["f"]
    [_, corrected] = yaml.safe_load_all(after)
    assert corrected["spec"]["resourceClaims"][-1] == {"name": "gpu", "resourceClaimName": "shared"}


def test_a_document_whose_correction_would_be_broken_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = lint_text.dump
    other = OLD.replace("{name: gpu}", "{name: other}")
    monkeypatch.setattr(
        lint_text, "dump", lambda tree, piece: "a: b: c" if "{name: gpu}" in piece.text else dump(tree, piece)
    )
    checked = check({"a": OLD, "b": other}, kubernetes=36)
    assert checked.after["a"] == OLD
    assert [(told.file, told.corrected) for told in checked.findings] == [
        ("a", False), ("a", False), ("b", True), ("b", True),
    ]  # fmt: skip


def test_what_is_several_documents_without_their_separator_is_told_so() -> None:
    checked = check({"f": "a: 1\n...\nb: 2\n"}, kubernetes=36)
    assert [(one.line, one.rule) for one in checked.findings] == [(3, "yaml")]


def test_one_broken_document_does_not_hide_the_others() -> None:
    checked = check({"file": "a: b: c\n---\n" + OLD}, kubernetes=36)
    assert [(told.rule, told.line) for told in checked.findings] == [
        ("yaml", 1),
        ("api-version", 4),
        ("exactly-missing", 11),
    ]


ARTICLES = [
    list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for path in sorted((Path(__file__).parents[1] / "linting" / "articles").iterdir())
    if path.stem not in {"classic", "flattened-class", "flattened-limits"}
]
ODD_VALUES: tuple[Any, ...] = (
    None,
    5,
    -1,
    1.5,
    True,
    "x",
    "device.capacity['a'] >= 1",
    [],
    {},
    [{}],
    [[]],
    [None],
    ["x"],
    {"name": 5},
    {5: 6},
)


@pytest.mark.exhaustive
@seed(4)
@settings(max_examples=150, database=None, deadline=None)
@given(some.data())
def test_a_manifest_with_odd_values_in_it_is_checked_and_stays_corrected(data: some.DataObject) -> None:
    documents = json.loads(json.dumps(data.draw(some.sampled_from(ARTICLES))))
    places = [(holder, key) for document in documents for holder, key in places_in(document)]
    for holder, key in data.draw(some.lists(some.sampled_from(places), min_size=1, max_size=3)):
        holder[key] = data.draw(some.sampled_from(ODD_VALUES))
    after = check({"file": yaml.safe_dump_all(documents)}, kubernetes=36).after["file"]
    again = check({"file": after}, kubernetes=36)
    assert again.after["file"] == after
    assert not any(told.corrected for told in again.findings)


def places_in(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each value below a tree, as its container and its key there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from places_in(value)


def test_files_without_anything_in_them_are_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("\n")
    assert shown(capsys, "-f", str(tmp_path), status=0) == "There is nothing to check.\n"


@pytest.mark.parametrize(
    ("ending", "kept"), [("\r\n", "\r\n"), ("\n", "\n"), ("\r", "\n")], ids=["windows", "unix", "old-mac"]
)
def test_line_breaks_are_kept_where_they_are_of_one_kind(ending: str, kept: str) -> None:
    claim = "apiVersion: resource.k8s.io/v1beta2\nkind: ResourceClaim\nmetadata:\n  name: a\n"
    text = claim.replace("\n", ending)
    corrected = check({"a.yaml": text}, kubernetes=36).after["a.yaml"]
    assert corrected == claim.replace("v1beta2", "v1").replace("\n", kept)
    mixed = text + "# more\n# and more\r\n"
    corrected = check({"a.yaml": mixed}, kubernetes=36).after["a.yaml"]
    assert "\r" not in corrected
    assert check({"a.yaml": corrected}, kubernetes=36).after["a.yaml"] == corrected


def test_a_file_in_which_nothing_is_corrected_stays_as_it_is_to_the_byte() -> None:
    mixed = "apiVersion: v1\nkind: Service\r\nmetadata:\r  name: a\r\n"
    assert check({"a.yaml": mixed}, kubernetes=36).after["a.yaml"] == mixed


def test_a_file_without_a_name_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text(text := "kind: ResourceClaim\nmetadata: {name: a}\n")
    result = CliRunner().invoke(command, ["--fix", "-f", ""])
    assert (result.exit_code, (tmp_path / "other.yaml").read_text()) == (2, text)
    assert "-f names no file" in result.stderr


def test_a_document_holds_nothing_that_turns_a_terminals_text_around(tmp_path: Path) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text("kind: ResourceClaim\nmetadata: {name: a}\nspec: {devices: {\u202eno: 1}}\n", encoding="utf-8")
    result = CliRunner().invoke(command, ["-f", str(file), "-o", "json"])
    assert any("\u202e" in each["message"] for each in json.loads(result.stdout)["findings"])
    assert "\u202e" not in result.stdout
