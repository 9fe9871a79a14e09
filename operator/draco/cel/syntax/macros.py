"""Macros: calls that the parser rewrites before the type check.

The expansions are Kubernetes', because its types, costs and errors are defined on them. Knows nothing of text or tokens.
"""

from collections.abc import Callable
from typing import Final

from draco.cel.syntax.ast import (
    ACCUMULATOR,
    UNUSED_VARIABLE,
    Call,
    Comprehension,
    Expr,
    Identifier,
    ListExpr,
    Literal,
    MapExpr,
    Select,
)

_RESERVED_ACCUMULATOR: Final = "__result__"
_SORT_INPUT: Final = "@__sortBy_input__"


class MacroError(ValueError):
    """Invalid arguments of a macro; `position` is the offset of the invalid one."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


def expand(position: int, function: str, target: Expr | None, arguments: tuple[Expr, ...]) -> Expr | None:
    """Expand a macro call; None for any other call. Raises MacroError for invalid arguments."""
    if target is None:
        return _has(position, arguments[0]) if function == "has" and len(arguments) == 1 else None
    macro = _MACROS.get((function, len(arguments)))
    return None if macro is None else macro(position, function, target, arguments)


def _has(position: int, argument: Expr) -> Expr:
    if not isinstance(argument, Select):
        raise MacroError(argument.position, "invalid argument to has() macro")
    return Select(position, argument.operand, argument.field, is_test=True)


def _variable(argument: Expr, complaint: str) -> str:
    if not isinstance(argument, Identifier):
        raise MacroError(argument.position, complaint)
    if argument.name in {ACCUMULATOR, _RESERVED_ACCUMULATOR}:
        raise MacroError(argument.position, "iteration variable overwrites accumulator variable")
    return argument.name


def _variables(arguments: tuple[Expr, ...], count: int) -> tuple[str, str | None]:
    first = _variable(arguments[0], "argument must be a simple name")
    if count == 1:
        return first, None
    second = arguments[1]
    if isinstance(second, Identifier) and second.name == first:
        raise MacroError(second.position, f"duplicate variable name: {first}")
    return first, _variable(second, "argument must be a simple name")


def _quantifier(position: int, function: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr:
    variable, second = _variables(arguments, len(arguments) - 1)
    body = arguments[-1]
    running, true = Identifier(position, ACCUMULATOR), Literal(position, "bool", value=True)
    init: Expr
    condition: Expr
    result: Expr = running
    match function:
        case "all":
            init, condition = true, Call(position, "@not_strictly_false", None, (running,))
            step = Call(position, "_&&_", None, (running, body))
        case "exists":
            init = Literal(position, "bool", value=False)
            condition = Call(position, "@not_strictly_false", None, (Call(position, "!_", None, (running,)),))
            step = Call(position, "_||_", None, (running, body))
        case _:
            function, one = "existsOne", Literal(position, "int", 1)
            init, condition = Literal(position, "int", 0), true
            step = Call(position, "_?_:_", None, (body, Call(position, "_+_", None, (running, one)), running))
            result = Call(position, "_==_", None, (running, one))
    return Comprehension(
        position, function, target, variable, second, ACCUMULATOR, init, condition, step, result, body=body
    )


def _building(  # noqa: PLR0917 - called with all of them by three macros
    position: int,
    macro: str,
    target: Expr,
    variables: tuple[str, str | None],
    empty: Expr,
    add: Callable[[Expr], Expr],
    body: Expr,
    keep: Expr | None,
) -> Expr:
    """A loop that builds a list or map from `empty` by `add`, for the elements for which `keep` is true."""
    running = Identifier(position, ACCUMULATOR)
    step = add(running)
    if keep is not None:
        step = Call(position, "_?_:_", None, (keep, step, running))
    condition = Literal(position, "bool", value=True)
    return Comprehension(
        position, macro, target, *variables, ACCUMULATOR, empty, condition, step, running, body=body, filter=keep
    )


def _map(position: int, _: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr:
    variable, body = _variable(arguments[0], "argument is not an identifier"), arguments[-1]
    keep = arguments[1] if len(arguments) == 3 else None
    return _building(position, "map", target, (variable, None), ListExpr(position, ()), _appending(body), body, keep)


def _filter(position: int, _: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr:
    name, keep = arguments
    variable = _variable(name, "argument is not an identifier")
    return _building(position, "filter", target, (variable, None), ListExpr(position, ()), _appending(name), name, keep)


def _appending(body: Expr) -> Callable[[Expr], Expr]:
    def add(running: Expr) -> Expr:
        at = running.position
        return Call(at, "_+_", None, (running, ListExpr(at, (body,))))

    return add


def _transform(position: int, function: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr:
    variables = _variables(arguments, 2)
    body, keep = arguments[-1], arguments[2] if len(arguments) == 4 else None
    if function == "transformList":
        return _building(position, function, target, variables, ListExpr(position, ()), _appending(body), body, keep)

    def insert(running: Expr) -> Expr:
        at = running.position
        what = (body,) if function == "transformMapEntry" else (Identifier(at, variables[0]), body)
        return Call(at, "cel.@mapInsert", None, (running, *what))

    return _building(position, function, target, variables, MapExpr(position, ()), insert, body, keep)


def _bound(position: int, name: str, value: Expr, body: Expr) -> Expr:
    """`body` with `name` bound to `value`: a loop without iterations."""
    false = Literal(position, "bool", value=False)
    itself = Identifier(position, name)
    nothing = ListExpr(position, ())
    return Comprehension(
        position, "bind", nothing, UNUSED_VARIABLE, None, name, value, false, itself, result=body, body=body
    )


def _bind(position: int, _: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr | None:
    if not (isinstance(target, Identifier) and target.name == "cel"):
        return None
    name, value, body = arguments
    if not isinstance(name, Identifier):
        raise MacroError(name.position, "cel.bind() variable names must be simple identifiers")
    return _bound(position, name.name, value, body)


def _of_optional(position: int, function: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr:
    """`optMap` and `optFlatMap`. As in Kubernetes, the target occurs twice in the result and is evaluated twice."""
    name, body = arguments
    if not isinstance(name, Identifier):
        raise MacroError(name.position, f"{function}() variable name must be a simple identifier")
    value = Call(position, "value", target, ())
    mapped = _bound(position, name.name, value, body)
    if function == "optMap":
        mapped = Call(position, "of", Identifier(position, "optional"), (mapped,))
    none = Call(position, "none", Identifier(position, "optional"), ())
    return Call(position, "_?_:_", None, (Call(position, "hasValue", target, ()), mapped, none))


def _sort_by(position: int, _: str, target: Expr, arguments: tuple[Expr, ...]) -> Expr:
    if isinstance(target, Literal | MapExpr):
        complaint = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise MacroError(target.position, complaint)
    given = Identifier(position, _SORT_INPUT)
    keys = _map(position, "map", given, arguments)
    return _bound(position, _SORT_INPUT, target, Call(position, "@sortByAssociatedKeys", given, (keys,)))


_MACROS: Final[dict[tuple[str, int], Callable[[int, str, Expr, tuple[Expr, ...]], Expr | None]]] = {
    **{(name, count): _quantifier for name in ("all", "exists", "exists_one") for count in (2, 3)},
    ("existsOne", 3): _quantifier,  # the newer spelling exists only with the second variable
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    **{(f"transform{what}", count): _transform for what in ("List", "Map", "MapEntry") for count in (3, 4)},
    ("bind", 3): _bind,
    ("optMap", 2): _of_optional,
    ("optFlatMap", 2): _of_optional,
    ("sortBy", 2): _sort_by,
}
