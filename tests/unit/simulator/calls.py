"""Arguments for a call of every simulated function, created with the library that is then called."""

import ctypes
import inspect
from contextlib import suppress
from typing import Any

import pynvml


def arguments(library: Any, name: str) -> dict[str, Any]:
    """A function's arguments by name; `library` has pynvml's functions and an open session."""
    handle, other = library.nvmlDeviceGetHandleByIndex(0), library.nvmlDeviceGetHandleByIndex(1)
    by_name: dict[str, Any] = {
        "handle": handle, "device": handle, "handle1": handle, "device1": handle, "handle2": other, "device2": other,
        "migDevice": handle, "index": 0, "uuid": library.nvmlDeviceGetUUID(handle), "flags": 0, "result": 1,
        "serial": library.nvmlDeviceGetSerial(handle), "pciBusId": library.nvmlDeviceGetPciInfo(handle).busId,
        "sensor": 0, "threshold": 0, "type": 1, "timeStamp": 0,
        "errorType": 0, "counterType": 0, "sourceFilter": 0, "link": 0, "capability": 0, "counter": 0, "p2pIndex": 2, "mode": 0,
        "profile": 0, "profileId": 19, "gpuInstanceId": 0, "placementsRef": None, "gpuInstancesRef": None,
        "countRef": ctypes.byref(ctypes.c_uint()), "fieldIds": [230], "eventTypes": 8, "timeoutms": 0,
        "nodeSetSize": 2, "cpuSetSize": 2, "scope": 0, "eventSet": library.nvmlEventSetCreate(),
        "status": ctypes.byref(_versioned(pynvml.c_nvmlEccSramErrorStatus_v1_t, pynvml.nvmlEccSramErrorStatus_v1)),
        "info": ctypes.byref(pynvml.c_nvmlRemappedRowsInfo_v2_t()),
        "c_info": ctypes.byref(_versioned(pynvml.nvmlPciInfoExt_v1_t, pynvml.nvmlPciInfoExt_v1)),
        "limits": pynvml.c_nvmlGetMemoryLimits_v1_t(b"/nowhere")
        if "Get" in name
        else pynvml.c_nvmlSetMemoryLimits_v1_t(b"/nowhere"),
        "gpuFabricInfo": ctypes.byref(
            pynvml.c_nvmlGpuFabricInfo_v2_t() if name.endswith("V") else pynvml.c_nvmlGpuFabricInfo_t()
        ),
    }  # fmt: skip
    by_name |= _of_instances(library, handle, name)
    if "Gpm" in name:
        by_name |= {"gpmSample": library.nvmlGpmSampleAlloc(), "metricsGet": _between_samples(library, handle)}
    parameters = inspect.signature(getattr(pynvml, name)).parameters.values()
    return {p.name: by_name[p.name] for p in parameters if p.default is p.empty}


def _of_instances(library: Any, handle: Any, name: str) -> dict[str, Any]:
    """The arguments of functions about instances, if MIG is on: an existing instance, and room for another one."""
    if not library.nvmlDeviceGetMaxMigDeviceCount(handle):
        return dict.fromkeys(("gpuInstance", "computeInstance", "placement", "engProfile", "computeInstanceId"), 0) | {
            "placement": None, "computeInstancesRef": None
        }  # fmt: skip
    instance = library.nvmlDeviceCreateGpuInstance(handle, 9)
    compute = library.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    info = library.nvmlGpuInstanceGetInfo(instance)
    inside: dict[str, Any] = {
        "gpuInstance": instance, "computeInstance": compute, "engProfile": 0, "computeInstanceId": 0, "gpuInstanceId": info.id,
        "gpuInstancesRef": (pynvml.c_nvmlGpuInstance_t * 7)(), "computeInstancesRef": (pynvml.c_nvmlComputeInstance_t * 7)(),
        "migDevice": library.nvmlComputeInstanceGetInfo(compute).device,
        "placement": ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(0, 1)),
    }  # fmt: skip
    if name.startswith("nvmlGpuInstance"):
        inside |= {
            "device": instance,
            "profileId": 0,
            "placement": ctypes.byref(pynvml.c_nvmlComputeInstancePlacement_t(1, 1)),
        }
    if name == "nvmlGpuInstanceDestroy":
        library.nvmlComputeInstanceDestroy(compute)
    if name in ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2"):
        inside["device"] = inside["migDevice"]
    return inside


def _between_samples(library: Any, handle: Any) -> Any:
    """A question for the only simulated metric."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = library.nvmlGpmSampleAlloc(), library.nvmlGpmSampleAlloc()
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    for sample in (asked.sample1, asked.sample2):
        with suppress(pynvml.NVMLError):  # boards before Hopper
            library.nvmlGpmSampleGet(handle, sample)
    return asked


def _versioned(kind: type, version: int) -> Any:
    struct = kind()
    struct.version = version
    return struct
