"""Attribute paths: what an expression may read of a device.

Owns the static analysis, which may report too many paths but never too few: two devices that agree in all paths of an expression
give the same result, or the same error. Evaluates nothing.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias
from typing import Literal as OneOf

from draco.cel.syntax.ast import Call, Comprehension, Expr, Identifier, ListExpr, Literal, Select, children

PathKind: TypeAlias = OneOf["attributes", "capacity", "driver", "allowMultipleAllocations"]


class AttributePath(NamedTuple):
    """One read of an expression.

    With domain and id: the value, or absence, of that attribute or capacity. With domain only: whether the device has anything in
    that domain. With neither: the device's driver, or whether it allows multiple allocations.
    """

    kind: PathKind
    domain: str | None = None
    id: str | None = None


class Reads(NamedTuple):
    """Everything that an expression reads. `everything`: it also reads all attributes or capacities as a whole.

    `compared` has attributes that are only tested for presence and equality with some strings; two strings that are none of these
    give the same result.
    """

    paths: frozenset[AttributePath]
    everything: bool
    compared: Mapping[AttributePath, frozenset[str]] = MappingProxyType({})


_Place: TypeAlias = tuple[str, ...]
"""The steps from the device to a part of it."""
_Scope: TypeAlias = dict[str, _Place | None]
"""The places of the variables in scope; None for a variable that is no place in a device."""
_VALUE: Final = 3
"""Number of steps to a value."""
_DEEPEST: Final = _VALUE + 1
"""Steps that are kept: enough to tell a value from a part of one."""
_DEVICE: Final = ()


def reads(root: Expr) -> Reads:
    """Find everything the expression reads."""
    paths: set[AttributePath] = set()
    compared: dict[AttributePath, frozenset[str]] = {}
    everything = False
    waiting: list[tuple[Expr, _Scope]] = [(root, {})]
    while waiting:
        node, scope = waiting.pop()
        place = _place(node, scope)
        if place is not None:
            if (path := _path(place)) is None:
                everything = True
            else:
                paths.add(path)
            continue
        asked = _asked(node, scope)
        if asked is not None and (path := _presence(asked)) is not None:
            if _is_attribute(asked):
                compared[path] = compared.get(path, frozenset())
            else:
                paths.add(path)
            continue
        equated = _equated(node, scope)
        if equated is not None:
            path, strings = equated
            compared[path] = compared.get(path, frozenset()) | strings
            continue
        waiting.extend(_inside(node, scope))
    only_compared = {path: strings for path, strings in compared.items() if path not in paths}
    return Reads(frozenset(paths | compared.keys()), everything, only_compared)


def path_of(node: Expr) -> AttributePath | None:
    """Return the attribute, capacity or other value that a node outside of macros stands for; None if it is anything else."""
    place = _place(node, {})
    return None if place is None else _path(place)


def _inside(node: Expr, scope: _Scope) -> Iterator[tuple[Expr, _Scope]]:
    if not isinstance(node, Comprehension):
        for part in children(node):
            yield part, scope
        return
    yield node.range, scope
    bound = _place(node.init, scope) if node.macro == "bind" else None
    if bound is None:
        yield node.init, scope
    around = {**scope, node.accumulator: bound}
    yield node.result, around
    if node.macro == "bind":  # bind's loop has no iterations
        return
    within: _Scope = {**around, node.variable: None}
    if node.second_variable is not None:
        within[node.second_variable] = None
    yield node.condition, within
    yield node.step, within


def _place(node: Expr, scope: _Scope) -> _Place | None:
    """The place that a node spells: `device`, a variable bound to a place, or fields of either; None for any other node."""
    fields: list[str] = []
    while True:
        match node:
            case Select(is_test=False):
                fields.append(node.field)
                node = node.operand
            case Call(
                function="_[_]" | "_[?_]" | "_?._",
                target=None,
                arguments=(operand, Literal(kind="string", value=str(field))),
            ):
                fields.append(field)
                node = operand
            case Call(function="value", target=Select() | Call() | Identifier() as held, arguments=()):
                node = held  # an optional has the place of its value
            case Identifier():
                break
            case _:
                return None
    start = scope.get(node.name, _DEVICE if node.name == "device" else None)
    if node.name == ".device":
        start = _DEVICE
    if start is None:
        return None
    steps = (*start, *reversed(fields))
    return steps[: 1 if steps[:1] in {("driver",), ("allowMultipleAllocations",)} else _DEEPEST]


def _path(place: _Place) -> AttributePath | None:
    """What is read if the value of a place is used; None for a whole map or more."""
    match place:
        case ("driver",):
            return AttributePath("driver")
        case ("allowMultipleAllocations",):
            return AttributePath("allowMultipleAllocations")
        case ("attributes", domain, name, *_):
            return AttributePath("attributes", domain, name)
        case ("capacity", domain, name, *_):
            return AttributePath("capacity", domain, name)
    return None


def _asked(node: Expr, scope: _Scope) -> _Place | None:
    """The place that a node tests for presence: `has(a.b)`, `"b" in a`, `a.?b.hasValue()`; None for any other node."""
    match node:
        case Select(is_test=True):
            place, name = _place(node.operand, scope), node.field
        case Call(function="@in", arguments=(Literal(kind="string", value=str(name)), of)):
            place = _place(of, scope)
        case Call(function="hasValue", target=of, arguments=()) if of is not None:
            inner = _place(of, scope)
            if not inner:
                return None
            place, name = inner[:-1], inner[-1]
        case _:
            return None
    return (*place, name)[:_DEEPEST] if place else None


def _presence(place: _Place) -> AttributePath | None:
    """What is read if the presence of a place is tested."""
    match place:
        case ("attributes", domain):
            return AttributePath("attributes", domain)
        case ("capacity", domain):
            return AttributePath("capacity", domain)
    return _path(place)


def _is_attribute(place: _Place) -> bool:
    return len(place) == _VALUE and place[0] == "attributes"


def _equated(node: Expr, scope: _Scope) -> tuple[AttributePath, frozenset[str]] | None:
    """An attribute that a node only compares with strings for equality, and these strings; None for any other node."""
    match node:
        case (
            Call(function="_==_" | "_!=_", arguments=(operand, Literal(kind="string", value=str(text))))
            | Call(function="_==_" | "_!=_", arguments=(Literal(kind="string", value=str(text)), operand))
        ):
            strings = frozenset({text})
        case Call(function="@in", arguments=(operand, ListExpr(elements=elements, optional=optional))) if not optional:
            strings = frozenset(
                each.value for each in elements if isinstance(each, Literal) and isinstance(each.value, str)
            )
            if not all(isinstance(each, Literal) and each.kind == "string" for each in elements):
                return None
        case _:
            return None
    match operand:
        case Call(function="orValue", target=Select() | Call() | Identifier() as held, arguments=(Literal(),)):
            operand = held
    place = _place(operand, scope)
    path = None if place is None or not _is_attribute(place) else _path(place)
    return None if path is None else (path, strings)
