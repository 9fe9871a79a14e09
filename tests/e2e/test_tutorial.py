"""The tutorial and the README, typed command by command: the output matches the pages.

Owns reading the pages. They run on the tests' cluster, so commands that create or delete one are skipped. Ages and seconds are
not compared, nor which of two equal nodes was chosen; `…` in a page stands for any output.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.kubectl import Kubectl, eventually

ROOT = Path(__file__).parents[2]
LEFT_OUT = re.compile(r"make |export |git clone|cd |helm |docker |kind |(\.venv/bin/)?draco (cluster|demo)")
"""Commands about clusters and shell settings."""

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGES = re.compile(r"kubectl (apply|create|delete|patch)\b|draco maintain (start|approve|finish|cancel)\b")


class Step(NamedTuple):
    """One command of a page, and its output as shown."""

    command: str
    shown: str


def steps(page: str) -> Iterator[Step]:
    """The commands of a page, in order. Output without a command is more output of `draco status`."""
    for block in CONSOLE.findall(page):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        if parts[0].strip():
            yield Step("draco status", parts[0])
        for part in parts[1:]:
            end = re.search(r"^EOF\n", part, re.MULTILINE) if "<<EOF" in part else re.search(r"\n", part)
            assert end, f"a command without an end: {part}"
            yield Step(part[: end.end()].rstrip("\n"), part[end.end() :])


def plain(text: str) -> str:
    """The text in one line, without parts that differ between runs."""
    text = re.sub(r"\(x\d+ over [^)]*\)", "", text)
    text = re.sub(r"(?<![\w.])(\d+[smh])+(?![\w.])", "<age>", text)
    text = re.sub(r"https://127\.0\.0\.1:\d+", "https://127.0.0.1:<port>", text)
    text = re.sub(r"gpu-node-\d", "gpu-node-<n>", text)
    return " ".join(text.split())


def missing(shown: str, printed: str) -> list[str]:
    """The pieces of a page's output, between ellipses, that were not printed."""
    return [piece for piece in map(plain, shown.split("…")) if piece not in plain(printed)]


@pytest.fixture
def shell(cluster: Kubectl, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader who follows a page in namespace `default`; their objects are deleted afterwards."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(cluster.binary)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    yield {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": os.pathsep.join(path)}
    cluster.run("delete", "pods,resourceclaims", "--all", "-n", "default", "--grace-period=1", "--wait=true")
    cluster.run("delete", "devicemaintenances", "--all", "--wait=true")


def typed(command: str, environment: dict[str, str]) -> str:
    """Output of one command, which must succeed."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(page: str, shell: dict[str, str]) -> int:
    """Run the page's commands; returns how many outputs matched the page."""
    compared = 0
    for step in steps(page):
        if LEFT_OUT.match(step.command):
            continue
        compared += bool(step.shown.strip())
        if CHANGES.match(step.command):
            assert missing(step.shown, typed(step.command, shell)) == []
            continue

        def is_as_shown(step: Step = step) -> bool:
            printed = typed(step.command, shell)
            assert missing(step.shown, printed) == [], printed
            return True

        eventually(is_as_shown, what=step.command)
    return compared


@pytest.mark.since(36)  # the page shows that version
@pytest.mark.local_provider  # the page shows its address and number of nodes
def test_the_tutorial_prints_what_it_shows(shell: dict[str, str]) -> None:
    assert follow((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"), shell) >= 6


def test_the_readme_prints_what_it_shows(shell: dict[str, str]) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert follow(page[page.index("## Take one GPU out of service") :], shell) >= 2  # the part before shows the demo


def test_what_a_page_shows_is_found_word_by_word() -> None:
    page = "```console\n$ kubectl get dm\nNAME   AGE\nswap   2s\n$ kubectl apply -f - <<EOF\na: b\nEOF\nmade\n```\n"
    assert list(steps(page)) == [
        Step("kubectl get dm", "NAME   AGE\nswap   2s\n"),
        Step("kubectl apply -f - <<EOF\na: b\nEOF", "made\n"),
    ]
    assert missing("NAME   AGE\nswap   2s\n…", "NAME AGE\nswap 41s\nother 1m3s\n") == []
    assert missing("NAME   AGE\nswap   2s\n", "NAME AGE\nother 41s\n") == ["NAME AGE swap <age>"]
