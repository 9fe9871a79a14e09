"""Faults: what each makes NVML answer, and what ends it."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import GpuInstance, GpuProcess, RemappedRows, StateError, create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import StateFile, opened

CORRECTED, UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
VOLATILE, AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC


def _recovery_action(nvml: SimulatedNvml, gpu: int) -> int:
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
    value = nvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0].value
    return int(value.uiVal)


def test_a_lost_gpu_answers_nothing_and_its_neighbours_everything(nvml: SimulatedNvml, path: Path) -> None:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    uuid = nvml.nvmlDeviceGetUUID(handles[5])
    faults.lose(path, uuid)
    for call in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetTemperature, nvml.nvmlDeviceGetMigMode):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(handles[5], *([0] if call == nvml.nvmlDeviceGetTemperature else []))
    for way, name in ((nvml.nvmlDeviceGetHandleByIndex, 5), (nvml.nvmlDeviceGetHandleByUUID, uuid)):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            way(name)
    assert nvml.nvmlDeviceGetCount() == 8
    assert [nvml.nvmlDeviceGetIndex(handle) for index, handle in enumerate(handles) if index != 5] == [
        0, 1, 2, 3, 4, 6, 7,
    ]  # fmt: skip


def test_an_unreadable_gpu_answers_unknown_until_it_is_healed(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(2)
    faults.make_unreadable(path, 2)
    with pytest.raises(pynvml.NVMLError_Unknown):
        nvml.nvmlDeviceGetName(handle)
    faults.heal(path, 2)
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"


def test_ecc_errors_count_as_volatile_and_as_aggregate_and_a_reset_ends_the_volatile(
    nvml: SimulatedNvml, path: Path
) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    faults.ecc_errors(path, 0, corrected=5, uncorrected=1)
    faults.ecc_errors(path, 0, corrected=2)

    def counts() -> list[int]:
        return [
            nvml.nvmlDeviceGetTotalEccErrors(handle, kind, span)
            for kind in (CORRECTED, UNCORRECTED)
            for span in (VOLATILE, AGGREGATE)
        ]

    assert counts() == [7, 7, 1, 1]
    faults.reset(path, 0)
    assert counts() == [0, 7, 0, 1]


def test_the_sram_threshold_is_reported(nvml: SimulatedNvml, path: Path) -> None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    faults.sram_threshold_exceeded(path, 0)
    nvml.nvmlDeviceGetSramEccErrorStatus(nvml.nvmlDeviceGetHandleByIndex(0), ctypes.byref(status))
    assert status.bThresholdExceeded == 1


def test_a_recovery_action_is_announced_and_a_reset_ends_it(nvml: SimulatedNvml, path: Path) -> None:
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(4), pynvml.nvmlEventTypeAll, events)
    faults.recovery_action(path, 4, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    assert _recovery_action(nvml, 4) == 1
    announced = [nvml.nvmlEventSetWait_v2(events, 0) for _ in range(2)]
    assert [(event.eventType, event.eventData) for event in announced] == [
        (pynvml.nvmlEventTypeXidCriticalError, 154),
        (pynvml.nvmlEventTypeGpuRecoveryAction, 1),
    ]
    faults.reset(path, 4)
    assert _recovery_action(nvml, 4) == 0


def test_a_reset_applies_pending_remaps_and_removes_instances(path: Path) -> None:
    faults.remapped_rows(path, 0, RemappedRows(uncorrectable=1, pending=True, failed=True))
    with mutate(path) as state:
        state.gpus[0].instances.append(GpuInstance(1, 19, 0, 1))
    faults.reset(path, 0)
    gpu = load(path).gpus[0]
    assert (gpu.instances, gpu.remapped) == ([], RemappedRows(uncorrectable=1, failed=True))


def test_a_gpu_that_is_held_cannot_be_reset(path: Path) -> None:
    with mutate(path) as state:
        state.gpus[0].processes.append(GpuProcess(pid=4711))
    with pytest.raises(StateError, match="process 4711 holds it"):
        faults.reset(path, 0)


def test_a_call_that_hangs_goes_on_when_it_is_let_go(nvml: SimulatedNvml, path: Path) -> None:
    first, second = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    faults.hang(path, "nvmlDeviceGetName", gpu=0)
    assert nvml.nvmlDeviceGetName(second)
    assert nvml.nvmlDeviceGetSerial(first)
    with ThreadPoolExecutor(1) as thread:
        hung = thread.submit(nvml.nvmlDeviceGetName, first)
        with pytest.raises(TimeoutError):
            hung.result(timeout=0.2)
        faults.stop_failing(path)
        assert hung.result(timeout=60) == nvml.nvmlDeviceGetName(second)


def test_a_driver_reload_voids_the_session_and_every_handle(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    faults.reload_driver(path, version="590.48.01")
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetName(handle)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlSystemGetDriverVersion()
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlSystemGetDriverVersion() == "590.48.01"
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetName(handle)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVMLError_DriverNotLoaded),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVMLError_LibraryNotFound),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVMLError_LibRmVersionMismatch),
    ],
)
def test_a_broken_driver_refuses_init_and_running_sessions(path: Path, code: int, error: type[Exception]) -> None:
    running = opened(path)
    faults.break_driver(path, code)
    with pytest.raises(error):
        running.nvmlDeviceGetCount()
    with pytest.raises(error):
        SimulatedNvml(path).nvmlInit()
    faults.reload_driver(path)
    assert opened(path).nvmlDeviceGetCount() == 8


@pytest.mark.parametrize(("board", "kept"), [("A100-40GB", 1), ("H100-80GB", 0)])
def test_mig_mode_survives_a_reboot_on_ampere_only(a_state_file: StateFile, board: str, kept: int) -> None:
    path = a_state_file(board, gpus=1)
    with mutate(path) as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    faults.reboot(path)
    assert load(path).gpus[0].mig_current == kept


def test_a_gpu_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(StateError, match="Node node-1 has no GPU 9; it has 0 to 7"):
        faults.lose(path, 9)


def link_state(nvml: SimulatedNvml, handle: object, link: int) -> tuple[int, list[int]]:
    return nvml.nvmlDeviceGetNvLinkState(handle, link), [
        nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter) for counter in range(pynvml.NVML_NVLINK_ERROR_COUNT)
    ]


def test_a_link_that_goes_down_says_so_once_and_a_reset_brings_it_up(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(2):
        faults.nvlink(path, 0, 4, down=True, replay=2, crc=1)
    assert link_state(nvml, handle, 4) == (pynvml.NVML_FEATURE_DISABLED, [4, 0, 2, 0, 0])
    assert link_state(nvml, handle, 5) == (pynvml.NVML_FEATURE_ENABLED, [0] * 5)
    assert [event.data for event in load(path).events] == [74]
    faults.reset(path, 0)
    assert link_state(nvml, handle, 4) == (pynvml.NVML_FEATURE_ENABLED, [0] * 5)


def test_a_link_goes_up_and_its_counters_start_again_on_their_own(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    faults.nvlink(path, 1, 0, down=True, recovery=3)
    nvml.nvmlDeviceResetNvLinkErrorCounters(handle, 0)
    assert link_state(nvml, handle, 0) == (pynvml.NVML_FEATURE_DISABLED, [0] * 5)
    faults.nvlink(path, 1, 0, recovery=1)
    faults.nvlink(path, 1, 0, down=False)
    assert link_state(nvml, handle, 0) == (pynvml.NVML_FEATURE_ENABLED, [0, 1, 0, 0, 0])


def test_fields_sum_the_errors_of_all_links_up(nvml: SimulatedNvml, path: Path) -> None:
    faults.nvlink(path, 0, 0, replay=1, recovery=2, crc=3)
    faults.nvlink(path, 0, 17, replay=10)
    fields = [
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    ]
    values = nvml.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(0), fields)
    assert [value.value.ullVal for value in values] == [11, 2, 3]


def test_a_board_without_the_link_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"has no NVLink 18; its links are 0 to 17\.$"):
        faults.nvlink(path, 0, 18, down=True)
    create(tmp_path / "l40s.json", board="L40S", gpus=1, node_name="other")
    with pytest.raises(StateError, match=r"has no NVLink 0; L40S has none\.$"):
        faults.nvlink(tmp_path / "l40s.json", 0, 0, down=True)
    assert not load(path).events


def test_remapped_rows_wait_for_a_reset_and_a_row_that_could_not_be_remapped_stays(
    nvml: SimulatedNvml, path: Path
) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    faults.remap(path, 0, correctable=1, uncorrectable=2)
    assert nvml.nvmlDeviceGetRemappedRows(handle) == (1, 2, 1, 0)
    faults.remap(path, 0, failed=True)
    faults.reset(path, 0)
    assert nvml.nvmlDeviceGetRemappedRows(handle) == (1, 2, 0, 1)
    assert [event.data for event in load(path).events] == [63, 64]
    faults.heal(path, 0)
    assert nvml.nvmlDeviceGetRemappedRows(handle) == (0, 0, 0, 0)
