"""How deep and how large: the figures that the parser's limits are about.

Owns counting, of tokens (as Kubernetes' parser nests for them) and of nodes. The limits themselves are the parser's.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from lark import Token

from draco.cel.ast import Expr, children

_OPENING: Final = frozenset({"(", "[", "{"})
_CLOSING: Final = frozenset({")", "]", "}"})
_BEFORE_OPTIONAL: Final = frozenset({".", ",", "[", "{"})
"""Behind these a question mark marks something optional; elsewhere it is the conditional operator."""
_ENDS: Final = frozenset({"IDENT", "ESC_IDENT", "STRING_LIT", "BYTES_LIT", "INT_LIT", "UINT_LIT", "FLOAT_LIT"})
"""What a bracket behind is an index of, beside brackets that have closed."""
_RELATIONS: Final = frozenset({"<", "<=", ">", ">=", "==", "!=", "in"})


class _Open(msgspec.Struct):
    """What the parser of Kubernetes has open inside one pair of brackets, of each kind of rule that can nest."""

    expr: int = 1
    relation: int = 1
    addition: int = 1
    multiplication: int = 0
    member: int = 1

    @property
    def deepest(self) -> int:
        return max(self.expr, self.relation, self.addition + self.multiplication, self.member)


def nesting(tokens: Iterable[Token]) -> int:  # noqa: PLR0912 - one per kind of token
    """The most rules of one kind that Kubernetes' parser would have open at once, for text that is known to parse.

    A chain such as `1+1+1` or `a.b.c` keeps one open per operator; `&&` and `||` do not.
    """
    stack, most = [_Open(1, 0, 0, 0, 0)], 1
    questions = [0]
    indexes: list[bool] = []
    previous: Token | None = None
    for token in tokens:
        before, previous, sign = previous, token, str(token)
        inner = stack[-1]
        base = stack[-2] if len(stack) > 1 else _Open(0, 0, 0, 0, 0)
        if token.type in {"STRING_LIT", "BYTES_LIT"}:
            continue
        if sign in _OPENING:
            stack.append(
                _Open(
                    inner.expr + 1, inner.relation + 1, inner.addition + inner.multiplication + 1, 0, inner.member + 1
                )
            )
            questions.append(0)
            if sign == "[":
                indexes.append(before is not None and (before.type in _ENDS or str(before) in _CLOSING))
            continue  # nothing is open in there before the next token
        if sign in _CLOSING:
            stack.pop()
            questions.pop()
            stack[-1].member += sign == "]" and indexes.pop()
        elif sign == ",":
            stack[-1] = _begun(base, base.expr + 1)
        elif sign == "?" and (before is None or str(before) not in _BEFORE_OPTIONAL):
            questions[-1] += 1
            stack[-1] = _begun(base, inner.expr)
        elif sign == ":":
            stack[-1] = _begun(base, inner.expr + (questions[-1] > 0))
            questions[-1] -= questions[-1] > 0
        elif sign in {"&&", "||"}:
            stack[-1] = _begun(base, inner.expr)
        elif sign in _RELATIONS:
            stack[-1] = _begun(base, inner.expr)
            stack[-1].relation = inner.relation + 1
        elif sign in {"+", "-"}:
            inner.addition, inner.multiplication, inner.member = inner.addition + 1, 0, base.member + 1
        elif sign in {"*", "/", "%"}:
            inner.multiplication, inner.member = inner.multiplication + 1, base.member + 1
        elif sign == ".":
            inner.member += 1
        most = max(most, stack[-1].deepest)
    return most


def _begun(base: _Open, expr: int) -> _Open:
    return _Open(expr, base.relation + 1, base.addition + base.multiplication + 1, 0, base.member + 1)


def size(root: Expr, *, most: int) -> int:
    """How many nodes a tree has, a node that stands in two places counted twice; counting stops above `most`."""
    waiting, count = [root], 0
    while waiting and count <= most:
        waiting.extend(children(waiting.pop()))
        count += 1
    return count


def depth(root: Expr) -> int:
    """How many levels a tree has."""
    level, count = [root], 0
    while level:
        level = [below for node in level for below in children(node)]
        count += 1
    return count
