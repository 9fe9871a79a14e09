"""The tree of an expression: frozen nodes with their positions in the text.

Operators are calls under the names in Kubernetes' error texts (`_==_`, `_&&_`, `_[_]`), so one table of overloads serves
operators and functions. Macros are expanded to `Comprehension`, which also keeps the original arguments for callers that run the
common forms faster. Nodes compare and hash by identity: the checker keeps the type of each node in a dictionary beside the tree.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias
from typing import Literal as OneOf

import msgspec

ACCUMULATOR: Final = "@result"
"""The name of a comprehension's running value; no expression can use it."""
UNUSED_VARIABLE: Final = "#unused"
"""The loop variable of a comprehension that only binds a name (`cel.bind`)."""

LiteralKind: TypeAlias = OneOf["null_type", "bool", "int", "uint", "double", "string", "bytes"]


class Literal(msgspec.Struct, frozen=True, eq=False):
    """A constant. `kind` is the name of its type, because Python's int stands for int and uint."""

    position: int
    kind: LiteralKind
    value: bool | int | float | str | bytes | None


class Identifier(msgspec.Struct, frozen=True, eq=False):
    """A variable, or the first part of a dotted function name. A leading dot is part of the name."""

    position: int
    name: str


class Select(msgspec.Struct, frozen=True, eq=False):
    """`operand.field`, or with `is_test` the macro `has(operand.field)`."""

    position: int
    operand: "Expr"
    field: str
    is_test: bool = False


class Call(msgspec.Struct, frozen=True, eq=False):
    """`function(arguments)`, `target.function(arguments)`, or an operator; `a.?b` is `_?._` with a literal, `a[?b]` `_[?_]`."""

    position: int
    function: str
    target: "Expr | None"
    arguments: "tuple[Expr, ...]"


class ListExpr(msgspec.Struct, frozen=True, eq=False):
    """`[elements]`; `optional` has the indexes of elements written with `?`."""

    position: int
    elements: "tuple[Expr, ...]"
    optional: frozenset[int] = frozenset()


class MapEntry(msgspec.Struct, frozen=True, eq=False):
    """`key: value` or `?key: value` of a map."""

    position: int
    key: "Expr"
    value: "Expr"
    is_optional: bool = False


class MapExpr(msgspec.Struct, frozen=True, eq=False):
    """`{entries}`."""

    position: int
    entries: tuple[MapEntry, ...]


class Comprehension(msgspec.Struct, frozen=True, eq=False):
    """The loop that every iterating macro and `cel.bind` stands for.

    accumulator = init; for variable(, second_variable) in range while condition: accumulator = step; then result.

    `macro` is the original macro: all, exists, existsOne, map, filter, transformList, transformMap, transformMapEntry, or bind
    (also from optMap, optFlatMap and sortBy). `body` is its last argument and `filter` the one before it, if it has one. For
    bind, `init` is the bound value, `accumulator` the bound name and `result` the body.
    """

    position: int
    macro: str
    range: "Expr"
    variable: str
    second_variable: str | None
    accumulator: str
    init: "Expr"
    condition: "Expr"
    step: "Expr"
    result: "Expr"
    body: "Expr"
    filter: "Expr | None" = None


Expr: TypeAlias = Literal | Identifier | Select | Call | ListExpr | MapExpr | Comprehension


class Ast(msgspec.Struct, frozen=True, eq=False):
    """A parsed expression: its text, its root and the depth of its tree."""

    expression: str
    root: Expr
    depth: int


def children(node: Expr) -> tuple[Expr, ...]:
    """Return the children of a node, in Kubernetes' order of evaluation."""
    match node:
        case Literal() | Identifier():
            return ()
        case Select():
            return (node.operand,)
        case Call():
            return node.arguments if node.target is None else (node.target, *node.arguments)
        case ListExpr():
            return node.elements
        case MapExpr():
            return tuple(part for entry in node.entries for part in (entry.key, entry.value))
        case Comprehension():
            return (node.range, node.init, node.condition, node.step, node.result)


def dotted(node: Expr) -> str | None:
    """Return `a.b.c` if a node consists of names only, a leading dot included; else None."""
    names: list[str] = []
    while isinstance(node, Select) and not node.is_test:
        names.append(node.field)
        node = node.operand
    return ".".join([node.name, *reversed(names)]) if isinstance(node, Identifier) else None


def walk(root: Expr) -> Iterator[Expr]:
    """Yield every node, parents before children, without recursion."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))
