"""The workflows of a public forge: they call the same make targets as developers, with pinned actions and minimal rights."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
WRITES = {"release": {"packages", "id-token", "attestations"}}
"""What a workflow may write; all others have no write access."""
SECRET = re.compile(r"\$\{\{\s*(secrets\.\w+|github\.token)\s*\}\}")


class Step(NamedTuple):
    """One step of a job."""

    workflow: str
    job: str
    content: dict[str, Any]

    @property
    def script(self) -> str:
        return str(self.content.get("run", ""))


def read(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    return ((path.stem, name, job) for path in WORKFLOWS for name, job in read(path)["jobs"].items())


def steps() -> list[Step]:
    return [Step(workflow, name, step) for workflow, name, job in jobs() for step in job["steps"]]


def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def called(script: str) -> Iterator[str]:
    """The make targets that a script calls."""
    for words in re.findall(r"\bmake ([^\n;&|]+)", script):
        yield from re.findall(r"(?:^|\s)([a-z][a-z0-9-]*)(?=\s|$)", re.sub(r'\S+=("[^"]*"|\S*)', "", words))


def test_everything_is_run_that_a_change_must_pass() -> None:
    verbs = {verb for step in steps() if step.workflow == "test" for verb in called(step.script)}
    assert verbs >= {"lint", "type", "unit", "test", "e2e", "e2e-kind", "image-test", "package"}
    assert {verb for step in steps() for verb in called(step.script)} >= {"audit", "fuzz", "release-check", "publish"}


def test_each_verb_that_is_called_is_in_the_makefile() -> None:
    verbs = [verb for step in steps() for verb in called(step.script)]
    assert [verb for verb in verbs if verb not in targets()] == []


def test_each_action_is_pinned_to_a_commit_and_says_which_version_that_is() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert [line for line in lines if not re.search(rf"uses: {PINNED.pattern} # v\d+\.\d+\.\d+$", line)] == []
    versions = {
        (match[0], match[1]) for line in lines if (match := re.findall(r"(\S+@[0-9a-f]{40}) # (v\S+)", line)[0])
    }
    assert len({pin.partition("@")[0] for pin, _ in versions}) == len(versions), "one version of each action"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_write_nothing_but_what_it_publishes(path: Path) -> None:
    workflow = read(path)
    assert set(workflow["permissions"].items()) <= {("contents", "read")}, "for all of its jobs"
    granted = {
        name
        for job in workflow["jobs"].values()
        for name, right in job.get("permissions", {}).items()
        if right != "read"
    }
    assert granted == WRITES.get(path.stem, set())
    assert "pull_request_target" not in workflow[True], (
        "what others propose never runs with rights"
    )  # YAML 1.1 reads `on` as True


def test_no_checkout_leaves_its_credentials_behind() -> None:
    checkouts = [step for step in steps() if step.content.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(list(jobs()))
    assert [step for step in checkouts if step.content["with"]["persist-credentials"] is not False] == []


def test_every_job_has_an_end() -> None:
    assert [(workflow, name) for workflow, name, job in jobs() if "timeout-minutes" not in job] == []


def test_no_script_contains_an_expression() -> None:
    """An expression inserted into a script before the shell reads it can be a command: use an environment variable."""
    assert [step for step in steps() if "${{" in step.script] == []


def test_no_secret_is_printed() -> None:
    for step in steps():
        secret = [name for name, value in step.content.get("env", {}).items() if SECRET.search(str(value))]
        for name in secret:
            uses = [line for line in step.script.splitlines() if re.search(rf"\b{name}\b", line)]
            assert uses == [f"printenv {name} | {line.partition(' | ')[2]}" for line in uses]
            assert all("--password-stdin" in line for line in uses)
        assert not re.search(r"set -[a-z]*x|bash -[a-z]*x", step.script)
        assert "--debug" not in step.script
    holders = [step for step in steps() if SECRET.search(str(step.content))]
    assert all("run" in step.content for step in holders)
    for path in WORKFLOWS:
        workflow = read(path)
        assert not SECRET.search(
            str(workflow.get("env", {})) + "".join(str(job.get("env", {})) for job in workflow["jobs"].values())
        )


@pytest.mark.parametrize(
    "step", [step for step in steps() if step.script], ids=lambda step: f"{step.workflow} {step.job}"
)
def test_each_script_is_one_that_bash_understands(step: Step) -> None:
    done = subprocess.run(["bash", "-n"], input=step.script, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("script", "verbs"),
    [
        ("make lint type", ["lint", "type"]),
        ('sudo env PATH="$PATH" CI=true make e2e PROVIDER=local', ["e2e"]),
        ('make publish REGISTRY="ghcr.io/a b"\ncat x', ["publish"]),
        ("make audit && make gone | tee log", ["audit", "gone"]),
    ],
)
def test_what_a_script_has_make_do_is_found(script: str, verbs: list[str]) -> None:
    assert list(called(script)) == verbs
