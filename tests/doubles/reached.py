"""How much an object holds on to, directly and through others: what a structure that is never emptied shows in."""

import gc
from collections import Counter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_ELSEWHERE = (ModuleType, type, CodeType, FrameType, BuiltinFunctionType)
"""What everything in a process can be reached from."""


def reached_from(*roots: object, but: tuple[type, ...] = ()) -> Counter[str]:
    """Of everything that can be reached from these, but for some types: the objects of each type, and containers' items."""
    found: Counter[str] = Counter()
    seen = {id(roots)}
    waiting: list[Any] = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (*_ELSEWHERE, *but)):
            continue
        seen.add(id(each))
        found[type(each).__qualname__] += 1
        if isinstance(each, dict | list | set | frozenset | tuple):
            found["items"] += len(each)
        if isinstance(each, FunctionType):
            waiting += [cell.cell_contents for cell in each.__closure__ or () if _is_full(cell)]
        else:
            waiting += gc.get_referents(each)
    return found


def grown(before: Counter[str], after: Counter[str], *, by: int) -> dict[str, int]:
    """Of what there is more now, and by how much, where that is more than `by`."""
    more = after - before
    return {name: number for name, number in more.items() if number > by}


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
