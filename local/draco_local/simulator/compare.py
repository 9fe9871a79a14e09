"""Compare the simulator's boards with real NVML: `python -m draco_local.simulator.compare`, on a node whose GPUs are idle.

Owns the comparison of a survey with that of a simulated board in the same place, and of the existing instances (ids, names, sizes
and engines) with the same ones made on a simulated GPU. It changes nothing on the hardware.
"""

import ctypes
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import pynvml

from draco_local.simulator.gpus.boards import BOARDS, SimulatedBoard
from draco_local.simulator.gpus.state import create, mutate
from draco_local.simulator.nvml.health import FIELDS
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.survey import FIELD_VALUES, Survey, lines

_CHANGES_BY_ITSELF = frozenset({"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature 0"})
_NOT_IN_THE_DRIVER = {"error": int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)}
_PASSED_THROUGH = int(pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
_ROOM = 64  # handles of one profile; no board has as many


class Difference(msgspec.Struct, frozen=True):
    """One answer that the hardware gives and the simulated board does not."""

    gpu: int
    what: str
    hardware: str
    simulated: str

    def __str__(self) -> str:
        return f"GPU {self.gpu}: {self.what}: hardware {self.hardware}, simulated {self.simulated}"


class HardwareComparison(msgspec.Struct, frozen=True):
    """What a comparison found; `unknown` are GPUs whose model the simulator does not have."""

    compared: dict[int, str]
    unknown: dict[int, str]
    differences: list[Difference]


class _Twin(NamedTuple):
    """A session with one simulated GPU, in the place of a real one."""

    nvml: SimulatedNvml
    handle: Any
    state_file: Path


def compare(library: Any) -> HardwareComparison:
    """Compare every GPU of an initialised NVML (`library`) with a simulated one."""
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
        real = survey_of(library, index)
        with tempfile.TemporaryDirectory() as folder:
            twin = _twin(Path(folder), board.key, real)
            copy_instances(library, handle, twin)
            simulated = survey_of(twin.nvml)
            theirs, ours = dict(instance_answers(library, handle)), dict(instance_answers(twin.nvml, twin.handle))
        differences += differing(index, real, simulated)
        differences += differing(index, theirs, ours)
    return HardwareComparison(compared, unknown, differences)


def survey_of(library: Any, index: int = 0) -> dict[str, Any]:
    """A survey as it is read back from its file."""
    answers: dict[str, Any] = json.loads(lines(Survey(library, index).run()))
    return answers


def simulated_survey(folder: Path, board: str, real: Mapping[str, Any]) -> dict[str, Any]:
    """The survey of a simulated board in the place of the real one: with its driver, MIG mode, NVLink and virtualization mode."""
    return survey_of(_twin(folder, board, real).nvml)


def differing(gpu: int, real: Mapping[str, Any], simulated: Mapping[str, Any]) -> Iterator[Difference]:
    """The answers that differ, of the compared questions that the driver knows."""
    for what, theirs in real.items():
        ours = simulated.get(what, "no answer")
        if is_compared(what) and theirs not in (ours, _NOT_IN_THE_DRIVER):
            yield Difference(gpu, what, _beside(theirs, ours), _beside(ours, theirs))


def is_compared(question: str) -> bool:
    """Whether to compare a question: no number that changes each time, and no field value that nothing reads."""
    name, _, which = question.partition(" ")
    unread = name == FIELD_VALUES and which.isdecimal() and int(which) not in FIELDS
    return not unread and question not in _CHANGES_BY_ITSELF and name != "nvmlDeviceGetClockInfo"


def _beside(answer: Any, other: Any) -> str:
    """An answer as text; if both have the same fields, only those that differ."""
    if isinstance(answer, dict) and isinstance(other, dict) and answer.keys() == other.keys():
        answer = {name: value for name, value in answer.items() if value != other[name]}
    return answer if isinstance(answer, str) else json.dumps(answer)


def _board(library: Any, handle: Any) -> SimulatedBoard | None:
    device = library.nvmlDeviceGetPciInfo(handle).pciDeviceId
    return next((board for board in BOARDS.values() if board.pci_device_id == device), None)


def _twin(folder: Path, board: str, real: Mapping[str, Any]) -> _Twin:
    state_file = folder / "twin.json"
    create(state_file, board=board, gpus=1, node_name="twin")
    with mutate(state_file) as state:
        state.driver.version = real["nvmlSystemGetDriverVersion"]
        state.driver.nvml_version = real["nvmlSystemGetNVMLVersion"]
        state.driver.cuda_version = real["nvmlSystemGetCudaDriverVersion"]
        [gpu] = state.gpus
        gpu.passthrough = real["nvmlDeviceGetVirtualizationMode"] == _PASSED_THROUGH
        gpu.nvlink = isinstance(real["nvmlDeviceGetNvLinkState 0"], int)
        if isinstance(mode := real["nvmlDeviceGetMigMode"], list):
            gpu.mig_current, gpu.mig_pending = mode
    nvml = SimulatedNvml(state_file)
    nvml.nvmlInit()
    return _Twin(nvml, nvml.nvmlDeviceGetHandleByIndex(0), state_file)


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
        click.echo(f"GPU {index}: {key}: {count} difference{'' if count == 1 else 's'}")
    for index, name in outcome.unknown.items():
        click.echo(f"GPU {index}: {name}: the simulator does not have this board")
    for difference in outcome.differences:
        click.echo(str(difference))
    if not outcome.compared:
        return 2
    return 1 if outcome.differences else 0


def copy_instances(library: Any, handle: Any, twin: _Twin) -> None:
    """Make the real GPU's instances on the simulated one; what that refuses shows as a missing answer."""
    for instance, info in _gpu_instances(library, handle):
        placement = pynvml.c_nvmlGpuInstancePlacement_t(info.placement.start, info.placement.size)
        create = twin.nvml.nvmlDeviceCreateGpuInstanceWithPlacement
        try:
            made = create(twin.handle, info.profileId, ctypes.byref(placement))
            for _, inside in sorted(_compute(library, instance), key=lambda each: each[1].id):
                place = pynvml.c_nvmlComputeInstancePlacement_t(inside.placement.start, inside.placement.size)
                twin.nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(made, inside.profileId, ctypes.byref(place))
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


if __name__ == "__main__":
    sys.exit(main())
