"""Splits a selector into demands, the conditions of a chain of `&&`, and edits them, keeping the rest of the text."""

from collections.abc import Sequence
from typing import Final

import msgspec

from draco.cel.errors import CompileError
from draco.cel.syntax.ast import Call, Expr
from draco.cel.syntax.parse import parse
from draco.selectors.tokens import Token, depth_after, replaced, tokens, without_parentheses

MAX_DEMANDS: Final = 32


class Demand(msgspec.Struct, frozen=True, eq=False):
    """One condition that must be true; the whole expression if it is not a chain of `&&`."""

    text: str
    start: int
    """Position of the text in the expression."""
    end: int
    root: Expr
    """Its tree; positions count from the start of `text`."""


def demands(expression: str) -> list[Demand]:
    """The demands of an expression in order: none if it does not parse, the whole if there are too many."""
    try:
        parse(expression)
        whole = tokens(expression)
        pieces = _split(whole)
        if len(pieces) > MAX_DEMANDS:
            pieces = [whole]
        found = []
        for piece in pieces:
            start, end = piece[0].start, piece[-1].end
            text = expression[start:end]
            found.append(Demand(text, start, end, parse(text).root))
    except CompileError:
        return []
    return found


def without(parts: Sequence[Demand], dropped: Demand) -> str:
    """The expression without one of its demands; "true" if none is left."""
    kept = [part.text for part in parts if part is not dropped]
    return " && ".join(kept) or "true"


def with_demand(expression: str, demand: Demand, text: str) -> str:
    """The expression with one demand replaced."""
    return replaced(expression, demand.start, demand.end, text)


def guarded(expression: str, guard: str) -> str:
    """The expression, evaluated only if the guard holds."""
    return f"{guard} && {as_operand(' && '.join(part.text for part in demands(expression)))}"


def as_operand(expression: str) -> str:
    """The expression, in parentheses if a chain of `&&` needs them."""
    try:
        root = parse(expression).root
    except CompileError:
        return expression
    is_loose = isinstance(root, Call) and root.function in {"_||_", "_?_:_"}
    return f"({expression})" if is_loose else expression


def _split(piece: Sequence[Token]) -> list[Sequence[Token]]:
    """The parts of a chain of `&&`, including chains in parentheses; the piece itself if it is none."""
    inner = without_parentheses(piece)
    parts: list[list[Token]] = [[]]
    depth = 0
    for before, token in zip([None, *inner], inner, strict=False):
        depth = depth_after(depth, token)
        is_conditional = token.text == "?" and (before is None or before.text != ".")
        if depth == 0 and (token.text == "||" or is_conditional):
            return [piece]
        if depth == 0 and token.text == "&&":
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) == 1:
        return [piece]
    return [split for part in parts for split in _split(part)]
