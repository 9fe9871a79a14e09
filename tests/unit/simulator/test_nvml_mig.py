"""MIG through simulated NVML: mode, profiles, placements, and an empty GPU."""

import ctypes
from pathlib import Path

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.boards import BOARDS
from draco_local.simulator.gpus.state import GpuInstance, GpuProcess, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import StateFile, opened

ENABLE, DISABLE = pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_DISABLE


def _profiles(nvml: SimulatedNvml, gpu: int = 0) -> dict[str, int]:
    """Profile ids by name, as programs enumerate them: until INVALID_ARGUMENT, skipping NOT_SUPPORTED."""
    found: dict[str, int] = {}
    kind = 0
    while True:
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(nvml.nvmlDeviceGetHandleByIndex(gpu), kind)
        except pynvml.NVMLError_InvalidArgument:
            return found
        except pynvml.NVMLError_NotSupported:
            kind += 1
            continue
        found[info.name] = info.id
        kind += 1


def _placements(nvml: SimulatedNvml, profile_id: int) -> list[tuple[int, int]]:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, ctypes.byref(count))
    return [(place.start, place.size) for place in array]


def test_profiles_are_walked_by_enumeration_and_named_with_their_suffix(nvml: SimulatedNvml) -> None:
    assert _profiles(nvml) == {
        "MIG 1g.10gb": 19, "MIG 2g.20gb": 14, "MIG 3g.40gb": 9, "MIG 4g.40gb": 5, "MIG 7g.80gb": 0,
        "MIG 1g.10gb+me": 20, "MIG 1g.20gb": 15,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [-1, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT])
def test_the_enumeration_of_profiles_has_an_end(nvml: SimulatedNvml, kind: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetGpuInstanceProfileInfo(nvml.nvmlDeviceGetHandleByIndex(0), kind)


def test_a_profile_is_the_same_by_enumeration_and_by_id(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    by_kind = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    by_id = nvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, by_kind.id)
    assert bytes(by_kind) == bytes(by_id)
    assert (by_kind.multiprocessorCount, by_kind.memorySizeMB) == (60, 40448)
    assert not hasattr(nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=1), "name")


@pytest.mark.parametrize(
    ("board", "profile_id", "expected"),
    [
        ("H100-80GB", 15, [(0, 2), (2, 2), (4, 2), (6, 2)]),
        ("H100-80GB", 9, [(0, 4), (4, 4)]),
        ("H100-80GB", 0, [(0, 8)]),
        ("A30", 21, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        ("RTX-PRO-6000", 67, [(0, 3), (3, 3), (6, 3), (9, 3)]),
    ],
)
def test_placements_are_asked_for_twice_count_then_array(
    a_state_file: StateFile, board: str, profile_id: int, expected: list[tuple[int, int]]
) -> None:
    assert _placements(opened(a_state_file(board, gpus=1)), profile_id) == expected


def test_an_array_too_small_for_the_placements_is_refused(nvml: SimulatedNvml) -> None:
    array, count = (pynvml.c_nvmlGpuInstancePlacement_t * 2)(), ctypes.c_uint(2)
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            nvml.nvmlDeviceGetHandleByIndex(0), 19, array, ctypes.byref(count)
        )


def test_a_profile_id_of_another_board_is_an_invalid_argument(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for call in (nvml.nvmlDeviceGetGpuInstanceProfileInfoById, nvml.nvmlDeviceGetGpuInstanceRemainingCapacity):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(handle, 47)


@pytest.mark.parametrize("board", ["L40S", "T4"])
def test_boards_without_mig_refuse_every_question_about_it(a_state_file: StateFile, board: str) -> None:
    nvml = opened(a_state_file(board, gpus=1))
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for call in (
        lambda: nvml.nvmlDeviceGetMigMode(handle),
        lambda: nvml.nvmlDeviceSetMigMode(handle, ENABLE),
        lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0),
        lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0


def test_hopper_switches_at_once(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
    assert nvml.nvmlDeviceSetMigMode(handle, ENABLE) == pynvml.NVML_SUCCESS
    assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(1)) == [0, 0]


def test_ampere_waits_for_a_reset(a_state_file: StateFile) -> None:
    path = a_state_file("A100-80GB", gpus=1)
    nvml = opened(path)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(handle, ENABLE) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    faults.reset(path, 0)
    assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]


def test_the_activation_status_is_returned_and_never_raised(nvml: SimulatedNvml, path: Path) -> None:
    with mutate(path) as state:
        state.gpus[0].processes.append(GpuProcess(pid=1))
        state.gpus[1].mig_current = state.gpus[1].mig_pending = 1
        state.gpus[1].instances.append(GpuInstance(1, 19, 0, 1))
    for gpu, mode in ((0, ENABLE), (1, DISABLE)):
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
        before = nvml.nvmlDeviceGetMigMode(handle)
        assert nvml.nvmlDeviceSetMigMode(handle, mode) == pynvml.NVML_ERROR_IN_USE
        assert nvml.nvmlDeviceGetMigMode(handle) == before
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByIndex(2), 7)


@pytest.mark.parametrize("board", [key for key, board in BOARDS.items() if board.mig])
def test_an_empty_gpu_has_room_for_every_profile_as_often_as_it_may_exist(a_state_file: StateFile, board: str) -> None:
    path = a_state_file(board, gpus=1)
    nvml = opened(path)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, ENABLE)
    if BOARDS[board].architecture == pynvml.NVML_DEVICE_ARCH_AMPERE:
        faults.reset(path, 0)
    for profile_id in _profiles(nvml).values():
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, profile_id)
        assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile_id) == info.instanceCount


def test_remaining_capacity_counts_what_is_taken(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19) == 7  # even with MIG off
    nvml.nvmlDeviceSetMigMode(handle, ENABLE)
    with mutate(path) as state:
        state.gpus[0].instances.append(GpuInstance(1, 9, 0, 4))
    left = {id_: nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, id_) for id_ in (19, 20, 15, 14, 9, 5, 0)}
    assert left == {19: 3, 20: 1, 15: 2, 14: 1, 9: 1, 5: 0, 0: 0}


def test_where_no_instances_are_the_walk_says_so(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, ENABLE)
    count = ctypes.c_uint(7)
    nvml.nvmlDeviceGetGpuInstances(handle, 19, (pynvml.c_nvmlGpuInstance_t * 7)(), ctypes.byref(count))
    assert count.value == 0
    for slot in range(7):
        with pytest.raises(pynvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 7)
    assert not nvml.nvmlDeviceIsMigDeviceHandle(handle)
