"""What a person does to MIG on a simulated node behind Draco's back, as with `nvidia-smi mig`.

Owns the steps, through the same simulated NVML that the agent uses. Faults are in `faults`.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pynvml

from draco.simulator.boards_mig import ci_profiles
from draco.simulator.nvml import SimulatedNvml
from draco.simulator.nvml_session import board_of
from draco.simulator.state import GpuState, StateError, load


class Made(msgspec.Struct, frozen=True):
    """A GPU instance made by hand; `uuid` is its MIG device's, empty without a compute instance."""

    gpu_instance: int
    start: int
    uuid: str


def set_mode(path: Path, gpu: int | str, mode: int) -> str:
    """Ask for MIG mode 1 or 0; what a person is told: "on", "off", or what it waits for. StateError when it is refused."""
    with _opened(path, gpu) as (nvml, device, target):
        status = nvml.nvmlDeviceSetMigMode(device, mode)
        current, pending = nvml.nvmlDeviceGetMigMode(device)
        if pending != mode:
            why = nvml.nvmlErrorString(status)
            raise StateError(f"MIG mode of GPU {target.uuid} was not changed: {why[0].lower()}{why[1:]}.")
        told = "on" if mode else "off"
        return told if current == mode else f"{told} after a reset of the GPU"


def create_instance(
    path: Path,
    gpu: int | str,
    profile: str,
    *,
    start: int | None = None,
    compute: Literal["none", "whole"] = "whole",
) -> Made:
    """Make a GPU instance of a profile (`3g.40gb`), with a compute instance that takes all of it, or none."""
    with _opened(path, gpu) as (nvml, device, target):
        _check_mode(target)
        table = board_of(target).mig
        profiles = () if table is None else table.profiles
        found = next((each for each in profiles if each.name == profile), None)
        if found is None:
            known = ", ".join(each.name for each in profiles)
            raise StateError(f"Board {target.board} has no MIG profile {profile!r}; it has: {known}.")
        if start is None:
            instance = nvml.nvmlDeviceCreateGpuInstance(device, found.id)
        else:
            placement = pynvml.c_nvmlGpuInstancePlacement_t(start, found.size)
            instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, found.id, ctypes.byref(placement))
        info = nvml.nvmlGpuInstanceGetInfo(instance)
        if compute == "none":
            return Made(info.id, info.placement.start, "")
        whole = next(each for each in ci_profiles(found) if each.slices == found.slices)
        made = nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlComputeInstanceGetInfo(made).device)
        return Made(info.id, info.placement.start, uuid)


def destroy_instance(path: Path, gpu: int | str, gpu_instance: int) -> None:
    """Destroy a GPU instance and what is in it."""
    with _opened(path, gpu) as (nvml, device, target):
        _check_mode(target)
        instance = nvml.nvmlDeviceGetGpuInstanceById(device, gpu_instance)
        for inside in next(each for each in target.instances if each.id == gpu_instance).compute:
            nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, inside.id))
        nvml.nvmlGpuInstanceDestroy(instance)


def _check_mode(gpu: GpuState) -> None:
    if not board_of(gpu).mig_capable:
        raise StateError(f"Board {gpu.board} of GPU {gpu.uuid} has no MIG.")
    if not gpu.mig_current:
        raise StateError(f"MIG mode of GPU {gpu.uuid} is off: switch it on first.")


@contextmanager
def _opened(path: Path, gpu: int | str) -> Iterator[tuple[Any, Any, GpuState]]:
    """A session, the GPU's handle, and its state when the session began; NVML's refusal as a StateError."""
    state = load(path)
    try:
        index = next(index for index, each in enumerate(state.gpus) if gpu in (index, each.uuid))
    except StopIteration:
        raise StateError(f"Node {state.node_name} has no GPU {gpu}; it has 0 to {len(state.gpus) - 1}.") from None
    nvml = SimulatedNvml(path)
    try:
        nvml.nvmlInit()
        try:
            yield nvml, nvml.nvmlDeviceGetHandleByIndex(index), state.gpus[index]
        finally:
            nvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        why = nvml.nvmlErrorString(error.value)
        if error.value == pynvml.NVML_ERROR_IN_USE:
            pids = ", ".join(str(process.pid) for process in load(path).gpus[index].processes)
            why += f" (processes that hold something of this GPU: {pids})" if pids else ""
        raise StateError(f"NVML refuses that for GPU {gpu}: {why}.") from error
