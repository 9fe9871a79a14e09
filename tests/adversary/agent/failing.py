"""NVML calls, and programs, that fail in the agent machine, or that a board or its driver does not support."""

from hypothesis import strategies as st

FAILING = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetUUID",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceGetComputeMode",
    "nvidia-smi",
    "nvidia-smi",
)
LACKING = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMinorNumber",
    "nvidia-smi",
)
"""NVML calls, and time slices, that a board or its driver may not support."""
NEVER = ("NOT_SUPPORTED", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION")
LACKS = st.tuples(st.sampled_from(LACKING), st.sampled_from(NEVER))
CODES = ("UNKNOWN", "IN_USE", "INSUFFICIENT_RESOURCES", "INVALID_ARGUMENT", "NOT_FOUND", "GPU_IS_LOST", "NO_PERMISSION")
REFUSALS = ("INSUFFICIENT_RESOURCES", "INVALID_ARGUMENT", "NO_PERMISSION")
"""Error codes that mean NVML changed nothing. A call that took effect never returns one."""
