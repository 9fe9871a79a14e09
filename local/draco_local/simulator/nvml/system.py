"""Simulated NVML: the library and the driver, not yet any GPU."""
# ruff: noqa: N802 - the names are pynvml's

import pynvml

from draco_local.simulator.nvml.session import Session


class SystemCalls:
    """nvmlInit, nvmlShutdown, nvmlErrorString and nvmlSystem*."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlInit(self) -> None:
        """Start a session, or count another user of it."""
        self._session.start()

    def nvmlInitWithFlags(self, flags: int) -> None:
        """nvmlInit; the flags change nothing here."""
        del flags
        self._session.start()

    def nvmlShutdown(self) -> None:
        """Leave the session; the last user's leaving voids every handle."""
        self._session.stop()

    def nvmlErrorString(self, result: int) -> str:
        """NVML's words for a return code."""
        return "Success" if result == 0 else ERROR_STRINGS.get(result, "Unknown Error")

    def nvmlSystemGetDriverVersion(self) -> str:
        """Version of the kernel driver, e.g. 580.95.05."""
        return self._session.state().driver.version

    def nvmlSystemGetNVMLVersion(self) -> str:
        """Version of the library."""
        return self._session.state().driver.nvml_version

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        """CUDA version: 1000 x major + 10 x minor."""
        return self._session.state().driver.cuda_version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        """The same number."""
        return self._session.state().driver.cuda_version


# The library's own words: pynvml knows only some of them without a library to ask.
ERROR_STRINGS = {
    pynvml.NVML_ERROR_UNINITIALIZED: "Uninitialized",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "Invalid Argument",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    pynvml.NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
    pynvml.NVML_ERROR_ALREADY_INITIALIZED: "Already Initialized",
    pynvml.NVML_ERROR_NOT_FOUND: "Not Found",
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: "Insufficient Size",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "Insufficient External Power",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    pynvml.NVML_ERROR_TIMEOUT: "Timeout",
    pynvml.NVML_ERROR_IRQ_ISSUE: "Interrupt Request Issue",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "Function Not Found",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "Corrupted infoROM",
    pynvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "GPU requires reset",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "GPU access blocked by the operating system",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch",
    pynvml.NVML_ERROR_IN_USE: "In use by another client",
    pynvml.NVML_ERROR_MEMORY: "Insufficient Memory",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "Insufficient Resources",
    pynvml.NVML_ERROR_NO_DATA: "No data",
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: "vGPU ECC not supported",
    pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED: "Invalid Frequency",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "Argument version mismatch",
    pynvml.NVML_ERROR_DEPRECATED: "Requested functionality has been deprecated",
    pynvml.NVML_ERROR_NOT_READY: "System is not in ready state",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "No supported GPUs were found",
    pynvml.NVML_ERROR_INVALID_STATE: "Resource not in correct state to perform requested operation",
    pynvml.NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: "Reset type is not supported for given device",
}
