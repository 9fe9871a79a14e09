"""Killed at any instruction of preparing, unpreparing or recovering, the agent loses no claim and hands out no device twice.

A test plays a scene of kubelet's calls. At each executed line of the code that keeps claims, it takes a photo: the files on disk,
and the log of the answers that kubelet had by then. A restart from each photo must agree with that log; photos are taken during
the restart too. Processes that kill themselves with SIGKILL at some of these lines prove that they leave what the photo shows.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import pytest

from draco.agent import files
from draco.agent.claims import cdi, rebuilding, recovery
from draco.agent.claims import preparer as prepare
from draco.agent.claims.cdi import CdiFolder
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.record import checkpoint, journal
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.builders import a_claim, a_gpu
from tests.doubles.undivided import UNDIVIDED, a_preparer
from tests.side_by_side import REPORTS

SCENES = {
    "first": [("prepare", "one", "gpu-0"), ("unprepare", "one", "gpu-0"), ("prepare", "two", "gpu-0")],
    "beside": [("prepare", "one", "gpu-0"), ("prepare", "two", "gpu-1"), ("prepare", "one", "gpu-0")],
}
"""kubelet's calls in order: call, claim, device."""

MODULES = (recovery, prepare, checkpoint, journal, cdi, files)
CODE = frozenset(str(module.__file__) for module in MODULES)


class Node:
    """The part of an agent that keeps claims, in a folder."""

    def __init__(self, folder: Path) -> None:
        local = Files()
        path = folder / "state" / "checkpoint.json"
        self.cdi = CdiFolder(folder / "cdi", local, driver=NVIDIA_DRIVER, node=Capabilities())
        self.record = Checkpoint(path, local, boot_id="")
        self.desk = a_preparer(self.record, self.cdi)
        found = recovery.read_record(path, local)
        assert not isinstance(found, recovery.Damaged), found
        self.record.restore(found)
        left = rebuilding.forgotten(self.record.claims.values(), self.cdi.claims())
        assert not left, "a spec was written before its claim was on record, or outlived it"
        recovery.converge(self.record, self.cdi, gpus=GPUS, boot_id="this boot", instances=UNDIVIDED)

    def play(self, call: str, name: str, device: str) -> None:
        claim = a_claim(name, on=[f"node-0/{device}"])
        if call == "prepare":
            self.desk.prepare(claim, {f"gpu-{gpu.minor}": gpu for gpu in GPUS})
        else:
            self.desk.unprepare(ClaimUid(claim.metadata.uid))


GPUS = [a_gpu(0), a_gpu(1)]


class Photo(NamedTuple):
    """What a process killed now leaves in a folder: its subfolders, and its files with all their names."""

    folders: tuple[str, ...]
    files: tuple[tuple[tuple[str, ...], bytes], ...]


def photograph(folder: Path) -> Photo:
    folders, names, contents = [], dict[int, list[str]](), dict[int, bytes]()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            folders.append(name)
            continue
        number = path.stat().st_ino
        names.setdefault(number, []).append(name)
        contents[number] = path.read_bytes()
    return Photo(tuple(folders), tuple((tuple(names[number]), contents[number]) for number in names))


def restore(photo: Photo, folder: Path) -> None:
    folder.mkdir()
    for name in photo.folders:
        (folder / name).mkdir()
    for (first, *others), content in photo.files:
        (folder / first).write_bytes(content)
        for other in others:
            (folder / other).hardlink_to(folder / first)


class Camera:
    """Takes a photo of a folder before each executed line of the code under test."""

    def __init__(self, folder: Path) -> None:
        self.photos: list[Photo] = []
        self._folder = folder

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename not in CODE:
            return None
        if event == "line":
            self.point()
        return self._trace

    def point(self) -> None:
        self.photos.append(photograph(self._folder))


class Killer(Camera):
    """Kills the process where a camera would take photo number `fatal`."""

    def __init__(self, folder: Path, fatal: int) -> None:
        super().__init__(folder)
        self._left = fatal

    def point(self) -> None:
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def play(folder: Path, scene: str, camera: Camera) -> None:
    """Make kubelet's calls, and log what was asked and what was done."""
    with (folder / "answers").open("a", buffering=1) as log, camera:
        node = Node(folder)
        for step in SCENES[scene]:
            print(json.dumps(["asked", *step]), file=log)
            node.play(*step)
            camera.point()
            print(json.dumps(["done", *step]), file=log)
            camera.point()


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked process that does the work: -9 if it was killed."""
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


def check(folder: Path) -> list[Photo]:
    """A restart agrees with every answer that kubelet got, and kubelet's next attempts succeed.

    Returns the photos of that restart.
    """
    with Camera(folder) as camera:
        node = Node(folder)
    told: dict[str, str] = {}  # what kubelet knows: prepared claims and their device
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
    assert all(claim.state is PreparationState.PREPARED for claim in held.values())
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
    return camera.photos


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory if possible: a killed process loses no file system content, and fsync costs nothing there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


@pytest.fixture
def played(folder: Path, scene: str) -> Camera:
    """A camera with the photos of a whole scene."""
    whole = folder / "whole"
    whole.mkdir()
    camera = Camera(whole)
    play(whole, scene, camera)
    return camera


@pytest.mark.exhaustive
@pytest.mark.parametrize("scene", SCENES)
def test_killed_at_any_instruction_it_converges_even_if_it_is_killed_again(
    scene: str, folder: Path, played: Camera
) -> None:
    waiting, seen, recovering = list(played.photos), set[Photo](), 0
    while waiting:
        photo = waiting.pop()
        if photo in seen:
            continue
        seen.add(photo)
        place = folder / str(len(seen))
        restore(photo, place)
        photos = check(place)
        shutil.rmtree(place)
        recovering += len(photos)
        waiting += photos
    REPORTS.append(f"{scene}: {len(played.photos)} kill points and {recovering} while recovering, {len(seen)} states")


@pytest.mark.exhaustive
@pytest.mark.parametrize("scene", SCENES)
def test_a_killed_process_leaves_what_was_photographed(scene: str, folder: Path, played: Camera) -> None:
    for at in range(0, len(played.photos), 40):
        place = folder / str(at)
        place.mkdir()
        assert in_child(partial(play, place, scene, Killer(place, at))) == -signal.SIGKILL
        assert photograph(place) == played.photos[at]
