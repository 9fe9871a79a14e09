"""Many selectors in one run: JSON lines in, one JSON line out for each, as they arrive. Pure."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from draco.cel import CompileError, EvaluationError, Selector, compile_selector, device_view
from draco.cel.paths import AttributePath
from draco.cel.values.bounds import MAX_COST
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.resources.errors import DracoError
from draco.resources.quantity import Quantity, QuantityError

LONGEST_LINE: Final = 1 << 20
"""Most bytes of a case: a hundred times the longest expression with the largest device that Kubernetes accepts."""

NO_DEVICE: Final = 'not a case: it has no "device", such as {"driver": "gpu.example.com", "attributes": {}}'


class MalformedCase(DracoError):
    """A line that is not a valid case."""


class _Capacity(msgspec.Struct, rename="camel"):
    value: msgspec.Raw
    request_policy: Any = None


class _Device(msgspec.Struct, rename="camel"):
    driver: str
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, _Capacity | str | int | float] | None = None
    allow_multiple_allocations: bool | None = None


class _Case(msgspec.Struct):
    expression: str
    device: _Device | None = None


class CaseAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """The answer of an expression for a device; exactly one field is set."""

    match: bool | None = None
    compile_error: str | None = None
    error: str | None = None


class Findings(msgspec.Struct, rename="camel", omit_defaults=True):
    """The analysis of an expression without a device, or why it does not compile.

    `estimated_cost` is absent if the cost is unbounded; Kubernetes refuses expressions whose estimate exceeds `cost_limit`.
    """

    compile_error: str | None = None
    error: str | None = None
    reads: list[str] | None = None
    reads_everything: bool = False
    estimated_cost: int | None = None
    cost_limit: int | None = None


def evaluated(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One answer per case: the expression's result for the device."""
    for line in lines:
        yield msgspec.json.encode(_evaluate(line)) + b"\n"


def checked(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One answer per case: the analysis of its expression. A device is ignored."""
    for line in lines:
        yield msgspec.json.encode(_check(line)) + b"\n"


def findings(expression: str) -> Findings:
    """The analysis of one expression."""
    selector = compiled(expression)
    if isinstance(selector, str):
        return Findings(compile_error=selector)
    return Findings(
        reads=sorted(map(described, selector.paths)),
        reads_everything=selector.reads_everything,
        estimated_cost=selector.estimated_cost,
        cost_limit=MAX_COST,
    )


def described(path: AttributePath) -> str:
    """A path as people write it: `attribute gpu.nvidia.com/uuid`, `driver`."""
    match path:
        case AttributePath(kind, None, None):
            return kind
        case AttributePath(kind, domain, None):
            return f"{kind} of {domain}"
        case AttributePath(kind, domain, identifier):
            return f"{'attribute' if kind == 'attributes' else kind} {domain}/{identifier}"


@lru_cache(maxsize=1024)
def compiled(expression: str) -> Selector | str:
    """The compiled selector, or the compile error. Cached."""
    try:
        return compile_selector(expression)
    except CompileError as error:
        return str(error)


def _evaluate(line: bytes) -> CaseAnswer:
    try:
        case = _read(line)
        if case.device is None:
            return CaseAnswer(error=NO_DEVICE)
        device = _device(case.device)
        selector = compiled(case.expression)
        if isinstance(selector, str):
            return CaseAnswer(compile_error=selector)
        return CaseAnswer(match=selector.matches(device_view(case.device.driver, device)))
    except (MalformedCase, EvaluationError) as error:
        return CaseAnswer(error=str(error))


def _check(line: bytes) -> Findings:
    try:
        return findings(_read(line).expression)
    except MalformedCase as error:
        return Findings(error=str(error))


def _read(line: bytes) -> _Case:
    if len(line) > LONGEST_LINE:
        raise MalformedCase(f"not a case: the line is longer than {LONGEST_LINE:,} bytes")
    try:
        return msgspec.json.decode(line, type=_Case)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedCase(f"not a case: {error}") from None


def _device(case: _Device) -> Device:
    """The device as a slice would hold it. Raises MalformedCase for what Kubernetes could not decode."""
    return Device(
        name="device",
        attributes=case.attributes or {},
        capacity={name: DeviceCapacity(value=_quantity(name, held)) for name, held in (case.capacity or {}).items()},
        allow_multiple_allocations=case.allow_multiple_allocations,
    )


def _quantity(name: str, held: _Capacity | str | float) -> str:
    """A quantity as text; a JSON number keeps its spelling, as in Kubernetes."""
    text = str(held)
    if isinstance(held, _Capacity):
        written = bytes(held.value)
        text = written.decode()
        if written.startswith(b'"'):
            text = msgspec.json.decode(written, type=str)
        elif text == "null":
            text = "0"
    try:
        Quantity.parse(text)
    except QuantityError as error:
        raise MalformedCase(f"capacity {name}: {error}") from None
    return text
