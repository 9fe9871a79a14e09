"""Simulated NVML: how GPUs reach each other, over PCIe, NVLink and the NVSwitch fabric."""
# ruff: noqa: N802, N803 - the names are pynvml's

import uuid
from typing import Any

import pynvml

from draco_local.simulator.gpus.boards import Architecture, SimulatedBoard
from draco_local.simulator.gpus.drivers import FABRIC_V3
from draco_local.simulator.gpus.state import GpuState, NvLinkFaults, SimulatedNodeState
from draco_local.simulator.gpus.wiring import links_of
from draco_local.simulator.nvml.handles import pointed
from draco_local.simulator.nvml.session import Session, board_of, invalid_argument, not_supported

_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS of the 580 drivers; newer pynvml has more
# No degraded bandwidth, no route recovery, no unhealthy route, no access timeout, no wrong configuration.
_HEALTHY_MASK = (
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE << pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW
    | pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE << pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY
    | pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE
    << pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY
    | pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE
    << pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY
    | pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE
    << pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
)


class LinkCalls:
    """PCIe link, NVLink, topology, peer access and fabric."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int:
        """Generation in use."""
        return board_of(self._session.gpu(handle)).pcie_generation

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int:
        """Generation of GPU and slot together."""
        return board_of(self._session.gpu(handle)).pcie_generation

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, handle: Any) -> int:
        """Generation of the GPU alone."""
        return board_of(self._session.gpu(handle)).pcie_generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int:
        """Lanes in use."""
        return board_of(self._session.gpu(handle)).pcie_width

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int:
        """Lanes of GPU and slot together."""
        return board_of(self._session.gpu(handle)).pcie_width

    def nvmlDeviceGetNvLinkState(self, device: Any, link: int) -> int:
        """Whether the link is up."""
        self._linked(device, link)
        down = self._faults(device, link).down
        return int(pynvml.NVML_FEATURE_DISABLED if down else pynvml.NVML_FEATURE_ENABLED)

    def nvmlDeviceGetNvLinkErrorCounter(self, device: Any, link: int, counter: int) -> int:
        """Errors of one kind since the counters were last reset; of lanes and ECC there are none."""
        self._linked(device, link)
        if not 0 <= counter < pynvml.NVML_NVLINK_ERROR_COUNT:
            raise invalid_argument()
        faults = self._faults(device, link)
        counts = {
            pynvml.NVML_NVLINK_ERROR_DL_REPLAY: faults.replay,
            pynvml.NVML_NVLINK_ERROR_DL_RECOVERY: faults.recovery,
            pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT: faults.crc,
        }
        return counts.get(counter, 0)

    def nvmlDeviceResetNvLinkErrorCounters(self, device: Any, link: int) -> None:
        """Reset the error counters of a link; a link that is down stays down."""
        self._linked(device, link)

        def reset(state: SimulatedNodeState) -> None:
            links = self._session.device(device, state).gpu.links
            links[link] = NvLinkFaults(down=link in links and links[link].down)

        self._session.change(reset)

    def nvmlDeviceGetNvLinkVersion(self, device: Any, link: int) -> int:
        """nvmlNvlinkVersion_t."""
        return int(self._linked(device, link).nvlink_version)

    def nvmlDeviceGetNvLinkCapability(self, device: Any, link: int, capability: int) -> int:
        """One bit of what the link can do. A link that no board has is refused first."""
        if not 0 <= link < _MOST_LINKS:
            self._session.gpu(device)
            raise invalid_argument()
        self._linked(device, link)
        if not 0 <= capability < pynvml.NVML_NVLINK_CAP_COUNT:
            raise invalid_argument()
        return int(capability != pynvml.NVML_NVLINK_CAP_SLI_BRIDGE)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int) -> int:
        """The links of a card with a bridge end at another GPU, all others at switches."""
        self._linked(handle, link)
        bridged = self._session.gpu(handle).bridged_to
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_GPU if bridged else pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Any, link: int) -> Any:
        """PCI address of the switch or GPU at the other end; which link meets which switch is estimated."""
        board = self._linked(device, link)
        if bridged := self._session.gpu(device).bridged_to:
            bus = next((gpu.pci_bus for gpu in self._session.state().gpus if gpu.uuid == bridged), 0)
        else:
            bus = board.nvswitch_buses[link % len(board.nvswitch_buses)]
        info = pynvml.nvmlPciInfo_t()
        info.bus = bus
        info.busId, info.busIdLegacy = f"00000000:{bus:02X}:00.0".encode(), f"0000:{bus:02X}:00.0".encode()
        return info

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Any, device2: Any) -> int:
        """nvmlGpuTopologyLevel_t: how far up the PCIe tree two GPUs meet; NOT_SUPPORTED for a GPU with itself."""
        one, other = self._session.gpu(device1), self._session.gpu(device2)
        if one.uuid == other.uuid:
            raise not_supported()
        if one.pcie_root_bus == other.pcie_root_bus:
            return int(pynvml.NVML_TOPOLOGY_MULTIPLE)
        same_node = one.numa_node == other.numa_node
        return int(pynvml.NVML_TOPOLOGY_NODE if same_node else pynvml.NVML_TOPOLOGY_SYSTEM)

    def nvmlDeviceGetP2PStatus(self, device1: Any, device2: Any, p2pIndex: int) -> int:
        """nvmlGpuP2PStatus_t of one capability; a GPU with MIG on has no peers."""
        one, other = self._session.gpu(device1), self._session.gpu(device2)
        if not 0 <= p2pIndex <= pynvml.NVML_P2P_CAPS_INDEX_PCI:
            raise invalid_argument()
        if one.uuid == other.uuid:
            return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
        if one.mig_current or other.mig_current:
            return int(pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED)
        linked = one.bridged_to == other.uuid or bool(board_of(one).nvlinks and board_of(other).nvlinks)
        if p2pIndex in (pynvml.NVML_P2P_CAPS_INDEX_NVLINK, pynvml.NVML_P2P_CAPS_INDEX_ATOMICS) and not linked:
            return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
        return int(pynvml.NVML_P2P_STATUS_OK)

    def nvmlDeviceGetGpuFabricInfo(self, device: Any, gpuFabricInfo: Any) -> int:
        """Registration with the fabric manager into the caller's c_nvmlGpuFabricInfo_t."""
        return self._fabric(device, gpuFabricInfo, ())

    def nvmlDeviceGetGpuFabricInfoV(self, device: Any, gpuFabricInfo: Any) -> int:
        """The same with health, into version 2 or 3 of the struct."""
        newer = (pynvml.nvmlGpuFabricInfo_v3,) if self._session.release() >= FABRIC_V3 else ()
        return self._fabric(device, gpuFabricInfo, (pynvml.nvmlGpuFabricInfo_v2, *newer))

    def _fabric(self, device: Any, reference: Any, versions: tuple[int, ...]) -> int:
        gpu = self._session.gpu(device)
        if board_of(gpu).architecture < Architecture.HOPPER:
            raise not_supported()
        info = pointed(reference)
        if versions and info.version not in versions:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        registered = board_of(gpu).fabric and gpu.nvlink
        reports_health = registered and board_of(gpu).architecture > Architecture.HOPPER
        complete = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED if gpu.joined else pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
        info.state = complete if registered else pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
        # A single server has no cluster UUID and is clique 0.
        info.status, info.cliqueId = gpu.fabric_status if gpu.joined else pynvml.NVML_SUCCESS, gpu.clique
        if gpu.cluster:
            info.clusterUuid[:] = uuid.UUID(gpu.cluster).bytes
        if hasattr(info, "healthMask"):
            info.healthMask = _HEALTHY_MASK if reports_health else 0
        if hasattr(info, "healthSummary"):
            info.healthSummary = (
                pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
                if reports_health
                else pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED
            )
        return int(pynvml.NVML_SUCCESS)

    def _faults(self, device: Any, link: int) -> NvLinkFaults:
        return self._session.gpu(device).links.get(link, NvLinkFaults())

    def _linked(self, device: Any, link: int) -> SimulatedBoard:
        gpu: GpuState = self._session.gpu(device)
        board = board_of(gpu)
        if not links_of(gpu):
            raise not_supported()
        if not 0 <= link < links_of(gpu):
            raise invalid_argument()
        return board
