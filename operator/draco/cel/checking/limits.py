"""Which expressions cannot come near the cost limit.

Owns the decision to evaluate without counting. It is made from the text alone and errs on the side of counting: what is not
counted is short, repeats its parts in one loop at most, and builds nothing that outgrows the text.
"""

from typing import Final

from draco.cel.syntax.ast import Ast, Call, Comprehension, Expr, children

_LONGEST: Final = 1000
"""Characters. One loop over a part of them with the rest as its body costs Kubernetes less than half of the limit."""
_COSTLY: Final = frozenset(
    {
        "join",
        "replace",
        "format",
        "@sortByAssociatedKeys",
        "sort",
        "distinct",
        "range",
        "flatten",
        "equivalent",
        "intersects",
    }
)
_PLAIN_LOOPS: Final = frozenset({"all", "exists", "existsOne", "map", "filter", "transformList"})


def is_surely_cheap(ast: Ast) -> bool:
    """Whether no device can make the evaluation reach the cost limit.

    Devices are as the API allows them: texts up to 64 characters, lists up to 48 elements, 32 attributes and capacities.
    """
    if len(ast.expression) > _LONGEST:
        return False
    repeats = has_sums = False
    waiting: list[tuple[Expr, bool]] = [(ast.root, False)]
    while waiting:
        node, is_repeated = waiting.pop()
        if isinstance(node, Comprehension):
            repeats = True
            if node.macro == "bind":
                waiting += [(node.init, is_repeated), (node.body, is_repeated)]
                continue
            if is_repeated or node.macro not in _PLAIN_LOOPS:
                return False
            waiting += [(node.range, False), (node.body, True)]
            if node.filter is not None:
                waiting.append((node.filter, True))
            continue
        if isinstance(node, Call):
            if node.function in _COSTLY or (node.function == "contains" and len(node.arguments) == 2):
                return False
            has_sums = has_sums or node.function == "_+_"
        waiting += [(child, is_repeated) for child in children(node)]
    return not (repeats and has_sums)  # a sum of what a macro gives again and again can double each time
