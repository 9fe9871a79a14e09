"""Killed at every instruction of preparing, giving up and recovering, the agent loses no claim and hands out no device twice.

A child process plays one scene of kubelet's calls and kills itself with SIGKILL at the n-th executed line of the code that keeps
claims. It writes every answer that kubelet received to a log before the next call. Then a fresh start must agree with that log.
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from draco.agent import files
from draco.agent.claims import cdi, rebuilding, recovery
from draco.agent.claims import preparer as prepare
from draco.agent.claims.cdi import CdiFolder, NodeFiles
from draco.agent.claims.preparer import ClaimPreparer
from draco.agent.files import LocalFiles
from draco.agent.record import checkpoint, journal
from draco.agent.record.checkpoint import Checkpoint, ClaimState
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.builders import a_claim, a_gpu
from tests.side_by_side import REPORTS

SCENES = {
    "first": [("prepare", "one", "gpu-0"), ("unprepare", "one", "gpu-0"), ("prepare", "two", "gpu-0")],
    "beside": [("prepare", "one", "gpu-0"), ("prepare", "two", "gpu-1"), ("prepare", "one", "gpu-0")],
}
"""What kubelet asks, in order: call, claim, device."""

MODULES = (recovery, prepare, checkpoint, journal, cdi, files)
CODE = frozenset(str(module.__file__) for module in MODULES)


class Node:
    """The part of an agent that keeps claims, on a folder."""

    def __init__(self, folder: Path) -> None:
        local = LocalFiles()
        path = folder / "state" / "checkpoint.json"
        self.cdi = CdiFolder(folder / "cdi", local, driver=NVIDIA_DRIVER, node=NodeFiles())
        self.record = Checkpoint(path, local, boot_id="")
        self.desk = ClaimPreparer(self.record, self.cdi, driver=NVIDIA_DRIVER, pool="node-0")
        found = recovery.read_record(path, local)
        assert not isinstance(found, recovery.Damaged), found
        self.record.restore(found)
        left = rebuilding.forgotten(self.record.claims.values(), self.cdi.claims())
        assert not left, "a spec was written before its claim was on record, or outlived it"
        recovery.converge(self.record, self.cdi, gpus=GPUS, boot_id="this boot")

    def play(self, call: str, name: str, device: str) -> None:
        claim = a_claim(name, on=[f"node-0/{device}"])
        if call == "prepare":
            self.desk.prepare(claim, {f"gpu-{gpu.minor}": gpu for gpu in GPUS})
        else:
            self.desk.unprepare(ClaimUid(claim.metadata.uid))


GPUS = [a_gpu(0), a_gpu(1)]


class Lines:
    """Counts the executed lines of the code under test, and SIGKILLs the process at the `fatal`-th (0: never)."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self._fatal = fatal

    def trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename not in CODE:
            return None
        if event == "line":
            self.count += 1
            if self.count == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def play(folder: Path, scene: str, fatal: int) -> None:
    """Kubelet's calls, with a log of what it asked and what it was told."""
    lines = Lines(fatal)
    with (folder / "answers").open("a", buffering=1) as log:
        sys.settrace(lines.trace)
        node = Node(folder)
        for step in SCENES[scene]:
            print(json.dumps(["asked", *step]), file=log)
            node.play(*step)
            print(json.dumps(["done", *step]), file=log)
        sys.settrace(None)
        print(json.dumps(["lines", lines.count]), file=log)


def recover(folder: Path, fatal: int) -> None:
    sys.settrace(Lines(fatal).trace)
    Node(folder)


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked process that does the work: -9 when it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent sees the status
            traceback.print_exc()
        os._exit(status)  # a forked child must never return into the tests
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def answers(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "answers").read_text().splitlines()]


def check(folder: Path) -> None:
    """A fresh start agrees with every answer that kubelet got, and kubelet's next attempts succeed."""
    node = Node(folder)
    told: dict[str, str] = {}  # what kubelet believes: prepared claims and their device
    unsure: tuple[str, str, str] | None = None
    for verb, *step in answers(folder):
        if verb == "asked":
            unsure = (step[0], step[1], step[2])
        elif verb == "done":
            unsure = None
            if step[0] == "prepare":
                told[step[1]] = step[2]
            else:
                del told[step[1]]
    held = {claim.name: claim for claim in node.record.claims.values()}
    assert all(claim.state is ClaimState.PREPARED for claim in held.values())
    certain = {name for name in told if unsure is None or unsure[1] != name}
    assert certain <= set(held), "a claim that kubelet was told is prepared is lost"
    assert set(held) - certain <= ({unsure[1]} if unsure else set()), "a claim is held that kubelet never asked for"
    gpus = [device.gpu for claim in held.values() for device in claim.devices]
    assert len(gpus) == len(set(gpus)), "one device is held by two claims"
    assert sorted(node.cdi.uids()) == sorted(node.record.claims), "a spec without a claim, or a claim without its spec"
    leftovers = [path.name for path in (folder / "cdi").glob("*")] if (folder / "cdi").exists() else []
    assert len(leftovers) == len(held), "half-written files are left"
    if unsure:
        node.play(*unsure)


def kill_points(folder: Path, scene: str) -> int:
    """How many instructions the scene has."""
    folder.mkdir()
    assert in_child(lambda: play(folder, scene, 0)) == 0
    return int(answers(folder)[-1][1])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing of a file system, and fsync there costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


@pytest.mark.parametrize("scene", SCENES)
def test_killed_at_any_instruction_it_converges(scene: str, folder: Path) -> None:
    points = kill_points(folder / "whole", scene)
    for at in range(1, points + 1):
        place = folder / str(at)
        place.mkdir()
        assert in_child(partial(play, place, scene, at)) == -signal.SIGKILL
        check(place)
    REPORTS.append(f"killed at {points} points of {scene}")


def test_killed_again_while_it_recovers_it_still_converges(folder: Path) -> None:
    points = kill_points(folder / "whole", "first")
    tried = 0
    for first in range(1, points, 17):
        for second in range(1, 10_000, 5):
            place = folder / f"{first}-{second}"
            place.mkdir()
            assert in_child(partial(play, place, "first", first)) == -signal.SIGKILL
            if in_child(partial(recover, place, second)) == 0:
                break
            tried += 1
            check(place)
    REPORTS.append(f"killed at {tried} points of recovery")
    assert tried > 100
