"""Runtime cost: the charges of Kubernetes' cost limit. The table of functions has the charge of each call.

Owns two ways to run the same code. `Unmetered` adds nothing, for expressions that provably stay far below the limit. `Metered`
counts as Kubernetes does and stops the evaluation at the same point.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from draco.cel.errors import EvaluationError
from draco.cel.evaluation.code import Code, Run, Slots
from draco.cel.evaluation.logic import outcome
from draco.cel.functions.costs import Charge
from draco.cel.functions.overloads import Binding, Function
from draco.cel.values.bounds import MAX_COST, check_toil, too_costly
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import NONE, Optional, Value

READ: Final = 1

Take = Callable[[Value, Value], Value]


class Unmetered:
    """Charges nothing."""

    def fixed(self, run: Run, cost: int) -> Run:  # noqa: ARG002 - a Meter's signature
        """Return the code unchanged."""
        return run

    def part(self, operand: Run, key: Code, take: Take) -> Run:
        """Return code that takes a part of a value."""
        if key.is_constant:
            at = key.value
            return lambda device, slots: take(operand(device, slots), at)
        run = key.run

        def part(device: DeviceVariable, slots: Slots) -> Value:
            value = operand(device, slots)
            return NONE if value is NONE else take(value, run(device, slots))

        return part

    optional_part = part

    def call(self, bound: Binding, arguments: tuple[Run, ...]) -> Run:
        """Return the call alone. Both of two arguments are evaluated, because the second may stop the whole evaluation."""
        if len(arguments) != 2:
            return self.call_in_order(bound, arguments)
        function = bound.run
        first, second = arguments

        def run(device: DeviceVariable, slots: Slots) -> Value:
            try:
                one = first(device, slots)
            except EvaluationError as error:
                outcome(second, device, slots)
                raise error from None
            return function(one, second(device, slots))

        return run

    def call_in_order(self, bound: Binding, arguments: tuple[Run, ...]) -> Run:
        """Return the call alone. After an argument that fails, no other is evaluated."""
        function = bound.run
        if not arguments:
            return lambda _device, _slots: function()
        first = arguments[0]
        if len(arguments) == 1:
            return lambda device, slots: function(first(device, slots))
        second = arguments[1]
        if len(arguments) == 2:
            return lambda device, slots: function(first(device, slots), second(device, slots))
        third = arguments[2]
        if len(arguments) == 3:
            return lambda device, slots: function(first(device, slots), second(device, slots), third(device, slots))

        def run(device: DeviceVariable, slots: Slots) -> Value:
            return function(*[argument(device, slots) for argument in arguments])

        return run


class Metered:
    """Charges as Kubernetes does, in slot 0."""

    def fixed(self, run: Run, cost: int) -> Run:
        """Return the same code with a fixed extra cost, charged even if it fails."""

        def charged(device: DeviceVariable, slots: Slots) -> Value:
            try:
                value = run(device, slots)
            except EvaluationError:
                spend(slots, cost)
                raise
            spend(slots, cost)
            return value

        return charged

    def part(self, operand: Run, key: Code, take: Take) -> Run:
        """Return code that takes a part and charges for it; a failure before the read costs nothing."""
        at = key.bare or key.run

        def charged(device: DeviceVariable, slots: Slots) -> Value:
            value = operand(device, slots)
            if type(value) is Optional:
                return _optionally(take, value, at, device, slots)
            try:
                result = take(value, at(device, slots))
            except EvaluationError:
                spend(slots, READ)
                raise
            spend(slots, READ)
            return result

        return charged

    def optional_part(self, operand: Run, key: Code, take: Take) -> Run:
        """Return code that takes a part and charges for it; the result is empty if the part is absent."""
        at = key.bare or key.run
        return lambda device, slots: _optionally(take, operand(device, slots), at, device, slots)

    def call(self, bound: Binding, arguments: tuple[Run, ...]) -> Run:
        """Return the call and its charge. Both of two arguments are evaluated, even if the first fails."""
        if len(arguments) > 2:
            return self.call_in_order(bound, arguments)
        function, charge, toil, checks_ahead = bound

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
                spend(slots, charge(tuple(values), failure))
                raise failure
            if checks_ahead and slots[0] + charge(tuple(values), None) > MAX_COST:
                raise too_costly()
            if toil is not None:
                spend_toil(slots, toil(values))
            return _called(function, values, charge, slots)

        return run

    def call_in_order(self, bound: Binding, arguments: tuple[Run, ...]) -> Run:
        """Return the call and its charge. Nothing is charged if an argument before the last one fails."""
        if not arguments:
            return self.call(bound, arguments)
        function, charge, toil, _ = bound
        *first, last = arguments

        def run(device: DeviceVariable, slots: Slots) -> Value:
            values = [argument(device, slots) for argument in first]
            try:
                values.append(last(device, slots))
            except EvaluationError as error:
                spend(slots, charge((*values, error), error))
                raise
            if toil is not None:
                spend_toil(slots, toil(values))
            return _called(function, values, charge, slots)

        return run


Meter: TypeAlias = Unmetered | Metered


def _optionally(take: Take, value: Value, key: Run, device: DeviceVariable, slots: Slots) -> Value:
    """A part that may be absent; a part of an empty optional is empty."""
    if value is NONE:
        return value
    result = take(value, key(device, slots))
    if result is not NONE:
        spend(slots, READ)
    return result


def _called(function: Function, values: list[Value], charge: Charge, slots: Slots) -> Value:
    """Call a function and charge for it, even if it fails."""
    try:
        value = function(*values)
    except EvaluationError as error:
        spend(slots, charge(tuple(values), error))
        raise
    spend(slots, charge(tuple(values), value))
    return value


def spend(slots: Slots, cost: int) -> None:
    """Add to the cost of the evaluation. Raises Abort above the limit."""
    slots[0] += cost
    if slots[0] > MAX_COST:
        raise too_costly()


def spend_toil(slots: Slots, toil: int) -> None:
    """Add to the uncharged work (toil) of the evaluation. Raises Abort above Draco's own limit."""
    slots[1] += toil
    check_toil(slots[1])
