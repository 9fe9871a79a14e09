"""Simulated NVML: which processes run on a GPU or on a MIG device.

A process that only keeps a handle open is in no list of NVML's, but still prevents a destroy.
"""
# ruff: noqa: N802 - the names are pynvml's

from typing import Any

import pynvml

from draco_local.simulator.nvml.session import Session


class ProcessCalls:
    """Compute processes; here no process draws, and none shares a GPU through MPS."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """All that run on a GPU, with their instances; or those that run on a MIG device."""
        found = self._session.device(handle)
        running = [process for process in found.gpu.processes if process.listed]
        if found.instance is not None and found.compute is not None:
            place = (found.instance.id, found.compute.id)
            running = [process for process in running if (process.gpu_instance, process.compute_instance) == place]
        return [
            pynvml.nvmlFriendlyObject(
                {
                    "pid": process.pid,
                    "usedGpuMemory": process.memory_mib << 20,
                    "gpuInstanceId": _number(process.gpu_instance),
                    "computeInstanceId": _number(process.compute_instance),
                }
            )
            for process in running
        ]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]:
        """The same."""
        return self.nvmlDeviceGetComputeRunningProcesses(handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        """None."""
        self._session.device(handle)
        return []

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any) -> list[Any]:
        """None."""
        return self.nvmlDeviceGetGraphicsRunningProcesses(handle)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """None."""
        self._session.device(handle)
        return []

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any) -> list[Any]:
        """None."""
        return self.nvmlDeviceGetMPSComputeRunningProcesses(handle)


def _number(instance: int | None) -> int:
    return int(pynvml.NVML_GPU_INSTANCE_ID_ANY) if instance is None else instance
