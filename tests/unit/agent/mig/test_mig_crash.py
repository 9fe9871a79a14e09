"""Killed at any journal write and any NVML call, the agent recovers to a state that explains every GPU instance.

A killed process leaves what is on the disk and on the GPUs. So each scene is played once, and the node is photographed before and
after each write and each call. Each distinct photo is a node on which a restart is tried. That restart is photographed in the
same way, and so on until no new photo appears: this covers agents killed again while recovering.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import pynvml
import pytest

from draco.agent.claims import recovery
from draco.agent.errors import PrepareError
from draco.agent.files import Files
from draco.agent.hardware.gpus import Use
from draco.agent.mig.inventory import DOUBT_S
from draco.agent.record import checkpoint
from draco.agent.record.contents import InstanceState, OwnedInstance, PreparationState
from draco.resources.api.draco import MigMode, ProfileCount, WantedGpu, WantedInstance
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import Failure, GpuProcess
from tests.builders import a_claim
from tests.side_by_side import REPORTS
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

CLAIMS = {
    "small": a_mig_claim("small", *names([(19, 3)])),
    "pair": a_mig_claim("pair", *names([(15, 4), (14, 0)])),
    "left": a_mig_claim("left", *names([(5, 0)])),
    "whole": a_claim("whole", on=["node-0/gpu-0"]),
}
BOOTS = ("this boot", "the next boot")


class Stage:
    """A node on which a scene is played, and what kubelet has been told so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: frozenset[str] = frozenset()
        self.unsure: tuple[str, str] | None = None
        self.wanted: WantedGpu | None = None
        self.boot = BOOTS[0]
        self.by_hand: frozenset[str] = frozenset()
        self.bare: frozenset[int] = frozenset()
        self.before: dict[str, Callable[[], None]] = {}
        self.node: MigNode | None = None
        self.camera = Camera(self)

    def start(self) -> MigNode:
        self.node = MigNode(self.folder, step=self.camera.point, files=self.camera, boot=self.boot)
        return self.node

    def prepare(self, name: str) -> None:
        self.unsure = ("prepare", name)
        assert self.node
        self.node.prepare(CLAIMS[name])
        self.told, self.unsure = self.told | {name}, None

    def unprepare(self, name: str) -> None:
        self.unsure = ("unprepare", name)
        assert self.node
        self.node.unprepare(CLAIMS[name])
        self.told, self.unsure = self.told - {name}, None

    def put_by_hand(self, profile: str, start: int) -> None:
        """Somebody else creates an instance."""
        made = by_hand.create_instance(self.folder / "gpus.json", 0, profile, start=start)
        self.by_hand |= {made.uuid}

    def begin_by_hand(self, profile: str, start: int) -> None:
        """Somebody else creates a GPU instance, without its compute instance for now."""
        path = self.folder / "gpus.json"
        number = by_hand.create_instance(path, 0, profile, start=start, compute="none").gpu_instance
        self.bare |= {one.serial for one in state.load(path).gpus[0].instances if one.id == number}

    def finish_by_hand(self) -> None:
        """Create the missing compute instances."""
        node = self.node
        assert node
        for one in node.hardware().instances:
            if one.serial in self.bare:
                with self.camera.closed():
                    gpu = node.nvml.handle(node.uuid)
                    handle = node.nvml.call("nvmlDeviceGetGpuInstanceById", gpu, one.id)
                    node.nvml.call("nvmlGpuInstanceCreateComputeInstance", handle, 0)
        done = [one for one in node.hardware().instances if one.serial in self.bare]
        self.by_hand |= {part.uuid for one in done for part in one.compute}
        self.bare = frozenset()

    def want(self, mode: MigMode, *, layout: str = "", warm: str = "") -> None:
        """Set a layout such as "3g.40gb@4 1g.10gb@0", and warm profiles."""
        assert self.node
        self.wanted = WantedGpu(
            uuid=self.node.uuid,
            policy="policy",
            mode=mode,
            layout=[
                WantedInstance(profile=profile, start=int(start))
                for profile, _, start in (one.partition("@") for one in layout.split())
            ],
            warm=[ProfileCount(profile=profile) for profile in warm.split()],
        )
        self.node.layouts.apply(self.node.uuid, self.wanted)


class Photo(msgspec.Struct, frozen=True):
    """What a killed agent leaves on a node, and what kubelet had been told by then."""

    files: dict[str, bytes]
    told: frozenset[str]
    unsure: tuple[str, str] | None
    wanted: WantedGpu | None
    boot: str
    by_hand: frozenset[str]
    bare: frozenset[int]


class Camera(Files):
    """Photographs a stage at every point. It is also the stage's Files, so that each write has two points."""

    def __init__(self, stage: Stage) -> None:
        self.points = 0
        self.photos: list[Photo] = []
        self._stage = stage
        self._last: tuple[Any, ...] = ()
        self._written = 0
        self._closed = False

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Changes in this block are not the agent's: no photos."""
        self._closed = True
        yield
        self._closed = False

    def point(self, name: str) -> None:
        if self._closed:
            return
        self.points += 1
        stage = self._stage
        if name in stage.before:
            stage.before.pop(name)()
        found = os.stat(stage.folder / "gpus.json")  # noqa: PTH116 - tens of thousands of times
        now = (found.st_ino, found.st_mtime_ns, self._written, stage.told, stage.unsure)
        if now == self._last:
            return
        self._last = now
        content = {
            str(path.relative_to(stage.folder)): path.read_bytes()
            for path in (stage.folder / "gpus.json", *stage.folder.glob("state/*.json"), *stage.folder.glob("cdi/*"))
        }
        self.photos.append(
            Photo(content, stage.told, stage.unsure, stage.wanted, stage.boot, stage.by_hand, stage.bare)
        )

    def write(self, path: Path, content: bytes) -> None:
        self._between(path, lambda: super(Camera, self).write(path, content))

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        self._between(path, lambda: super(Camera, self).overwrite(path, offset, content))

    def overwrite_volatile(self, path: Path, offset: int, content: bytes) -> None:
        self._between(path, lambda: super(Camera, self).overwrite_volatile(path, offset, content))

    def write_volatile(self, path: Path, content: bytes) -> None:
        self._between(path, lambda: super(Camera, self).write_volatile(path, content))

    def remove(self, path: Path) -> None:
        self._between(path, lambda: super(Camera, self).remove(path))

    def _between(self, path: Path, change: Callable[[], None]) -> None:
        self.point(f"before {path}")
        change()
        self._written += 1
        self.point(f"after {path}")


def essence(photo: Photo) -> str:
    """A photo without what differs between equal nodes: UUIDs are replaced by their order, events and counters left out."""
    node = json.loads(photo.files["gpus.json"])
    gpus = [[one["mig_current"], one["mig_pending"], one["instances"], one["processes"]] for one in node["gpus"]]
    for gpu in gpus:
        for instance in gpu[2]:
            for part in (instance, *instance["compute"]):
                part.pop("serial")
    written = photo.files.get("state/checkpoint.json")
    record = None if written is None else msgspec.to_builtins(checkpoint.read(written).as_change())
    specs = sorted((name, content.decode()) for name, content in photo.files.items() if name.startswith("cdi"))
    text = json.dumps([gpus, record, specs, sorted(photo.told), photo.unsure, photo.boot, bool(photo.bare)])
    numbers: dict[str, str] = {}
    return re.sub(r"MIG-[0-9a-f-]{36}", lambda found: numbers.setdefault(found[0], f"MIG-{len(numbers)}"), text)


# Scenes


def prepare_one(stage: Stage) -> None:
    stage.put_by_hand("1g.10gb", 6)
    stage.start()
    stage.prepare("small")
    stage.unprepare("small")


def prepare_two(stage: Stage) -> None:
    stage.put_by_hand("1g.10gb", 6)
    stage.start()
    stage.prepare("pair")
    stage.prepare("small")
    stage.unprepare("pair")


def give_way(stage: Stage) -> None:
    """A warm instance blocks a claim."""
    stage.put_by_hand("1g.10gb", 6)
    stage.start()
    stage.want(MigMode.DYNAMIC, warm="2g.20gb")
    stage.prepare("left")
    stage.unprepare("left")


def whole_and_parts(stage: Stage) -> None:
    stage.start()
    stage.prepare("whole")
    stage.unprepare("whole")
    stage.prepare("small")


def layouts(stage: Stage) -> None:
    """A layout changes while a neighbour runs."""
    stage.put_by_hand("1g.10gb", 6)
    stage.start()
    stage.want(MigMode.STATIC, layout="1g.20gb@4 2g.20gb@0")
    stage.prepare("pair")
    stage.want(MigMode.STATIC, layout="1g.10gb@2 1g.10gb@3 4g.40gb@0")
    stage.unprepare("pair")
    stage.want(MigMode.STATIC, layout="4g.40gb@0 1g.10gb@4")


def reload(stage: Stage) -> None:
    """The driver is reloaded: all instances are gone."""
    stage.start()
    stage.prepare("pair")
    faults.reload_driver(stage.folder / "gpus.json")
    stage.start()


def reboot(stage: Stage) -> None:
    stage.start()
    stage.prepare("pair")
    faults.reboot(stage.folder / "gpus.json")
    stage.boot = BOOTS[1]
    stage.start()
    stage.unprepare("pair")


def held(stage: Stage) -> None:
    """Somebody holds the GPU instance, so unpreparing stops half way."""
    stage.start()
    stage.prepare("small")
    assert stage.node
    [instance] = stage.node.hardware().instances
    faults.hold(stage.node.path, 0, GpuProcess(pid=4711, gpu_instance=instance.id, listed=False))
    with pytest.raises(PrepareError, match="in use by"):
        stage.unprepare("small")


def failing(function: str, effect: Literal["none", "done"]) -> Callable[[Stage], None]:
    """NVML fails one call for a claim, either before or after executing it, and does not say which."""

    def scene(stage: Stage) -> None:
        stage.put_by_hand("1g.10gb", 6)
        stage.start()
        stage.prepare("small")
        call = Failure(error=pynvml.NVML_ERROR_UNKNOWN, function=function, times=1, effect=effect)
        with state.mutate(stage.folder / "gpus.json") as node:
            node.failures.append(call)
        with pytest.raises(PrepareError):
            (stage.unprepare if "Destroy" in function else stage.prepare)("small" if "Destroy" in function else "pair")

    scene.__name__ = f"{function.removeprefix('nvml')} {effect}"
    return scene


def taken(stage: Stage) -> None:
    """Somebody creates the same instance just before the agent does."""
    stage.start()
    stage.before["before nvmlDeviceCreateGpuInstanceWithPlacement"] = partial(stage.put_by_hand, "1g.10gb", 3)
    with pytest.raises(PrepareError, match="made by somebody else"):
        stage.prepare("small")


def begun(stage: Stage) -> None:
    """The same, without a compute instance: exactly as the agent's own would look at that point."""
    stage.start()
    stage.before["before nvmlDeviceCreateGpuInstanceWithPlacement"] = partial(stage.begin_by_hand, "1g.10gb", 3)
    with pytest.raises(PrepareError, match="without a compute instance, was made by somebody else"):
        stage.prepare("small")


SCENES: list[Callable[[Stage], None]] = [
    prepare_one,
    prepare_two,
    give_way,
    whole_and_parts,
    layouts,
    reload,
    reboot,
    held,
    taken,
    begun,
    failing("nvmlDeviceCreateGpuInstanceWithPlacement", "none"),
    failing("nvmlDeviceCreateGpuInstanceWithPlacement", "done"),
    failing("nvmlGpuInstanceCreateComputeInstance", "done"),
    failing("nvmlComputeInstanceDestroy", "done"),
    failing("nvmlGpuInstanceDestroy", "none"),
]


# Checks


def restore(photo: Photo, folder: Path, template: Path) -> Stage:
    """The node as photographed."""
    folder.mkdir()
    (folder / "proc").symlink_to(template / "proc")
    for name, content in photo.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    stage = Stage(folder)
    stage.told, stage.unsure, stage.wanted, stage.boot = photo.told, photo.unsure, photo.wanted, photo.boot
    there = photo.files["gpus.json"].decode()
    stage.by_hand = frozenset(uuid for uuid in photo.by_hand if uuid in there)
    on_board = {one.serial for gpu in state.load(folder / "gpus.json").gpus for one in gpu.instances}
    assert photo.bare <= on_board, "what may be somebody else's was destroyed"
    stage.bare = photo.bare
    with state.mutate(folder / "gpus.json") as node:
        node.failures.clear()
    return stage


def check(stage: Stage) -> tuple[list[Photo], int]:
    """After a restart on a photographed node nothing is lost, leaked or given twice, and others' instances are untouched.

    Returns the photos of that restart, and its number of points.
    """
    node = stage.start()
    if stage.bare:
        assert stage.bare <= {one.serial for one in node.hardware().instances}, "what is somebody else's is destroyed"
        stage.finish_by_hand()
        node.layouts.keep(node.uuid)
    elif open_steps(node) and not node.hardware().processes:
        assert "may come from an interrupted step of this agent" in node.mig.divisions[node.uuid].message
        node.now_s += DOUBT_S
        node.layouts.keep(node.uuid)
        recovery.respec(node.record, node.cdi, node.instances, gpus=node.gpus)  # so it learns of new instances
    assert not node.forgotten, "a spec was written before its claim was on record, or outlived it"
    recovering, points = list(stage.camera.photos), stage.camera.points
    assert node.left_open == {uuid for uuid, one in node.at_first.items() if one.dirty}, (
        "dirty until settled, and only then"
    )
    if node.hardware().processes:
        if open_steps(node):
            division = node.mig.divisions[node.uuid]
            assert division.dirty, "a GPU on which something could not be destroyed counts as clean"
            assert "in use by" in division.message
        faults.release(node.path, 4711)
        node.layouts.keep(node.uuid)
    assert not open_steps(node), "a step was neither finished nor undone"
    held = {claim.name: claim for claim in node.record.claims.values()}
    assert all(claim.state is PreparationState.PREPARED for claim in held.values())
    certain = {name for name in stage.told if stage.unsure is None or stage.unsure[1] != name}
    assert certain <= set(held), "a claim that kubelet was told is prepared is lost"
    assert set(held) - certain <= ({stage.unsure[1]} if stage.unsure else set()), (
        "a claim is held that nobody asked for"
    )
    check_hardware(node, stage.by_hand)
    if stage.unsure:
        again(node, *stage.unsure)
        check_hardware(node, stage.by_hand)
    for claim in CLAIMS.values():
        node.unprepare(claim)
    node.layouts.apply(node.uuid, None)
    left = [part.uuid for one in node.hardware().instances for part in one.compute]
    assert sorted(left) == sorted(stage.by_hand), "an instance is leaked, or somebody else's is gone"
    assert all(one.compute for one in node.hardware().instances)
    assert not node.record.instances
    assert not node.specs()
    return recovering, points


def again(node: MigNode, call: str, name: str) -> None:
    """Have kubelet ask again. What somebody else's instance blocks stays refused."""
    if call == "unprepare":
        node.unprepare(CLAIMS[name])
    elif name == "small" and any(one.instance.start == 3 for one in node.mig.divisions[node.uuid].foreign):
        with pytest.raises(PrepareError, match="made by somebody else"):
            node.prepare(CLAIMS[name])
    else:
        node.prepare(CLAIMS[name])


def open_steps(node: MigNode) -> list[OwnedInstance]:
    return [one for one in node.record.instances.values() if one.state is not InstanceState.MADE]


def check_hardware(node: MigNode, by_hand: frozenset[str]) -> None:
    """Every instance on the GPU is explained, and every claim has its own."""
    held = node.record.claims
    division = node.mig.divisions[node.uuid]
    assert not division.dirty, division.message
    on_board = {part.uuid: one for one in node.hardware().instances for part in one.compute}
    assert len(on_board) == len(node.hardware().instances), "a GPU instance has no compute instance"
    assert {one.instance.uuid for one in division.held} == set(on_board)
    assert {one.instance.uuid for one in division.foreign} == by_hand
    assert {one.use for one in division.held} <= {Use.CLAIM, Use.WARM, Use.LAYOUT, Use.FOREIGN}
    uuids = [device.partition.uuid for claim in held.values() for device in claim.devices if device.partition]
    assert len(uuids) == len(set(uuids)), "one instance is held by two claims"
    assert set(uuids) <= set(on_board), "a claim has an instance that is not there"
    assert {one.instance.uuid for one in division.held if one.use is Use.CLAIM} == set(uuids)
    for claim in held.values():
        assert node.cdi.is_current(claim), "a container would be given something else"


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_killed_at_any_step_it_explains_every_instance(scene: Callable[[Stage], None], folder: Path) -> None:
    template = folder / "template"
    template.mkdir()
    build(template)
    stage = Stage(template)
    scene(stage)
    points, recovering, seen, tried = stage.camera.points, 0, set[str](), 0
    waiting = list(stage.camera.photos)
    while waiting:
        photo = waiting.pop()
        shown = essence(photo)
        if shown in seen:
            continue
        seen.add(shown)
        tried += 1
        left_over = restore(photo, folder / str(tried), template)
        photos, more = check(left_over)
        waiting += photos
        recovering += more
        shutil.rmtree(left_over.folder)
    REPORTS.append(f"{scene.__name__}: {points} kill points and {recovering} while recovering, {tried} states")
