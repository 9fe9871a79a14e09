"""What prevents changes of a simulated GPU: holders, injected failures, latency, and the points where a process may die."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import GpuProcess, StateError, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import Mig, StateFile

IN_USE, UNKNOWN = pynvml.NVML_ERROR_IN_USE, pynvml.NVML_ERROR_UNKNOWN


def test_a_process_keeps_what_it_computes_on(mig: Mig, path: Path) -> None:
    instance, compute = mig.made(9, 4)
    faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=2, compute_instance=0))
    with pytest.raises(pynvml.NVMLError_InUse):
        mig.nvml.nvmlComputeInstanceDestroy(compute)
    faults.release(path, 7)
    mig.nvml.nvmlComputeInstanceDestroy(compute)
    mig.nvml.nvmlGpuInstanceDestroy(instance)


def test_a_handle_on_the_gpu_instance_leaves_it_half_destroyed_and_nobody_listed(mig: Mig, path: Path) -> None:
    instance, compute = mig.made(9, 4)
    faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=2, listed=False, name="dcgm"))
    mig.nvml.nvmlComputeInstanceDestroy(compute)
    with pytest.raises(pynvml.NVMLError_InUse):
        mig.nvml.nvmlGpuInstanceDestroy(instance)
    assert mig.nvml.nvmlDeviceGetComputeRunningProcesses(mig.device) == []
    faults.release(path, 7)
    mig.nvml.nvmlGpuInstanceDestroy(instance)


def test_a_holder_is_in_nobody_elses_way(mig: Mig, path: Path) -> None:
    left, right = mig.made(9, 0), mig.made(9, 4)
    faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=1, compute_instance=0))
    faults.hold(path, 0, GpuProcess(pid=8))  # on the whole GPU: blocks a mode change, but not its instances
    mig.nvml.nvmlComputeInstanceDestroy(right[1])
    mig.nvml.nvmlGpuInstanceDestroy(right[0])
    with pytest.raises(pynvml.NVMLError_InUse):
        mig.nvml.nvmlComputeInstanceDestroy(left[1])


def test_instances_that_are_not_there_cannot_be_held(mig: Mig, path: Path) -> None:
    mig.make(9, 4)
    with pytest.raises(StateError, match="has no GPU instance 5; there are: 2"):
        faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=5))
    with pytest.raises(StateError, match="GPU instance 2 has no compute instance 0; there are: none"):
        faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=2, compute_instance=0))
    with pytest.raises(StateError, match="No process 7 holds a GPU of node node-1"):
        faults.release(path, 7)


def test_a_call_fails_as_often_as_chosen_for_every_process_together(mig: Mig, path: Path) -> None:
    faults.fail(path, "nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN, times=2)
    other = Mig(path)
    for each in (mig, other):
        with pytest.raises(pynvml.NVMLError_Unknown):
            each.make(9, 4)
    assert load(path).failures == []
    assert mig.placements() == {}
    mig.make(9, 4)


def test_a_failure_without_number_lasts_until_it_is_ended(mig: Mig, path: Path) -> None:
    faults.fail(path, "nvmlDeviceGetMigMode", pynvml.NVML_ERROR_NO_PERMISSION)
    faults.fail(path, "nvmlDeviceGetName", UNKNOWN)
    for _ in range(5):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            mig.nvml.nvmlDeviceGetMigMode(mig.device)
    faults.stop_failing(path, "nvmlDeviceGetMigMode")
    mig.nvml.nvmlDeviceGetMigMode(mig.device)
    with pytest.raises(pynvml.NVMLError_Unknown):
        mig.nvml.nvmlDeviceGetName(mig.device)
    faults.stop_failing(path)
    mig.nvml.nvmlDeviceGetName(mig.device)


def test_a_failure_of_one_gpu_leaves_the_others_and_ends_with_its_healing(mig: Mig, path: Path) -> None:
    faults.fail(path, "", UNKNOWN, gpu=0)
    other = mig.nvml.nvmlDeviceGetHandleByIndex(1)
    assert mig.nvml.nvmlDeviceGetCount() == 8
    assert mig.nvml.nvmlDeviceGetIndex(other) == 1
    with pytest.raises(pynvml.NVMLError_Unknown):
        mig.nvml.nvmlDeviceGetIndex(mig.device)
    with pytest.raises(pynvml.NVMLError_Unknown):
        mig.make(9, 0)
    faults.heal(path, 0)
    mig.make(9, 0)


def test_a_failure_may_be_of_one_instance(mig: Mig, path: Path) -> None:
    left, right = mig.made(9, 0), mig.made(9, 4)
    faults.fail(path, "nvmlGpuInstanceGetInfo", UNKNOWN, gpu=0, gpu_instance=2)
    faults.fail(path, "nvmlComputeInstanceDestroy", IN_USE, gpu=0, gpu_instance=1, compute_instance=0)
    assert mig.nvml.nvmlGpuInstanceGetInfo(left[0]).id == 1
    with pytest.raises(pynvml.NVMLError_Unknown):
        mig.nvml.nvmlGpuInstanceGetInfo(right[0])
    mig.nvml.nvmlComputeInstanceDestroy(right[1])
    with pytest.raises(pynvml.NVMLError_InUse):
        mig.nvml.nvmlComputeInstanceDestroy(left[1])


def test_a_failure_may_be_of_one_compute_instance(mig: Mig, path: Path) -> None:
    instance = mig.make(9, 0)
    first, second = (mig.nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(2))
    faults.fail(path, "nvmlComputeInstanceDestroy", UNKNOWN, gpu=0, gpu_instance=1, compute_instance=1)
    mig.nvml.nvmlComputeInstanceDestroy(first)
    with pytest.raises(pynvml.NVMLError_Unknown):
        mig.nvml.nvmlComputeInstanceDestroy(second)


def test_a_call_may_do_its_work_and_fail_nevertheless(mig: Mig, path: Path) -> None:
    faults.fail(path, "nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_TIMEOUT, times=1, effect="done")
    with pytest.raises(pynvml.NVMLError_Timeout):
        mig.make(9, 4)
    assert mig.placements() == {2: (9, 4, 4)}


def test_init_can_be_chosen_to_fail(path: Path) -> None:
    faults.fail(path, "nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, times=1)
    nvml = SimulatedNvml(path)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 8


def test_only_functions_of_nvml_can_be_chosen(path: Path) -> None:
    with pytest.raises(StateError, match="NVML has no function nvmlDeviceExplode"):
        faults.fail(path, "nvmlDeviceExplode", UNKNOWN)
    with pytest.raises(StateError, match="nvmlShutdown never fails"):
        faults.fail(path, "nvmlShutdown", UNKNOWN)


def test_no_latency_at_all_ends_also_what_was_chosen_for_one_function(path: Path) -> None:
    faults.latency(path, 1.0, "nvmlGpuInstanceDestroy")
    faults.latency(path, 0.25)
    faults.latency(path, 0)
    assert load(path).latency_s == {}


def test_each_function_has_its_own_latency(path: Path) -> None:
    slept: list[float] = []
    nvml = SimulatedNvml(path, sleep=slept.append)
    nvml.nvmlInit()
    faults.latency(path, 1.0, "nvmlGpuInstanceDestroy")
    faults.latency(path, 0.25)
    with pytest.raises(pynvml.NVMLError):
        nvml.nvmlGpuInstanceDestroy(None)
    nvml.nvmlDeviceGetCount()
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert slept == [1.0, 0.25, 0.25]


def test_a_driver_that_is_reloaded_during_a_call_ends_it_and_the_call_changes_nothing(mig: Mig, path: Path) -> None:
    mig.make(9, 0)
    nvml = SimulatedNvml(path, sleep=lambda _seconds: faults.reload_driver(path))
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    with mutate(path) as state:
        state.latency_s.update(nvmlDeviceSetMigMode=1.0)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceSetMigMode(device, 1)
    assert load(path).gpus[0].mig_current == 0


class Killed(BaseException):
    """The process dies here."""


def _killing_at(point: str) -> Callable[[str], None]:
    def step(now: str) -> None:
        if now == point:
            raise Killed

    return step


@pytest.mark.parametrize(("moment", "made"), [("before", {}), ("after", {2: (9, 4, 4)})])
def test_a_process_that_ends_before_a_call_has_done_nothing_and_after_it_everything(
    mig: Mig, path: Path, moment: str, made: dict[int, Any]
) -> None:
    doomed = SimulatedNvml(path, step=_killing_at(f"{moment} nvmlDeviceCreateGpuInstance"))
    doomed.nvmlInit()
    with pytest.raises(Killed):
        doomed.nvmlDeviceCreateGpuInstance(doomed.nvmlDeviceGetHandleByIndex(0), 9)
    assert mig.placements() == made


def test_every_call_is_a_pair_of_points_also_one_that_fails(path: Path) -> None:
    points: list[str] = []
    nvml = SimulatedNvml(path, step=points.append)
    nvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(99)
    nvml.nvmlDeviceGetComputeRunningProcesses_v3(nvml.nvmlDeviceGetHandleByIndex(0))
    nvml.nvmlShutdown()
    calls = ["nvmlInit", *["nvmlDeviceGetHandleByIndex"] * 2, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlShutdown"]
    assert points == [f"{moment} {call}" for call in calls for moment in ("before", "after")]


def test_programs_that_hold_an_ampere_gpu_keep_it_from_its_reset(a_state_file: StateFile) -> None:
    path = a_state_file("A100-80GB", gpus=1)
    mig = Mig(path)
    faults.hold(path, 0, GpuProcess(pid=7, listed=False, name="nvidia-persiste"))
    assert mig.nvml.nvmlDeviceSetMigMode(mig.device, 0) == IN_USE
    assert mig.nvml.nvmlDeviceGetMigMode(mig.device) == [1, 0]
    faults.hold(path, 0, GpuProcess(pid=8))
    with pytest.raises(StateError, match="processes 7, 8 hold it"):
        faults.reset(path, 0)
    faults.release(path, 7)
    faults.release(path, 8)
    assert mig.nvml.nvmlDeviceSetMigMode(mig.device, 0) == pynvml.NVML_ERROR_RESET_REQUIRED
    faults.reset(path, 0)
    assert mig.nvml.nvmlDeviceGetMigMode(mig.device) == [0, 0]


@pytest.mark.parametrize("board", ["A100-80GB", "H100-80GB"])
def test_mig_mode_is_not_left_while_instances_exist(a_state_file: StateFile, board: str) -> None:
    mig = Mig(a_state_file(board, gpus=1))
    instance = mig.make(9, 0)
    assert mig.nvml.nvmlDeviceSetMigMode(mig.device, 0) == IN_USE
    assert mig.nvml.nvmlDeviceGetMigMode(mig.device) == [1, 1]
    mig.nvml.nvmlGpuInstanceDestroy(instance)
    assert mig.nvml.nvmlDeviceSetMigMode(mig.device, 0) in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_RESET_REQUIRED)


def test_a_pending_mode_can_be_taken_back(a_state_file: StateFile) -> None:
    mig = Mig(a_state_file("A30", gpus=1))
    mig.nvml.nvmlDeviceSetMigMode(mig.device, 0)
    assert mig.nvml.nvmlDeviceSetMigMode(mig.device, 1) == pynvml.NVML_SUCCESS
    assert mig.nvml.nvmlDeviceGetMigMode(mig.device) == [1, 1]


@pytest.mark.parametrize("end", [faults.reload_driver, faults.reboot])
@pytest.mark.parametrize(("board", "kept"), [("A100-40GB", 1), ("H100-80GB", 0), ("B200", 0)])
def test_mig_mode_outlives_the_driver_on_ampere_only(
    a_state_file: StateFile, board: str, kept: int, end: Callable[[Path], None]
) -> None:
    path = a_state_file(board, gpus=1)
    Mig(path).make(9, 0)
    faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=1, listed=False))
    end(path)
    gpu = load(path).gpus[0]
    assert (gpu.mig_current, gpu.mig_pending, gpu.instances, gpu.processes) == (kept, kept, [], [])


def test_a_gpu_of_a_virtual_machine_waits_for_a_reboot(a_state_file: StateFile) -> None:
    path = a_state_file("A100-40GB", gpus=1)
    mig = Mig(path)
    with mutate(path) as state:
        state.gpus[0].passthrough = True
    assert mig.nvml.nvmlDeviceGetVirtualizationMode(mig.device) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
    assert mig.nvml.nvmlDeviceSetMigMode(mig.device, 0) == pynvml.NVML_ERROR_RESET_REQUIRED
    with pytest.raises(StateError, match="passed through to this virtual machine"):
        faults.reset(path, 0)
    faults.reboot(path)
    assert load(path).gpus[0].mig_current == 0


def test_a_reset_is_announced_when_it_changes_what_there_is(mig: Mig, path: Path) -> None:
    events = mig.nvml.nvmlEventSetCreate()
    mig.nvml.nvmlDeviceRegisterEvents(mig.device, pynvml.nvmlEventMigConfigChange, events)
    faults.reset(path, 0)
    with pytest.raises(pynvml.NVMLError_Timeout):
        mig.nvml.nvmlEventSetWait_v2(events, 0)
    mig.make(9, 0)
    faults.reset(path, 0)
    assert [mig.nvml.nvmlEventSetWait_v2(events, 0).eventType for _ in range(2)] == [
        pynvml.nvmlEventMigConfigChange
    ] * 2


def test_a_change_of_mode_is_announced(path: Path) -> None:
    nvml = SimulatedNvml(path)
    nvml.nvmlInit()
    device, events = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventMigConfigChange, events)
    nvml.nvmlDeviceSetMigMode(device, 1)
    assert nvml.nvmlEventSetWait_v2(events, 0).eventType == pynvml.nvmlEventMigConfigChange


def test_a_reboot_may_give_other_minor_numbers(path: Path) -> None:
    faults.reboot(path, minors=[3, 2, 1, 0, 7, 6, 5, 4])
    assert [gpu.minor for gpu in load(path).gpus] == [3, 2, 1, 0, 7, 6, 5, 4]
    with pytest.raises(StateError, match="needs 8 different minor numbers"):
        faults.reboot(path, minors=[1] * 8)
