"""Hold the simulator's tables against real NVML: `python -m draco_local.simulator.compare`.

Owns a read-only comparison of one node's GPUs with their boards. It changes nothing on the hardware; with MIG off, some
drivers answer fewer questions, and what they do not answer is not compared. Of instances it compares those that exist (ids,
names, sizes and engines) with the same ones made on a simulated GPU.
"""

import ctypes
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pynvml

from draco_local.simulator.gpus.boards import BOARDS, SimulatedBoard
from draco_local.simulator.gpus.state import create, mutate
from draco_local.simulator.nvml.library import SimulatedNvml


class Difference(msgspec.Struct, frozen=True):
    """One answer that the hardware gives and the table does not, or the other way round."""

    gpu: int
    what: str
    hardware: str
    table: str

    def __str__(self) -> str:
        return f"GPU {self.gpu}: {self.what}: hardware {self.hardware}, table {self.table}"


class HardwareComparison(msgspec.Struct, frozen=True):
    """What a comparison found; `unknown` are GPUs whose model the simulator does not have."""

    compared: dict[int, str]
    unknown: dict[int, str]
    differences: list[Difference]


def compare(library: Any) -> HardwareComparison:
    """Compare every GPU of an initialised NVML (`library`) with the table of its board."""
    compared: dict[int, str] = {}
    unknown: dict[int, str] = {}
    differences: list[Difference] = []
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        board = _board(library, handle)
        if board is None:
            unknown[index] = library.nvmlDeviceGetName(handle)
            continue
        compared[index] = board.key
        with tempfile.TemporaryDirectory() as folder:
            state_file = Path(folder) / "state.json"
            create(state_file, board=board.key, gpus=1, node_name="compare")
            simulated = SimulatedNvml(state_file)
            simulated.nvmlInit()
            twin = simulated.nvmlDeviceGetHandleByIndex(0)
            copy_instances(library, handle, simulated, twin, state_file)
            theirs = {**dict(_answers(library, handle)), **dict(instance_answers(library, handle))}
            ours = {**dict(_answers(simulated, twin)), **dict(instance_answers(simulated, twin))}
            simulated.nvmlShutdown()
        differences += [
            Difference(index, what, theirs[what], ours.get(what, "no answer"))
            for what in theirs
            if theirs[what] != ours.get(what)
        ]
    return HardwareComparison(compared, unknown, differences)


def _board(library: Any, handle: Any) -> SimulatedBoard | None:
    device = library.nvmlDeviceGetPciInfo(handle).pciDeviceId
    return next((board for board in BOARDS.values() if board.pci_device_id == device), None)


def _answers(library: Any, handle: Any) -> Iterator[tuple[str, str]]:
    """Everything a table claims, as text by question; what this NVML does not answer is left out."""
    for what, ask in _QUESTIONS.items():
        try:
            yield what, str(ask(library, handle))
        except pynvml.NVMLError:
            continue
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = library.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind)
        except pynvml.NVMLError:
            continue
        for field in _PROFILE_FIELDS:
            value = getattr(info, field)
            yield f"profile {kind} {field}", value.decode() if isinstance(value, bytes) else str(value)
        try:
            yield f"profile {kind} placements", _placements(library, handle, info.id)
        except pynvml.NVMLError:
            continue


def _placements(library: Any, handle: Any, profile_id: int) -> str:
    count = pynvml.c_uint()
    library.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    library.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, ctypes.byref(count))
    return " ".join(f"{start}:{size}" for start, size in sorted((place.start, place.size) for place in array))


_QUESTIONS: dict[str, Callable[[Any, Any], object]] = {
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "brand": lambda nvml, gpu: nvml.nvmlDeviceGetBrand(gpu),
    "architecture": lambda nvml, gpu: nvml.nvmlDeviceGetArchitecture(gpu),
    "compute capability": lambda nvml, gpu: nvml.nvmlDeviceGetCudaComputeCapability(gpu),
    "memory MiB": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
    "reserved memory MiB": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).reserved >> 20,
    "PCI subsystem": lambda nvml, gpu: hex(nvml.nvmlDeviceGetPciInfo(gpu).pciSubSystemId),
    "part number": lambda nvml, gpu: nvml.nvmlDeviceGetBoardPartNumber(gpu),
    "BAR 1 MiB": lambda nvml, gpu: nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total >> 20,
    "PCIe generation": lambda nvml, gpu: nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu),
    "power limit mW": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
    "highest multiprocessor clock MHz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "highest memory clock MHz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
    "NVLink version": lambda nvml, gpu: nvml.nvmlDeviceGetNvLinkVersion(gpu, 0),
    "MIG capable": lambda nvml, gpu: len(nvml.nvmlDeviceGetMigMode(gpu)) > 0,
}
_PROFILE_FIELDS = (
    "id", "name", "sliceCount", "instanceCount", "memorySizeMB", "multiprocessorCount",
    "copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount",
)  # fmt: skip


def main(library: Any = pynvml) -> int:
    """Print the comparison; 0 when tables and hardware agree, 1 when they do not, 2 when there is nothing to compare."""
    try:
        library.nvmlInit()
    except pynvml.NVMLError as error:
        click.echo(f"There is no NVML to compare with on this machine: {error}.", err=True)
        return 2
    try:
        outcome = compare(library)
    finally:
        library.nvmlShutdown()
    for index, key in outcome.compared.items():
        count = sum(difference.gpu == index for difference in outcome.differences)
        click.echo(f"GPU {index}: {key}: {count} differences")
    for index, name in outcome.unknown.items():
        click.echo(f"GPU {index}: {name}: the simulator does not have this board")
    for difference in outcome.differences:
        click.echo(str(difference))
    if not outcome.compared:
        return 2
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())


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
    """Ask what NVML says of the instances that exist, as text by question."""
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
