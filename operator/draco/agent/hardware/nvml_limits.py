"""Reads and sets limits on a GPU's memory in the agent's session with NVML, beside its other calls."""

from pathlib import Path
from typing import Any

import pynvml

from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import never_seen
from draco.agent.hardware.nvml_memory import LimitReader, MemoryLimit
from draco.resources.names import GpuUuid


class NvmlMemory:
    """The limits of cgroups. A call that hangs keeps nobody else from calling NVML."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def read(self, gpu: GpuUuid, cgroup: Path) -> MemoryLimit:
        """A cgroup's limit on a GPU. Raises NvmlError."""
        return LimitReader(self._nvml.call_apart, None).read(self._handle(gpu), cgroup)

    def limit(self, gpu: GpuUuid, cgroup: Path, hard: int) -> None:
        """Set a cgroup's hard limit, in bytes. Raises NvmlError."""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(cgroup).encode(), 0, hard)
        self._nvml.call_apart("nvmlDeviceSetMemoryLimits_v1", self._handle(gpu), limits)

    def _handle(self, gpu: GpuUuid) -> Any:
        handle = self._nvml.cached_handle(gpu)
        if handle is None:
            raise never_seen(gpu)
        return handle
