"""Simulated NVML: which processes run on a GPU or on a MIG device, and how busy they keep it.

A process that only keeps a handle open is in no list of NVML's, but still prevents a destroy.
"""
# ruff: noqa: N802 - the names are pynvml's

import time
from typing import Any

import pynvml

from draco_local.simulator.gpus.gpu_state import GpuProcess
from draco_local.simulator.nvml.session import Session, not_supported


class ProcessCalls:
    """Processes that compute, compute through MPS, or draw: each is in one list."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """All that compute on a GPU, with their instances; or those that compute on a MIG device."""
        return self._running(handle, "computing")

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]:
        """The same."""
        return self.nvmlDeviceGetComputeRunningProcesses(handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        """Those that draw."""
        return self._running(handle, "drawing")

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any) -> list[Any]:
        """The same."""
        return self.nvmlDeviceGetGraphicsRunningProcesses(handle)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """The clients of MPS servers."""
        return self._running(handle, "mps")

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any) -> list[Any]:
        """The same."""
        return self.nvmlDeviceGetMPSComputeRunningProcesses(handle)

    def nvmlDeviceGetProcessUtilization(self, handle: Any, timeStamp: int) -> list[Any]:  # noqa: N803 - pynvml's name
        """A sample of each process that was busy since `timeStamp`, in microseconds; idle ones are not listed.

        NOT_FOUND if no process was busy, NOT_SUPPORTED with MIG on.
        """
        gpu = self._session.gpu(handle)
        if gpu.mig_current:
            raise not_supported()
        now = time.time_ns() // 1000
        busy = [each for each in gpu.processes if each.listed and each.utilization]
        if not busy or timeStamp >= now:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [
            pynvml.c_nvmlProcessUtilizationSample_t(pid=each.pid, timeStamp=now, smUtil=each.utilization)
            for each in busy
        ]

    def _running(self, handle: Any, kind: str) -> list[Any]:
        found = self._session.device(handle)
        running = [process for process in found.gpu.processes if process.listed and process.kind == kind]
        if found.instance is not None and found.compute is not None:
            place = (found.instance.id, found.compute.id)
            running = [process for process in running if (process.gpu_instance, process.compute_instance) == place]
        return [_information(process) for process in running]


def _information(process: GpuProcess) -> Any:
    return pynvml.nvmlFriendlyObject(
        {
            "pid": process.pid,
            "usedGpuMemory": process.memory_mib << 20 if process.memory_told else None,
            "gpuInstanceId": _number(process.gpu_instance),
            "computeInstanceId": _number(process.compute_instance),
        }
    )


def _number(instance: int | None) -> int:
    return int(pynvml.NVML_GPU_INSTANCE_ID_ANY) if instance is None else instance
