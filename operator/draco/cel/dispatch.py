"""Functions by name: which form of a function fits the types of its arguments.

Owns the table's shape and the choice among overloads at run time, with Kubernetes' error where none fits. The checker has its
own, static table; a device's attributes are typed only here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from draco.cel.values import MAPS, ComputedQuantity, Value, no_such_overload
from draco.resources.quantity import Quantity

Function: TypeAlias = Callable[..., Value]
Types: TypeAlias = frozenset[type]

ANY: Final[Types] = frozenset()
"""Any type at all."""
LIST: Final[Types] = frozenset({list})
MAP: Final[Types] = MAPS
QUANTITY: Final[Types] = frozenset({Quantity, ComputedQuantity})


class ListOf(NamedTuple):
    """A list whose first element has one of these types; an empty list is a list of anything."""

    elements: Types


Parameter: TypeAlias = Types | ListOf


class Overload(NamedTuple):
    """One form of a function: what it takes, target first, and what it does."""

    parameters: tuple[Parameter, ...]
    run: Function


FunctionTable: TypeAlias = Mapping[str, tuple[Overload, ...]]
"""Functions under their full name (`sets.contains`), target and arguments in one list."""


def overload(run: Function, *parameters: type | Parameter) -> Overload:
    """A form of a function that takes these types."""
    return Overload(tuple(frozenset({one}) if isinstance(one, type) else one for one in parameters), run)


def merge(tables: Iterable[FunctionTable]) -> dict[tuple[str, int], Function]:
    """All functions by name and number of arguments, each choosing among its forms, in the order of the tables."""
    forms: dict[tuple[str, int], list[Overload]] = {}
    for table in tables:
        for name, overloads in table.items():
            for one in overloads:
                forms.setdefault((name, len(one.parameters)), []).append(one)
    return {key: _dispatcher(key[0], overloads) for key, overloads in forms.items()}


def _dispatcher(name: str, overloads: list[Overload]) -> Function:
    if len(overloads) == 1:
        parameters, run = overloads[0]
        if not any(parameters):
            return run
        if len(parameters) == 1:
            return _unary(name, parameters[0], run)
        if len(parameters) == 2:
            return _binary(name, parameters[0], parameters[1], run)
    return _general(name, overloads)


def _accepts(parameter: Parameter, value: Value) -> bool:
    if isinstance(parameter, ListOf):
        return type(value) is list and (not value or type(value[0]) in parameter.elements)
    return not parameter or type(value) in parameter


def _unary(name: str, parameter: Parameter, run: Function) -> Function:
    if isinstance(parameter, ListOf):
        return _general(name, [Overload((parameter,), run)])

    def call(one: Value) -> Value:
        if type(one) in parameter:
            return run(one)
        raise no_such_overload(name, one)

    return call


def _binary(name: str, first: Parameter, second: Parameter, run: Function) -> Function:
    if isinstance(first, ListOf) or isinstance(second, ListOf) or not first or not second:
        return _general(name, [Overload((first, second), run)])

    def call(one: Value, other: Value) -> Value:
        if type(one) in first and type(other) in second:
            return run(one, other)
        raise no_such_overload(name, one, other)

    return call


def _general(name: str, overloads: list[Overload]) -> Function:
    def call(*arguments: Value) -> Value:
        for parameters, run in overloads:
            if all(map(_accepts, parameters, arguments)):
                return run(*arguments)
        raise no_such_overload(name, *arguments)

    return call
