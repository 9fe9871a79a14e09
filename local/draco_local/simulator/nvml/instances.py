"""Simulated NVML: making, finding and destroying GPU instances and compute instances.

Owns what these functions do to the state file, always in one step under its lock. Profiles, MIG mode and MIG devices are
in `mig`.
"""
# ruff: noqa: N802, N803 - the names are pynvml's

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

from draco.mig.board import Placement, Profile
from draco_local.simulator.gpus.mig_profiles import CiProfile, ci_profiles, ci_starts, free_starts, room_for
from draco_local.simulator.gpus.state import ComputeInstance, GpuInstance, GpuState, SimulatedNodeState
from draco_local.simulator.nvml.handles import ProcessKilled, pointed
from draco_local.simulator.nvml.mig import announce, filled_placements, mig_enabled, placed, profile_of, table_of
from draco_local.simulator.nvml.session import Session, invalid_argument, not_supported


class InstanceCalls:
    """GPU instances and the compute instances in them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceCreateGpuInstance(self, device: Any, profileId: int) -> Any:
        """Make an instance at the driver's choice: from the end of the board, for small profiles then from its start.

        INSUFFICIENT_RESOURCES when there is no room.
        """
        return self._create_gpu_instance(device, profileId, driver_choice)

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Any, profileId: int, placement: Any) -> Any:
        """Make an instance at a placement, which is passed by reference.

        INSUFFICIENT_RESOURCES both for units that are taken and for engines that are used up; INVALID_ARGUMENT for a
        placement that the profile does not have.
        """
        wanted = pointed(placement)

        def as_asked(gpu: GpuState, profile: Profile) -> int:
            if wanted.start not in profile.starts or wanted.size != profile.size:
                raise invalid_argument()
            if wanted.start not in free_starts(table_of(gpu), profile, placed(gpu)):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
            return int(wanted.start)

        return self._create_gpu_instance(device, profileId, as_asked)

    def _create_gpu_instance(self, device: Any, profile_id: int, choose: Callable[[GpuState, Profile], int]) -> Any:
        self._session.check_gpu(device)
        made: list[GpuInstance] = []

        def create(state: SimulatedNodeState) -> None:
            gpu = self._session.device(device, state).gpu
            profile = _enabled_profile(gpu, profile_id)
            start = choose(gpu, profile)
            number = instance_id(table_of(gpu).units, profile.size, start)
            made.append(GpuInstance(number, profile.id, start, profile.size, serial=state.new_serial()))
            gpu.instances.append(made[0])
            announce(state, gpu)

        self._session.change(create)
        return self._session.handle_of_instance(made[0])

    def nvmlDeviceGetGpuInstances(self, device: Any, profileId: int, gpuInstancesRef: Any, countRef: Any) -> int:
        """All instances of a profile into the caller's array, also those without a compute instance; none with MIG off."""
        gpu = self._session.gpu(device)
        profile = profile_of(gpu, profileId)
        found = [instance for instance in gpu.instances if instance.profile_id == profile.id]
        return _listed(map(self._session.handle_of_instance, found), gpuInstancesRef, countRef)

    def nvmlDeviceGetGpuInstanceById(self, device: Any, gpuInstanceId: int) -> Any:
        """An instance by its id; NOT_FOUND without it, and with MIG off."""
        gpu = self._session.gpu(device)
        table_of(gpu)
        for instance in gpu.instances:
            if instance.id == gpuInstanceId:
                return self._session.handle_of_instance(instance)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlGpuInstanceGetInfo(self, gpuInstance: Any) -> Any:
        """Which GPU, id, profile and placement."""
        gpu, instance = _found(self._session.instance(gpuInstance))
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.device, info.id, info.profileId = self._session.handle(gpu), instance.id, instance.profile_id
        info.placement.start, info.placement.size = instance.start, instance.size
        return info

    def nvmlGpuInstanceDestroy(self, gpuInstance: Any) -> int:
        """Destroy an instance: IN_USE while a compute instance is in it, or anybody holds it."""

        def destroy(state: SimulatedNodeState) -> None:
            gpu, instance = _found(self._session.instance(gpuInstance, state))
            if instance.compute or any(process.gpu_instance == instance.id for process in gpu.processes):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
            gpu.instances.remove(instance)
            announce(state, gpu)

        self._session.change(destroy)
        return int(pynvml.NVML_SUCCESS)

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(
        self, device: Any, profile: int, engProfile: int, version: int = 2
    ) -> Any:
        """A compute instance profile by NVML's enumeration. `device` is the GPU instance; pynvml calls it so."""
        if version not in (1, 2):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        gpu, instance = _found(self._session.instance(device))
        if not 0 <= profile < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT or engProfile != 0:
            raise invalid_argument()
        around = profile_of(gpu, instance.profile_id)
        found = next((each for each in ci_profiles(around) if each.kind == profile), None)
        if found is None:
            raise not_supported()
        if version == 1:
            return _filled(pynvml.c_nvmlComputeInstanceProfileInfo_t(), found, around)
        info = _filled(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t(), found, around)
        info.name = found.name(around).encode()
        return info

    def nvmlGpuInstanceGetComputeInstanceRemainingCapacity(self, gpuInstance: Any, profileId: int) -> int:
        """How many more compute instances of a profile fit."""
        gpu, instance = _found(self._session.instance(gpuInstance))
        profile = _compute_profile(gpu, instance, profileId)
        taken, count = _taken(instance.compute), 0
        for start in ci_starts(profile, profile_of(gpu, instance.profile_id)):
            wanted = set(range(start, start + profile.slices))
            if taken.isdisjoint(wanted):
                taken, count = taken | wanted, count + 1
        return count

    def nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        self, gpuInstance: Any, profileId: int, placementsRef: Any, countRef: Any
    ) -> int:
        """All legal placements of a compute instance profile, free or not; None asks for their number only."""
        gpu, instance = _found(self._session.instance(gpuInstance))
        profile = _compute_profile(gpu, instance, profileId)
        starts = ci_starts(profile, profile_of(gpu, instance.profile_id))
        return filled_placements(starts, profile.slices, placementsRef, countRef)

    def nvmlGpuInstanceCreateComputeInstance(self, gpuInstance: Any, profileId: int) -> Any:
        """Make a compute instance at the first free place; INSUFFICIENT_RESOURCES without one."""
        return self._create_compute(gpuInstance, profileId, None)

    def nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        self, gpuInstance: Any, profileId: int, placement: Any
    ) -> Any:
        """Make a compute instance at a placement, which is passed by reference; otherwise as without one."""
        return self._create_compute(gpuInstance, profileId, pointed(placement))

    def _create_compute(self, handle: Any, profile_id: int, placement: Any) -> Any:
        made: list[ComputeInstance] = []

        def create(state: SimulatedNodeState) -> None:
            gpu, instance = _found(self._session.instance(handle, state))
            profile = _compute_profile(gpu, instance, profile_id)
            starts: Sequence[int] = ci_starts(profile, profile_of(gpu, instance.profile_id))
            if placement is not None:
                if placement.start not in starts or placement.size != profile.slices:
                    raise invalid_argument()
                starts = [placement.start]
            taken = _taken(instance.compute)
            free = [start for start in starts if taken.isdisjoint(range(start, start + profile.slices))]
            if not free:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
            made.append(
                ComputeInstance(
                    _lowest_free(each.id for each in instance.compute),
                    profile.id,
                    profile.slices,
                    free[0],
                    f"MIG-{uuid.uuid4()}",
                    slot=_lowest_free(each.slot for other in gpu.instances for each in other.compute),
                    serial=state.new_serial(),
                )
            )
            instance.compute.append(made[0])
            announce(state, gpu)

        self._session.change(create)
        return self._session.handle_of_compute(made[0])

    def nvmlGpuInstanceGetComputeInstances(
        self, gpuInstance: Any, profileId: int, computeInstancesRef: Any, countRef: Any
    ) -> int:
        """The compute instances of a profile into the caller's array."""
        gpu, instance = _found(self._session.instance(gpuInstance))
        profile = _compute_profile(gpu, instance, profileId)
        found = [each for each in instance.compute if each.profile_id == profile.id]
        return _listed(map(self._session.handle_of_compute, found), computeInstancesRef, countRef)

    def nvmlGpuInstanceGetComputeInstanceById(self, gpuInstance: Any, computeInstanceId: int) -> Any:
        """A compute instance by its id; NOT_FOUND without it."""
        for compute in _found(self._session.instance(gpuInstance))[1].compute:
            if compute.id == computeInstanceId:
                return self._session.handle_of_compute(compute)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlComputeInstanceGetInfo(self, computeInstance: Any) -> Any:
        """Which MIG device, GPU instance, id, profile and placement."""
        found = self._session.compute(computeInstance)
        _gpu, instance = _found(found)
        compute = found.compute
        if compute is None:
            raise invalid_argument()
        info = pynvml.c_nvmlComputeInstanceInfo_t()
        info.device = self._session.handle_of_mig_device(compute)
        info.gpuInstance = self._session.handle_of_instance(instance)
        info.id, info.profileId = compute.id, compute.profile_id
        info.placement.start, info.placement.size = compute.start, compute.slices
        return info

    def nvmlComputeInstanceGetInfo_v2(self, computeInstance: Any) -> Any:
        """The same; pynvml has both names."""
        return self.nvmlComputeInstanceGetInfo(computeInstance)

    def nvmlComputeInstanceDestroy(self, computeInstance: Any) -> int:
        """Destroy a compute instance: IN_USE while anybody holds it."""

        def destroy(state: SimulatedNodeState) -> None:
            found = self._session.compute(computeInstance, state)
            gpu, instance = _found(found)
            compute = found.compute
            if compute is None:
                raise invalid_argument()
            if any((each.gpu_instance, each.compute_instance) == (instance.id, compute.id) for each in gpu.processes):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
            instance.compute.remove(compute)
            announce(state, gpu)

        self._session.change(destroy)
        return int(pynvml.NVML_SUCCESS)


def instance_id(units: int, size: int, start: int) -> int:
    """The id of a GPU instance: as on hardware its position in a binary tree, so the same placement has the same id again."""
    return units // size - 1 + start // size


def driver_choice(gpu: GpuState, profile: Profile) -> int:
    """Where the driver puts an instance without a placement: where it takes the fewest placements of other profiles.

    Seen on A100: a 3g and the first 2g at 4, the first 1g at 6, then 0, 1, 2, 3. Not a promise of NVML's.
    """
    table, existing = table_of(gpu), placed(gpu)
    free = free_starts(table, profile, existing)
    if not free:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    first = not any(each.profile.size == profile.size for each in existing)
    if not first:
        return free[0]
    beside = {
        start: sum(room_for(table, each, [*existing, Placement(profile, start)]) for each in table.profiles)
        for start in free
    }
    return max(free, key=lambda start: (beside[start], start))


def _enabled_profile(gpu: GpuState, profile_id: int) -> Profile:
    mig_enabled(gpu)
    return profile_of(gpu, profile_id)


def _compute_profile(gpu: GpuState, instance: GpuInstance, profile_id: int) -> CiProfile:
    for each in ci_profiles(profile_of(gpu, instance.profile_id)):
        if each.id == profile_id:
            return each
    raise invalid_argument()


def _found(found: Any) -> tuple[GpuState, GpuInstance]:
    return found.gpu, found.instance


def _taken(compute: Sequence[ComputeInstance]) -> set[int]:
    return {slice_ for each in compute for slice_ in range(each.start, each.start + each.slices)}


def _lowest_free(numbers: Iterator[int]) -> int:
    used = set(numbers)
    return next(number for number in range(len(used) + 1) if number not in used)


def _listed(handles: Iterator[Any], array_ref: Any, count_ref: Any) -> int:
    array, count = pointed(array_ref), pointed(count_ref)
    found = list(handles)
    if len(array) < len(found):
        raise ProcessKilled(
            f"An array of {len(array)} handles was passed for {len(found)}: the real library writes past its end and "
            "crashes the process; make room for as many as the profile allows."
        )
    for position, handle in enumerate(found):
        array[position] = handle
    count.value = len(found)
    return int(pynvml.NVML_SUCCESS)


def _filled(info: Any, profile: CiProfile, around: Profile) -> Any:
    info.id, info.sliceCount, info.instanceCount = profile.id, profile.slices, profile.max_instances
    info.multiprocessorCount = profile.multiprocessors
    info.sharedCopyEngineCount = around.copy_engines
    info.sharedDecoderCount, info.sharedEncoderCount = around.decoders, around.encoders
    info.sharedJpegCount, info.sharedOfaCount = around.jpeg_engines, around.ofa_engines
    return info
