"""GPU instances through simulated NVML: tables, lists, modes, and the pitfalls of pynvml."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco.agent.hardware.gpus import Instance
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import (
    InsufficientResources,
    InUse,
    NotSupported,
    NvmlError,
    ResetRequired,
    Unreadable,
)
from draco.agent.hardware.nvml_instances import MigModes, NvmlInstances
from draco.mig.board import Placement
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus.boards import BOARDS
from draco_local.simulator.gpus.gpu_state import GpuProcess
from draco_local.simulator.gpus.state import create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml


class Edge(NvmlInstances):
    """NvmlInstances on a new node with one GPU."""

    def __init__(self, path: Path, board: str = "H100-80GB", *, mig: int = 1) -> None:
        create(path, board=board, gpus=1, node_name="node")
        with mutate(path) as node:
            node.gpus[0].mig_current = node.gpus[0].mig_pending = mig
        self.path = path
        self.uuid = GpuUuid(load(path).gpus[0].uuid)
        self.nvml = Nvml(SimulatedNvml(path))
        self.nvml.open()
        super().__init__(self.nvml)

    def place(self, profile: str, start: int) -> Placement:
        board = self.board(self.uuid)
        assert board
        found = board.profile(profile)
        assert found
        return Placement(found, start)


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    return Edge(tmp_path / "gpus.json")


@pytest.mark.parametrize("key", [key for key, board in BOARDS.items() if board.mig])
@pytest.mark.parametrize("mode", [0, 1])
def test_every_board_s_table_is_read_whole_with_mig_on_or_off(tmp_path: Path, key: str, mode: int) -> None:
    edge = Edge(tmp_path / "gpus.json", key, mig=mode)
    table, board = BOARDS[key].mig, edge.board(edge.uuid)
    assert table
    assert board
    assert {(one.id, one.name, one.slices, one.size, one.starts) for one in board.profiles} == {
        (one.id, one.name, one.slices, one.size, tuple(one.starts)) for one in table.profiles
    }


def test_a_board_without_mig_has_no_table_no_mode_and_no_instances(tmp_path: Path) -> None:
    edge = Edge(tmp_path / "gpus.json", "L40S", mig=0)
    assert (edge.board(edge.uuid), edge.mode(edge.uuid), edge.instances(edge.uuid)) == (None, None, [])


def test_what_is_made_is_what_is_listed(edge: Edge) -> None:
    told: list[int] = []
    made = edge.create(edge.uuid, edge.place("3g.40gb", 4), told.append)
    assert (made.start, made.size, made.profile_id, made.parts) == (4, 4, 9, 1)
    assert told == [made.gi]
    assert edge.instances(edge.uuid) == [made]
    [there] = load(edge.path).gpus[0].instances
    assert there.compute[0].uuid == made.uuid
    assert there.compute[0].slices == 3


def test_a_gpu_instance_without_a_compute_instance_is_listed(edge: Edge) -> None:
    made = by_hand.create_instance(edge.path, 0, "2g.20gb", start=2, compute="none")
    assert edge.instances(edge.uuid) == [
        Instance(gpu=edge.uuid, gi=made.gpu_instance, profile_id=14, start=2, size=2, ci=None, uuid=None, parts=0)
    ]


def test_a_gpu_instance_in_several_parts_is_listed_once(edge: Edge) -> None:
    made = by_hand.create_instance(edge.path, 0, "2g.20gb", start=2, compute="none")
    handle = edge.nvml.call("nvmlDeviceGetGpuInstanceById", edge.nvml.handle(edge.uuid), made.gpu_instance)
    for _ in range(2):
        edge.nvml.call("nvmlGpuInstanceCreateComputeInstance", handle, 0)
    [found] = edge.instances(edge.uuid)
    assert (found.parts, found.ci) == (2, 0)


def test_of_several_parts_the_one_with_the_lowest_number_is_named(edge: Edge) -> None:
    made = by_hand.create_instance(edge.path, 0, "3g.40gb", start=4, compute="none")
    handle = edge.nvml.call("nvmlDeviceGetGpuInstanceById", edge.nvml.handle(edge.uuid), made.gpu_instance)
    for profile in (1, 0):  # the one with two slices first, though it is listed last
        edge.nvml.call("nvmlGpuInstanceCreateComputeInstance", handle, profile)
    [found] = edge.instances(edge.uuid)
    assert (found.parts, found.ci) == (2, 0)


def test_what_somebody_destroys_while_it_is_listed_or_destroyed_is_gone(edge: Edge) -> None:
    made = edge.create(edge.uuid, edge.place("3g.40gb", 4), lambda _number: None)
    faults.fail(edge.path, "nvmlGpuInstanceGetInfo", pynvml.NVML_ERROR_NOT_FOUND, times=2)
    assert edge.instances(edge.uuid) == []
    assert edge.instances(edge.uuid) == [made]
    faults.fail(edge.path, "nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_NOT_FOUND, times=1, effect="done")
    edge.destroy(made)
    assert edge.instances(edge.uuid) == []


def test_an_instance_that_is_there_is_not_gone_because_nvml_does_not_find_what_is_in_it(edge: Edge) -> None:
    made = edge.create(edge.uuid, edge.place("3g.40gb", 4), lambda _number: None)
    faults.fail(edge.path, "nvmlDeviceGetUUID", pynvml.NVML_ERROR_NOT_FOUND, times=1)
    with pytest.raises(
        NvmlError, match=f"NVML lists GPU instance {made.gi} of GPU {edge.uuid}, but not its compute instances"
    ):
        edge.instances(edge.uuid)
    assert edge.instances(edge.uuid) == [made]


def test_taken_units_and_held_instances_have_errors_of_their_own(edge: Edge) -> None:
    made = edge.create(edge.uuid, edge.place("3g.40gb", 4), lambda _number: None)
    with pytest.raises(InsufficientResources):
        edge.create(edge.uuid, edge.place("1g.10gb", 4), lambda _number: None)
    faults.hold(edge.path, 0, GpuProcess(pid=7, gpu_instance=made.gi, compute_instance=made.ci))
    with pytest.raises(InUse):
        edge.destroy(made)
    assert edge.processes(made) == [7]
    faults.release(edge.path, 7)
    edge.destroy(made)
    edge.destroy(made)  # already gone
    assert edge.instances(edge.uuid) == []


def test_half_a_destroy_is_continued(edge: Edge) -> None:
    made = edge.create(edge.uuid, edge.place("3g.40gb", 4), lambda _number: None)
    faults.fail(edge.path, "nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE, times=1)
    with pytest.raises(InUse):
        edge.destroy(made)
    assert [one.uuid for one in edge.instances(edge.uuid)] == [None]
    edge.destroy(made)
    assert edge.instances(edge.uuid) == []


def test_a_mode_that_did_not_come_about_is_an_error_though_nvml_raises_nothing(tmp_path: Path) -> None:
    hopper = Edge(tmp_path / "hopper.json", mig=0)
    hopper.switch(hopper.uuid, "on")
    assert hopper.mode(hopper.uuid) == MigModes(enabled=True, pending=True)
    hopper.create(hopper.uuid, hopper.place("1g.10gb", 0), lambda _number: None)
    with pytest.raises(InUse):
        hopper.switch(hopper.uuid, "off")
    ampere = Edge(tmp_path / "ampere.json", "A100-80GB", mig=0)
    with pytest.raises(ResetRequired):
        ampere.switch(ampere.uuid, "on")
    assert ampere.mode(ampere.uuid) == MigModes(enabled=False, pending=True)


def test_without_mig_mode_nothing_is_made(tmp_path: Path) -> None:
    edge = Edge(tmp_path / "gpus.json", mig=0)
    assert edge.instances(edge.uuid) == []
    with pytest.raises(NotSupported):
        edge.create(edge.uuid, edge.place("1g.10gb", 0), lambda _number: None)


def test_tables_are_read_once_a_session(edge: Edge) -> None:
    first = edge.board(edge.uuid)
    faults.fail(edge.path, "nvmlDeviceGetGpuInstanceProfileInfo", pynvml.NVML_ERROR_UNKNOWN)
    assert edge.board(edge.uuid) is first
    faults.stop_failing(edge.path)
    faults.reload_driver(edge.path)
    edge.nvml.close()
    edge.nvml.open()
    assert edge.board(edge.uuid) == first
    assert edge.board(edge.uuid) is not first


def test_a_profile_whose_name_is_no_text_is_told_in_a_sentence(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    told = edge.nvml._library.nvmlDeviceGetGpuInstanceProfileInfo

    def garbled(*asked: Any, **how: Any) -> Any:
        info = told(*asked, **how)
        info.name = b"MIG \xff"
        return info

    monkeypatch.setattr(edge.nvml._library, "nvmlDeviceGetGpuInstanceProfileInfo", garbled)
    with pytest.raises(Unreadable, match="answered bytes that are not text"):
        edge.board(edge.uuid)


@pytest.mark.parametrize("key", [key for key, board in BOARDS.items() if board.mig])
def test_every_profile_of_every_board_gets_one_compute_instance_of_all_its_slices(tmp_path: Path, key: str) -> None:
    edge = Edge(tmp_path / "gpus.json", key)
    board = edge.board(edge.uuid)
    assert board
    assert max(profile.slices for profile in board.profiles) < max(profile.size for profile in board.profiles) or (
        key == "A30"
    ), "memory units are not compute slices"
    for profile in board.profiles:
        made = edge.create(edge.uuid, Placement(profile, profile.starts[0]), lambda _: None)
        [there] = load(edge.path).gpus[0].instances
        assert [(one.uuid, one.slices) for one in there.compute] == [(made.uuid, profile.slices)]
        edge.destroy(made)
