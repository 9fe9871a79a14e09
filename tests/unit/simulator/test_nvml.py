"""Simulated NVML's answers and refusals, function by function where they are not obvious."""

import ctypes
from pathlib import Path

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import wiring
from draco_local.simulator.gpus.boards import BOARDS, BoardError
from draco_local.simulator.gpus.state import GpuInstance, GpuProcess, RemappedRows, StateError, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import StateFile, opened

NOT_SUPPORTED = pynvml.NVMLError_NotSupported


def test_nothing_answers_before_nvml_init(path: Path) -> None:
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        SimulatedNvml(path).nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        SimulatedNvml(path).nvmlShutdown()


def test_the_last_shutdown_ends_the_session_and_voids_its_handles(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetIndex(handle) == 0
    nvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetIndex(handle)
    nvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetIndex(handle)


@pytest.mark.parametrize("nonsense", [None, 7, object(), "GPU-1"])
def test_what_is_no_handle_is_an_invalid_argument(nvml: SimulatedNvml, nonsense: object) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetUUID(nonsense)


def test_every_way_to_a_handle_leads_to_the_same_gpu(nvml: SimulatedNvml) -> None:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, pci = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetPciInfo(handle)
        found = [
            nvml.nvmlDeviceGetHandleByUUID(uuid),
            nvml.nvmlDeviceGetHandleByUUID(uuid.encode()),
            nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(handle)),
            nvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
            nvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy.lower()),
        ]
        assert [nvml.nvmlDeviceGetIndex(handle) for handle in found] == [index] * len(found)


@pytest.mark.parametrize(
    ("function", "argument", "error"),
    [
        ("nvmlDeviceGetHandleByIndex", 8, pynvml.NVMLError_InvalidArgument),
        ("nvmlDeviceGetHandleByIndex", -1, pynvml.NVMLError_InvalidArgument),
        ("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-000000000000", pynvml.NVMLError_NotFound),
        ("nvmlDeviceGetHandleByUUID", "MIG-00000000-0000-0000-0000-000000000000", pynvml.NVMLError_NotFound),
        ("nvmlDeviceGetHandleByUUID", "nonsense", pynvml.NVMLError_NotFound),
        ("nvmlDeviceGetHandleByPciBusId", "0000:ff:00.0", pynvml.NVMLError_NotFound),
        ("nvmlDeviceGetHandleByPciBusId", "nonsense", pynvml.NVMLError_InvalidArgument),
        ("nvmlDeviceGetHandleBySerial", "1", pynvml.NVMLError_NotFound),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_as_nvml_does(
    nvml: SimulatedNvml, function: str, argument: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(nvml, function)(argument)


def test_pci_addresses_are_written_as_nvml_writes_them(nvml: SimulatedNvml) -> None:
    pci = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(0))
    assert (pci.busId, pci.busIdLegacy) == ("00000000:1B:00.0", "0000:1B:00.0")
    assert (pci.domain, pci.bus, pci.device, pci.pciDeviceId) == (0, 0x1B, 0, 0x233010DE)
    extended = pynvml.nvmlPciInfoExt_v1_t()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlDeviceGetPciInfoExt(handle, ctypes.byref(extended))
    extended.version = pynvml.nvmlPciInfoExt_v1
    nvml.nvmlDeviceGetPciInfoExt(handle, ctypes.byref(extended))
    assert (extended.busId, extended.baseClass, extended.subClass) == (pci.busId, 3, 2)


def test_version_2_of_memory_names_what_version_1_counts_as_used(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    plain = nvml.nvmlDeviceGetMemoryInfo(handle)
    named = nvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    assert plain.total == named.total == 81559 << 20
    assert (plain.used, named.used) == (named.reserved, 0)
    assert plain.total == plain.used + plain.free
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlDeviceGetMemoryInfo(handle, 7)


def test_numa_is_in_the_affinity_since_these_gpus_are_no_numa_nodes(nvml: SimulatedNvml) -> None:
    first, last = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(7)
    with pytest.raises(NOT_SUPPORTED):
        nvml.nvmlDeviceGetNumaNodeId(first)
    assert list(nvml.nvmlDeviceGetMemoryAffinity(first, 2, pynvml.NVML_AFFINITY_SCOPE_NODE)) == [0b01, 0]
    assert list(nvml.nvmlDeviceGetMemoryAffinity(last, 2, pynvml.NVML_AFFINITY_SCOPE_NODE)) == [0b10, 0]
    cpus = [nvml.nvmlDeviceGetCpuAffinity(gpu, 2) for gpu in (first, last)]
    assert not any(one & other for one, other in zip(*cpus, strict=True))


def test_hgx_boards_are_linked_to_all_their_peers(nvml: SimulatedNvml) -> None:
    first, last = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(7)
    assert nvml.nvmlDeviceGetP2PStatus(first, last, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_OK
    assert [nvml.nvmlDeviceGetNvLinkState(first, link) for link in range(18)] == [1] * 18
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetNvLinkState(first, 18)
    switches = {nvml.nvmlDeviceGetNvLinkRemotePciInfo(first, link).busId for link in range(18)}
    assert len(switches) == 4
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(first, last) == pynvml.NVML_TOPOLOGY_SYSTEM
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(first, second) == pynvml.NVML_TOPOLOGY_NODE


def test_a_gpu_with_mig_on_has_no_peers(nvml: SimulatedNvml) -> None:
    first, second = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(1)
    nvml.nvmlDeviceSetMigMode(second, pynvml.NVML_DEVICE_MIG_ENABLE)
    status = nvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    assert status == pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED


@pytest.mark.parametrize("board", ["L40S", "T4", "A30", "RTX-PRO-6000"])
def test_pcie_boards_have_no_nvlink(a_state_file: StateFile, board: str) -> None:
    nvml = opened(a_state_file(board, gpus=2))
    one, other = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(1)
    for call in (nvml.nvmlDeviceGetNvLinkState, nvml.nvmlDeviceGetNvLinkRemotePciInfo, nvml.nvmlDeviceGetNvLinkVersion):
        with pytest.raises(NOT_SUPPORTED):
            call(one, 0)
    status = nvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    assert status == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED


def test_a_bridge_links_two_cards_and_no_third(a_state_file: StateFile) -> None:
    file = a_state_file("A30", gpus=3)
    wiring.bridge_pairs(file)
    nvml = opened(file)
    first, second, third = map(nvml.nvmlDeviceGetHandleByIndex, range(3))
    assert [nvml.nvmlDeviceGetNvLinkState(first, link) for link in range(4)] == [1] * 4
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(first, 0) == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(first, 0).bus == nvml.nvmlDeviceGetPciInfo(second).bus
    nvlink = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    assert nvml.nvmlDeviceGetP2PStatus(first, second, nvlink) == pynvml.NVML_P2P_STATUS_OK
    assert nvml.nvmlDeviceGetP2PStatus(second, third, nvlink) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    with pytest.raises(NOT_SUPPORTED):
        nvml.nvmlDeviceGetNvLinkState(third, 0)
    with pytest.raises(BoardError, match="No NVLink bridge fits"):
        wiring.bridge_pairs(a_state_file("H100-80GB", gpus=2))


@pytest.mark.parametrize(("board", "state", "summary"), [("H100-80GB", 3, 0), ("B200", 3, 1), ("RTX-PRO-6000", 0, 0)])
def test_the_fabric_is_complete_on_nvswitch_boards_and_its_health_known_from_blackwell_on(
    a_state_file: StateFile, board: str, state: int, summary: int
) -> None:
    nvml = opened(a_state_file(board, gpus=1))
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(nvml.nvmlDeviceGetHandleByIndex(0), ctypes.byref(info))
    assert (info.state, info.healthSummary) == (state, summary)


def test_the_fabric_is_no_question_for_ampere(a_state_file: StateFile) -> None:
    nvml = opened(a_state_file("A100-40GB", gpus=1))
    with pytest.raises(NOT_SUPPORTED):
        nvml.nvmlDeviceGetGpuFabricInfo(
            nvml.nvmlDeviceGetHandleByIndex(0), ctypes.byref(pynvml.c_nvmlGpuFabricInfo_t())
        )


def test_old_boards_retire_pages_and_new_ones_remap_rows(a_state_file: StateFile) -> None:
    old, new = opened(a_state_file("T4", gpus=1)), opened(a_state_file("H100-80GB", gpus=1))
    assert old.nvmlDeviceGetRetiredPages(old.nvmlDeviceGetHandleByIndex(0), 0) == []
    with pytest.raises(NOT_SUPPORTED):
        old.nvmlDeviceGetRemappedRows(old.nvmlDeviceGetHandleByIndex(0))
    assert new.nvmlDeviceGetRemappedRows(new.nvmlDeviceGetHandleByIndex(0)) == (0, 0, 0, 0)
    with pytest.raises(NOT_SUPPORTED):
        new.nvmlDeviceGetRetiredPages(new.nvmlDeviceGetHandleByIndex(0), 0)


def test_remapped_rows_cannot_be_read_while_gpu_instances_exist(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    faults.remapped_rows(path, 0, RemappedRows(correctable=1, uncorrectable=2, pending=True))
    assert nvml.nvmlDeviceGetRemappedRows(handle) == (1, 2, 1, 0)
    with mutate(path) as state:
        state.gpus[0].instances.append(GpuInstance(1, 19, 0, 1))
    for read in (nvml.nvmlDeviceGetRemappedRows, nvml.nvmlDeviceGetRowRemapperHistogram):
        with pytest.raises(NOT_SUPPORTED):
            read(handle)
    field = nvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_REMAPPED_PENDING])[0]
    assert field.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_each_field_value_carries_its_own_return_code(nvml: SimulatedNvml, path: Path) -> None:
    faults.recovery_action(path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    faults.ecc_errors(path, 0, uncorrected=3)
    values = nvml.nvmlDeviceGetFieldValues(
        nvml.nvmlDeviceGetHandleByIndex(0),
        [230, 199, (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0), pynvml.NVML_FI_DEV_C2C_LINK_COUNT],
    )
    assert [value.nvmlReturn for value in values] == [0, 0, 0, pynvml.NVML_ERROR_NOT_SUPPORTED]
    assert [values[0].value.uiVal, values[1].value.uiVal, values[2].value.ullVal] == [2, 1, 3]


def test_heat_slows_the_clocks_down(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == pynvml.nvmlClocksEventReasonGpuIdle
    faults.temperature(path, 0, 95)
    assert nvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 95
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    assert reasons == pynvml.nvmlClocksThrottleReasonHwThermalSlowdown


def test_processes_that_hold_a_gpu_are_listed(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(3)
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    with mutate(path) as state:
        state.gpus[3].processes.append(GpuProcess(pid=4711, memory_mib=512))
    [process] = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    assert (process.pid, process.usedGpuMemory, process.gpuInstanceId) == (4711, 512 << 20, 0xFFFFFFFF)


@pytest.mark.parametrize("board", BOARDS)
def test_every_board_answers_who_it_is(a_state_file: StateFile, board: str) -> None:
    nvml = opened(a_state_file(board, gpus=2))
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    table = BOARDS[board]
    assert nvml.nvmlDeviceGetName(handle) == table.product_name
    assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == table.compute_capability
    assert nvml.nvmlDeviceGetMemoryInfo(handle).total == table.memory_mib << 20
    assert nvml.nvmlDeviceGetPowerUsage(handle) < nvml.nvmlDeviceGetPowerManagementLimit(handle)


def test_error_words_are_known_for_every_code_that_pynvml_has() -> None:
    nvml = SimulatedNvml(Path("unused"))
    assert nvml.nvmlErrorString(pynvml.NVML_SUCCESS) == "Success"
    assert nvml.nvmlErrorString(pynvml.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"
    assert nvml.nvmlErrorString(12345) == "Unknown Error"


def test_two_sessions_on_one_file_see_each_others_changes(path: Path) -> None:
    one, other = opened(path), opened(path)
    one.nvmlDeviceSetMigMode(one.nvmlDeviceGetHandleByIndex(2), pynvml.NVML_DEVICE_MIG_ENABLE)
    assert other.nvmlDeviceGetMigMode(other.nvmlDeviceGetHandleByIndex(2)) == [1, 1]


def test_no_change_is_missed_however_fast_they_follow_each_other(nvml: SimulatedNvml, path: Path) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for degrees in [40, 50] * 20:  # two digits each: the file keeps its size, and an inode number could be reused
        faults.temperature(path, 0, degrees)
        assert nvml.nvmlDeviceGetTemperature(handle, 0) == degrees


def test_a_damaged_file_is_a_clear_error_and_not_an_nvml_one(nvml: SimulatedNvml, path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(StateError, match="is damaged"):
        nvml.nvmlDeviceGetCount()
    path.write_bytes(whole)
    assert nvml.nvmlDeviceGetCount() == 8


def test_latency_is_slept_by_the_function_it_was_given_to(path: Path) -> None:
    slept: list[float] = []
    nvml = SimulatedNvml(path, sleep=slept.append)
    nvml.nvmlInit()
    faults.latency(path, 1.5, "nvmlDeviceGetHandleByUUID")
    handle = nvml.nvmlDeviceGetHandleByUUID(load(path).gpus[0].uuid)
    nvml.nvmlDeviceGetName(handle)
    assert slept == [1.5]
    faults.latency(path, 0.5)
    nvml.nvmlDeviceGetName(handle)
    faults.latency(path, 0)
    faults.latency(path, 0, "nvmlDeviceGetHandleByUUID")
    nvml.nvmlDeviceGetName(handle)
    assert slept == [1.5, 0.5]
