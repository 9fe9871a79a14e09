"""Simulated NVML: which GPUs there are and who each one is."""
# ruff: noqa: N802, N803 - the names are pynvml's

import re
from typing import Any

import pynvml

from draco_local.simulator.gpus.mig_profiles import compute_profile_of
from draco_local.simulator.gpus.state import GpuState
from draco_local.simulator.nvml.handles import pointed
from draco_local.simulator.nvml.mig import profile_of
from draco_local.simulator.nvml.session import Session, board_of, check, invalid_argument, not_supported

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE)
_CPUS_PER_NUMA_NODE = 56
_BAR1_IN_USE = 1_703_936  # bytes, of an idle GPU


class IdentityCalls:
    """Handles, names, PCI and where the GPU sits."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetCount(self) -> int:
        """All GPUs the driver has attached, faulty ones included; not those that were dead when it was loaded."""
        return len(self._session.state().gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        """Handle by position in PCI order."""
        gpus = self._session.state().gpus
        if not 0 <= index < len(gpus):
            raise invalid_argument()
        return self._opened(gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> Any:
        """Handle by `GPU-...`, also without that word, or of a MIG device by `MIG-...`; NOT_FOUND for any other text."""
        text = _text(uuid)
        for gpu in self._session.state().gpus:
            if text in (gpu.uuid, gpu.uuid.removeprefix("GPU-")):
                return self._opened(gpu)
            for compute in (each for instance in gpu.instances for each in instance.compute):
                if compute.uuid == text:
                    check(gpu)
                    return self._session.handle_of_mig_device(compute)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetHandleBySerial(self, serial: str | bytes) -> Any:
        """Handle by the board's serial number."""
        text = _text(serial)
        for gpu in self._session.state().gpus:
            if gpu.serial == text:
                return self._opened(gpu)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str | bytes) -> Any:
        """Handle by PCI address, with a domain of four or eight digits or none."""
        match = _BUS_ID.fullmatch(_text(pciBusId))
        if match is None:
            raise invalid_argument()
        wanted = (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16))
        for gpu in self._session.state().gpus:
            if (gpu.pci_domain, gpu.pci_bus, gpu.pci_device) == wanted:
                return self._opened(gpu)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetIndex(self, handle: Any) -> int:
        """Position in PCI order; of a MIG device, its slot on its GPU."""
        found = self._session.device(handle)
        return found.index if found.compute is None else found.compute.slot

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        """The identity that stays with the board; a MIG device has its own, new whenever it is made."""
        found = self._session.device(handle)
        return found.gpu.uuid if found.compute is None else found.compute.uuid

    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        """The number in /dev/nvidia<minor>."""
        return self._session.gpu(handle).minor

    def nvmlDeviceGetName(self, handle: Any) -> str:
        """Product name; of a MIG device with its profile, `NVIDIA H100 80GB HBM3 MIG 3g.40gb`."""
        found = self._session.device(handle)
        product = board_of(found.gpu).product_name
        if found.instance is None or found.compute is None:
            return product
        profile = profile_of(found.gpu, found.instance.profile_id)
        return f"{product} {compute_profile_of(profile, found.compute.profile_id).name(profile)}"

    def nvmlDeviceGetBrand(self, handle: Any) -> int:
        """nvmlBrandType_t."""
        return int(board_of(self._session.device(handle).gpu).brand)

    def nvmlDeviceGetArchitecture(self, device: Any) -> int:
        """nvmlDeviceArchitecture_t."""
        return int(board_of(self._session.device(device).gpu).architecture)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        """Major and minor."""
        return board_of(self._session.device(handle).gpu).compute_capability

    def nvmlDeviceGetSerial(self, handle: Any) -> str:
        """Serial number of the board."""
        return self._session.gpu(handle).serial

    def nvmlDeviceGetBoardPartNumber(self, handle: Any) -> str:
        """Part number of the board."""
        return board_of(self._session.gpu(handle)).part_number

    def nvmlDeviceGetBoardId(self, handle: Any) -> int:
        """Equal for GPUs of one board; each board here carries one GPU."""
        gpu = self._session.gpu(handle)
        return gpu.pci_domain << 16 | gpu.pci_bus << 8

    def nvmlDeviceGetMultiGpuBoard(self, handle: Any) -> int:
        """0: one GPU per board."""
        self._session.gpu(handle)
        return 0

    def nvmlDeviceOnSameBoard(self, handle1: Any, handle2: Any) -> bool:
        """Whether both handles mean one board."""
        return self._session.gpu(handle1).uuid == self._session.gpu(handle2).uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        """Frame buffer in bytes: version 1 counts the driver's reserve as used, version 2 names it.

        Of a MIG device it is the memory of its GPU instance, of which the driver keeps nothing for itself here.
        """
        found = self._session.device(handle)
        if found.instance is None:
            board = board_of(found.gpu)
            total, reserved = board.memory_mib << 20, int(board.reserved_mib * (1 << 20))
            users = found.gpu.processes
        else:
            total, reserved = profile_of(found.gpu, found.instance.profile_id).memory_mib << 20, 0
            users = [each for each in found.gpu.processes if each.gpu_instance == found.instance.id]
        used = sum(each.memory_mib for each in users) << 20
        if not version:
            memory = pynvml.c_nvmlMemory_t()
            memory.used = reserved + used
        elif version == pynvml.nvmlMemory_v2:
            memory = pynvml.c_nvmlMemory_v2_t()
            memory.version, memory.reserved, memory.used = version, reserved, used
        else:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        memory.total, memory.free = total, max(0, total - reserved - used)
        return memory

    def nvmlDeviceGetBAR1MemoryInfo(self, handle: Any) -> Any:
        """BAR 1 in bytes."""
        total = board_of(self._session.gpu(handle)).bar1_mib << 20
        memory = pynvml.c_nvmlBAR1Memory_t()
        memory.bar1Total, memory.bar1Free, memory.bar1Used = total, total - _BAR1_IN_USE, _BAR1_IN_USE
        return memory

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        """PCI address and ids."""
        return pci_info(self._session.gpu(handle))

    def nvmlDeviceGetPciInfo_v3(self, handle: Any) -> Any:
        """The same."""
        return pci_info(self._session.gpu(handle))

    def nvmlDeviceGetPciInfoExt(self, handle: Any, c_info: Any) -> None:
        """PCI address, ids and class, written to the caller's nvmlPciInfoExt_v1_t (by reference)."""
        gpu = self._session.gpu(handle)
        info = pointed(c_info)
        if info.version != pynvml.nvmlPciInfoExt_v1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        plain = pci_info(gpu)
        for field in ("domain", "bus", "device", "pciDeviceId", "pciSubSystemId", "busId"):
            setattr(info, field, getattr(plain, field))
        info.baseClass, info.subClass = 0x03, 0x02  # display controller, 3D

    def nvmlDeviceGetNumaNodeId(self, handle: Any) -> int:
        """NOT_SUPPORTED: only platforms whose GPUs are NUMA nodes themselves (Grace) answer."""
        self._session.gpu(handle)
        raise not_supported()

    def nvmlDeviceGetMemoryAffinity(self, handle: Any, nodeSetSize: int, scope: int) -> Any:
        """Bit set of the NUMA nodes next to the GPU."""
        return _bits(self._session.gpu(handle).numa_node, 1, nodeSetSize, scope)

    def nvmlDeviceGetCpuAffinity(self, handle: Any, cpuSetSize: int) -> Any:
        """Bit set of the CPUs next to the GPU."""
        return self.nvmlDeviceGetCpuAffinityWithinScope(handle, cpuSetSize, pynvml.NVML_AFFINITY_SCOPE_NODE)

    def nvmlDeviceGetCpuAffinityWithinScope(self, handle: Any, cpuSetSize: int, scope: int) -> Any:
        """Bit set of the CPUs of the GPU's NUMA node; a socket has one node here."""
        node = self._session.gpu(handle).numa_node
        return _bits(node * _CPUS_PER_NUMA_NODE, _CPUS_PER_NUMA_NODE, cpuSetSize, scope)

    def nvmlDeviceGetAddressingMode(self, device: Any) -> int:
        """None, as on a host whose kernel module does no heterogeneous memory management."""
        self._session.gpu(device)
        return int(pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE)

    def nvmlDeviceGetVirtualizationMode(self, handle: Any) -> int:
        """Bare metal, or passed through to a virtual machine."""
        through = self._session.gpu(handle).passthrough
        return int(
            pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH if through else pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
        )

    def _opened(self, gpu: GpuState) -> Any:
        check(gpu)  # a GPU that is lost cannot be opened either
        return self._session.handle(gpu)


def pci_info(gpu: GpuState) -> Any:
    """A GPU's PCI address and ids, as pynvml's nvmlPciInfo_t."""
    board = board_of(gpu)
    info = pynvml.nvmlPciInfo_t()
    info.domain, info.bus, info.device = gpu.pci_domain, gpu.pci_bus, gpu.pci_device
    info.pciDeviceId, info.pciSubSystemId = board.pci_device_id, board.pci_subsystem_id
    place = f"{gpu.pci_bus:02X}:{gpu.pci_device:02X}.0"
    info.busId = f"{gpu.pci_domain:08X}:{place}".encode()
    info.busIdLegacy = f"{gpu.pci_domain & 0xFFFF:04X}:{place}".encode()
    return info


def _bits(first: int, count: int, words: int, scope: int) -> Any:
    if scope not in (pynvml.NVML_AFFINITY_SCOPE_NODE, pynvml.NVML_AFFINITY_SCOPE_SOCKET):
        raise invalid_argument()
    array = (pynvml.c_ulonglong * words)()
    for bit in range(first, min(first + count, words * 64)):
        array[bit // 64] |= 1 << bit % 64
    return array


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
