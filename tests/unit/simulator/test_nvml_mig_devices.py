"""MIG devices through simulated NVML: handles, slots, names, memory, attributes and their processes."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import GpuProcess
from tests.unit.simulator.conftest import Mig

ANY = pynvml.NVML_GPU_INSTANCE_ID_ANY


def _device(mig: Mig, compute: Any) -> Any:
    return mig.nvml.nvmlComputeInstanceGetInfo(compute).device


def test_a_mig_device_knows_its_instances_and_its_gpu(mig: Mig) -> None:
    _, compute = mig.made(14, 2)
    device = _device(mig, compute)
    nvml = mig.nvml
    assert (nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)) == (4, 0)
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(mig.device)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig.device)
    for of_a_mig_device in (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            of_a_mig_device(mig.device)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetAttributes(mig.device)


def test_whether_it_is_a_mig_device_is_told_as_a_c_uint(mig: Mig) -> None:
    _, compute = mig.made(9, 4)
    told = mig.nvml.nvmlDeviceIsMigDeviceHandle(_device(mig, compute))
    assert isinstance(told, pynvml.c_uint)
    assert told
    assert told != 1  # a pitfall: a C object equals no number
    assert not mig.nvml.nvmlDeviceIsMigDeviceHandle(mig.device)


def test_a_uuid_is_new_at_every_creation_and_found_while_it_lives(mig: Mig) -> None:
    seen = set()
    for _ in range(3):
        instance, compute = mig.made(9, 4)
        uuid = mig.nvml.nvmlDeviceGetUUID(_device(mig, compute))
        assert uuid.startswith("MIG-")
        assert mig.nvml.nvmlDeviceGetUUID(mig.nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        assert uuid not in seen
        seen.add(uuid)
        mig.nvml.nvmlComputeInstanceDestroy(compute)
        mig.nvml.nvmlGpuInstanceDestroy(instance)
        with pytest.raises(pynvml.NVMLError_NotFound):
            mig.nvml.nvmlDeviceGetHandleByUUID(uuid)


def test_a_mig_device_of_a_lost_gpu_cannot_be_opened(mig: Mig, path: Path) -> None:
    mig.made(9, 4)
    uuid = mig.devices()[0]
    faults.lose(path, 0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        mig.nvml.nvmlDeviceGetHandleByUUID(uuid)


def test_a_walk_goes_on_over_empty_slots_and_a_new_device_takes_the_first(mig: Mig) -> None:
    computes = [mig.made(19, start)[1] for start in range(3)]
    before = mig.devices()
    assert list(before) == [0, 1, 2]
    mig.nvml.nvmlComputeInstanceDestroy(computes[1])
    assert mig.devices() == {0: before[0], 2: before[2]}
    mig.made(19, 5)
    after = mig.devices()
    assert list(after) == [0, 1, 2]
    assert after[1] != before[1]
    assert mig.nvml.nvmlDeviceGetIndex(mig.nvml.nvmlDeviceGetHandleByUUID(after[1])) == 1


def test_a_mig_device_is_named_after_its_board_and_profile(mig: Mig) -> None:
    instance = mig.make(9, 4)
    part = mig.nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert mig.nvml.nvmlDeviceGetName(_device(mig, part)) == "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    mig.nvml.nvmlComputeInstanceDestroy(part)
    assert mig.nvml.nvmlDeviceGetName(_device(mig, mig.fill(instance))) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"


def test_attributes_are_those_of_the_gpu_instance_and_of_the_compute_instance(mig: Mig) -> None:
    part = mig.nvml.nvmlGpuInstanceCreateComputeInstance(mig.make(9, 4), 0)
    found = mig.nvml.nvmlDeviceGetAttributes_v2(_device(mig, part))
    assert {name: getattr(found, name) for name, _ in found._fields_} == {
        "multiprocessorCount": 20, "sharedCopyEngineCount": 3, "sharedDecoderCount": 3, "sharedEncoderCount": 0,
        "sharedJpegCount": 3, "sharedOfaCount": 0, "gpuInstanceSliceCount": 3, "computeInstanceSliceCount": 1,
        "memorySizeMB": 40448,
    }  # fmt: skip


def test_memory_is_counted_per_instance_and_for_the_whole_gpu(mig: Mig, path: Path) -> None:
    devices = [_device(mig, mig.made(9, start)[1]) for start in (0, 4)]
    faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=2, compute_instance=0, memory_mib=100))
    used = [mig.nvml.nvmlDeviceGetMemoryInfo(device).used >> 20 for device in (*devices, mig.device)]
    assert used == [0, 100, 100 + 480]
    assert mig.nvml.nvmlDeviceGetMemoryInfo(devices[0]).total >> 20 == 40448
    precise = mig.nvml.nvmlDeviceGetMemoryInfo(mig.device, pynvml.nvmlMemory_v2)
    assert precise.used >> 20 == 100
    assert precise.free + precise.used + precise.reserved == precise.total


def test_processes_are_listed_on_their_mig_device_and_on_the_gpu(mig: Mig, path: Path) -> None:
    devices = [_device(mig, mig.made(9, start)[1]) for start in (0, 4)]
    faults.hold(path, 0, GpuProcess(pid=7, gpu_instance=2, compute_instance=0, memory_mib=100))
    faults.hold(path, 0, GpuProcess(pid=8, gpu_instance=1, compute_instance=0, listed=False))
    faults.hold(path, 0, GpuProcess(pid=9))

    def listed(handle: Any) -> list[tuple[int, int, int]]:
        running = mig.nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        return [(each.pid, each.gpuInstanceId, each.computeInstanceId) for each in running]

    assert [listed(handle) for handle in devices] == [[], [(7, 2, 0)]]
    assert listed(mig.device) == [(7, 2, 0), (9, ANY, ANY)]
    assert mig.nvml.nvmlDeviceGetGraphicsRunningProcesses(mig.device) == []
    assert mig.nvml.nvmlDeviceGetMPSComputeRunningProcesses(devices[1]) == []


def test_what_is_about_a_whole_board_is_not_supported_for_a_mig_device(mig: Mig) -> None:
    device = _device(mig, mig.made(9, 4)[1])
    for call in (
        mig.nvml.nvmlDeviceGetPciInfo,
        mig.nvml.nvmlDeviceGetMigMode,
        mig.nvml.nvmlDeviceGetMinorNumber,
        lambda handle: mig.nvml.nvmlDeviceRegisterEvents(handle, 8, mig.nvml.nvmlEventSetCreate()),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(device)
    assert mig.nvml.nvmlDeviceGetCudaComputeCapability(device) == (9, 0)
