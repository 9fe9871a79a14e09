"""NVML's C functions by name: what each takes, and which of SimulatedNvml's functions answers it.

Owns the table, from which the library is generated and by which the service reads calls. Symbols are those that pynvml and
NVIDIA's own tools look up.
"""

import ctypes
from typing import Final

import pynvml

from draco_local.simulator.driver.forms import (
    COUNT,
    GPM_METRICS,
    HANDLE,
    NUMBER,
    TEXT,
    VERSIONED,
    Parameter,
    Signature,
    addressing_mode,
    affinity,
    created,
    does,
    fabric,
    field_values,
    fills,
    gives,
    gpm_metrics,
    lists,
    memory_limits,
    memory_v2,
    next_event,
    nvidia_smi,
    placements,
    process_utilization,
    processes,
    profile,
    retired_pages,
    says,
    set_memory_limits,
    temperature,
)

_HANDLE, _UINT, _INT, _ULONG = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong

_NUMBERS_OF_A_DEVICE: Final = [
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBoardId",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMultiGpuBoard",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceIsMigDeviceHandle",
]

SIGNATURES: Final[tuple[Signature, ...]] = (
    does("nvmlInit", ""),
    does("nvmlInit_v2", "", by="nvmlInit"),
    does("nvmlInitWithFlags", "n"),
    does("nvmlShutdown", ""),
    says("nvmlSystemGetDriverVersion", ""),
    says("nvmlSystemGetNVMLVersion", ""),
    gives("nvmlSystemGetCudaDriverVersion", _INT, given=""),
    gives("nvmlSystemGetCudaDriverVersion_v2", _INT, given=""),
    # GPUs
    gives("nvmlDeviceGetCount", _UINT, given=""),
    gives("nvmlDeviceGetCount_v2", _UINT, given="", by="nvmlDeviceGetCount"),
    gives("nvmlDeviceGetHandleByIndex", _HANDLE, given="n"),
    gives("nvmlDeviceGetHandleByIndex_v2", _HANDLE, given="n", by="nvmlDeviceGetHandleByIndex"),
    gives("nvmlDeviceGetHandleByUUID", _HANDLE, given="s"),
    gives("nvmlDeviceGetHandleBySerial", _HANDLE, given="s"),
    gives("nvmlDeviceGetHandleByPciBusId", _HANDLE, given="s"),
    gives("nvmlDeviceGetHandleByPciBusId_v2", _HANDLE, given="s", by="nvmlDeviceGetHandleByPciBusId"),
    says("nvmlDeviceGetUUID"),
    says("nvmlDeviceGetName"),
    says("nvmlDeviceGetSerial"),
    says("nvmlDeviceGetBoardPartNumber"),
    *(gives(name, _UINT) for name in _NUMBERS_OF_A_DEVICE),
    gives("nvmlDeviceGetNumaNodeId", _INT),
    gives("nvmlDeviceGetCudaComputeCapability", _INT, _INT),
    gives("nvmlDeviceGetMemoryInfo", pynvml.c_nvmlMemory_t),
    Signature("nvmlDeviceGetMemoryInfo_v2", (HANDLE, VERSIONED), memory_v2),
    does("nvmlDeviceSetComputeMode", "hn"),
    Signature(
        "nvmlDeviceSetMemoryLimits_v1", (HANDLE, TEXT, HANDLE, HANDLE), set_memory_limits, ("s[0]", "s[1]", "s[2]")
    ),
    Signature(
        "nvmlDeviceGetMemoryLimits_v1",
        (HANDLE, TEXT, *[Parameter("struct", 8, type=_ULONG)] * 3),
        memory_limits,
        ("s[0]", "(uint64_t)&s[1]", "(uint64_t)&s[2]", "(uint64_t)&s[3]"),
    ),
    gives("nvmlDeviceGetBAR1MemoryInfo", pynvml.c_nvmlBAR1Memory_t),
    gives("nvmlDeviceGetPciInfo_v3", pynvml.nvmlPciInfo_t),
    fills("nvmlDeviceGetPciInfoExt", pynvml.nvmlPciInfoExt_v1_t),
    affinity("nvmlDeviceGetCpuAffinity", scoped=False),
    affinity("nvmlDeviceGetCpuAffinityWithinScope"),
    affinity("nvmlDeviceGetMemoryAffinity"),
    Signature("nvmlDeviceGetAddressingMode", (HANDLE, VERSIONED), addressing_mode),
    gives("nvmlDeviceOnSameBoard", _INT, given="hh"),
    # Health
    gives("nvmlDeviceGetEccMode", _UINT, _UINT),
    gives("nvmlDeviceGetTotalEccErrors", _ULONG, given="hnn"),
    fills("nvmlDeviceGetSramEccErrorStatus", pynvml.c_nvmlEccSramErrorStatus_v1_t),
    retired_pages("nvmlDeviceGetRetiredPages", 1),
    retired_pages("nvmlDeviceGetRetiredPages_v2", 2),
    gives("nvmlDeviceGetRemappedRows", _UINT, _UINT, _UINT, _UINT),
    fills("nvmlDeviceGetRemappedRows_v2", pynvml.c_nvmlRemappedRowsInfo_v2_t),
    gives("nvmlDeviceGetRowRemapperHistogram", pynvml.c_nvmlRowRemapperHistogramValues),
    gives("nvmlDeviceGetTemperature", _UINT, given="hn"),
    Signature("nvmlDeviceGetTemperatureV", (HANDLE, VERSIONED), temperature),
    gives("nvmlDeviceGetTemperatureThreshold", _UINT, given="hn"),
    gives("nvmlDeviceGetCurrentClocksEventReasons", _ULONG),
    gives("nvmlDeviceGetCurrentClocksThrottleReasons", _ULONG),
    gives("nvmlDeviceGetMaxClockInfo", _UINT, given="hn"),
    gives("nvmlDeviceGetClockInfo", _UINT, given="hn"),
    gives("nvmlDeviceGetUtilizationRates", pynvml.c_nvmlUtilization_t),
    Signature(
        "nvmlDeviceGetFieldValues",
        (HANDLE, NUMBER, Parameter("array", ctypes.sizeof(pynvml.c_nvmlFieldValue_t), counted_by=1)),
        field_values,
    ),
    # Processes
    processes("nvmlDeviceGetComputeRunningProcesses_v3"),
    processes("nvmlDeviceGetGraphicsRunningProcesses_v3"),
    processes("nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    process_utilization("nvmlDeviceGetProcessUtilization"),
    # Performance monitoring
    gives("nvmlGpmQueryDeviceSupport", pynvml.c_nvmlGpmSupport_t),
    gives("nvmlGpmSampleAlloc", _HANDLE, given=""),
    does("nvmlGpmSampleFree"),
    does("nvmlGpmSampleGet", "hh"),
    does("nvmlGpmMigSampleGet", "hnh"),
    Signature("nvmlGpmMetricsGet", (GPM_METRICS,), gpm_metrics),
    # Links
    gives("nvmlDeviceGetNvLinkState", _UINT, given="hn"),
    gives("nvmlDeviceGetNvLinkErrorCounter", _ULONG, given="hnn"),
    does("nvmlDeviceResetNvLinkErrorCounters", "hn"),
    gives("nvmlDeviceGetNvLinkVersion", _UINT, given="hn"),
    gives("nvmlDeviceGetNvLinkCapability", _UINT, given="hnn"),
    gives("nvmlDeviceGetNvLinkRemoteDeviceType", _UINT, given="hn"),
    gives(
        "nvmlDeviceGetNvLinkRemotePciInfo_v2", pynvml.nvmlPciInfo_t, given="hn", by="nvmlDeviceGetNvLinkRemotePciInfo"
    ),
    gives("nvmlDeviceGetTopologyCommonAncestor", _UINT, given="hh"),
    gives("nvmlDeviceGetP2PStatus", _UINT, given="hhn"),
    fills("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t),
    Signature("nvmlDeviceGetGpuFabricInfoV", (HANDLE, VERSIONED), fabric("nvmlDeviceGetGpuFabricInfoV")),
    # MIG
    gives("nvmlDeviceGetMigMode", _UINT, _UINT),
    gives("nvmlDeviceSetMigMode", _UINT, given="hn"),
    profile(
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstanceProfileInfo",
        pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
        "hn",
        version=2,
    ),
    profile(
        "nvmlDeviceGetGpuInstanceProfileInfoByIdV",
        "nvmlDeviceGetGpuInstanceProfileInfoById",
        pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
        "hn",
    ),
    profile(
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        pynvml.c_nvmlComputeInstanceProfileInfo_v2_t,
        "hnn",
        version=2,
    ),
    placements(
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        pynvml.c_nvmlGpuInstancePlacement_t,
    ),
    placements(
        "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        pynvml.c_nvmlComputeInstancePlacement_t,
    ),
    gives("nvmlDeviceGetGpuInstanceRemainingCapacity", _UINT, given="hn"),
    gives("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", _UINT, given="hn"),
    gives("nvmlDeviceGetMigDeviceHandleByIndex", _HANDLE, given="hn"),
    gives("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", _HANDLE),
    gives("nvmlDeviceGetAttributes_v2", pynvml.c_nvmlDeviceAttributes),
    # Instances
    gives("nvmlDeviceCreateGpuInstance", _HANDLE, given="hn"),
    created("nvmlDeviceCreateGpuInstanceWithPlacement"),
    lists("nvmlDeviceGetGpuInstances", pynvml.c_nvmlGpuInstance_t),
    gives("nvmlDeviceGetGpuInstanceById", _HANDLE, given="hn"),
    gives("nvmlGpuInstanceGetInfo", pynvml.c_nvmlGpuInstanceInfo_t),
    does("nvmlGpuInstanceDestroy"),
    gives("nvmlGpuInstanceCreateComputeInstance", _HANDLE, given="hn"),
    created("nvmlGpuInstanceCreateComputeInstanceWithPlacement"),
    lists("nvmlGpuInstanceGetComputeInstances", pynvml.c_nvmlComputeInstance_t),
    gives("nvmlGpuInstanceGetComputeInstanceById", _HANDLE, given="hn"),
    gives("nvmlComputeInstanceGetInfo_v2", pynvml.c_nvmlComputeInstanceInfo_t),
    does("nvmlComputeInstanceDestroy"),
    # Events
    gives("nvmlEventSetCreate", _HANDLE, given=""),
    does("nvmlEventSetFree"),
    gives("nvmlDeviceGetSupportedEventTypes", _ULONG),
    does("nvmlDeviceRegisterEvents", "hhh"),
    next_event("nvmlEventSetWait_v2"),
)
"""Every function of the library but nvmlErrorString, which asks nobody."""

NVIDIA_SMI: Final = Signature("nvidia-smi", (TEXT, Parameter("written", 1), NUMBER, COUNT), nvidia_smi)
"""What the program of that name asks: its arguments, a line each; a buffer for its text, and its length; the exit status."""

BY_SYMBOL: Final = {each.symbol: each for each in (*SIGNATURES, NVIDIA_SMI)}
