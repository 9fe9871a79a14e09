"""Time slices: set before a claim is prepared, on record, and taken back whatever happens in between."""

from pathlib import Path

import pynvml
import pytest

from draco.agent.errors import PrepareError
from draco.agent.hardware.time_slicing import InMigMode, TimeSliceRefused
from draco.agent.record.contents import PreparationState
from draco.allocation.configurations import VERSION, TimeSlice
from draco.resources.api.claims import ResourceClaim
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import state
from tests.builders import a_claim, configured
from tests.doubles.dying import Fuse, Killed, KilledFiles
from tests.unit.agent.mig_node import MigNode, build


def slicing(name: str, interval: str, *, on: str = "gpu-0") -> ResourceClaim:
    """A claim that was allocated a GPU and asks for time slices."""
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    parameters = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": sharing}
    return configured(a_claim(name, on=[f"node-0/{on}"]), parameters)


LONG, SHORT = slicing("long", "Long"), slicing("short", "Short")
PLAIN = a_claim("plain", on=["node-0/gpu-0"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build(tmp_path, gpus=2, mig=False)


@pytest.fixture
def node(path: Path) -> MigNode:
    return MigNode(path.parent)


def slices(path: Path) -> list[int]:
    return [gpu.time_slice for gpu in state.load(path).gpus]


def make_exclusive(path: Path) -> None:
    with state.mutate(path) as node:
        node.gpus[0].compute_mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def test_a_time_slice_is_set_for_the_claim_and_taken_back_after_it(node: MigNode, path: Path) -> None:
    node.prepare(LONG)
    assert slices(path) == [TimeSlice.LONG, TimeSlice.DEFAULT]
    node.unprepare(LONG)
    assert slices(path) == [TimeSlice.LONG, TimeSlice.DEFAULT], "unprepare waits for no program"
    node.settle_slices()
    assert slices(path) == [TimeSlice.DEFAULT, TimeSlice.DEFAULT]
    assert node.record.slices[node.uuid].time_slice is TimeSlice.DEFAULT


def test_the_next_claim_does_not_get_the_time_slice_of_the_last(node: MigNode, path: Path) -> None:
    node.prepare(LONG)
    node.unprepare(LONG)
    node.prepare(PLAIN)
    assert slices(path)[0] == TimeSlice.DEFAULT
    node.unprepare(PLAIN)
    node.prepare(SHORT)
    assert slices(path)[0] == TimeSlice.SHORT


def test_a_gpu_with_a_time_slice_is_not_exclusive(node: MigNode, path: Path) -> None:
    make_exclusive(path)
    node.prepare(PLAIN)
    node.unprepare(PLAIN)
    assert state.load(path).gpus[0].compute_mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, "nobody asked for it"
    node.prepare(LONG)
    assert state.load(path).gpus[0].compute_mode == pynvml.NVML_COMPUTEMODE_DEFAULT


def test_whether_a_gpu_can_have_a_time_slice_is_found_out_once_per_driver(node: MigNode, path: Path) -> None:
    assert node.slices.supported(node.uuid) is None
    node.settle_slices()
    assert node.slices.supported(node.uuid) is True
    faults.fail(path, "nvidia-smi", pynvml.NVML_ERROR_UNKNOWN)
    again = MigNode(path.parent)
    again.settle_slices()
    assert again.slices.supported(again.uuid) is True, "it is on record"
    faults.stop_failing(path)
    faults.reload_driver(path, version="450.80.02")
    older = MigNode(path.parent)
    assert older.slices.supported(older.uuid) is True, "published as before until it is tried again"
    with pytest.raises(TimeSliceRefused) as refused:
        older.settle_slices()
    assert refused.value.unsupported
    assert older.slices.supported(older.uuid) is False


def test_what_an_old_driver_refused_is_unknown_with_the_next_one_in_mig_mode(node: MigNode, path: Path) -> None:
    faults.reload_driver(path, version="450.80.02")
    older = MigNode(path.parent)
    with pytest.raises(TimeSliceRefused):
        older.settle_slices()
    by_hand.set_mode(path, 0, 1)
    faults.reload_driver(path, version="580.95.05")
    newer = MigNode(path.parent)
    assert newer.slices.supported(newer.uuid) is None
    by_hand.set_mode(path, 0, 0)
    newer.prepare(LONG)


def test_a_board_without_time_slices_refuses_the_claim_and_nothing_is_changed(tmp_path: Path) -> None:
    path = build(tmp_path, board="P4", mig=False)
    node = MigNode(tmp_path)
    make_exclusive(path)
    with pytest.raises(PrepareError, match="this board or its driver cannot set time slices"):
        node.prepare(LONG)
    assert state.load(path).gpus[0].compute_mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert node.slices.supported(node.uuid) is False
    with pytest.raises(PrepareError, match="and the board or the driver of node-0/gpu-0 cannot set them"):
        node.prepare(LONG)
    assert slices(path) == [TimeSlice.DEFAULT]
    assert not node.record.claims
    node.prepare(PLAIN)


def test_without_nvidia_smi_the_claim_is_refused_with_the_fix_and_others_are_not(node: MigNode, path: Path) -> None:
    faults.nvidia_smi(path, installed=False)
    with pytest.raises(
        PrepareError, match=r"asks for time slices of Long on gpu-0, and there is no nvidia-smi\. Kubelet tries again"
    ):
        node.prepare(LONG)
    assert not node.record.claims
    node.prepare(PLAIN)
    with pytest.raises(TimeSliceRefused):
        node.settle_slices()
    faults.nvidia_smi(path, installed=True)
    node.settle_slices()
    assert node.record.slices[node.uuid].time_slice is TimeSlice.DEFAULT


def test_mig_mode_ends_a_time_slice_and_says_nothing_of_the_board(node: MigNode, path: Path) -> None:
    node.prepare(LONG)
    node.unprepare(LONG)
    by_hand.set_mode(path, 0, 1)  # after the GPUs were read
    with pytest.raises(InMigMode):
        node.settle_slices()
    assert node.record.slices[node.uuid].time_slice is TimeSlice.DEFAULT
    by_hand.set_mode(path, 0, 0)
    node.prepare(SHORT)
    assert slices(path)[0] == TimeSlice.SHORT


def test_it_is_set_again_after_the_driver_was_loaded_anew(node: MigNode, path: Path) -> None:
    node.prepare(LONG)
    faults.reload_driver(path)
    assert slices(path)[0] == TimeSlice.DEFAULT
    again = MigNode(path.parent)
    again.settle_slices()
    assert slices(path)[0] == TimeSlice.LONG


def test_without_the_driver_a_claim_is_prepared_only_if_its_time_slice_is_set(node: MigNode) -> None:
    with pytest.raises(PrepareError, match="time slices of Long on gpu-0, and the driver does not answer"):
        node.desk.prepare_unasked(LONG, node.named)
    node.desk.clear(LONG, node.named)
    node.desk.prepare_unasked(LONG, node.named)
    assert node.record.claims


def course(folder: Path, at: int) -> bool:
    """Prepare, use and release with an agent that dies at a point; whether it has died. Another agent then takes over."""
    path = build(folder, gpus=2, mig=False)
    fuse = Fuse(at)
    died = False
    try:
        node = MigNode(folder, step=fuse, files=KilledFiles(fuse))
        node.settle_slices()
        node.prepare(LONG)
        node.unprepare(LONG)
        node.settle_slices()
        node.prepare(SHORT)
    except Killed:
        died = True
    after = MigNode(folder)
    after.settle_slices()
    [wanted, other] = [after.slices.wanted(gpu.uuid) for gpu in after.gpus]
    assert slices(path) == [wanted, other], at
    assert {one.gpu: one.time_slice for one in after.record.slices.values()} == {
        after.gpus[0].uuid: wanted,
        after.gpus[1].uuid: other,
    }
    for claim in after.record.claims.values():
        assert claim.state is PreparationState.PREPARED
    after.unprepare(LONG)
    after.unprepare(SHORT)
    after.settle_slices()
    assert slices(path) == [0, 0], at
    return died


def test_an_agent_that_dies_at_any_step_leaves_no_time_slice_behind(tmp_path: Path) -> None:
    at = 1
    while course(tmp_path / str(at), at):
        at += 1
    assert at > 20, "every write and every call is a point"
