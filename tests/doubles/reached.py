"""How many objects an object keeps alive, directly or indirectly: shows structures that are never emptied."""

import gc
from collections import Counter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_ELSEWHERE = (ModuleType, type, CodeType, FrameType, BuiltinFunctionType)
"""Types not followed: everything in a process can be reached from them."""


def reached_from(*roots: object, but: tuple[type, ...] = ()) -> Counter[str]:
    """Everything reachable from these, except for some types: the objects of each type, and the items of all containers."""
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
    """What has grown by more than `by`, and by how much."""
    more = after - before
    return {name: number for name, number in more.items() if number > by}


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
