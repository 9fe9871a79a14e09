"""Attribute paths: what an expression can possibly read of a device.

Owns the static analysis, which errs on the safe side: two devices that agree in all the paths of an expression give the same
result, or the same error. Evaluates nothing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias
from typing import Literal as OneOf

import msgspec

from draco.cel.ast import Call, Comprehension, Expr, Identifier, Literal, Select, children

Kind: TypeAlias = OneOf["attributes", "capacity", "driver", "allowMultipleAllocations"]


class AttributePath(NamedTuple):
    """One thing an expression reads.

    With a domain and an id: the value of that attribute or capacity, or that there is none. With a domain alone: whether the
    device has anything in it. With neither: the device's driver, or whether it allows multiple allocations.
    """

    kind: Kind
    domain: str | None = None
    id: str | None = None


class Reads(NamedTuple):
    """All that an expression reads; with `everything` it also looks at attributes or capacities as a whole."""

    paths: frozenset[AttributePath]
    everything: bool


class _Place(msgspec.Struct, frozen=True):
    """Where in a device a part of the expression is: `steps` leads there from the device."""

    steps: tuple[str, ...] = ()


_Scope: TypeAlias = dict[str, _Place | None]
"""What the variables around a part stand for; None for anything that is no place in a device."""
_DEEPEST: Final = 3
_DEVICE: Final = _Place()


def reads(root: Expr) -> Reads:
    """What the expression reads."""
    paths: set[AttributePath] = set()
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
        if asked is not None:
            paths.add(asked)
            continue
        waiting.extend(_inside(node, scope))
    return Reads(frozenset(paths), everything)


def path_of(node: Expr) -> AttributePath | None:
    """The one attribute, capacity or other value that a node outside of any macro stands for, if it plainly does."""
    place = _place(node, {})
    return None if place is None else _path(place)


def _inside(node: Expr, scope: _Scope) -> Iterator[tuple[Expr, _Scope]]:
    """The parts of a node, with what variables stand for there."""
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
    if node.macro == "bind":  # its loop runs over nothing
        return
    within: _Scope = {**around, node.variable: None}
    if node.second_variable is not None:
        within[node.second_variable] = None
    yield node.condition, within
    yield node.step, within


def _place(node: Expr, scope: _Scope) -> _Place | None:
    """The place that a node spells, if it does: `device`, a variable bound to a place, and fields of either."""
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
                node = held  # an optional is where what it holds is
            case Identifier():
                break
            case _:
                return None
    start = scope.get(node.name, _DEVICE if node.name == "device" else None)
    if node.name == ".device":
        start = _DEVICE
    if start is None:
        return None
    steps = (*start.steps, *reversed(fields))
    return _Place(steps[: 1 if steps[:1] in {("driver",), ("allowMultipleAllocations",)} else _DEEPEST])


def _path(place: _Place) -> AttributePath | None:
    """What using the value of a place reads; None for a whole map or more."""
    match place.steps:
        case ("driver",):
            return AttributePath("driver")
        case ("allowMultipleAllocations",):
            return AttributePath("allowMultipleAllocations")
        case ("attributes", domain, name):
            return AttributePath("attributes", domain, name)
        case ("capacity", domain, name):
            return AttributePath("capacity", domain, name)
    return None


def _asked(node: Expr, scope: _Scope) -> AttributePath | None:
    """What a question for mere presence reads: `has(a.b)`, `"b" in a`, `a.?b.hasValue()`."""
    match node:
        case Select(is_test=True):
            place, name = _place(node.operand, scope), node.field
        case Call(function="@in", arguments=(Literal(kind="string", value=str(name)), of)):
            place = _place(of, scope)
        case Call(function="hasValue", target=of, arguments=()) if of is not None:
            inner = _place(of, scope)
            if inner is None or not inner.steps:
                return None
            place, name = _Place(inner.steps[:-1]), inner.steps[-1]
        case _:
            return None
    if place is None or not place.steps:
        return None
    if len(place.steps) == 1 and place.steps[0] in {"attributes", "capacity"}:
        return AttributePath("attributes" if place.steps[0] == "attributes" else "capacity", name)
    return _path(_Place((*place.steps, name)[:_DEEPEST]))
