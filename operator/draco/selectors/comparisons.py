"""Reads a demand as a comparison of one value of a device with a constant, and compares as Kubernetes does.

Also owns how constants are written, correcting common mistakes. Knows neither devices nor what is published.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias
from typing import Literal as OneOf

import msgspec

from draco.cel.paths import AttributePath, path_of
from draco.cel.syntax.ast import Call, Expr, ListExpr, Literal
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.selectors.accesses import path_text
from draco.selectors.demands import Demand
from draco.selectors.tokens import TextChange, tokens

Relation: TypeAlias = OneOf["==", "!=", "<", "<=", ">", ">=", "in"]
Plain: TypeAlias = bool | int | float | str | Quantity | SemVer
"""Constants of comparisons, including quantities and versions made from constants."""

_OPERATORS: Final[dict[str, Relation]] = {f"_{sign}_": sign for sign in ("==", "!=", "<", "<=", ">", ">=")}
_FLIPPED: Final[dict[Relation, Relation]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARED: Final[dict[tuple[Relation, int], Relation]] = {
    ("==", 1): ">",
    (">=", 1): ">",
    (">", -1): ">=",
    ("!=", -1): ">=",
    ("==", -1): "<",
    ("<=", -1): "<",
    ("<", 1): "<=",
    ("!=", 1): "<=",
}
"""The comparison that a test of `compareTo`'s result means; with 0 the operator is unchanged."""


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of one value of a device (on the left) with a constant."""

    path: AttributePath
    operator: Relation
    values: tuple[Plain, ...]
    """The constant; all of them for "in"."""
    start: int = -1
    """Position of the constant's literal in the expression; -1 if there is none to replace."""
    end: int = -1

    @property
    def value(self) -> Plain:
        """The constant."""
        return self.values[0]


def comparison(demand: Demand) -> Comparison | None:
    """The comparison that a demand makes; None if it is anything else."""
    root = demand.root
    match root:
        case Call(function="!_", target=None, arguments=(operand,)) if (path := path_of(operand)) is not None:
            return Comparison(path, "==", (False,))
        case Call(function="isGreaterThan" | "isLessThan" as name, target=left, arguments=(right,)) if left is not None:
            return _compared(demand, left, ">" if name == "isGreaterThan" else "<", right)
        case Call(function="@in", target=None, arguments=(left, ListExpr(elements=elements, optional=optional))):
            return None if optional else _one_of(left, elements)
        case Call(function=function, target=None, arguments=(left, right)) if function in _OPERATORS:
            return _operation(demand, left, _OPERATORS[function], right)
    path = path_of(root)
    return None if path is None or path.kind == "driver" else Comparison(path, "==", (True,))


def text_test(demand: Demand) -> tuple[AttributePath, str] | None:
    """The path and text of a `startsWith`, `endsWith` or `contains` test; None for any other demand."""
    match demand.root:
        case Call(function="startsWith" | "endsWith" | "contains", target=target, arguments=(argument,)) if (
            target is not None
        ):
            path, constant = _path(target), _constant(argument)
            if path is not None and constant is not None and isinstance(constant[0], str):
                return path, constant[0]
    return None


def holds(operator: Relation, left: object, values: Sequence[Plain]) -> bool | None:
    """Whether the comparison holds for a published value; None if the two have different kinds."""
    if operator == "in":
        return any(_same_kind(left, value) and left == value for value in values)
    value = values[0]
    if not _same_kind(left, value):
        return None
    if operator == "==":
        return left == value
    if operator == "!=":
        return left != value
    lower, same = left < value, left == value  # type: ignore[operator] # same kind, which has an order
    return {"<": lower, "<=": lower or same, ">": not (lower or same), ">=": not lower}[operator]


def _same_kind(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return type(one) is type(other)
    if isinstance(one, int | float):
        return isinstance(other, int | float)
    return type(one) is type(other)


def _operation(demand: Demand, left: Expr, operator: Relation, right: Expr) -> Comparison | None:
    match left, right:
        case Call(function="compareTo", target=one, arguments=(other,)), Literal(kind="int", value=int(answer)):
            meant = operator if answer == 0 else _COMPARED.get((operator, answer))
            return None if meant is None or one is None else _compared(demand, one, meant, other)
    return _compared(demand, left, operator, right)


def _compared(demand: Demand, left: Expr, operator: Relation, right: Expr) -> Comparison | None:
    path, constant = _path(left), _constant(right)
    if path is None or constant is None:
        path, constant = _path(right), _constant(left)
        operator = _FLIPPED.get(operator, operator)
    if path is None or constant is None:
        return None
    value, position = constant
    start, end = _literal_extent(demand.text, position)
    return Comparison(path, operator, (value,), demand.start + start, demand.start + end)


def _one_of(left: Expr, elements: Sequence[Expr]) -> Comparison | None:
    path = _path(left)
    constants = [_constant(element) for element in elements]
    values = tuple(constant[0] for constant in constants if constant is not None)
    if path is None or not values or len(values) != len(elements):
        return None
    return Comparison(path, "in", values)


def _path(node: Expr) -> AttributePath | None:
    """The path that a node reads, whatever its default; None for any other node."""
    match node:
        case Call(function="orValue", target=inner, arguments=(_,)) if inner is not None:
            node = inner
    path = path_of(node)
    return None if path is None or (path.id is None and path.kind != "driver") else path


def _constant(node: Expr) -> tuple[Plain, int] | None:
    """The constant of a node and the position of its literal; None for any other node."""
    match node:
        case Literal(
            kind="string" | "int" | "uint" | "double" | "bool", value=bool() | int() | float() | str() as value
        ):
            return value, node.position
        case Call(
            function="quantity" | "semver" as name,
            target=None,
            arguments=(Literal(kind="string", value=str(text), position=at),),
        ):
            known = Quantity.read(text) if name == "quantity" else SemVer.read(text)
            return None if known is None else (known, at)
    return None


def _literal_extent(text: str, position: int) -> tuple[int, int]:
    within = [token for token in tokens(text) if token.start >= position]
    last = within[1] if within[0].text == "-" else within[0]
    return position, last.end


def accepting(demand: Demand, compared: Comparison, value: Plain) -> TextChange:
    """Have a comparison, the demand, just accept the value: `>=` in the place of `>`."""
    if compared.operator in {"==", ">=", "<="}:
        return TextChange(compared.start, compared.end, literal(value))
    path, sign = path_text(compared.path), f"{compared.operator}="
    if isinstance(value, Quantity | SemVer):
        function = "quantity" if isinstance(value, Quantity) else "semver"
        return TextChange(demand.start, demand.end, by_function(path, sign, f"{function}({literal(value)})"))
    return TextChange(demand.start, demand.end, f"{path} {sign} {literal(value)}")


def literal(value: Plain) -> str:
    """Write a constant; for a quantity or version, the text passed to the function."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    escaped = "".join(_ESCAPES.get(character, character) for character in str(value))
    return f'"{escaped}"'


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def by_function(left: str, operator: str, right: str) -> str:
    """Write a comparison of quantities or versions, for which CEL has no operators."""
    return f"{left}.compareTo({right}) {operator} 0"


def version_meant(text: str) -> str | None:
    """The semantic version that the text is or means."""
    if SemVer.read(text) is not None:
        return text
    meant = SemVer.read(text, loosely=True)
    return None if meant is None else str(meant)
