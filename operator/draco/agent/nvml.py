"""NVML as the agent sees it: typed reads of the node's GPUs, and one sentence for everything that can go wrong.

Owns every call of pynvml. Decides nothing: what a fault means for a claim is not its business. All calls block; the agent
makes them from one thread, and waits for events from a second one.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pynvml

from draco.resources.errors import DracoError
from draco.resources.names import GpuUuid


class NvmlError(DracoError):
    """NVML refused; `code` is its return code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class DriverMissing(NvmlError):
    """There is no NVIDIA driver on this node, or it is not loaded."""


class DriverReloaded(NvmlError):
    """The driver was reloaded or upgraded: close, open again, and forget all handles."""


class GpuLost(NvmlError):
    """The GPU has fallen off the bus; only a reboot of the node brings it back."""


class ResetRequired(NvmlError):
    """The GPU works again only after a reset."""


class PermissionMissing(NvmlError):
    """The agent may not make this call."""


class NotSupported(NvmlError):
    """The board or the driver does not have this."""


class Unreadable(NvmlError):
    """NVML answered with something that says nothing about the GPU's state."""


class DriverInfo(msgspec.Struct, frozen=True):
    """Versions of the node's driver, as NVML writes them; `cuda_driver_version` is `major.minor`."""

    driver_version: str
    cuda_driver_version: str
    nvml_version: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One whole GPU, with what is published about it."""

    uuid: GpuUuid
    index: int
    minor: int  # the device node is /dev/nvidia<minor>; it can change over a reboot
    product_name: str
    brand: str
    architecture: str
    compute_major: int
    compute_minor: int
    memory_bytes: int
    pci_bus_id: str  # as sysfs writes it: 0000:3b:00.0
    numa_node: int | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    addressing_mode: str | None = None

    @property
    def memory_mib(self) -> int:
        """Frame buffer in MiB, rounded down."""
        return self.memory_bytes >> 20

    @property
    def cuda_compute_capability(self) -> str:
        """As a semantic version, e.g. `9.0.0`."""
        return f"{self.compute_major}.{self.compute_minor}.0"


class Nvml:
    """A session with NVML. `library` is the module pynvml or any object with its functions."""

    def __init__(self, library: Any = pynvml) -> None:
        self._library = library
        self._open = False

    def open(self) -> None:
        """Start the session; DriverMissing when the node has no working driver."""
        if not self._open:
            self._call("nvmlInit")
            self._open = True

    def close(self) -> None:
        """End the session, also when the driver is already gone."""
        if self._open:
            self._open = False
            try:
                self._library.nvmlShutdown()
            except pynvml.NVMLError:
                return

    def driver(self) -> DriverInfo:
        """Versions of the driver."""
        cuda = self._call("nvmlSystemGetCudaDriverVersion_v2")
        return DriverInfo(
            driver_version=str(self._call("nvmlSystemGetDriverVersion")),
            cuda_driver_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            nvml_version=str(self._call("nvmlSystemGetNVMLVersion")),
        )

    def gpus(self) -> list[Gpu]:
        """All GPUs in PCI order."""
        return [self._read(index) for index in range(self._call("nvmlDeviceGetCount"))]

    def _read(self, index: int) -> Gpu:
        handle = self._call("nvmlDeviceGetHandleByIndex", index)
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        pci = self._call("nvmlDeviceGetPciInfo", handle)
        mode = self._optional("nvmlDeviceGetMigMode", handle)
        return Gpu(
            uuid=GpuUuid(self._call("nvmlDeviceGetUUID", handle)),
            index=index,
            minor=int(self._call("nvmlDeviceGetMinorNumber", handle)),
            product_name=str(self._call("nvmlDeviceGetName", handle)),
            brand=BRANDS.get(self._call("nvmlDeviceGetBrand", handle), "Unknown"),
            architecture=ARCHITECTURES.get(self._call("nvmlDeviceGetArchitecture", handle), "Unknown"),
            compute_major=int(major),
            compute_minor=int(minor),
            memory_bytes=int(self._call("nvmlDeviceGetMemoryInfo", handle).total),
            pci_bus_id=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
            numa_node=self._numa_node(handle),
            mig_capable=mode is not None,
            mig_enabled=mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
            addressing_mode=ADDRESSING_MODES.get(self._optional("nvmlDeviceGetAddressingMode", handle) or 0),
        )

    def _numa_node(self, handle: Any) -> int | None:
        """The nearest NUMA node; nvmlDeviceGetNumaNodeId is for GPUs that are such nodes themselves."""
        words = self._optional("nvmlDeviceGetMemoryAffinity", handle, 16, pynvml.NVML_AFFINITY_SCOPE_NODE)
        for number, word in enumerate(map(int, words or ())):
            if word:
                return number * 64 + ((word & -word).bit_length() - 1)
        return None

    def _optional(self, function: str, *args: Any) -> Any:
        """The answer, or None where the board or the driver does not have this."""
        try:
            return self._call(function, *args)
        except NotSupported:
            return None

    def _call(self, function: str, *args: Any) -> Any:
        try:
            return getattr(self._library, function)(*args)
        except pynvml.NVMLError as error:
            raise _translated(error, function) from error


def _translated(error: Any, function: str) -> NvmlError:
    code = int(error.value)
    kind, sentence = _ERRORS.get(
        code, (Unreadable, "NVML's {function} answered {error} (code {code}); see the kernel log for NVRM messages.")
    )
    return kind(sentence.format(function=function, error=error, code=code), code)


# Spelled as NVIDIA's DRA driver spells them in its attributes.
BRANDS: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_BRAND_QUADRO: "Quadro",
        pynvml.NVML_BRAND_TESLA: "Tesla",
        pynvml.NVML_BRAND_NVS: "NVS",
        pynvml.NVML_BRAND_GRID: "Grid",
        pynvml.NVML_BRAND_GEFORCE: "GeForce",
        pynvml.NVML_BRAND_TITAN: "Titan",
        pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
        pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
        pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
        pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
        pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
        pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
        pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
        pynvml.NVML_BRAND_NVIDIA: "Nvidia",
        pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
        pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
    }
)
ARCHITECTURES: Mapping[int, str] = MappingProxyType(
    {
        pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
        pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
        pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
        pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
        pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
        pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
        pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
        pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
        pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    }
)
ADDRESSING_MODES: Mapping[int, str] = MappingProxyType(
    {pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM", pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS"}
)

_INSTALL = "install the NVIDIA driver, or check that its container toolkit passes it into this container"
_ERRORS: Mapping[int, tuple[Callable[[str, int], NvmlError], str]] = MappingProxyType(
    {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
            DriverMissing,
            f"NVML is not available on this node: libnvidia-ml.so.1 was not found; {_INSTALL}.",
        ),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            DriverMissing,
            "NVML is not available on this node: the NVIDIA kernel module is not loaded; load it with `modprobe nvidia`.",
        ),
        pynvml.NVML_ERROR_UNINITIALIZED: (
            DriverReloaded,
            "The NVIDIA driver was reloaded, or NVML was never opened; open it again.",
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            DriverReloaded,
            "NVML's library and the loaded NVIDIA driver have different versions; reboot the node or reload the driver.",
        ),
        pynvml.NVML_ERROR_GPU_IS_LOST: (
            GpuLost,
            "The GPU is lost: it has fallen off the PCI bus; drain and reboot the node.",
        ),
        pynvml.NVML_ERROR_RESET_REQUIRED: (
            ResetRequired,
            "The GPU needs a reset before it can be used; drain it and run `nvidia-smi --gpu-reset`.",
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            PermissionMissing,
            "NVML's {function} needs more rights; run the agent as root with access to the NVIDIA device nodes.",
        ),
        pynvml.NVML_ERROR_NOT_SUPPORTED: (NotSupported, "This GPU does not support NVML's {function}."),
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
            NotSupported,
            "The installed NVIDIA driver is too old for NVML's {function}; upgrade the driver.",
        ),
    }
)
