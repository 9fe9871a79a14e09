"""Limits on a simulated GPU's memory by cgroup, and the releases of the driver of which only the newest has them."""

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.drivers import RELEASES
from draco_local.simulator.gpus.state import GpuProcess, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import opened

GIB = 1 << 30
UNLIMITED = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


@pytest.fixture
def cgroups(path: Path, tmp_path: Path) -> Path:
    """A pod's cgroup with two containers, on a node whose driver has memory limits."""
    faults.reload_driver(path, version="615")
    pod = tmp_path / "cgroup" / "pod"
    for folder in (pod.parent, pod, pod / "one", pod / "two"):
        folder.mkdir()
        (folder / "cgroup.controllers").touch()
    return pod


def device(nvml: SimulatedNvml) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(0)


def limit(path: Path, folder: Path, soft: int, hard: int, **options: Any) -> None:
    nvml = SimulatedNvml(path, **options)
    nvml.nvmlInit()
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(folder).encode(), soft, hard)
    nvml.nvmlDeviceSetMemoryLimits_v1(device(nvml), limits)


def told(path: Path, folder: Path, **options: Any) -> tuple[int, int, int]:
    nvml = SimulatedNvml(path, **options)
    nvml.nvmlInit()
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(folder).encode())
    nvml.nvmlDeviceGetMemoryLimits_v1(device(nvml), limits)
    return limits.softLimit, limits.hardLimit, limits.currentUsed


def test_a_limit_is_of_one_cgroup_and_tells_what_its_processes_use(path: Path, cgroups: Path) -> None:
    limit(path, cgroups / "one", 0, 10 * GIB)
    with mutate(path) as state:
        state.gpus[0].processes += [
            GpuProcess(1, memory_mib=1024, cgroup="/pod/one"),
            GpuProcess(2, memory_mib=512, cgroup="/pod/one/inner"),
            GpuProcess(3, memory_mib=2048, cgroup="/pod/two"),
            GpuProcess(4, memory_mib=4096, cgroup="/pod/one-more"),
        ]
    assert told(path, cgroups / "one") == (0, 10 * GIB, GIB * 3 // 2)
    assert told(path, cgroups / "two") == (0, UNLIMITED, 2 * GIB)
    assert told(path, cgroups.parent)[2] == GIB * 15 // 2


def test_a_soft_limit_is_reserved_above_until_it_is_taken_back(path: Path, cgroups: Path) -> None:
    limit(path, cgroups / "one", 4 * GIB, 8 * GIB)
    limit(path, cgroups / "two", 1 * GIB, 8 * GIB)
    assert told(path, cgroups)[:2] == (5 * GIB, UNLIMITED)
    limit(path, cgroups / "one", 0, UNLIMITED)
    assert told(path, cgroups)[0] == told(path, cgroups.parent)[0] == GIB
    shutil.rmtree(cgroups / "two")
    limit(path, cgroups / "one", 0, GIB)
    assert told(path, cgroups)[0] == GIB, "the driver does not see that a cgroup goes"
    assert str(cgroups / "two") not in load(path).gpus[0].memory_limits


@pytest.mark.parametrize(
    ("folder", "soft", "error"),
    [
        ("pod/gone", 0, pynvml.NVMLError_NotFound),
        ("", GIB, pynvml.NVMLError_NotFound),
        ("pod/one", 3 * GIB, pynvml.NVMLError_InvalidArgument),
    ],
)
def test_a_wrong_limit_is_refused(path: Path, cgroups: Path, folder: str, soft: int, error: type[Exception]) -> None:
    where = cgroups.parent / folder if folder else cgroups.parent.parent
    with pytest.raises(error):
        limit(path, where, soft, 2 * GIB)
    assert load(path).gpus[0].memory_limits == {}


def test_only_root_sets_limits_and_anyone_reads_them(path: Path, cgroups: Path) -> None:
    with pytest.raises(pynvml.NVMLError_NoPermission):
        limit(path, cgroups, 0, GIB, is_root=False)
    assert told(path, cgroups, is_root=False) == (0, UNLIMITED, 0)


def test_there_are_none_in_mig_mode_nor_where_the_driver_keeps_no_account(path: Path, cgroups: Path) -> None:
    with mutate(path) as state:
        state.gpus[0].mig_current = 1
    with pytest.raises(pynvml.NVMLError_NotSupported):
        limit(path, cgroups, 0, GIB)
    with mutate(path) as state:
        state.gpus[0].mig_current = state.driver.memory_accounting = 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        told(path, cgroups)


def test_they_are_lost_with_the_drivers_state(path: Path, cgroups: Path) -> None:
    limit(path, cgroups, 0, GIB)
    faults.reload_driver(path)
    assert told(path, cgroups) == (0, UNLIMITED, 0)


@pytest.mark.parametrize(
    ("release", "cuda", "lacking"),
    [
        ("535", 12020, {"FabricInfoV", "PciInfoExt", "AddressingMode", "MemoryLimits_v1"}),
        ("570", 12080, {"AddressingMode", "MemoryLimits_v1"}),
        ("580", 13000, {"MemoryLimits_v1"}),
        ("615", 13040, set()),
    ],
)
def test_a_release_lacks_what_newer_ones_brought(path: Path, release: str, cuda: int, lacking: set[str]) -> None:
    faults.reload_driver(path, version=release)
    driver = load(path).driver
    assert (driver.version, driver.cuda_version) == (RELEASES[release], cuda)
    assert driver.nvml_version == f"{cuda // 1000}.{RELEASES[release]}"
    nvml = opened(path)
    missing = set()
    for name in ("FabricInfoV", "PciInfoExt", "AddressingMode", "MemoryLimits_v1", "Name", "UUID"):
        function = f"nvmlDeviceGet{'Gpu' * (name == 'FabricInfoV')}{name}"
        given = {
            "FabricInfoV": pynvml.c_nvmlGpuFabricInfo_v2_t(),
            "MemoryLimits_v1": pynvml.c_nvmlGetMemoryLimits_v1_t(),
        }
        given["PciInfoExt"] = pynvml.nvmlPciInfoExt_v1_t(version=pynvml.nvmlPciInfoExt_v1)
        try:
            by_value = name == "MemoryLimits_v1"
            arguments = [given[name] if by_value else ctypes.byref(given[name])] if name in given else []
            getattr(nvml, function)(device(nvml), *arguments)
        except pynvml.NVMLError_FunctionNotFound:
            missing.add(name)
        except pynvml.NVMLError:
            continue
    assert missing == lacking


def test_a_version_that_is_no_number_counts_as_the_newest(path: Path) -> None:
    faults.reload_driver(path, version="r590-beta")
    assert load(path).driver.cuda_version == 13040
    opened(path)


def test_old_releases_tell_no_recovery_action_and_profiles_only_in_mig_mode(path: Path) -> None:
    faults.reload_driver(path, version="535")
    nvml = opened(path)
    [value] = nvml.nvmlDeviceGetFieldValues(device(nvml), [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    assert value.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert not nvml.nvmlDeviceGetSupportedEventTypes(device(nvml)) & pynvml.nvmlEventTypeGpuRecoveryAction
    with pytest.raises(pynvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetGpuInstanceProfileInfo(device(nvml), 0)
    with mutate(path) as state:
        state.gpus[0].mig_current = 1
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(device(nvml), 0).id
