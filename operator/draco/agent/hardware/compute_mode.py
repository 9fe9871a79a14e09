"""Reads and sets a GPU's compute mode through NVML: how many programs may use it.

Owns the calls. Remembers nothing: `claims.mps` keeps the record of what it changed.
"""

from typing import Final

from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import NvmlError
from draco.resources.errors import DracoError
from draco.resources.names import GpuUuid

DEFAULT: Final = 0
"""NVML_COMPUTEMODE_DEFAULT: any number of programs."""
EXCLUSIVE_PROCESS: Final = 3
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: one program, such as the server of an MPS daemon."""


class ComputeModeRefused(DracoError):
    """A compute mode could not be read or set, as a sentence."""


class ComputeModes:
    """The compute modes of one node's GPUs. A board without any has DEFAULT."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def read(self, gpu: GpuUuid) -> int:
        """The mode now. Raises ComputeModeRefused."""
        with self._nvml.lock:
            try:
                found = self._nvml.optional("nvmlDeviceGetComputeMode", self._nvml.handle(gpu))
            except NvmlError as error:
                raise ComputeModeRefused(f"its compute mode cannot be read: {error}") from error
        return DEFAULT if found is None else int(found)

    def set(self, gpu: GpuUuid, mode: int) -> None:
        """Set the mode. Raises ComputeModeRefused."""
        with self._nvml.lock:
            try:
                self._nvml.call("nvmlDeviceSetComputeMode", self._nvml.handle(gpu), mode)
            except NvmlError as error:
                raise ComputeModeRefused(f"its compute mode cannot be set: {error}") from error
