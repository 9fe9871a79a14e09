"""The reset in the examples: persistence mode, what holds the GPU, and the exit status. Only nvidia-smi is simulated."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
UUID = "GPU-2f6c1d0e-7b42-5e0a-8a51-0d4c9e3b7f16"
SAID = "GPU 00000000:41:00.0 is currently in use by another client."
NVIDIA_SMI = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *--gpu-reset*) echo "{said}"; echo; exit {code};;
  *--query-gpu=persistence_mode*) echo {mode};;
  *-q*) echo "    Minor Number                          : 7";;
  *--persistence-mode=*) echo "Persistence mode is set."; exit {mode_code};;
esac
"""


def the_cron_job(file: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((EXAMPLES / file).read_text())
    [found] = [each for each in documents if each["kind"] == "CronJob" and each["metadata"]["name"] == "reset-gpu"]
    return dict(found["spec"]["jobTemplate"]["spec"]["template"]["spec"])


class Node:
    """The programs and devices that the script finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "asked"

    def reset(
        self, *, mode: str = "Enabled", code: int = 0, said: str = SAID, mode_code: int = 0
    ) -> tuple[int, str, list[str]]:
        """The exit status, the output, and what nvidia-smi was asked to change."""
        program = self.folder / "nvidia-smi"
        program.write_text(NVIDIA_SMI.format(log=self.log, said=said, code=code, mode=mode, mode_code=mode_code))
        program.chmod(0o755)
        [container] = the_cron_job("health-policy/jobs.yaml")["containers"]
        shell = container["command"][container["command"].index("--") + 1 :]
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "DRACO_GPU_UUID": UUID}
        done = subprocess.run(
            [*shell, *container["args"]], env=environment, capture_output=True, text=True, check=False
        )
        changes = [line for line in self.log.read_text().splitlines() if "mode=" in line or "--gpu-reset" in line]
        return done.returncode, done.stdout, [line for line in changes if "query" not in line]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


OFF, RESET, ON = f"--id={UUID} --persistence-mode=0", f"--gpu-reset --id={UUID}", f"--id={UUID} --persistence-mode=1"


def test_both_examples_reset_in_the_same_way() -> None:
    assert the_cron_job("health-policy/jobs.yaml") == the_cron_job("repair-one-gpu/reset.yaml")


@pytest.mark.parametrize("code", [0, 255])
def test_persistence_mode_is_off_during_the_reset_and_on_again_afterwards(node: Node, code: int) -> None:
    status, _, asked = node.reset(code=code)
    assert (status, asked) == (code, [OFF, RESET, ON])


def test_persistence_mode_that_was_off_stays_off(node: Node) -> None:
    assert node.reset(mode="Disabled")[2] == [RESET]


def test_without_the_right_to_change_the_mode_nothing_is_reset(node: Node) -> None:
    status, _, asked = node.reset(mode_code=4)
    assert (status, RESET in asked) == (4, False)


def test_a_reset_that_fails_says_with_its_status_that_no_process_is_found(node: Node) -> None:
    status, said, _ = node.reset(code=255)
    assert status == 255
    assert said.strip() == f"held by no process that is found, and nvidia-smi says: {SAID}"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[int]:
    """A program of that name that has the GPU's device node open, but that NVML does not list."""
    (tmp_path / "nvidia7").touch()
    named = tmp_path / "nvidia-persistenced"
    named.symlink_to("/bin/sleep")
    with (tmp_path / "nvidia7").open() as handle:
        child = subprocess.Popen([named, "60"], pass_fds=[handle.fileno()])
    deadline = time.monotonic() + 10
    while b"nvidia-persistenced" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
    yield child.pid
    child.kill()
    child.wait()


def test_a_reset_that_fails_names_who_has_the_gpu_open(node: Node, daemon: int) -> None:
    status, said, _ = node.reset(code=255)
    assert status == 255
    assert said.startswith(f"held by nvidia-persistenced ({daemon}), and nvidia-smi says: {SAID}")
