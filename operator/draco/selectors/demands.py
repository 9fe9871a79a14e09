"""What a selector demands, piece by piece: the parts that must all be true.

Owns the cutting of an expression into them, and edits of the text that leave the rest of it as the author wrote it. Knows neither
devices nor what is published.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from draco.cel.errors import CompileError
from draco.cel.syntax.ast import Call, Expr
from draco.cel.syntax.parse import parse
from draco.selectors.tokens import Token, depth_after, replaced, tokens, without_parentheses

MAX_DEMANDS: Final = 32


class Demand(msgspec.Struct, frozen=True, eq=False):
    """One of the parts of an expression that must all be true; the only one, where it is not a chain of `&&`."""

    text: str
    start: int
    """Where the text stands in the expression."""
    end: int
    root: Expr
    """Its tree; places in it count from the start of `text`."""


def demands(expression: str) -> list[Demand]:
    """The parts of an expression that must all be true, in order: none if it does not parse, one if there are too many."""
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
    """The expression made of these parts without one of them; "true" where nothing is left."""
    kept = [part.text for part in parts if part is not dropped]
    return " && ".join(kept) or "true"


def with_demand(expression: str, demand: Demand, text: str) -> str:
    """The expression with one of its parts replaced."""
    return replaced(expression, demand.start, demand.end, text)


def guarded(expression: str, guard: str) -> str:
    """The expression, asked only where the guard holds."""
    return f"{guard} && {as_operand(' && '.join(part.text for part in demands(expression)))}"


def as_operand(expression: str) -> str:
    """The expression, in parentheses where it would else not hold together in a chain of `&&`."""
    try:
        root = parse(expression).root
    except CompileError:
        return expression
    is_loose = isinstance(root, Call) and root.function in {"_||_", "_?_:_"}
    return f"({expression})" if is_loose else expression


def _split(piece: Sequence[Token]) -> list[Sequence[Token]]:
    """The pieces of a chain of `&&`, chains in parentheses included; the piece itself where it is none."""
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
