"""What evaluation costs: the charges of Kubernetes' runtime cost limit.

Owns two ways to run the same code. `Free` adds nothing, for expressions that provably stay far below the limit; `Metered` counts
as Kubernetes does and stops the evaluation where it would.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

from draco.cel.bounds import TOIL, check_items, check_toil, too_costly
from draco.cel.code import Code, Run, Slots
from draco.cel.device import DeviceView
from draco.cel.dispatch import Function
from draco.cel.errors import EvaluationAborted, EvaluationError
from draco.cel.logic import outcome
from draco.cel.values import (
    MAPS,
    NONE,
    Cidr,
    ComputedQuantity,
    Ip,
    NamedFormat,
    Optional,
    Url,
    Value,
    value_of_key,
)
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer

COST_LIMIT: Final = 1_000_000
READ: Final = 1
LIST: Final = 10
MAP: Final = 30
KNOWN_PATTERN: Final = "@"
"""Stands before the name of a function on regular expressions whose pattern need not be compiled for each call."""
_PER_CHARACTER: Final = 0.1
_PER_PATTERN_CHARACTER: Final = 0.25
_FIXED_EQUALITY: Final = frozenset({Quantity, ComputedQuantity, Ip, Cidr, NamedFormat, Url, SemVer})

Charge = Callable[[tuple[Value, ...], Value], int]
Take = Callable[[Value, Value], Value]


class Meter(Protocol):
    """How code is charged."""

    def fixed(self, run: Run, cost: int) -> Run:
        """The same code at a fixed extra cost, charged even when it fails."""
        ...

    def part(self, operand: Run, key: Code, take: Take) -> Run:
        """Code that takes a part of a value; what fails before costs nothing."""
        ...

    def optional_part(self, operand: Run, key: Code, take: Take) -> Run:
        """Code that takes a part which may be absent: then it costs nothing, nor does a failure."""
        ...

    def call(self, name: str, overload: str | None, function: Function, arguments: tuple[Run, ...]) -> Run:
        """A call; `overload` is the one form that the checker found possible, where there is just one."""
        ...

    def call_in_order(self, name: str, overload: str | None, function: Function, arguments: tuple[Run, ...]) -> Run:
        """A call that evaluates no argument behind one that fails."""
        ...


class Free:
    """Charges nothing."""

    def fixed(self, run: Run, cost: int) -> Run:  # noqa: ARG002 - a Meter's signature
        """The code itself."""
        return run

    def part(self, operand: Run, key: Code, take: Take) -> Run:
        """The part alone."""
        if key.is_constant:
            at = key.value
            return lambda device, slots: take(operand(device, slots), at)
        run = key.run

        def part(device: DeviceView, slots: Slots) -> Value:
            value = operand(device, slots)
            return NONE if value is NONE else take(value, run(device, slots))

        return part

    optional_part = part

    def call(self, name: str, overload: str | None, function: Function, arguments: tuple[Run, ...]) -> Run:
        """The call alone; of two arguments both are evaluated, because the second may stop the evaluation as a whole."""
        if len(arguments) != 2:
            return self.call_in_order(name, overload, function, arguments)
        first, second = arguments

        def run(device: DeviceView, slots: Slots) -> Value:
            try:
                one = first(device, slots)
            except EvaluationAborted:
                raise
            except EvaluationError as error:
                outcome(second, device, slots)
                raise error from None
            return function(one, second(device, slots))

        return run

    def call_in_order(self, name: str, overload: str | None, function: Function, arguments: tuple[Run, ...]) -> Run:  # noqa: ARG002 - one shape for all
        """The call alone."""
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

        def run(device: DeviceView, slots: Slots) -> Value:
            return function(*[argument(device, slots) for argument in arguments])

        return run


class Metered:
    """Charges as Kubernetes does, into slot 0."""

    def fixed(self, run: Run, cost: int) -> Run:
        """The same code at a fixed extra cost."""

        def charged(device: DeviceView, slots: Slots) -> Value:
            try:
                value = run(device, slots)
            except EvaluationAborted:
                raise
            except EvaluationError:
                spend(slots, cost)
                raise
            spend(slots, cost)
            return value

        return charged

    def part(self, operand: Run, key: Code, take: Take) -> Run:
        """The part and its charge."""
        at = key.bare or key.run

        def charged(device: DeviceView, slots: Slots) -> Value:
            value = operand(device, slots)
            if type(value) is Optional:
                return _optionally(take, value, at, device, slots)
            try:
                result = take(value, at(device, slots))
            except EvaluationAborted:
                raise
            except EvaluationError:
                spend(slots, READ)
                raise
            spend(slots, READ)
            return result

        return charged

    def optional_part(self, operand: Run, key: Code, take: Take) -> Run:
        """The part and its charge."""
        at = key.bare or key.run
        return lambda device, slots: _optionally(take, operand(device, slots), at, device, slots)

    def call(self, name: str, overload: str | None, function: Function, arguments: tuple[Run, ...]) -> Run:
        """The call and its charge; of two arguments both are evaluated, even where the first fails."""
        if len(arguments) > 2:
            return self.call_in_order(name, overload, function, arguments)
        charge = _charge_of(name, overload)
        checks_ahead, toil = name in _SQUARED, TOIL.get(name)

        def run(device: DeviceView, slots: Slots) -> Value:
            values: list[Value] = []
            failure: EvaluationError | None = None
            for argument in arguments:
                try:
                    values.append(argument(device, slots))
                except EvaluationAborted:
                    raise
                except EvaluationError as error:
                    failure = failure or error
                    values.append(error)
            if failure is not None:
                spend(slots, charge(tuple(values), failure))
                raise failure
            if checks_ahead and slots[0] + charge(tuple(values), None) > COST_LIMIT:
                raise too_costly()
            if toil is not None:
                spend_toil(slots, toil(values))
            return _called(function, values, charge, slots)

        return run

    def call_in_order(self, name: str, overload: str | None, function: Function, arguments: tuple[Run, ...]) -> Run:
        """The call and its charge, which falls away where an argument before the last one fails."""
        if not arguments:
            return self.call(name, overload, function, arguments)
        charge, toil = _charge_of(name, overload), TOIL.get(name)
        *first, last = arguments

        def run(device: DeviceView, slots: Slots) -> Value:
            values = [argument(device, slots) for argument in first]
            try:
                values.append(last(device, slots))
            except EvaluationAborted:
                raise
            except EvaluationError as error:
                spend(slots, charge((*values, error), error))
                raise
            if toil is not None:
                spend_toil(slots, toil(values))
            return _called(function, values, charge, slots)

        return run


def _optionally(take: Take, value: Value, key: Run, device: DeviceView, slots: Slots) -> Value:
    """A part that may be absent; a part of nothing is nothing."""
    if value is NONE:
        return value
    result = take(value, key(device, slots))
    if result is not NONE:
        spend(slots, READ)
    return result


def _called(function: Function, values: list[Value], charge: Charge, slots: Slots) -> Value:
    """What a function makes of its arguments, charged for even where that is an error."""
    try:
        value = function(*values)
    except EvaluationAborted:
        raise
    except EvaluationError as error:
        spend(slots, charge(tuple(values), error))
        raise
    spend(slots, charge(tuple(values), value))
    return value


def spend(slots: Slots, cost: int) -> None:
    """Add to what the evaluation has cost. Raises EvaluationAborted beyond the limit."""
    slots[0] += cost
    if slots[0] > COST_LIMIT:
        raise too_costly()


def spend_toil(slots: Slots, toil: int) -> None:
    """Add to the work that no cost tells. Raises EvaluationAborted beyond Draco's own bound."""
    slots[1] += toil
    check_toil(slots[1])


def _charge_of(name: str, overload: str | None) -> Charge:
    if overload is None:
        return _BY_NAME.get(name, _one)
    return _BY_OVERLOAD.get(overload) or _BY_NAME.get(name, _one)


def _one(_arguments: tuple[Value, ...], _result: Value) -> int:
    return 1


def _size(value: Value) -> int:
    if type(value) is Optional and value.present:
        return _size(value.value)
    if type(value) in {str, bytes, list} or type(value) in MAPS:
        return len(value)
    if type(value) is Ip:
        return int(value.address.max_prefixlen) // 8
    if type(value) is Cidr:
        return -(-int(value.prefix_length) // 8)
    return 1


def _text(size: float) -> int:
    return math.ceil(size * _PER_CHARACTER)


def _pattern(text: Value, pattern_size: int) -> int:
    return _text(1 + _size(text)) * math.ceil(pattern_size * _PER_PATTERN_CHARACTER)


def _equality(arguments: tuple[Value, ...], _result: Value) -> int:
    return _text(min(_size(arguments[0]), _size(arguments[1])))


def _equals(arguments: tuple[Value, ...], result: Value) -> int:
    return 1 if type(arguments[0]) in _FIXED_EQUALITY else _equality(arguments, result)


def _first(factor: float) -> Charge:
    return lambda arguments, _: math.ceil(_size(arguments[0]) * factor * _PER_CHARACTER)


def _matching(arguments: tuple[Value, ...], _result: Value) -> int:
    return _pattern(arguments[0], _size(arguments[1]))


def _affix(arguments: tuple[Value, ...], _result: Value) -> int:
    return _text(_size(arguments[1]))


def _containing(arguments: tuple[Value, ...], _result: Value) -> int:
    return _text(_size(arguments[0])) * _text(_size(arguments[1]))


def _adding(arguments: tuple[Value, ...], _result: Value) -> int:
    return _text(_size(arguments[0]) + _size(arguments[1]))


def _membership(arguments: tuple[Value, ...], _result: Value) -> int:
    return _size(arguments[1])


def _traversal(arguments: tuple[Value, ...], _result: Value) -> int:
    """A walk over all of the first argument: a tenth of each text's bytes, rounded down, and 1 for everything else."""
    cost, steps, waiting = 0, 0, [arguments[0]]
    while waiting:
        steps += 1
        check_items(steps // 2)
        if cost > COST_LIMIT:
            raise too_costly()
        value = waiting.pop()
        if type(value) is str:
            cost += int(len(value.encode("utf-8", "surrogatepass")) * _PER_CHARACTER)
        elif type(value) is bytes:
            cost += int(len(value) * _PER_CHARACTER)
        elif type(value) is list:
            waiting.extend(value)
        elif type(value) in MAPS:
            waiting.extend(map(value_of_key, value))
            waiting.extend(value.values())
        else:
            cost += 1
    return cost


def _joining(_arguments: tuple[Value, ...], result: Value) -> int:
    return math.ceil(_size(result) * 2 * _PER_CHARACTER)


def _address(arguments: tuple[Value, ...], _result: Value) -> int:
    return 1 if type(arguments[0]) is Cidr else _text(_size(arguments[0]))


def _contains_ip(arguments: tuple[Value, ...], _result: Value) -> int:
    other = arguments[1]
    return _text(2 * _size(arguments[0])) + (_text(_size(other)) if type(other) is str else 0)


def _contains_cidr(arguments: tuple[Value, ...], result: Value) -> int:
    return _contains_ip(arguments, result) + _text(_size(arguments[0])) + 1


def _validating(arguments: tuple[Value, ...], _result: Value) -> int:
    return _pattern(arguments[1], arguments[0].regex_size) if type(arguments[0]) is NamedFormat else 1


def _new_list(items: float) -> int:
    return int(items) + 1 + LIST


def _output(_arguments: tuple[Value, ...], result: Value) -> int:
    return _new_list(_size(result))


def _flattening(arguments: tuple[Value, ...], _result: Value) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    return _new_list(_size(arguments[0]) * float(depth if type(depth) is int and depth >= 0 else 1))


def _self_comparison(position: int) -> Charge:
    def charge(arguments: tuple[Value, ...], _result: Value) -> int:
        items = arguments[position]
        if type(items) is not list:
            return 1
        factor = 2.0 + (_PER_CHARACTER if items and type(items[0]) in {str, bytes} else 0)
        return _new_list(float(len(items) ** 2) * factor)

    return charge


def _sets(factor: int) -> Charge:
    return lambda arguments, _: 1 + _size(arguments[0]) * _size(arguments[1]) * factor


_SQUARED: Final = frozenset({"distinct", "sets.contains", "sets.intersects", "sets.equivalent"})
"""What takes the time that it costs: where that is more than is left, it need not begin. Each has one form alone, and its call
evaluates both arguments."""
_SORTED: Final = (
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
)
_BY_OVERLOAD: Final[dict[str, Charge]] = {
    "in_list": _membership,
    "string_to_bytes": _first(1),
    "bytes_to_string": _first(1),
    "less_string": _equality,
    "less_equals_string": _equality,
    "greater_string": _equality,
    "greater_equals_string": _equality,
    "less_bytes": _equality,
    "less_equals_bytes": _equality,
    "greater_bytes": _equality,
    "greater_equals_bytes": _equality,
    "add_string": _adding,
    "add_bytes": _adding,
    "list_flatten": _flattening,
    "list_flatten_int": _flattening,
    **{f"list_{kind}_sort": _self_comparison(0) for kind in _SORTED},
    **{f"list_{kind}_sortByAssociatedKeys": _self_comparison(1) for kind in _SORTED},
}
_BY_NAME: Final[dict[str, Charge]] = {
    "_==_": _equals,
    "_!=_": _equality,
    "startsWith": _affix,
    "endsWith": _affix,
    "contains": _containing,
    "matches": _matching,
    "find": _matching,
    "findAll": _matching,
    **{KNOWN_PATTERN + name: _matching for name in ("matches", "find", "findAll")},
    "strings.quote": _first(1),
    "format": _first(1),
    "join": _joining,
    "replace": _first(2),
    "split": _first(2),
    "ip": _address,
    "ip.isCanonical": _first(2),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validating,
    "slice": _output,
    "lists.range": _output,
    "reverse": _output,
    "distinct": _self_comparison(0),
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"),
        _traversal,
    ),
    **dict.fromkeys(
        (
            "url", "lowerAscii", "upperAscii", "substring", "trim",
            "cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver",
        ),
        _first(1),
    ),
}  # fmt: skip
