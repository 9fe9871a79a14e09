"""The forms of NVML's C functions: their arguments, and how SimulatedNvml's answer is written behind their pointers.

Owns how a Python answer becomes what C expects, with C's own errors: NULL, a short buffer, a struct of another version. Which
function has which form is in `signatures`.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import pynvml

from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import nvidia_smi as run_nvidia_smi

Kind = Literal["handle", "number", "text", "struct", "versioned", "array", "written"]
Answer = Callable[[SimulatedNvml, Sequence[Any]], int | None]


class Parameter(NamedTuple):
    """One argument; for a pointer, also how many bytes are behind it, both before and after the call.

    A `handle` has 64 bits, as masks have, and a `number` 32; `text` is a string. A `struct` has `size` bytes; one that is
    `versioned` begins with its version, whose lower bytes are its size. An `array` has as many items of `size` bytes as argument
    number `counted_by` says. A `written` one is never read, and the answer decides how much is written there.
    """

    kind: Kind
    size: int = 0
    counted_by: int = 0
    type: Any = None


class Signature(NamedTuple):
    """A C function: its name, its arguments, and what answers it."""

    symbol: str
    parameters: tuple[Parameter, ...]
    answer: Answer
    unpacked: tuple[str, ...] = ()
    """What the library sends for the function's second argument, a struct with a pointer in it, as C: `s` is the struct."""


HANDLE: Final = Parameter("handle")
NUMBER: Final = Parameter("number")
TEXT: Final = Parameter("text")
VERSIONED: Final = Parameter("versioned")
COUNT: Final = Parameter("struct", 4, type=ctypes.c_uint)
_KINDS: Final = {"h": HANDLE, "n": NUMBER, "s": TEXT}


def _to(kind: Any) -> Parameter:
    return Parameter("struct", ctypes.sizeof(kind), type=kind)


def _array(kind: Any) -> Parameter:
    return Parameter("written", ctypes.sizeof(kind), type=kind)


def refused(code: int) -> pynvml.NVMLError:
    """What to raise so that the caller gets this code."""
    return pynvml.NVMLError(code)


def there(value: Any) -> Any:
    """What a pointer points to; INVALID_ARGUMENT for NULL."""
    if value is None:
        raise refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return value


def gives(symbol: str, *results: Any, given: str = "h", by: str = "") -> Signature:
    """A function that takes values and writes one number, handle or struct, or several, behind its last arguments."""
    function = by or symbol

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        targets = [there(each) for each in arguments[len(given) :]]
        found = getattr(nvml, function)(*arguments[: len(given)])
        for target, value in zip(targets, found if len(targets) > 1 else [found], strict=True):
            _write(target, value)

    return Signature(symbol, (*(_KINDS[each] for each in given), *map(_to, results)), answer)


def _write(target: Any, value: Any) -> None:
    if isinstance(value, ctypes.Structure):
        ctypes.memmove(ctypes.byref(target), ctypes.byref(value), ctypes.sizeof(value))
    elif isinstance(value, ctypes._Pointer):
        target.value = ctypes.cast(value, ctypes.c_void_p).value
    else:
        target.value = getattr(value, "value", value)


def says(symbol: str, given: str = "h") -> Signature:
    """A function that writes a string into a buffer of a given length."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        *values, buffer, length = arguments
        text = getattr(nvml, symbol)(*values).encode() + b"\0"
        if len(text) > length:
            raise refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        there(buffer).append(text)

    parameters = (*(_KINDS[each] for each in given), Parameter("written", 1), NUMBER)
    return Signature(symbol, parameters, answer)


def does(symbol: str, given: str = "h", by: str = "") -> Signature:
    """A function that takes values and answers nothing."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        getattr(nvml, by or symbol)(*arguments)

    return Signature(symbol, tuple(_KINDS[each] for each in given), answer)


def fills(symbol: str, kind: Any, given: str = "h") -> Signature:
    """A function that fills a struct whose version its caller has set."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        getattr(nvml, symbol)(*arguments[:-1], ctypes.byref(_as(kind, arguments[-1])))

    target = VERSIONED if any(name == "version" for name, _ in kind._fields_) else _to(kind)
    return Signature(symbol, (*(_KINDS[each] for each in given), target), answer)


def _as(kind: Any, given: Any) -> Any:
    """The caller's struct as `kind`; ARGUMENT_VERSION_MISMATCH if it is too short for that."""
    if isinstance(there(given), kind):
        return given
    if len(given) < ctypes.sizeof(kind):
        raise refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    return kind.from_buffer(given)


def profile(symbol: str, function: str, kind: Any, given: str, **options: int) -> Signature:
    """A function that writes a profile into a versioned struct."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        target = _as(kind, arguments[-1])
        if target.version != kind().version:
            raise refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        _write(target, getattr(nvml, function)(*arguments[:-1], **options))

    return Signature(symbol, (*(_KINDS[each] for each in given), VERSIONED), answer)


def lists(symbol: str, kind: Any, given: str = "hn") -> Signature:
    """Handles, as many as there are: the caller does not say how many have room."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        *values, target, count = arguments
        found = (kind * 64)()
        getattr(nvml, symbol)(*values, found, ctypes.byref(there(count)))
        there(target).append(bytes(found)[: ctypes.sizeof(kind) * count.value])

    return Signature(symbol, (*(_KINDS[each] for each in given), _array(kind), COUNT), answer)


def placements(symbol: str, function: str, kind: Any) -> Signature:
    """Placements, into an array whose length the last argument says; without an array only their number."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        *values, target, count = arguments
        found = None if target is None else (kind * there(count).value)()
        getattr(nvml, function)(*values, found, ctypes.byref(there(count)))
        if found is not None:
            target.append(bytes(found)[: ctypes.sizeof(kind) * count.value])

    return Signature(symbol, (HANDLE, NUMBER, _array(kind), COUNT), answer)


def processes(symbol: str) -> Signature:
    """Running processes, into an array whose length the count says beforehand."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        device, count, target = arguments
        running = getattr(nvml, symbol)(device)
        room, there(count).value = count.value, len(running)
        if room < len(running):
            raise refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for each in running:
            memory = (
                pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value if each.usedGpuMemory is None else each.usedGpuMemory
            )
            there(target).append(bytes(pynvml.c_nvmlProcessInfo_v3_t(**{**vars(each), "usedGpuMemory": memory})))

    return Signature(symbol, (HANDLE, COUNT, _array(pynvml.c_nvmlProcessInfo_v3_t)), answer)


def process_utilization(symbol: str) -> Signature:
    """Samples of busy processes since a time, into an array whose length the count says beforehand."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        device, target, count, since = arguments
        samples = getattr(nvml, symbol)(device, since)
        room, there(count).value = count.value, len(samples)
        if target is None or room < len(samples):
            raise refused(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for each in samples:
            target.append(bytes(each))

    kind = pynvml.c_nvmlProcessUtilizationSample_t
    return Signature(symbol, (HANDLE, _array(kind), COUNT, HANDLE), answer)


def retired_pages(symbol: str, arrays: int) -> Signature:
    """No board here has retired pages: newer ones refuse the question, older ones have none."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        getattr(nvml, symbol)(*arguments[:2])
        there(arguments[2]).value = 0

    return Signature(symbol, (HANDLE, NUMBER, COUNT, *[_array(ctypes.c_ulonglong)] * arrays), answer)


def affinity(symbol: str, *, scoped: bool = True) -> Signature:
    """A bit set of as many words as the caller says."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        device, words, target, *scope = arguments
        there(target).append(bytes(getattr(nvml, symbol)(device, words, *scope)))

    parameters = (HANDLE, NUMBER, _array(ctypes.c_ulonglong), *([NUMBER] if scoped else []))
    return Signature(symbol, parameters, answer)


def field_values(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """Several values, each asked for and answered in one item of an array."""
    device, count, given = arguments
    values = (pynvml.c_nvmlFieldValue_t * count).from_buffer(there(given))
    found = nvml.nvmlDeviceGetFieldValues(device, [(each.fieldId, each.scopeId) for each in values])
    ctypes.memmove(values, found, ctypes.sizeof(values))


def memory_v2(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """Memory, in a versioned struct."""
    target = _as(pynvml.c_nvmlMemory_v2_t, arguments[1])
    _write(target, nvml.nvmlDeviceGetMemoryInfo(arguments[0], target.version))


def temperature(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """The temperature of the sensor that the struct names."""
    target = _as(pynvml.c_nvmlTemperature_v1_t, arguments[1])
    target.temperature = nvml.nvmlDeviceGetTemperatureV(arguments[0], target.sensorType, target.version)


def addressing_mode(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """The addressing mode, in a versioned struct."""
    target = _as(pynvml.c_nvmlDeviceAddressingMode_t, arguments[1])
    target.value = nvml.nvmlDeviceGetAddressingMode(arguments[0])


def nvidia_smi(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """What the program prints, cut to its buffer, and its exit status."""
    given, text, length, status = arguments
    answer = run_nvidia_smi(nvml, given.split("\n"))
    text.append(answer.text.encode()[: length - 1] + b"\0")
    status.value = answer.exit_code


def set_memory_limits(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """Set a cgroup's limits, from the fields of the struct."""
    device, name, soft, hard = arguments
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(there(name).encode(), soft, hard)
    nvml.nvmlDeviceSetMemoryLimits_v1(device, limits)


def memory_limits(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """A cgroup's limits, behind the fields of the struct."""
    device, name, *targets = arguments
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(there(name).encode())
    nvml.nvmlDeviceGetMemoryLimits_v1(device, limits)
    for target, found in zip(targets, (limits.softLimit, limits.hardLimit, limits.currentUsed), strict=True):
        target.value = found


class _GpmMetrics(ctypes.Structure):
    """The beginning of nvmlGpmMetricsGet_t, whose array of metrics grows with each release."""

    _fields_ = (*pynvml.c_nvmlGpmMetricsGet_t._fields_[:-1], ("metrics", pynvml.c_nvmlGpmMetric_t * 64))


GPM_METRICS: Final = Parameter("struct", ctypes.sizeof(_GpmMetrics), type=_GpmMetrics)


def gpm_metrics(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
    """The metrics between two samples, into the struct that asks for them."""
    nvml.nvmlGpmMetricsGet(there(arguments[0]))


def fabric(symbol: str) -> Callable[[SimulatedNvml, Sequence[Any]], None]:
    """The fabric's state, in whichever version of the struct the caller has."""
    kinds = {pynvml.nvmlGpuFabricInfo_v2: pynvml.c_nvmlGpuFabricInfo_v2_t}
    kinds[pynvml.nvmlGpuFabricInfo_v3] = pynvml.c_nvmlGpuFabricInfo_v3_t

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        version = int.from_bytes(there(arguments[1])[:4], "little")
        if version not in kinds:
            raise refused(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        getattr(nvml, symbol)(arguments[0], ctypes.byref(_as(kinds[version], arguments[1])))

    return answer


def created(symbol: str) -> Signature:
    """A function that makes an instance at a placement, which is passed by its address."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        around, profile, placement, target = arguments
        _write(there(target), getattr(nvml, symbol)(around, profile, ctypes.byref(there(placement))))

    placement = _to(pynvml.c_nvmlGpuInstancePlacement_t)
    return Signature(symbol, (HANDLE, NUMBER, placement, _to(ctypes.c_void_p)), answer)


def next_event(symbol: str) -> Signature:
    """A function that waits for an event."""

    def answer(nvml: SimulatedNvml, arguments: Sequence[Any]) -> None:
        events, target, timeout_ms = arguments
        _write(there(target), getattr(nvml, symbol)(events, timeout_ms))

    return Signature(symbol, (HANDLE, _to(pynvml.c_nvmlEventData_t), NUMBER), answer)
