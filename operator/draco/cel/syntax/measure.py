"""Counts the nesting of tokens, as Kubernetes' parser does, and the nodes of a tree. The parser owns the limits."""

from collections.abc import Iterable
from typing import Final

import msgspec
from lark import Token

from draco.cel.syntax.ast import Call, Comprehension, Expr, Select, children

_OPENING: Final = frozenset({"(", "[", "{"})
_CLOSING: Final = frozenset({")", "]", "}"})
_BEFORE_OPTIONAL: Final = frozenset({".", ",", "[", "{"})
"""After these a question mark means optional; elsewhere it is the conditional operator."""
_VISITED: Final = frozenset(
    {
        "_?_:_", "_+_", "_-_", "_*_", "_/_", "_%_", "_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_", "@in",
        "_[_]", "_[?_]", "_?._",
    }
)  # fmt: skip
"""Operators whose nesting Kubernetes' tree visitor counts. Not `&&` and `||`, which it balances first, nor unary operators.
Source: cel-go's parser, whose methods for these rules check the depth.
"""
_ENDS: Final = frozenset(
    {
        "IDENT",
        "ESC_IDENT",
        "STRING_LIT",
        "BYTES_LIT",
        "INT_LIT",
        "UINT_LIT",
        "FLOAT_LIT",
        "TRUE_LIT",
        "FALSE_LIT",
        "NULL_LIT",
    }
)
"""After these, or after a closing bracket, a sign is a binary operator."""
_RELATIONS: Final = frozenset({"<", "<=", ">", ">=", "==", "!=", "in"})


class _Open(msgspec.Struct):
    """Kubernetes' open rules inside one pair of brackets, by kind. A sum or product opens one more for its right operand."""

    expr: int
    relation: int
    addition: int
    multiplication: int = 0

    @property
    def deepest(self) -> int:
        return max(self.expr, self.relation, self.addition + self.multiplication)


def nesting(tokens: Iterable[Token]) -> int:
    """Count the most rules of one kind that Kubernetes' parser has open at the same time, for a text that parses up to here.

    A chain such as `1+1+1`, `a.b.c` or `a && b && c` opens no more than its first operator does.
    """
    stack, most = [_Open(1, 1, 1)], 1
    questions = [0]
    previous: Token | None = None
    for token in tokens:
        before, previous, sign = previous, token, str(token)
        inner = stack[-1]
        base = stack[-2] if len(stack) > 1 else _Open(0, 0, 0)
        outside = base.addition + base.multiplication
        if token.type in {"STRING_LIT", "BYTES_LIT"}:
            continue
        if sign in _OPENING:
            stack.append(_Open(inner.expr + 1, inner.relation + 1, inner.addition + inner.multiplication + 1))
            questions.append(0)
            continue  # nothing is open inside before the next token
        if sign in _CLOSING:
            stack.pop()
            questions.pop()
        elif sign == ",":
            stack[-1] = _Open(base.expr + 1, base.relation + 1, outside + 1)
        elif sign == "?" and (before is None or str(before) not in _BEFORE_OPTIONAL):
            questions[-1] += 1
            stack[-1] = _Open(inner.expr, base.relation + 1, outside + 1)
        elif sign == ":":
            stack[-1] = _Open(inner.expr + (questions[-1] > 0), base.relation + 1, outside + 1)
            questions[-1] -= questions[-1] > 0
        elif sign in {"&&", "||"}:
            stack[-1] = _Open(inner.expr, base.relation + 1, outside + 1)
        elif sign in _RELATIONS:
            stack[-1] = _Open(inner.expr, base.relation + 2, outside + 1)
        elif sign in {"+", "-"} and before is not None and (before.type in _ENDS or str(before) in _CLOSING):
            stack[-1] = _Open(inner.expr, inner.relation, outside + 2)
        elif sign in {"*", "/", "%"}:
            inner.multiplication = 1
        most = max(most, stack[-1].deepest)
    return max(most, stack[-1].deepest)


def visits(root: Expr) -> int:
    """Count the nesting of operators, selections and method calls, as Kubernetes does on the tree."""
    level, most = [(root, 0)], 0
    while level:
        node, count = level.pop()
        count += _is_visit(node)
        most = max(most, count)
        level += [(part, count) for part in children(node)]
    return most


def _is_visit(node: Expr) -> bool:
    if isinstance(node, Select | Comprehension):
        return True
    return isinstance(node, Call) and (node.target is not None or node.function in _VISITED)


def size(root: Expr, *, most: int) -> int:
    """Count the nodes of a tree; shared nodes count each time. Stops above `most`."""
    waiting, count = [root], 0
    while waiting and count <= most:
        waiting.extend(children(waiting.pop()))
        count += 1
    return count


def depth(root: Expr) -> int:
    """Count the levels of a tree."""
    level, count = [root], 0
    while level:
        level = [below for node in level for below in children(node)]
        count += 1
    return count
