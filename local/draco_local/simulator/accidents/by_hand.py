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

from draco.mig.board import Profile
from draco_local.simulator.gpus.mig_profiles import ci_profiles
from draco_local.simulator.gpus.state import GpuState, StateError, load
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.session import board_of


class CreatedInstance(msgspec.Struct, frozen=True):
    """A GPU instance made by hand; `uuid` is its MIG device's, empty without a compute instance."""

    gpu_instance: int
    start: int
    uuid: str


def set_mode(path: Path, gpu: int | str, mode: int) -> str:
    """Ask for MIG mode 1 or 0; returns what to print: "on", "off", or what it waits for. StateError when it is refused."""
    with _opened(path, gpu) as (nvml, device, target):
        status = nvml.nvmlDeviceSetMigMode(device, mode)
        current, pending = nvml.nvmlDeviceGetMigMode(device)
        if pending != mode:
            why = nvml.nvmlErrorString(status)
            ids = ", ".join(str(each.id) for each in target.instances)
            todo = f"; destroy its GPU instances first ({ids})" if ids else ""
            raise StateError(f"MIG mode of GPU {target.uuid} was not changed: {why[0].lower()}{why[1:]}{todo}.")
        mode_text = "on" if mode else "off"
        return mode_text if current == mode else f"{mode_text} after a reset of the GPU"


def create_instance(
    path: Path,
    gpu: int | str,
    profile: str,
    *,
    start: int | None = None,
    compute: Literal["none", "whole"] = "whole",
) -> CreatedInstance:
    """Make a GPU instance of a profile (`3g.40gb`), with a compute instance that takes all of it, or none."""
    with _opened(path, gpu) as (nvml, device, target):
        _check_mode(target)
        table = board_of(target).mig
        profiles = () if table is None else table.profiles
        found = next((each for each in profiles if each.name == profile), None)
        if found is None:
            known = ", ".join(each.name for each in profiles)
            raise StateError(f"Board {target.board} has no MIG profile {profile!r}; it has: {known}.")
        if start is not None and start not in found.starts:
            starts = ", ".join(map(str, found.starts))
            raise StateError(
                f"{profile} does not start at unit {start} on board {target.board}; it starts at {starts}."
            )
        try:
            instance = _created(nvml, device, found, start)
        except pynvml.NVMLError_InsufficientResources:
            where = "" if start is None else f" at unit {start}"
            raise StateError(f"There is no room for {profile}{where} on GPU {gpu}{_beside(target)}.") from None
        info = nvml.nvmlGpuInstanceGetInfo(instance)
        if compute == "none":
            return CreatedInstance(info.id, info.placement.start, "")
        whole = next(each for each in ci_profiles(found) if each.slices == found.slices)
        made = nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlComputeInstanceGetInfo(made).device)
        return CreatedInstance(info.id, info.placement.start, uuid)


def _created(nvml: Any, device: Any, profile: Profile, start: int | None) -> Any:
    if start is None:
        return nvml.nvmlDeviceCreateGpuInstance(device, profile.id)
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.id, ctypes.byref(placement))


def _beside(gpu: GpuState) -> str:
    """The instances that take the room, as the end of a sentence."""
    table = board_of(gpu).mig
    names = {each.id: each.name for each in table.profiles} if table else {}
    there = [
        f"{names.get(each.profile_id, each.profile_id)} at {each.start}"
        for each in sorted(gpu.instances, key=lambda each: each.start)
    ]
    return f" beside {', '.join(there)}" if there else ""


def destroy_instance(path: Path, gpu: int | str, gpu_instance: int) -> None:
    """Destroy a GPU instance and what is in it."""
    with _opened(path, gpu) as (nvml, device, target):
        _check_mode(target)
        if all(each.id != gpu_instance for each in target.instances):
            ids = ", ".join(str(each.id) for each in target.instances)
            raise StateError(f"GPU {gpu} has no GPU instance {gpu_instance}; it has {ids or 'none'}.")
        instance = nvml.nvmlDeviceGetGpuInstanceById(device, gpu_instance)
        for inside in next(each for each in target.instances if each.id == gpu_instance).compute:
            nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, inside.id))
        nvml.nvmlGpuInstanceDestroy(instance)


def _check_mode(gpu: GpuState) -> None:
    if not board_of(gpu).mig_capable:
        raise StateError(f"Board {gpu.board} of GPU {gpu.uuid} does not support MIG.")
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
