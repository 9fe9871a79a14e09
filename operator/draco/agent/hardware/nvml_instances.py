"""GPU instances through NVML: a GPU's board, its existing instances, and one change at a time.

Owns every call about MIG mode, GPU instances and compute instances. Decides nothing and records nothing: `instance_manager`
journals around these calls. Placements are passed by reference only: pynvml declares no argument types, and a struct passed by
value is dereferenced as an address, which crashes the process.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pynvml

from draco.agent.hardware.gpus import Instance
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import GpuUnknown, InvalidArgument, NotSupported, NvmlError, not_text, translated
from draco.mig.board import Board, Placement, Profile
from draco.resources.names import GpuUuid

SLOTS = 64
"""Length of the arrays for NVML's lists; no board has as many instances, or starts, of one profile."""


class MigModes(msgspec.Struct, frozen=True):
    """MIG mode of a GPU: the current one, and the one after a reset."""

    enabled: bool
    pending: bool


class RunningProcesses(NamedTuple):
    """PIDs that NVML lists on a GPU or an instance: computing processes, and processes that only draw."""

    computing: tuple[int, ...] = ()
    drawing: tuple[int, ...] = ()


class NvmlInstances:
    """MIG of one node's GPUs, in the session of `nvml`. Boards and profile numbers are read once a session."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.lock, self.aside, self.where = nvml.lock, nvml.aside, nvml.where
        self._session = 0
        self._boards: dict[GpuUuid, Board | None] = {}
        self._compute_profiles: dict[tuple[GpuUuid, int], dict[int, int]] = {}

    def board(self, uuid: GpuUuid) -> Board | None:
        """What the GPU can be divided into; None if it cannot be."""
        self._fresh()
        if uuid not in self._boards:
            profiles = tuple(self._profiles(self._nvml.handle(uuid)))
            self._boards[uuid] = Board(profiles) if profiles else None
        return self._boards[uuid]

    def mode(self, uuid: GpuUuid) -> MigModes | None:
        """MIG mode; None for a GPU without one."""
        found = self._nvml.optional("nvmlDeviceGetMigMode", self._nvml.handle(uuid))
        if found is None:
            return None
        current, pending = found
        return MigModes(current == pynvml.NVML_DEVICE_MIG_ENABLE, pending == pynvml.NVML_DEVICE_MIG_ENABLE)

    def switch(self, uuid: GpuUuid, wanted: str) -> None:
        """Turn MIG mode `wanted`, "on" or "off". Raises an NvmlError if it did not change immediately.

        The NVML call raises nothing when the change waits for a reset or the GPU is in use: it returns the code.
        """
        function = "nvmlDeviceSetMigMode"
        mode = pynvml.NVML_DEVICE_MIG_ENABLE if wanted == "on" else pynvml.NVML_DEVICE_MIG_DISABLE
        answer = int(self._nvml.call(function, self._nvml.handle(uuid), mode))
        if answer != pynvml.NVML_SUCCESS:
            raise translated(pynvml.NVMLError(answer), function)

    def instances(self, uuid: GpuUuid) -> list[Instance]:
        """All GPU instances, including those without a compute instance, by start; none if MIG mode is off.

        Read by profile: a walk over MIG devices misses an instance without a compute instance.
        """
        mode = self.mode(uuid)
        board = self.board(uuid)
        if mode is None or not mode.enabled or board is None:
            return []
        device = self._nvml.handle(uuid)
        found = [
            one
            for profile in board.profiles
            for handle in self._list("nvmlDeviceGetGpuInstances", device, profile.id, pynvml.c_nvmlGpuInstance_t)
            if (one := self._instance(uuid, handle)) is not None
        ]
        return sorted(found, key=lambda one: (one.start, one.gi))

    def create(self, uuid: GpuUuid, placement: Placement, on_gi: Callable[[int], None]) -> Instance:
        """Create a GPU instance there and one compute instance that spans it. `on_gi` is called with the id in between."""
        device = self._nvml.handle(uuid)
        where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.profile.size)
        handle = self._nvml.call(
            "nvmlDeviceCreateGpuInstanceWithPlacement", device, placement.profile.id, ctypes.byref(where)
        )
        info = self._nvml.call("nvmlGpuInstanceGetInfo", handle)
        on_gi(int(info.id))
        spanning = self._spanning(uuid, int(info.profileId), handle, placement.profile.slices)
        compute = self._nvml.call("nvmlGpuInstanceCreateComputeInstance", handle, spanning)
        return self._described(uuid, info, [self._nvml.call("nvmlComputeInstanceGetInfo_v2", compute)])

    def destroy(self, instance: Instance) -> None:
        """Destroy the compute instance, then the GPU instance. Missing ones are fine. Raises InUse if it is held."""
        device = self._nvml.handle(instance.gpu)
        try:
            handle = self._nvml.call("nvmlDeviceGetGpuInstanceById", device, instance.gi)
        except GpuUnknown:
            return
        if instance.ci is not None:
            try:
                compute = self._nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, instance.ci)
                self._nvml.call("nvmlComputeInstanceDestroy", compute)
            except GpuUnknown:
                pass  # destroyed by an earlier attempt
        try:
            self._nvml.call("nvmlGpuInstanceDestroy", handle)
        except GpuUnknown:
            return

    def running(self, uuid: GpuUuid) -> RunningProcesses:
        """The processes that use a GPU as a whole; the driver does not list monitoring programs."""
        lists = (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetMPSComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
        )
        compute, shared, graphics = (
            {int(one.pid) for one in self._nvml.optional(function, self._nvml.handle(uuid)) or ()} for function in lists
        )
        return RunningProcesses(tuple(sorted(compute | shared)), tuple(sorted(graphics - compute - shared)))

    def processes(self, instance: Instance) -> list[int]:
        """The processes that compute on an instance; NVML does not list monitoring programs."""
        if instance.ci is None:
            return []
        try:
            handle = self._nvml.call("nvmlDeviceGetGpuInstanceById", self._nvml.handle(instance.gpu), instance.gi)
            compute = self._nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, instance.ci)
            within = self._nvml.call("nvmlComputeInstanceGetInfo_v2", compute)
            running = self._nvml.optional("nvmlDeviceGetComputeRunningProcesses", within.device)
        except GpuUnknown:
            return []
        return [int(one.pid) for one in running or ()]

    def _fresh(self) -> None:
        """Drop cached tables of another session, which may have another driver."""
        if self._session != self._nvml.sessions:
            self._session = self._nvml.sessions
            self._boards, self._compute_profiles = {}, {}

    def _profiles(self, device: Any) -> Iterator[Profile]:
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", device, number, version=2)
                placements = "nvmlDeviceGetGpuInstancePossiblePlacements"
                starts = self._list(placements, device, int(info.id), pynvml.c_nvmlGpuInstancePlacement_t)
            except NotSupported:
                continue
            except InvalidArgument:
                return
            if starts:
                yield _profile(info, starts)

    def _instance(self, uuid: GpuUuid, handle: Any) -> Instance | None:
        """None if it was destroyed meanwhile. Raises NvmlError if NVML contradicts itself: the instance still exists then."""
        try:
            info = self._nvml.call("nvmlGpuInstanceGetInfo", handle)
            compute = [
                self._nvml.call("nvmlComputeInstanceGetInfo_v2", one)
                for profile in self._compute(uuid, int(info.profileId), handle)
                for one in self._list(
                    "nvmlGpuInstanceGetComputeInstances", handle, profile, pynvml.c_nvmlComputeInstance_t
                )
            ]
            return self._described(uuid, info, compute)
        except GpuUnknown as error:
            try:
                info = self._nvml.call("nvmlGpuInstanceGetInfo", handle)
            except GpuUnknown:
                return None
            raise NvmlError(
                f"NVML lists GPU instance {info.id} of GPU {uuid}, but not its compute instances; the agent tries again.",
                error.code,
            ) from error

    def _described(self, uuid: GpuUuid, info: Any, compute: Sequence[Any]) -> Instance:
        """A GPU instance with its compute instances, of which the first counts."""
        first = min(compute, key=lambda one: int(one.id), default=None)
        return Instance(
            gpu=uuid,
            gi=int(info.id),
            profile_id=int(info.profileId),
            start=int(info.placement.start),
            size=int(info.placement.size),
            ci=None if first is None else int(first.id),
            # Not from a walk over MIG devices, which can take seconds on a busy GPU.
            uuid=None if first is None else str(self._nvml.call("nvmlDeviceGetUUID", first.device)),
            parts=len(compute),
        )

    def _compute(self, uuid: GpuUuid, profile_id: int, handle: Any) -> dict[int, int]:
        """Compute slices by the id of each compute instance profile in GPU instances of a profile."""
        self._fresh()
        key = (uuid, profile_id)
        if key not in self._compute_profiles:
            self._compute_profiles[key] = dict(self._compute_profile_ids(handle))
        return self._compute_profiles[key]

    def _compute_profile_ids(self, handle: Any) -> Iterator[tuple[int, int]]:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            if number == pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1:
                continue  # not for whole instances, and drivers disagree on whether it exists
            try:
                info = self._nvml.call("nvmlGpuInstanceGetComputeInstanceProfileInfo", handle, number, shared)
            except NotSupported:
                continue
            except InvalidArgument:
                return
            yield int(info.id), int(info.sliceCount)

    def _spanning(self, uuid: GpuUuid, profile_id: int, handle: Any, slices: int) -> int:
        found = self._compute(uuid, profile_id, handle)
        for number, size in found.items():
            if size == slices:
                return number
        raise NotSupported(
            f"GPU {uuid} offers no compute instance of {slices} slices in its profile {profile_id}; report this with the "
            "output of `nvidia-smi mig -lcip`.",
            int(pynvml.NVML_ERROR_NOT_SUPPORTED),
        )

    def _list(self, function: str, parent: Any, profile_id: int, kind: Any) -> list[Any]:
        array = (kind * SLOTS)()
        count = ctypes.c_uint(SLOTS)
        try:
            self._nvml.call(function, parent, profile_id, array, ctypes.byref(count))
        except NotSupported as error:
            if error.code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise  # unlistable, which does not mean empty
            return []
        return list(array[: count.value])


def _profile(info: Any, starts: list[Any]) -> Profile:
    try:
        name = info.name  # decoded by pynvml
    except UnicodeDecodeError as error:
        raise not_text("nvmlDeviceGetGpuInstanceProfileInfo") from error
    return Profile(
        id=int(info.id),
        name=str(name).removeprefix("MIG ").strip(),
        slices=int(info.sliceCount),
        size=int(starts[0].size),
        starts=tuple(sorted(int(one.start) for one in starts)),
        max_instances=int(info.instanceCount),
        memory_mib=int(info.memorySizeMB),
        multiprocessors=int(info.multiprocessorCount),
        copy_engines=int(info.copyEngineCount),
        decoders=int(info.decoderCount),
        encoders=int(info.encoderCount),
        jpeg_engines=int(info.jpegCount),
        ofa_engines=int(info.ofaCount),
    )
