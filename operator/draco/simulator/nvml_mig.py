"""Simulated NVML: MIG mode, profiles and what exists of them.

Making and destroying instances is not simulated: those functions are absent, so pynvml's FunctionNotFound comes back.
"""
# ruff: noqa: N802, N803 - the names are pynvml's

from typing import Any

import pynvml

from draco.simulator.boards import Architecture
from draco.simulator.boards_mig import GiProfile, MigTable, Placed
from draco.simulator.nvml_session import Session, board_of, invalid_argument, not_supported, pointed
from draco.simulator.state import GpuState, NodeState


class Mig:
    """MIG mode and everything about instances that reads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        """Current and pending mode."""
        gpu = self._session.gpu(device)
        _table(gpu)
        return [gpu.mig_current, gpu.mig_pending]

    def nvmlDeviceSetMigMode(self, device: Any, mode: int) -> int:
        """Ask for a mode. Returns the activation status instead of raising it, as pynvml does.

        Hopper and newer switch at once when the GPU is idle; Ampere waits for a reset. A GPU with instances or
        processes answers IN_USE and changes nothing.
        """
        index, gpu = self._session.indexed(device)
        _table(gpu)
        if mode not in (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_ENABLE):
            raise invalid_argument()
        outcome: list[int] = []

        def switch(state: NodeState) -> None:
            target = state.gpus[index]
            if mode != target.mig_current and (target.instances or target.processes):
                outcome.append(pynvml.NVML_ERROR_IN_USE)
                return
            target.mig_pending = mode
            if mode != target.mig_current and board_of(target).architecture < Architecture.HOPPER:
                outcome.append(pynvml.NVML_ERROR_RESET_REQUIRED)
                return
            target.mig_current = mode
            outcome.append(pynvml.NVML_SUCCESS)

        self._session.change(switch)
        return outcome[0]

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device: Any, profile: int, version: int = 2) -> Any:
        """A profile by NVML's enumeration: NOT_SUPPORTED for one the board lacks, INVALID_ARGUMENT past the end."""
        table = _table(self._session.gpu(device))
        if version not in (1, 2):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if not 0 <= profile < pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
            raise invalid_argument()
        found = table.by_kind(profile)
        if found is None:
            raise not_supported()
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t() if version == 2 else pynvml.c_nvmlGpuInstanceProfileInfo_t()
        return _filled(info, found)

    def nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, profile: int, version: int = 2) -> Any:
        """The same; pynvml has both names."""
        return self.nvmlDeviceGetGpuInstanceProfileInfo(device, profile, version)

    def nvmlDeviceGetGpuInstanceProfileInfoById(self, device: Any, profileId: int) -> Any:
        """A profile by its id."""
        found = _profile(self._session.gpu(device), profileId)
        return _filled(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t(), found)

    def nvmlDeviceGetGpuInstanceProfileInfoByIdV(self, device: Any, profileId: int) -> Any:
        """The same; pynvml has both names."""
        return self.nvmlDeviceGetGpuInstanceProfileInfoById(device, profileId)

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, device: Any, profileId: int, placementsRef: Any, countRef: Any
    ) -> int:
        """All legal placements of a profile, free or not, into the caller's array; None asks for their number only."""
        profile = _profile(self._session.gpu(device), profileId)
        count = pointed(countRef)
        if placementsRef is not None:
            if count.value < len(profile.starts):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
            array = _array(placementsRef)
            for position, start in enumerate(profile.starts):
                array[position].start, array[position].size = start, profile.size
        count.value = len(profile.starts)
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetGpuInstanceRemainingCapacity(self, device: Any, profileId: int) -> int:
        """How many more instances of a profile fit beside those that exist."""
        gpu = self._session.gpu(device)
        profile = _profile(gpu, profileId)
        _enabled(gpu)
        return _table(gpu).room_for(profile, _placed(gpu))

    def nvmlDeviceGetGpuInstances(self, device: Any, profileId: int, gpuInstancesRef: Any, countRef: Any) -> int:
        """Instances of a profile. None can be made yet, so the answer is always an empty list."""
        gpu = self._session.gpu(device)
        _profile(gpu, profileId)
        _enabled(gpu)
        del gpuInstancesRef
        pointed(countRef).value = 0
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetGpuInstanceById(self, device: Any, gpuInstanceId: int) -> Any:
        """NOT_FOUND: there are no instances yet."""
        _enabled(self._session.gpu(device))
        del gpuInstanceId
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any) -> int:
        """How many MIG devices the board can have; 0 where it cannot have any or MIG is off."""
        gpu = self._session.gpu(device)
        table = board_of(gpu).mig
        if table is None or not gpu.mig_current:
            return 0
        return max(profile.max_instances for profile in table.profiles)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:
        """NOT_FOUND: the slot is empty."""
        gpu = self._session.gpu(device)
        if index < 0 or index >= self.nvmlDeviceGetMaxMigDeviceCount(device):
            _enabled(gpu)
            raise invalid_argument()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceIsMigDeviceHandle(self, device: Any) -> Any:
        """A c_uint, not an int, as pynvml returns it."""
        self._session.gpu(device)
        return pynvml.c_uint(0)

    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:
        """NOT_SUPPORTED for a whole GPU."""
        self._session.gpu(device)
        raise not_supported()

    def nvmlDeviceGetComputeInstanceId(self, device: Any) -> int:
        """NOT_SUPPORTED for a whole GPU."""
        self._session.gpu(device)
        raise not_supported()

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Any) -> Any:
        """INVALID_ARGUMENT for a whole GPU."""
        self._session.gpu(migDevice)
        raise invalid_argument()


def _table(gpu: GpuState) -> MigTable:
    table = board_of(gpu).mig
    if table is None:
        raise not_supported()
    return table


def _enabled(gpu: GpuState) -> None:
    _table(gpu)
    if not gpu.mig_current:
        raise not_supported()


def _profile(gpu: GpuState, profile_id: int) -> GiProfile:
    found = _table(gpu).by_id(profile_id)
    if found is None:
        raise invalid_argument()
    return found


def _placed(gpu: GpuState) -> list[Placed]:
    return [Placed(_profile(gpu, instance.profile_id), instance.start) for instance in gpu.instances]


def _filled(info: Any, profile: GiProfile) -> Any:
    info.id = profile.id
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = profile.multiprocessors
    info.copyEngineCount = profile.copy_engines
    info.decoderCount = profile.decoders
    info.encoderCount = profile.encoders
    info.jpegCount = profile.jpegs
    info.ofaCount = profile.ofas
    info.memorySizeMB = profile.memory_mib
    if hasattr(info, "name"):
        info.name = f"MIG {profile.name}".encode()
    return info


def _array(reference: Any) -> Any:
    """A C array, whether passed itself (it decays to a pointer) or by reference."""
    return pointed(reference) if hasattr(reference, "_obj") else reference
