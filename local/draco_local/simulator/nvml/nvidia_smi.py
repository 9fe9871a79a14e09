"""The program nvidia-smi, for what changes how programs share GPUs: `compute-policy`, and `-c` for the compute mode.

Owns its command lines, text and exit codes; everything it does, it asks of the simulated NVML. Exit codes are those of NVIDIA's
manual page. The texts are from logs that people published, except where a comment says "assumed".
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, NoReturn

import pynvml

from draco.agent.hardware.programs import ProgramFailed
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.sharing import TIME_SLICES

FIRST_WITH_TIME_SLICES: Final = 455
"""The driver's first major version with `compute-policy`."""
MODES: Final = {0: "DEFAULT", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
_WRONG: Final = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
_NO_DRIVER: Final = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
_WARNING: Final = "Treating as warning and moving on."
_MOST: Final = 255  # exit status; NVML's UNKNOWN is higher


class SmiAnswer(NamedTuple):
    """What the program prints, and its exit status."""

    exit_code: int
    text: str


class SimulatedSmi:
    """The program for agents of this process, called as `draco.agent.hardware.nvidia_smi` is. Its `nvml` is nobody else's."""

    def __init__(self, nvml: SimulatedNvml) -> None:
        self._nvml = nvml

    def __call__(self, arguments: Sequence[str]) -> bytes:
        """What the program prints. Raises ProgramFailed."""
        try:
            answer = nvidia_smi(self._nvml, arguments)
        except OSError as error:
            raise ProgramFailed(f"there is no {error}") from error
        if answer.exit_code:
            lines = answer.text.strip().splitlines() or [f"exit status {answer.exit_code}"]
            raise ProgramFailed(f"nvidia-smi failed ({lines[-1]})", status=answer.exit_code, said=answer.text)
        return answer.text.encode()


class _Gpu(NamedTuple):
    number: int
    bus_id: str
    handle: Any


class _EndedEarly(Exception):
    def __init__(self, code: int, text: str) -> None:
        self.answer = SmiAnswer(min(code, _MOST), text)


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End as for wrong arguments. What the program says then is assumed."""
        raise _EndedEarly(pynvml.NVML_ERROR_INVALID_ARGUMENT, f"{message}\n{self.format_usage()}")


def nvidia_smi(nvml: SimulatedNvml, arguments: Sequence[str]) -> SmiAnswer:
    """Run the program, with a session of its own. FileNotFoundError, as from running a file, while the node has none."""
    if not nvml.nvidia_smi_installed:
        raise FileNotFoundError("nvidia-smi")
    command, *options = arguments
    try:
        with _session(nvml):
            if command == "compute-policy":
                return _compute_policy(nvml, options)
            return _compute_mode(nvml, arguments)
    except _EndedEarly as ended:
        return ended.answer
    except pynvml.NVMLError as error:
        return SmiAnswer(min(error.value, _MOST), f"{nvml.nvmlErrorString(error.value)}\n")  # the text is assumed


@contextmanager
def _session(nvml: SimulatedNvml) -> Iterator[None]:
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        text = _NO_DRIVER if missing else f"Failed to initialize NVML: {nvml.nvmlErrorString(error.value)}\n"
        raise _EndedEarly(error.value, text) from error
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _compute_policy(nvml: SimulatedNvml, options: Sequence[str]) -> SmiAnswer:
    if int(nvml.nvmlSystemGetDriverVersion().split(".")[0]) < FIRST_WITH_TIME_SLICES:
        raise _EndedEarly(pynvml.NVML_ERROR_INVALID_ARGUMENT, _WRONG)  # assumed
    parser = _Arguments("nvidia-smi compute-policy", add_help=False, allow_abbrev=False)
    parser.add_argument("-i", "--id")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-l", "--list", action="store_true")
    action.add_argument("--set-timeslice", type=int, choices=range(len(TIME_SLICES)))
    given = parser.parse_args(options)
    gpus = _gpus(nvml, given.id)
    return _listed(nvml, gpus) if given.list else _sliced(nvml, gpus, given.set_timeslice)


def _sliced(nvml: SimulatedNvml, gpus: Sequence[_Gpu], value: int) -> SmiAnswer:
    """Set the time slice of each GPU. Assumed: what success prints, and that a failure does not stop at its GPU."""
    lines, code = [], 0
    for gpu in gpus:
        try:
            nvml.time_slice(gpu.handle, value)
        except pynvml.NVMLError as error:
            code = error.value
            why = nvml.nvmlErrorString(code)
            lines.append(f"Failed to set timeslice policy with value {TIME_SLICES[value]} for GPU {gpu.number} : {why}")
        else:
            lines.append(f"Set timeslice policy with value {TIME_SLICES[value]} for GPU {gpu.number}")
    if code:
        lines.append(f"Failed to set timeslice for requested devices : {nvml.nvmlErrorString(code)}")
    return SmiAnswer(min(code, _MOST), "\n".join(lines) + "\n")


def _listed(nvml: SimulatedNvml, gpus: Sequence[_Gpu]) -> SmiAnswer:
    """A table. Assumed: its form, and N/A for a GPU without time slices."""
    rows = ["GPU compute policies:", "GPU  Name       Value"]
    for gpu in gpus:
        try:
            value = TIME_SLICES[nvml.time_slice(gpu.handle)]
        except pynvml.NVMLError_NotSupported:
            value = "N/A"
        rows.append(f"{gpu.number:>3}  Timeslice  {value}")
    return SmiAnswer(0, "\n".join(rows) + "\n")


def _compute_mode(nvml: SimulatedNvml, options: Sequence[str]) -> SmiAnswer:
    """Set the mode of each GPU. Assumed: a GPU that cannot have it is a warning, as with other settings of this program."""
    parser = _Arguments("nvidia-smi", add_help=False, allow_abbrev=False)
    parser.add_argument("-i", "--id")
    parser.add_argument("-c", "--compute-mode", choices=[*map(str, MODES), *MODES.values()], required=True)
    given = parser.parse_args(options)
    mode = next(number for number, name in MODES.items() if given.compute_mode in (str(number), name))
    lines = []
    for gpu in _gpus(nvml, given.id):
        before = nvml.nvmlDeviceGetComputeMode(gpu.handle)
        try:
            nvml.nvmlDeviceSetComputeMode(gpu.handle, mode)
        except pynvml.NVMLError_NotSupported:
            lines += [f"Unable to set the compute mode for GPU {gpu.bus_id}: Not Supported", _WARNING]
        else:
            done = "Compute mode is already set" if before == mode else "Set compute mode"
            lines.append(f"{done} to {MODES[mode]} for GPU {gpu.bus_id}.")
    return SmiAnswer(0, "\n".join([*lines, "All done."]) + "\n")


def _gpus(nvml: SimulatedNvml, ids: str | None) -> list[_Gpu]:
    """The GPUs of these indexes and UUIDs, or all. Assumed: if one is unknown, nothing is done with the others."""
    names = range(nvml.nvmlDeviceGetCount()) if ids is None else ids.split(",")
    try:
        return [_gpu(nvml, str(each)) for each in names]
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument) as error:
        raise _EndedEarly(pynvml.NVML_ERROR_NOT_FOUND, "No devices were found\n") from error


def _gpu(nvml: SimulatedNvml, name: str) -> _Gpu:
    by_index = name.isdecimal()
    handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
    return _Gpu(nvml.nvmlDeviceGetIndex(handle), nvml.nvmlDeviceGetPciInfo(handle).busId, handle)
