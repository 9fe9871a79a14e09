"""Tokens of expressions: enough to find and replace parts, even in text that does not parse.

Agrees with the tokenizer of `draco.cel` where an expression parses. Knows no types.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from draco.cel.syntax.literals import LiteralError, read_string

_TOKEN: Final = re.compile(
    r"""(?P<string>[bB]?[rR](?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|"[^"\n\r]*"|'[^'\n\r]*')
        |[bB]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<comment>//[^\n]*)
    |(?P<number>(?:\d+(?:\.\d+)?|\.\d+)[eE][+-]?\d+|\.\d\w*|\d\w*(?:\.\d\w*)*)
    |(?P<name>[A-Za-z_]\w*|`[^`\n]*`)
    |(?P<operator>==|!=|<=|>=|&&|\|\||[<>\[\](){}.,?:!+\-*/%])
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_CLOSING: Final = {closing: opening for opening, closing in _OPENING.items()}


class Token(NamedTuple):
    """One token and its position in the text."""

    kind: str
    text: str
    start: int
    end: int


def tokens(expression: str) -> list[Token]:
    """The tokens of an expression, without spaces and comments. Each invalid character is a token."""
    found = []
    for match in _TOKEN.finditer(expression):
        kind = match.lastgroup or "other"
        if kind not in {"space", "comment"}:
            found.append(Token(kind, match.group(), match.start(), match.end()))
    return found


def chain_before(found: Sequence[Token], index: int) -> int | None:
    """The index of the first token of the operand that ends before `index`; None if there is none."""
    at = index - 1
    while at >= 0:
        token = found[at]
        if token.text in _CLOSING:
            opening = matching(found, at, -1)
            if opening is None:
                return None
            at = opening
            # A bracket belongs to what precedes it: a call, an index, or a chain.
            if at > 0 and (found[at - 1].kind in {"name", "string"} or found[at - 1].text in {")", "]"}):
                at -= 1
                continue
        elif token.kind not in {"name", "string", "number"}:
            return None
        if at > 1 and found[at - 1].text == "?" and found[at - 2].text == ".":
            at -= 3
        elif at > 0 and found[at - 1].text == ".":
            at -= 2
        else:
            return at
    return None


def chain_after(found: Sequence[Token], index: int) -> int | None:
    """The index after the last token of the operand that begins at `index`; None if there is none."""
    at = index
    if at < len(found) and found[at].text == "-":
        at += 1
    if at >= len(found) or (found[at].kind not in {"name", "string", "number"} and found[at].text not in {"(", "["}):
        return None
    at = at if found[at].text in _OPENING else at + 1
    while at < len(found):
        if found[at].text in {"(", "["}:
            closing = matching(found, at, 1)
            if closing is None:
                return None
            at = closing + 1
        elif found[at].text == "." and at + 1 < len(found):
            at += 3 if found[at + 1].text == "?" else 2
        else:
            return at
    return at


def depth_after(depth: int, token: Token) -> int:
    """Count the open brackets after a token; `depth` is the count before it."""
    if token.kind != "operator":
        return depth
    return depth + (token.text in _OPENING) - (token.text in _CLOSING)


def without_parentheses(piece: Sequence[Token]) -> Sequence[Token]:
    """The tokens without parentheses around the whole."""
    while piece[0].text == "(" and matching(piece, 0, 1) == len(piece) - 1:
        piece = piece[1:-1]
    return piece


def matching(found: Sequence[Token], at: int, step: int) -> int | None:
    """The index of the matching bracket, searching forward (step 1) or back (step -1); None if there is none."""
    depth = 0
    more, less = (_OPENING, _CLOSING) if step > 0 else (_CLOSING, _OPENING)
    while 0 <= at < len(found):
        if found[at].text in more and found[at].kind == "operator":
            depth += 1
        elif found[at].text in less and found[at].kind == "operator":
            depth -= 1
            if depth == 0:
                return at
        at += step
    return None


def quoted(token: Token) -> str | None:
    """The value of a string literal; None for any other token."""
    if token.kind != "string" or token.text[0] in "bB":
        return None
    try:
        return read_string(token.text)
    except LiteralError:
        return None


class TextChange(NamedTuple):
    """A part of an expression, and the text that replaces it."""

    start: int
    end: int
    text: str


def replaced(expression: str, start: int, end: int, text: str) -> str:
    """The expression with one part replaced."""
    return f"{expression[:start]}{text}{expression[end:]}"
