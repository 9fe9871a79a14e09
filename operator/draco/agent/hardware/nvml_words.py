"""NVML's numbers in words: what the agent calls boards, events and what a GPU asks for.

Owns the tables only.
"""

from collections.abc import Mapping
from types import MappingProxyType

import pynvml

from draco.agent.hardware import faults
from draco.agent.hardware.gpus import EventKind, GpuFault

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
ADDRESSING_MODES: Mapping[int | None, str] = MappingProxyType(
    {
        pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
        pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
        pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
    }
)

EVENT_KINDS: Mapping[int, EventKind] = MappingProxyType(
    {
        pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
        pynvml.nvmlEventTypeSingleBitEccErrorStorm: EventKind.CORRECTED_ECC,
        pynvml.nvmlEventTypeDoubleBitEccError: EventKind.UNCORRECTED_ECC,
        pynvml.nvmlEventTypeGpuRecoveryAction: EventKind.RECOVERY_ACTION,
        pynvml.nvmlEventMigConfigChange: EventKind.MIG_CHANGED,
        pynvml.nvmlEventTypeNonFatalPoisonError: EventKind.POISON,
        pynvml.nvmlEventTypeFatalPoisonError: EventKind.POISON,
        pynvml.nvmlEventTypeGpuUnavailableError: EventKind.UNAVAILABLE,
    }
)
WATCHED = sum(EVENT_KINDS)

RECOVERY_ACTIONS: Mapping[int, GpuFault] = MappingProxyType(
    {
        pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: GpuFault(
            faults.NEEDS_RESET, "The GPU needs a reset; drain it and run `nvidia-smi --gpu-reset`."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: GpuFault(
            faults.NEEDS_REBOOT, "The GPU needs a reboot of its node."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: GpuFault(
            faults.NEEDS_DRAIN_P2P, "The GPU needs all work that uses peer access to it to end."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: GpuFault(
            faults.NEEDS_DRAIN_AND_RESET,
            "The GPU runs with less than its full capability; let its work end, then reset it.",
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: GpuFault(
            faults.NEEDS_IMEX_RECOVERY, "The GPU needs its IMEX domain to be recovered."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: GpuFault(
            faults.NEEDS_BUS_RESET, "The GPU needs a reset of its PCI bus."
        ),
        pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: GpuFault(
            faults.NEEDS_SYSTEM_REBOOT, "The GPU needs a reboot of the whole system."
        ),
    }
)
REMAP_FAILED = GpuFault(faults.REMAP_FAILED, "A broken memory row could not be remapped; replace the GPU.")
