import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from draco_local.cluster.realnode.config import plan_json
from draco_local.cluster.realnode.init import NodePlan, Service

DEADLINE_S = 60.0
DIES_TOO = ("setpriv", "--pdeathsig", "KILL")
SUPERVISE = (
    "import sys, pathlib; from draco_local.cluster.realnode.init import NodePlan, Supervisor;"
    "Supervisor(NodePlan.from_json(pathlib.Path(sys.argv[1]).read_text()), run_folder=pathlib.Path(sys.argv[2])).run()"
)


class Node:
    """A supervisor in a separate process: it reaps every child process, so it cannot run in the tests' process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = folder / "plan.json"
        self._process: subprocess.Popen[bytes] | None = None

    def write_plan(self, *services: Service, images: tuple[str, ...] = ()) -> None:
        for name in ("logs", "run", "images"):
            (self.folder / name).mkdir(exist_ok=True)
        for image in images:
            (self.folder / "images" / image).touch()
        plan = NodePlan(
            name="a",
            disk=str(self.folder),
            kept=(),
            files={},
            devices=(),
            runtime=Service(name="runtime", argv=[*DIES_TOO, "sleep", "1000"]),
            services=services,
            ready_argv=["true"],
            images=str(self.folder / "images"),
            import_argv=["sh", "-c", f'echo "$0" >> {self.folder}/imports'],
        )
        self.plan.write_text(plan_json(plan))

    def start(self, *services: Service, images: tuple[str, ...] = ()) -> None:
        self.write_plan(*services, images=images)
        argv = [sys.executable, "-c", SUPERVISE, str(self.plan), str(self.folder / "run")]
        self._process = subprocess.Popen(argv)

    def pid(self, service: str) -> int | None:
        try:
            return int((self.folder / "run" / f"{service}.pid").read_text() or 0) or None
        except FileNotFoundError:
            return None

    def imports(self) -> list[str]:
        file = self.folder / "imports"
        return [Path(line).name for line in file.read_text().split()] if file.exists() else []

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


SLEEPER = Service(name="sleeper", argv=[*DIES_TOO, "sleep", "1000"])


def test_a_service_that_is_killed_is_started_again(node: Node) -> None:
    node.start(SLEEPER)
    eventually(lambda: node.pid("sleeper") is not None)
    first = node.pid("sleeper")
    assert first
    os.kill(first, signal.SIGKILL)
    eventually(lambda: node.pid("sleeper") not in {None, first})


def test_a_service_that_fails_at_once_is_started_ever_more_rarely(node: Node) -> None:
    log = node.folder / "logs" / "failing.log"
    node.start(Service(name="failing", argv=["sh", "-c", "date +%s.%N; exit 1"]))
    eventually(lambda: log.exists() and len(log.read_text().split()) == 4)
    times = [float(line) for line in log.read_text().split()]
    for planned_s, (earlier, later) in zip((0.5, 1.0, 2.0), pairwise(times), strict=True):
        assert later - earlier >= planned_s


def test_a_service_waits_for_the_file_it_needs(node: Node) -> None:
    needed = node.folder / "token"
    node.start(SLEEPER, Service(name="agent", argv=[*DIES_TOO, "sleep", "1000"], after=str(needed)))
    eventually(lambda: node.pid("sleeper") is not None)
    assert node.pid("agent") is None
    needed.touch()
    eventually(lambda: node.pid("agent") is not None)


def test_each_image_is_imported_once_even_over_a_reboot(node: Node) -> None:
    node.start(SLEEPER, images=("a.tar", "b.tar"))
    eventually(lambda: node.pid("sleeper") is not None)
    assert node.imports() == ["a.tar", "b.tar"]
    node.stop()
    (node.folder / "run" / "sleeper.pid").unlink()
    node.start(SLEEPER, images=("a.tar", "b.tar", "c.tar"))
    eventually(lambda: node.pid("sleeper") is not None)
    assert node.imports() == ["a.tar", "b.tar", "c.tar"]


def test_the_first_process_refuses_to_run_as_an_ordinary_one(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write_plan()
    done = subprocess.run(
        [sys.executable, "-m", "draco_local.cluster.realnode.init", str(node.plan)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "draco cluster up --real-nodes" in done.stderr
