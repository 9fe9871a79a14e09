"""Runtime cost: the charges of Kubernetes' cost limit. The table of functions has the charge of each call.

Owns the closures that count as Kubernetes does, in slot 0, and stop the evaluation at the same point. A fixed charge is due even
if the code fails, so it is taken first.
"""

from collections.abc import Callable
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.evaluation.code import Code, Run, Slots
from draco.cel.functions.overloads import Binding
from draco.cel.values.bounds import MAX_COST, check_toil, too_costly
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import NONE, Optional, Value

READ: Final = 1

Take = Callable[[Value, Value], Value]


def charged(run: Run, cost: int) -> Run:
    """Return the same code with a fixed extra cost."""

    def run_charged(device: DeviceVariable, slots: Slots) -> Value:
        slots[0] += cost
        if slots[0] > MAX_COST:
            raise too_costly()
        return run(device, slots)

    return run_charged


def part(operand: Run, key: Code, take: Take) -> Run:
    """Return code that takes a part and charges for it; a failure before the read costs nothing."""
    at = key.bare or key.run

    def run(device: DeviceVariable, slots: Slots) -> Value:
        value = operand(device, slots)
        if type(value) is Optional:
            return _optionally(take, value, at, device, slots)
        _spend(slots, READ)
        return take(value, at(device, slots))

    return run


def optional_part(operand: Run, key: Code, take: Take) -> Run:
    """Return code that takes a part and charges for it; the result is empty if the part is absent."""
    at = key.bare or key.run
    return lambda device, slots: _optionally(take, operand(device, slots), at, device, slots)


def call(binding: Binding, arguments: tuple[Run, ...]) -> Run:
    """Return the call and its charge. Both of two arguments are evaluated, even if the first fails."""
    if len(arguments) > 2:
        return call_in_order(binding, arguments)

    def run(device: DeviceVariable, slots: Slots) -> Value:
        values: list[Value] = []
        failure: EvaluationError | None = None
        for argument in arguments:
            try:
                values.append(argument(device, slots))
            except EvaluationError as error:
                failure = failure or error
                values.append(error)
        if failure is not None:
            _spend(slots, binding.charge(tuple(values), failure))
            raise failure
        return _called(binding, values, slots)

    return run


def call_in_order(binding: Binding, arguments: tuple[Run, ...]) -> Run:
    """Return the call and its charge. Nothing is charged if an argument before the last one fails."""
    if not arguments:
        return call(binding, arguments)
    *first, last = arguments

    def run(device: DeviceVariable, slots: Slots) -> Value:
        values = [argument(device, slots) for argument in first]
        try:
            values.append(last(device, slots))
        except EvaluationError as error:
            _spend(slots, binding.charge((*values, error), error))
            raise
        return _called(binding, values, slots)

    return run


def _optionally(take: Take, value: Value, key: Run, device: DeviceVariable, slots: Slots) -> Value:
    """A part that may be absent; a part of an empty optional is empty."""
    if value is NONE:
        return value
    result = take(value, key(device, slots))
    if result is not NONE:
        _spend(slots, READ)
    return result


def _called(binding: Binding, arguments: list[Value], slots: Slots) -> Value:
    """Call a function and charge for it, even if it fails."""
    function, charge, toil, is_checked_ahead = binding
    values = tuple(arguments)
    if is_checked_ahead and slots[0] + charge(values, None) > MAX_COST:
        raise too_costly()
    if toil is not None:
        slots[1] += toil(values)
        check_toil(slots[1])
    try:
        value = function(*values)
    except EvaluationError as error:
        _spend(slots, charge(values, error))
        raise
    _spend(slots, charge(values, value))
    return value


def _spend(slots: Slots, cost: int) -> None:
    """Add to the cost of the evaluation. Raises Abort above the limit."""
    slots[0] += cost
    if slots[0] > MAX_COST:
        raise too_costly()
