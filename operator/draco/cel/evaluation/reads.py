"""Reads of the device by path and of any value by key, including the results of missing domains, names and wrong keys."""

from collections.abc import Callable
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.evaluation.code import Run, Slots, failing
from draco.cel.functions.operators import index, look_up
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import NONE, Optional, UInt, Value, go_type


def whole(kind: str) -> Run:
    """Return code that reads one field of `device`."""
    match kind:
        case "driver":
            return lambda device, _slots: device.driver
        case "attributes":
            return lambda device, _slots: device.attributes
        case "capacity":
            return lambda device, _slots: device.capacity
        case "allowMultipleAllocations":
            return lambda device, _slots: device.allow_multiple_allocations
    return failing(f"no such key: {kind}")


def of_domain(kind: str, domain: str) -> Run:
    """Return code that reads the attributes or capacities of one domain."""
    if kind == "attributes":
        return lambda device, _slots: device.attributes[domain]
    if kind == "capacity":
        return lambda device, _slots: device.capacity[domain]
    inner = whole(kind)
    return lambda device, slots: index(inner(device, slots), domain)


def leaf(kind: str, domain: str, identifier: str) -> Run:
    """Return code that reads one attribute or capacity."""
    message = f"no such key: {identifier}"
    if kind == "attributes":

        def attribute(device: DeviceVariable, _slots: Slots) -> Value:
            try:
                return device.attributes[domain][identifier]
            except KeyError:
                raise EvaluationError(message) from None

        return attribute
    if kind == "capacity":

        def capacity(device: DeviceVariable, _slots: Slots) -> Value:
            try:
                return device.capacity[domain][identifier]
            except KeyError:
                raise EvaluationError(message) from None

        return capacity
    inner = of_domain(kind, domain)
    return lambda device, slots: index(inner(device, slots), identifier)


DEVICE_READS: Final[dict[int, Callable[..., Run]]] = {1: whole, 2: of_domain, 3: leaf}
KEYS: Final = frozenset({str, int, UInt, bool, float})


def check_key(key: Value) -> None:
    """Raise EvaluationError unless the value's type can be a key."""
    if type(key) not in KEYS:
        raise EvaluationError(f"invalid qualifier type: {go_type(key)}")


def taken(operand: Value, key: Value) -> Value:
    """`operand[key]`; an optional operand gives an optional."""
    if type(operand) is Optional:
        return taken_optionally(operand, key)
    return index(operand, key)


def taken_optionally(operand: Value, key: Value) -> Optional:
    """`operand[?key]`."""
    if type(operand) is Optional:
        if not operand.present:
            return operand
        operand = operand.value
    present, value = look_up(operand, key)
    return Optional(value) if present else NONE


def with_checked_key(take: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return the same function for keys computed at run time."""

    def run(operand: Value, key: Value) -> Value:
        check_key(key)
        return take(operand, key)

    return run
