"""Selectors as text that can be changed: what they demand, piece by piece, and what they compare with what.

Owns the cutting of an expression into the demands that must all hold, the reading of one demand as a comparison, and edits of the
text that leave the rest of it as the author wrote it. Knows neither devices nor what is published.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias
from typing import Literal as OneOf

import msgspec
from lark import Token

from draco.cel.ast import Call, Expr, ListExpr, Literal
from draco.cel.errors import CompileError
from draco.cel.literals import read_string
from draco.cel.parse import parse, tokens
from draco.cel.paths import AttributePath, path_of, reads
from draco.resources.quantity import Quantity, QuantityError
from draco.resources.semver import SemVer, SemVerError

MAX_DEMANDS: Final = 32
Operator: TypeAlias = OneOf["==", "!=", "<", "<=", ">", ">=", "in"]
Plain: TypeAlias = bool | int | float | str | Quantity | SemVer
"""What a demand can compare with: constants, and quantities and versions made of constants."""

_OPERATORS: Final[dict[str, Operator]] = {f"_{sign}_": sign for sign in ("==", "!=", "<", "<=", ">", ">=")}
_FLIPPED: Final[dict[Operator, Operator]] = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARED: Final[dict[tuple[Operator, int], Operator]] = {
    (">=", 0): ">=",
    (">", 0): ">",
    ("<=", 0): "<=",
    ("<", 0): "<",
    ("==", 0): "==",
    ("!=", 0): "!=",
    ("==", 1): ">",
    (">=", 1): ">",
    (">", -1): ">=",
    ("!=", -1): ">=",
    ("==", -1): "<",
    ("<=", -1): "<",
    ("<", 1): "<=",
    ("!=", 1): "<=",
}
"""What a test of `compareTo`'s answer means for the two things compared."""
_OPENING: Final = frozenset({"LPAR", "LSQB", "LBRACE"})
_CLOSING: Final = frozenset({")", "]", "}"})


class Demand(msgspec.Struct, frozen=True, eq=False):
    """One of the parts of an expression that must all be true; the only one, where it is not a chain of `&&`."""

    text: str
    start: int
    """Where the text stands in the expression."""
    end: int
    root: Expr
    """Its tree; places in it count from the start of `text`."""


class Comparison(msgspec.Struct, frozen=True):
    """A demand that compares one thing of a device with a constant, the device's on the left."""

    path: AttributePath
    operator: Operator
    values: tuple[Plain, ...]
    """The constant; of "in", all of them."""
    start: int = -1
    """Where the constant's literal stands in the whole expression; -1 where there is none to change."""
    end: int = -1

    @property
    def value(self) -> Plain:
        """The constant."""
        return self.values[0]


def demands(expression: str) -> list[Demand]:
    """The parts of an expression that must all be true, in order: none if it does not parse, one if there are too many."""
    try:
        parse(expression)
        whole = list(tokens(expression))
        pieces = _split(whole)
        if len(pieces) > MAX_DEMANDS:
            pieces = [whole]
        found = []
        for piece in pieces:
            start, end = _extent(piece)
            text = expression[start:end]
            found.append(Demand(text, start, end, parse(text).root))
    except CompileError:
        return []
    return found


def without(parts: Sequence[Demand], dropped: Demand) -> str:
    """The expression made of these parts without one of them; "true" where nothing is left."""
    kept = [part.text for part in parts if part is not dropped]
    return " && ".join(kept) or "true"


def with_value(expression: str, comparison: Comparison, value: Plain) -> str:
    """The expression with another constant in a comparison."""
    return expression[: comparison.start] + literal(value) + expression[comparison.end :]


def guarded(expression: str, guard: str) -> str:
    """The expression, asked only where the guard holds."""
    whole = demands(expression)
    text = " && ".join(part.text for part in whole)
    loose = len(whole) == 1 and _binds_loosely(whole[0].root)
    return f"{guard} && {f'({text})' if loose else text}"


def literal(value: Plain) -> str:
    """A constant as it is written in an expression; of a quantity or version, the text given to the function."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    escaped = "".join(_ESCAPES.get(character, character) for character in str(value))
    return f'"{escaped}"'


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def path_text(path: AttributePath) -> str:
    """A path as it is written in a selector."""
    if path.kind in {"driver", "allowMultipleAllocations"}:
        return f"device.{path.kind}"
    if path.id is None:
        return f'device.{path.kind}["{path.domain}"]'
    if not path.id.isidentifier():
        return f'device.{path.kind}["{path.domain}"]["{path.id}"]'
    return f'device.{path.kind}["{path.domain}"].{path.id}'


def paths_of(expression: str) -> list[AttributePath]:
    """The single attributes and capacities that an expression reads, sorted. None for one that does not parse."""
    try:
        read = reads(parse(expression).root)
    except CompileError:
        return []
    return sorted(path for path in read.paths if path.domain is not None and path.id is not None)


def comparison(demand: Demand) -> Comparison | None:
    """What a demand compares, where it does so plainly."""
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


def holds(operator: Operator, left: object, values: Sequence[Plain]) -> bool | None:
    """Whether the comparison holds for a published value; None where the two cannot be compared so."""
    if operator == "in":
        return any(_same_kind(left, value) and left == value for value in values)
    value = values[0]
    if not _same_kind(left, value):
        return None
    if operator == "==":
        return left == value
    if operator == "!=":
        return left != value
    lower, same = left < value, left == value  # type: ignore[operator] # of one kind, which has an order
    return {"<": lower, "<=": lower or same, ">": not (lower or same), ">=": not lower}[operator]


def _same_kind(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return type(one) is type(other)
    if isinstance(one, int | float):
        return isinstance(other, int | float)
    return type(one) is type(other)


def _operation(demand: Demand, left: Expr, operator: Operator, right: Expr) -> Comparison | None:
    match left, right:
        case Call(function="compareTo", target=one, arguments=(other,)), Literal(kind="int", value=int(answer)):
            meant = _COMPARED.get((operator, answer))
            return None if meant is None or one is None else _compared(demand, one, meant, other)
    return _compared(demand, left, operator, right)


def _compared(demand: Demand, left: Expr, operator: Operator, right: Expr) -> Comparison | None:
    path, constant = _path(left), _constant(right)
    if path is None or constant is None:
        path, constant = _path(right), _constant(left)
        operator = _FLIPPED[operator]
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
    """What of a device a node stands for; a value to fall back to where there is none does not matter."""
    match node:
        case Call(function="orValue", target=inner, arguments=(_,)) if inner is not None:
            node = inner
    path = path_of(node)
    return None if path is None or (path.id is None and path.kind != "driver") else path


def _constant(node: Expr) -> tuple[Plain, int] | None:
    """The constant that a node is, and where its literal begins."""
    match node:
        case Literal(
            kind="string" | "int" | "uint" | "double" | "bool", value=bool() | int() | float() | str() as value
        ):
            return value, node.position
        case Call(function="quantity", target=None, arguments=(Literal(kind="string", value=str(text), position=at),)):
            try:
                return Quantity.parse(text), at
            except QuantityError:
                return None
        case Call(function="semver", target=None, arguments=(Literal(kind="string", value=str(text), position=at),)):
            try:
                return SemVer.parse(text), at
            except SemVerError:
                return None
    return None


def _literal_extent(text: str, position: int) -> tuple[int, int]:
    within = [token for token in tokens(text) if (token.start_pos or 0) >= position]
    last = within[1] if within[0].type == "MINUS" else within[0]
    return position, last.end_pos or 0


def _binds_loosely(root: Expr) -> bool:
    return isinstance(root, Call) and root.function in {"_||_", "_?_:_"}


def _extent(piece: Sequence[Token]) -> tuple[int, int]:
    return piece[0].start_pos or 0, piece[-1].end_pos or 0


def _split(piece: list[Token]) -> list[list[Token]]:
    """The pieces of a chain of `&&`, chains in parentheses included; the piece itself where it is none."""
    inner = _inside_parentheses(piece)
    parts: list[list[Token]] = [[]]
    depth = 0
    for before, token in zip([None, *inner], inner, strict=False):
        depth += (token.type in _OPENING) - (token in _CLOSING)
        if depth == 0 and (token.type == "OR" or (token.type == "QUESTION" and before != ".")):
            return [piece]
        if depth == 0 and token.type == "AND":
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) == 1:
        return [piece]
    return [split for part in parts for split in _split(part)]


def _inside_parentheses(piece: list[Token]) -> list[Token]:
    """What is left without parentheses around the whole."""
    while piece[0].type == "LPAR" and _end_of_first(piece) == len(piece) - 1:
        piece = piece[1:-1]
    return piece


def _end_of_first(piece: list[Token]) -> int:
    """Where the parenthesis is closed with which the piece begins."""
    depth = 0
    for index, token in enumerate(piece):
        depth += (token.type in _OPENING) - (token in _CLOSING)
        if depth == 0:
            return index
    return -1


class Mention(msgspec.Struct, frozen=True):
    """An attribute or capacity as it stands in an expression, written out from `device` on."""

    path: AttributePath
    kind: tuple[int, int]
    """Where the word for its kind stands; then the domain's literal and the name."""
    domain: tuple[int, int]
    name: tuple[int, int]
    is_quoted: bool
    """Whether the name is written as an index, in quotes."""


def mentions(expression: str) -> list[Mention]:
    """Every attribute and capacity that an expression which parses writes out."""
    found = []
    line = list(tokens(expression))
    for index, token in enumerate(line):
        if token != "device" or (index and line[index - 1].type == "DOT"):  # noqa: S105 - a word of the language
            continue
        steps: list[Token] = []
        at = index + 1
        while len(steps) < len(("kind", "domain", "name")) and (step := _step(line, at)) is not None:
            word, at = step
            steps.append(word)
        if len(steps) == len(("kind", "domain", "name")):
            kind, domain, name = steps
            if kind in {"attributes", "capacity"}:
                path = AttributePath("attributes" if kind == "attributes" else "capacity", _word(domain), _word(name))
                found.append(
                    Mention(path, _extent([kind]), _extent([domain]), _extent([name]), name.type == "STRING_LIT")
                )
    return found


def with_path(expression: str, old: AttributePath, new: AttributePath) -> str | None:
    """The expression asking for another attribute or capacity; None where that takes more than other names."""
    changed = expression
    for mention in reversed(mentions(expression)):
        if mention.path != old or new.domain is None or new.id is None:
            continue
        if not mention.is_quoted and not new.id.isidentifier():
            return None
        name = literal(new.id) if mention.is_quoted else new.id
        for (start, end), text in (
            (mention.name, name),
            (mention.domain, literal(new.domain)),
            (mention.kind, new.kind),
        ):
            changed = changed[:start] + text + changed[end:]
    return changed if changed != expression else None


def with_demand(expression: str, demand: Demand, text: str) -> str:
    """The expression with one of its parts written anew."""
    return expression[: demand.start] + text + expression[demand.end :]


def _step(line: Sequence[Token], at: int) -> tuple[Token, int] | None:
    """The word of one step from a value to what it holds, and where the next one begins."""
    types = [token.type for token in line[at : at + 4]]
    match types:
        case ["DOT", "QUESTION", "IDENT", *_]:
            return line[at + 2], at + 3
        case ["DOT", "IDENT", *_]:
            return line[at + 1], at + 2
        case ["LSQB", "STRING_LIT", *_]:
            return line[at + 1], at + 3
        case ["LSQB", "QUESTION", "STRING_LIT", *_]:
            return line[at + 2], at + 4
    return None


def _word(token: Token) -> str:
    return read_string(token) if token.type == "STRING_LIT" else str(token)
