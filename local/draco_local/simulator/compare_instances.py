"""Hold simulated MIG instances against those of real hardware: ids, names, sizes and engines.

Owns reading the instances that exist, and making the same ones on a simulated GPU. It makes nothing on the hardware.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from draco_local.simulator.gpus.state import mutate

_ROOM = 64  # handles of one profile; no board has as many


def copy_instances(library: Any, handle: Any, simulated: Any, twin: Any, state_file: Path) -> None:
    """Make on the simulated GPU `twin` what exists on the real one; what it refuses shows as a missing answer."""
    found = [(info, list(_compute(library, instance))) for instance, info in _gpu_instances(library, handle)]
    if not found:
        return
    with mutate(state_file) as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    for info, computes in found:
        placement = pynvml.c_nvmlGpuInstancePlacement_t(info.placement.start, info.placement.size)
        try:
            made = simulated.nvmlDeviceCreateGpuInstanceWithPlacement(twin, info.profileId, ctypes.byref(placement))
            for _compute_instance, inside in sorted(computes, key=lambda each: each[1].id):
                place = pynvml.c_nvmlComputeInstancePlacement_t(inside.placement.start, inside.placement.size)
                simulated.nvmlGpuInstanceCreateComputeInstanceWithPlacement(made, inside.profileId, ctypes.byref(place))
        except pynvml.NVMLError:
            continue


def instance_answers(library: Any, handle: Any) -> Iterator[tuple[str, str]]:
    """What NVML says of the instances that exist, as text by question."""
    for instance, info in _gpu_instances(library, handle):
        where = f"instance {info.profileId}@{info.placement.start}:{info.placement.size}"
        yield f"{where} id", str(info.id)
        yield f"{where} compute profiles", " ".join(sorted(_compute_profiles(library, instance)))
        for _compute_instance, inside in _compute(library, instance):
            part = f"{where} compute {inside.profileId}@{inside.placement.start}:{inside.placement.size}"
            attributes = library.nvmlDeviceGetAttributes_v2(inside.device)
            yield f"{part} name", str(library.nvmlDeviceGetName(inside.device))
            for field, _ in attributes._fields_:
                yield f"{part} {field}", str(getattr(attributes, field))


def _gpu_instances(library: Any, handle: Any) -> Iterator[tuple[Any, Any]]:
    """Handle and info of every GPU instance; none where MIG is off or the rights are missing."""
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        array, count = (pynvml.c_nvmlGpuInstance_t * _ROOM)(), pynvml.c_uint()
        try:
            profile = library.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind)
            library.nvmlDeviceGetGpuInstances(handle, profile.id, array, ctypes.byref(count))
            found = [(each, library.nvmlGpuInstanceGetInfo(each)) for each in array[: count.value]]
        except pynvml.NVMLError:
            continue
        yield from found


def _compute(library: Any, instance: Any) -> Iterator[tuple[Any, Any]]:
    for profile in _compute_infos(library, instance):
        array, count = (pynvml.c_nvmlComputeInstance_t * _ROOM)(), pynvml.c_uint()
        library.nvmlGpuInstanceGetComputeInstances(instance, profile.id, array, ctypes.byref(count))
        for each in array[: count.value]:
            yield each, library.nvmlComputeInstanceGetInfo_v2(each)


def _compute_profiles(library: Any, instance: Any) -> Iterator[str]:
    for info in _compute_infos(library, instance):
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        count = pynvml.c_uint()
        try:
            library.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, info.id, None, ctypes.byref(count))
            starts = str(count.value)
        except pynvml.NVMLError:
            starts = "?"
        yield f"{name}:{info.id}:{info.instanceCount}:{info.multiprocessorCount}:{starts}"


def _compute_infos(library: Any, instance: Any) -> Iterator[Any]:
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield library.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
        except pynvml.NVMLError:
            continue
