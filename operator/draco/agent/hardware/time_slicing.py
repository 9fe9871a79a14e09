"""Sets a GPU's time slice, with the node's nvidia-smi, as NVML has no call for it.

Owns how its refusal is read. Remembers nothing: `claims.time_slices` keeps the record.
Source: `nvidia-smi compute-policy` exists since R455; a board without compute preemption answers "Not Supported" and status 3
(kubernetes-sigs/dra-driver-nvidia-gpu#41). NVIDIA's driver sets the compute mode to DEFAULT as well.
"""

from typing import Final

from draco.agent.hardware.nvidia_smi import Smi
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import NvmlError
from draco.agent.hardware.programs import ProgramFailed
from draco.allocation.configurations import TimeSlice
from draco.resources.errors import DracoError
from draco.resources.names import GpuUuid

_SHARED: Final = 0
"""NVML_COMPUTEMODE_DEFAULT."""
_UNSUPPORTED: Final = (2, 3)
"""Exit statuses of nvidia-smi: it does not know the command, as before R455, or the board cannot."""


class TimeSliceRefused(DracoError):
    """A time slice could not be set, as a sentence. `unsupported`: this board or driver never can."""

    def __init__(self, sentence: str, *, unsupported: bool = False) -> None:
        super().__init__(sentence)
        self.unsupported = unsupported


class InMigMode(TimeSliceRefused):
    """The GPU is in MIG mode, which has ended its time slice. This says nothing about the board."""


class TimeSliceSetter:
    """Sets time slices with nvidia-smi."""

    def __init__(self, nvml: Nvml, smi: Smi) -> None:
        self._nvml = nvml
        self._smi = smi

    def set(self, gpu: GpuUuid, wanted: TimeSlice) -> None:
        """Set the GPU's time slice; a GPU that programs are to share must not be exclusive. Raises TimeSliceRefused."""
        command = ["compute-policy", "-i", gpu, "--set-timeslice", str(int(wanted))]
        with self._nvml.lock:
            try:
                self._nvml.aside(lambda: self._smi(command))  # NVML answers others meanwhile
            except ProgramFailed as error:
                raise self._refusal(gpu, error) from error
            if wanted is not TimeSlice.DEFAULT:  # only now: nothing gives the compute mode back after a refusal
                self._let_share(gpu)

    def _let_share(self, gpu: GpuUuid) -> None:
        try:
            handle = self._nvml.handle(gpu)
            if self._nvml.optional("nvmlDeviceGetComputeMode", handle) not in (None, _SHARED):
                self._nvml.call("nvmlDeviceSetComputeMode", handle, _SHARED)
        except NvmlError as error:
            raise TimeSliceRefused(f"its compute mode cannot be made DEFAULT: {error}") from error

    def _refusal(self, gpu: GpuUuid, failure: ProgramFailed) -> TimeSliceRefused:
        if failure.status not in _UNSUPPORTED and "not supported" not in failure.said.lower():
            return TimeSliceRefused(f"{failure}.")
        try:
            mode = self._nvml.optional("nvmlDeviceGetMigMode", self._nvml.handle(gpu))
        except NvmlError as error:
            return TimeSliceRefused(f"{failure}, and its MIG mode cannot be read: {error}")
        if mode is not None and mode[0]:
            return InMigMode("it is in MIG mode, in which a GPU has no time slice.")
        return TimeSliceRefused("this board or its driver cannot set time slices.", unsupported=True)
