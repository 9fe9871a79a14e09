"""Memory and utilization of GPUs and MIG devices, and of the processes on them, through NVML.

Owns these calls. They are made without the session's lock, and a call that hangs keeps nobody else from calling NVML; so the
session may end, and another begin, between two of them. A reading in which that happens is dropped.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

import msgspec

from draco.agent.hardware.gpus import Gpu, Instance
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import DriverReloaded, GpuUnknown, NotSupported, never_seen, optional
from draco.agent.hardware.nvml_gpm import InstanceLoads
from draco.resources.names import GpuUuid

_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)


class ProcessUse(msgspec.Struct, frozen=True):
    """What one process uses of a device; None: not reported. `utilization`: percent of the time, 0 for an idle one."""

    pid: int
    memory_bytes: int | None
    utilization: int | None


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of a GPU, or of an instance of it; None: not reported. `instance` is None for an undivided GPU.

    `utilization` is percent of the time: of the last second of a GPU, and of the time since the last reading of an instance.
    """

    gpu: GpuUuid
    instance: Instance | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    utilization: int | None = None
    processes: tuple[ProcessUse, ...] = ()

    @property
    def uuid(self) -> str:
        """Its UUID, as CUDA and DCGM know it."""
        return self.gpu if self.instance is None else str(self.instance.uuid)


class NvmlUsage:
    """Reads usage in the session of `nvml`. `now` in seconds since the epoch; `pause` sleeps in the reading's thread."""

    def __init__(self, nvml: Nvml, *, now: Callable[[], float], pause: Callable[[float], None] = time.sleep) -> None:
        self._nvml = nvml
        self._call = nvml.call_apart
        self._now = now
        self._loads = InstanceLoads(nvml.call_apart, pause=pause)
        self._sampled_us: dict[GpuUuid, int] = {}

    def read(self, gpu: Gpu) -> list[DeviceUse]:
        """What is used of a GPU, or of each of its instances that programs can use. Raises NvmlError."""
        session = self._nvml.sessions
        handle = self._nvml.cached_handle(gpu.uuid)
        if handle is None:
            raise never_seen(gpu.uuid)
        found = list(self._instances(gpu, handle, session)) if gpu.mig_enabled else [self._whole(gpu, handle)]
        if self._nvml.sessions != session:
            raise DriverReloaded("The driver was reloaded during the reading.", 0)
        return found

    def _whole(self, gpu: Gpu, handle: Any) -> DeviceUse:
        rates = optional(self._call, "nvmlDeviceGetUtilizationRates", handle)
        found = DeviceUse(
            gpu=gpu.uuid,
            utilization=None if rates is None else int(rates.gpu),
            processes=self._processes(handle, self._samples(gpu.uuid, handle)),
        )
        return self._with_memory(found, handle)

    def _instances(self, gpu: Gpu, handle: Any, session: int) -> Iterator[DeviceUse]:
        """NVML tells no utilization of the processes of instances, and that of instances only on newer boards."""
        loads = self._loads.read(gpu, handle, session=session)
        for one in gpu.instances:
            if one.ci is None or one.uuid is None:
                continue
            try:
                around = self._call("nvmlDeviceGetGpuInstanceById", handle, one.gi)
                compute = self._call("nvmlGpuInstanceGetComputeInstanceById", around, one.ci)
                device = self._call("nvmlComputeInstanceGetInfo_v2", compute).device
                found = DeviceUse(
                    gpu=gpu.uuid,
                    instance=one,
                    utilization=loads.get(one.uuid),
                    processes=self._processes(device, None),
                )
                yield self._with_memory(found, device)
            except GpuUnknown:
                continue  # destroyed meanwhile

    def _with_memory(self, use: DeviceUse, handle: Any) -> DeviceUse:
        """With total and used memory, unless the board does not report it."""
        memory = optional(self._call, "nvmlDeviceGetMemoryInfo", handle)
        if memory is None:
            return use
        return msgspec.structs.replace(use, total_bytes=int(memory.total), used_bytes=int(memory.used))

    def _samples(self, uuid: GpuUuid, handle: Any) -> Mapping[int, int] | None:
        """Utilization by PID since the last reading, without idle processes; None if it is not reported."""
        since_us, self._sampled_us[uuid] = self._sampled_us.get(uuid, 0), int(self._now() * 1e6)
        try:
            samples = self._call("nvmlDeviceGetProcessUtilization", handle, since_us)
        except NotSupported:
            return None
        except GpuUnknown:
            return {}  # its answer when no process was busy
        by_pid: dict[int, list[int]] = {}
        for each in samples:
            by_pid.setdefault(int(each.pid), []).append(int(each.smUtil))
        return {pid: round(fmean(values)) for pid, values in by_pid.items()}

    def _processes(self, handle: Any, samples: Mapping[int, int] | None) -> tuple[ProcessUse, ...]:
        memory: dict[int, int | None] = {}
        for one in self._listed(handle):
            told = None if one.usedGpuMemory is None else int(one.usedGpuMemory)
            before = memory.get(int(one.pid))
            memory[int(one.pid)] = told if before is None or told is None else max(told, before)  # in two lists
        return tuple(
            ProcessUse(pid, used, None if samples is None else samples.get(pid, 0))
            for pid, used in sorted(memory.items())
        )

    def _listed(self, handle: Any) -> Iterable[Any]:
        for function in _LISTS:
            yield from optional(self._call, function, handle) or ()
