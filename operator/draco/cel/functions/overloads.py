"""Overloads: the shape of the table of functions, from which type check, compiler and both cost models read the same row.

Owns how a row is written and read, and the choice of an overload at run time. The rows are below their code in `functions`, which
also decides which of them an environment has. The terms are cel-go's: a singleton binding serves all overloads of its function
and checks the types itself.

A signature is `function(types) -> type` or `type.function(types) -> type`; capital letters are type variables. The order of a
function's rows matters: if an argument's type is still unknown, the first overload that fits decides it.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import msgspec

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import FREE, Charge, CostRule, one
from draco.cel.values import types
from draco.cel.values.bounds import Toil
from draco.cel.values.types import Type
from draco.cel.values.values import (
    MAPS,
    Cidr,
    ComputedQuantity,
    Duration,
    Ip,
    NamedFormat,
    Optional,
    Timestamp,
    UInt,
    Url,
    Value,
    no_such_overload,
)
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer

Function: TypeAlias = Callable[..., Value]


class Row(NamedTuple):
    """One row of the table, as written."""

    id: str
    signature: str
    run: Function | None
    is_singleton: bool
    cost: CostRule
    toil: Toil | None


def row(
    identity: str,
    signature: str,
    run: Function | None = None,
    *,
    singleton: Function | None = None,
    cost: CostRule = FREE,
    toil: Toil | None = None,
) -> Row:
    """Describe one way to call a function.

    Args:
        identity: the overload's id in Kubernetes.
        signature: its types (see above).
        run: its code, for arguments of its own types. Without `run` and `singleton`, the compiler handles the call itself.
        singleton: the code of all overloads of the function, for any arguments.
        cost: the charge of a call and its estimate.
        toil: its uncharged work, if that can be large.
    """
    return Row(identity, signature, run or singleton, singleton is not None, cost, toil)


class Binding(NamedTuple):
    """The code of a call and its metering."""

    run: Function
    charge: Charge = one
    toil: Toil | None = None
    is_checked_ahead: bool = False


class Overload(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One way to call a function. If `is_member`, `parameters` begins with the receiver's type."""

    row: Row
    function: str
    is_member: bool
    parameters: tuple[Type, ...]
    result: Type
    variables: tuple[str, ...]

    @property
    def id(self) -> str:
        """The overload's id in Kubernetes."""
        return self.row.id

    @cached_property
    def binding(self) -> Binding | None:
        """How to run it if it is the only possible overload; None if the compiler handles it itself."""
        run, cost = self.row.run, self.row.cost
        if run is None:
            return None
        bound = run if self.row.is_singleton else _dispatcher(self.function, [self])
        return Binding(bound, cost.charge, self.row.toil, cost.is_checked_ahead)


def binding(overloads: Sequence[Overload]) -> Binding | None:
    """Return how to run a call that chooses at run time between these overloads, all with its number of arguments."""
    if not overloads or (only := overloads[0].binding) is None:
        return None
    run = only.run if overloads[0].row.is_singleton else _dispatcher(overloads[0].function, overloads)
    return only._replace(run=run, charge=overloads[0].row.cost.charge_without_id or only.charge)


_NAMES: Final[dict[str, Type]] = {
    **{kind.name: kind for kind in (types.DYN, *types.PRIMITIVES, types.DURATION, types.TIMESTAMP)},
    **{
        kind.name.rpartition(".")[2].lower(): kind
        for kind in (types.QUANTITY, types.SEMVER, types.URL, types.IP, types.CIDR)
    },
    "format": types.FORMAT,
    **{
        name.lower().removesuffix("check"): Type("object", f"kubernetes.authorization.{name}")
        for name in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
    },
}
_COMPOSED: Final[dict[str, Callable[..., Type]]] = {
    "list": types.list_of,
    "map": types.map_of,
    "optional": types.optional_of,
    "type": types.type_of,
}
_PYTHON: Final[dict[str, frozenset[type]]] = {
    "bool": frozenset({bool}),
    "int": frozenset({int}),
    "uint": frozenset({UInt}),
    "double": frozenset({float}),
    "string": frozenset({str}),
    "bytes": frozenset({bytes}),
    "duration": frozenset({Duration}),
    "timestamp": frozenset({Timestamp}),
    "list": frozenset({list}),
    "map": MAPS,
    "optional_type": frozenset({Optional}),
    types.QUANTITY.name: frozenset({Quantity, ComputedQuantity}),
    types.SEMVER.name: frozenset({SemVer}),
    types.URL.name: frozenset({Url}),
    types.FORMAT.name: frozenset({NamedFormat}),
    types.IP.name: frozenset({Ip}),
    types.CIDR.name: frozenset({Cidr}),
}
"""Python's types for each CEL type at run time."""


def succeeds(parse: Function) -> Function:
    """Return a test whether a function accepts its arguments."""

    def test(*arguments: Value) -> bool:
        try:
            parse(*arguments)
        except EvaluationError:
            return False
        return True

    return test


def read(row: Row, dotted: frozenset[str]) -> Overload:
    """Read a row. `dotted` names the functions with a dot in their own name, whose first part is also the name of a type."""
    call, _, result = row.signature.rpartition(" -> ")
    opening = _last_opening(call)
    head, arguments = call[:opening], _split(call[opening + 1 : -1])
    receiver, dot, function = head.rpartition(".")
    is_member = bool(dot) and head not in dotted and (receiver in _NAMES or receiver.endswith(")"))
    if is_member:
        arguments.insert(0, receiver)
    variables = tuple(dict.fromkeys(re.findall(r"\b[A-Z]\b", " ".join([result, *arguments]))))
    parameters = tuple(map(_type, arguments))
    return Overload(row, function if is_member else head, is_member, parameters, _type(result), variables)


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets."""
    parts, level, start = [], 0, 0
    for index, character in enumerate(text):
        level += (character == "(") - (character == ")")
        if character == "," and level == 0:
            parts.append(text[start:index])
            start = index + 1
    last = text[start:].strip()
    return [part.strip() for part in parts] + ([last] if last else [])


def _type(text: str) -> Type:
    name, bracket, inner = text.partition("(")
    if bracket:
        return _COMPOSED[name](*map(_type, _split(inner[:-1])))
    return types.variable(name) if name.isupper() and len(name) == 1 else _NAMES[name]


def _last_opening(call: str) -> int:
    """The position of the bracket that the last one closes."""
    level = 0
    for index in range(len(call) - 1, -1, -1):
        level += (call[index] == ")") - (call[index] == "(")
        if level == 0:
            return index
    raise ValueError(call)


class _Parameter(NamedTuple):
    """What a parameter accepts at run time: values of `types`, or any if empty. Of a list only the first element is checked."""

    types: frozenset[type]
    elements: frozenset[type] = frozenset()

    def accepts(self, value: Value) -> bool:
        if not self.types:
            return True
        return type(value) in self.types and (not self.elements or not value or type(value[0]) in self.elements)


def _parameter(of: Type) -> _Parameter:
    if of.is_dyn or of.kind == "variable":
        return _Parameter(frozenset())
    elements = _parameter(of.parameters[0]).types if of.kind == "list" else frozenset[type]()
    return _Parameter(_PYTHON[of.name], elements)


def _dispatcher(name: str, overloads: Sequence[Overload]) -> Function:
    """A function that runs the first overload that fits, or raises EvaluationError with Kubernetes' text."""
    forms = [(tuple(map(_parameter, overload.parameters)), overload.row.run) for overload in overloads]

    def call(*arguments: Value) -> Value:
        for parameters, run in forms:
            if run is not None and all(map(_Parameter.accepts, parameters, arguments)):
                return run(*arguments)
        raise no_such_overload(name, *arguments)

    return call
