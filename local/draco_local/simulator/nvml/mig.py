"""Simulated NVML: MIG mode, GPU instance profiles, and MIG devices.

Making and destroying instances is in `instances`.
"""
# ruff: noqa: N802, N803 - the names are pynvml's

from collections.abc import Sequence
from typing import Any

import pynvml

from draco.mig.board import Board, Placement, Profile
from draco_local.simulator.gpus.boards import Architecture
from draco_local.simulator.gpus.drivers import PROFILES_WITHOUT_MIG
from draco_local.simulator.gpus.mig_profiles import GiProfileEnum, by_kind, compute_profile_of, room_for
from draco_local.simulator.gpus.state import GpuState, SimulatedNodeState
from draco_local.simulator.nvml.handles import pointed
from draco_local.simulator.nvml.session import Session, board_of, invalid_argument, not_supported


class MigCalls:
    """MIG mode, and all calls that read instances."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        """Current and pending mode."""
        gpu = self._session.gpu(device)
        table_of(gpu)
        return [gpu.mig_current, gpu.mig_pending]

    def nvmlDeviceSetMigMode(self, device: Any, mode: int) -> int:
        """Ask for a mode. Returns the activation status instead of raising it, as pynvml does.

        Hopper and newer switch at once when the GPU is idle, and answer IN_USE otherwise, changing nothing. Ampere waits
        for a reset: RESET_REQUIRED, or IN_USE while programs hold the GPU, which have to end before it. No board leaves
        MIG mode while it has instances.
        """
        self._session.check_gpu(device)
        table_of(self._session.gpu(device))
        if mode not in (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_ENABLE):
            raise invalid_argument()
        outcome: list[int] = []

        def switch(state: SimulatedNodeState) -> None:
            gpu = self._session.device(device, state).gpu
            waits_for_reset = board_of(gpu).architecture < Architecture.HOPPER
            held = bool(gpu.processes)
            if mode == gpu.mig_current:
                gpu.mig_pending = mode
                outcome.append(pynvml.NVML_SUCCESS)
            elif gpu.instances or (held and not waits_for_reset):
                outcome.append(pynvml.NVML_ERROR_IN_USE)
            elif waits_for_reset:
                gpu.mig_pending = mode
                outcome.append(pynvml.NVML_ERROR_IN_USE if held else pynvml.NVML_ERROR_RESET_REQUIRED)
            else:
                gpu.mig_current = gpu.mig_pending = mode
                gpu.compute_mode = gpu.time_slice = 0
                announce(state, gpu)
                outcome.append(pynvml.NVML_SUCCESS)

        self._session.change(switch)
        return outcome[0]

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device: Any, profile: int, version: int = 2) -> Any:
        """A profile by NVML's enumeration: NOT_SUPPORTED for one the board lacks, INVALID_ARGUMENT past the end."""
        table = table_of(self._divisible(device))
        if version not in (1, 2):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if not 0 <= profile <= max(GiProfileEnum):
            raise invalid_argument()
        found = by_kind(table, profile)
        if found is None:
            raise not_supported()
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t() if version == 2 else pynvml.c_nvmlGpuInstanceProfileInfo_t()
        return _filled(info, found)

    def nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, profile: int, version: int = 2) -> Any:
        """The same; pynvml has both names."""
        return self.nvmlDeviceGetGpuInstanceProfileInfo(device, profile, version)

    def nvmlDeviceGetGpuInstanceProfileInfoById(self, device: Any, profileId: int) -> Any:
        """A profile by its id."""
        found = profile_of(self._session.gpu(device), profileId)
        return _filled(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t(), found)

    def nvmlDeviceGetGpuInstanceProfileInfoByIdV(self, device: Any, profileId: int) -> Any:
        """The same; pynvml has both names."""
        return self.nvmlDeviceGetGpuInstanceProfileInfoById(device, profileId)

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, device: Any, profileId: int, placementsRef: Any, countRef: Any
    ) -> int:
        """All legal placements of a profile, free or not, into the caller's array; None asks for their number only."""
        profile = profile_of(self._divisible(device), profileId)
        return filled_placements(profile.starts, profile.size, placementsRef, countRef)

    def _divisible(self, device: Any) -> GpuState:
        """The GPU; old drivers tell what it can be divided into only while its MIG mode is on."""
        gpu = self._session.gpu(device)
        if not gpu.mig_current and self._session.release() < PROFILES_WITHOUT_MIG:
            raise not_supported()
        return gpu

    def nvmlDeviceGetGpuInstanceRemainingCapacity(self, device: Any, profileId: int) -> int:
        """How many more instances of a profile fit beside those that exist; with MIG off, what a divided GPU would have."""
        gpu = self._session.gpu(device)
        profile = profile_of(gpu, profileId)
        return room_for(table_of(gpu), profile, placed(gpu))

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any) -> int:
        """How many MIG devices the board can have; 0 where it cannot have any or MIG is off."""
        gpu = self._session.gpu(device)
        table = board_of(gpu).mig
        if table is None or not gpu.mig_current:
            return 0
        return max(profile.max_instances for profile in table.profiles)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any:
        """The MIG device in a slot; NOT_FOUND where the slot is empty, with others perhaps behind it, and with MIG off."""
        gpu = self._session.gpu(device)
        table_of(gpu)
        if gpu.mig_current and not 0 <= index < self.nvmlDeviceGetMaxMigDeviceCount(device):
            raise invalid_argument()
        for instance in gpu.instances:
            for compute in instance.compute:
                if compute.slot == index:
                    return self._session.handle_of_mig_device(compute)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceIsMigDeviceHandle(self, device: Any) -> Any:
        """A c_uint, not an int, as pynvml returns it."""
        return pynvml.c_uint(self._session.device(device).compute is not None)

    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:
        """Of a MIG device; INVALID_ARGUMENT for a whole GPU."""
        instance = self._session.device(device).instance
        if instance is None:
            raise invalid_argument()
        return instance.id

    def nvmlDeviceGetComputeInstanceId(self, device: Any) -> int:
        """Of a MIG device; INVALID_ARGUMENT for a whole GPU."""
        compute = self._session.device(device).compute
        if compute is None:
            raise invalid_argument()
        return compute.id

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Any) -> Any:
        """The GPU that a MIG device is part of; INVALID_ARGUMENT for a whole GPU."""
        found = self._session.device(migDevice)
        if found.compute is None:
            raise invalid_argument()
        return self._session.handle(found.gpu)

    def nvmlDeviceGetAttributes(self, device: Any) -> Any:
        """The same as version 2."""
        return self.nvmlDeviceGetAttributes_v2(device)

    def nvmlDeviceGetAttributes_v2(self, device: Any) -> Any:
        """Size and engines of a MIG device; NOT_SUPPORTED for a whole GPU."""
        found = self._session.device(device)
        if found.instance is None or found.compute is None:
            raise not_supported()
        profile = profile_of(found.gpu, found.instance.profile_id)
        attributes = pynvml.c_nvmlDeviceAttributes()
        attributes.multiprocessorCount = compute_profile_of(profile, found.compute.profile_id).multiprocessors
        attributes.sharedCopyEngineCount = profile.copy_engines
        attributes.sharedDecoderCount, attributes.sharedEncoderCount = profile.decoders, profile.encoders
        attributes.sharedJpegCount, attributes.sharedOfaCount = profile.jpeg_engines, profile.ofa_engines
        attributes.gpuInstanceSliceCount = profile.slices
        attributes.computeInstanceSliceCount = found.compute.slices
        attributes.memorySizeMB = profile.memory_mib
        return attributes


def table_of(gpu: GpuState) -> Board:
    """The board's profiles; NOT_SUPPORTED for a board without MIG."""
    table = board_of(gpu).mig
    if table is None:
        raise not_supported()
    return table


def mig_enabled(gpu: GpuState) -> None:
    """NOT_SUPPORTED unless MIG is on."""
    table_of(gpu)
    if not gpu.mig_current:
        raise not_supported()


def profile_of(gpu: GpuState, profile_id: int) -> Profile:
    """A profile by its id; INVALID_ARGUMENT for one that the board does not have."""
    found = table_of(gpu).by_id(profile_id)
    if found is None:
        raise invalid_argument()
    return found


def placed(gpu: GpuState) -> list[Placement]:
    """The instances that exist, as the board's table counts them."""
    return [Placement(profile_of(gpu, instance.profile_id), instance.start) for instance in gpu.instances]


def _filled(info: Any, profile: Profile) -> Any:
    if hasattr(info, "version"):
        info.version = 0  # the driver does not give back what pynvml set
    info.id = profile.id
    info.sliceCount = profile.slices
    info.instanceCount = profile.max_instances
    info.multiprocessorCount = profile.multiprocessors
    info.copyEngineCount = profile.copy_engines
    info.decoderCount = profile.decoders
    info.encoderCount = profile.encoders
    info.jpegCount = profile.jpeg_engines
    info.ofaCount = profile.ofa_engines
    info.memorySizeMB = profile.memory_mib
    if hasattr(info, "name"):
        info.name = f"MIG {profile.name}".encode()
    return info


def filled_placements(starts: Sequence[int], size: int, array_ref: Any, count_ref: Any) -> int:
    """Write placements into the caller's array, whose length is in `count_ref`; None asks for their number only."""
    count = pointed(count_ref)
    if array_ref is not None:
        if count.value < len(starts):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        array = pointed(array_ref)
        for position, start in enumerate(starts):
            array[position].start, array[position].size = start, size
    count.value = len(starts)
    return int(pynvml.NVML_SUCCESS)


def announce(state: SimulatedNodeState, gpu: GpuState) -> None:
    """Send the event of a changed MIG configuration; NVML names no instance in it."""
    state.add_event(gpu.uuid, pynvml.nvmlEventMigConfigChange, 0)
