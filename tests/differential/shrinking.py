"""Makes a failing JSON case small: leaves out one part after another, as long as the case still fails.

Owns the search only. The caller decides what fails.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]


def shrunk(case: Any, fails: Callable[[Any], bool], *, within_s: float = 20.0) -> Any:
    """The smallest failing case found in time: leaving out any list element or object key makes it pass."""
    end = time.monotonic() + within_s
    smaller = True
    while smaller:
        smaller = False
        for path, first, last in list(_parts(case, ())):
            if time.monotonic() > end:
                return case
            candidate = _without(case, path, first, last)
            if candidate is not None and fails(candidate):
                case, smaller = candidate, True
    return case


def _parts(value: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """What can be left out: runs of list elements, longest first, and keys; outer parts first."""
    if isinstance(value, list):
        length = len(value)
        while length:
            for start in reversed(range(0, len(value), length)):
                yield path, start, start + length
            length //= 2
    elif isinstance(value, dict):
        for key in value:
            yield path, key, None
    children = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, child in reversed(list(children)):
        yield from _parts(child, (*path, key))


def _without(case: Any, path: Path, first: Any, last: Any) -> Any:
    """A copy without one part; None if an earlier step has already removed it."""
    if path:
        if not _has(case, path[0]):
            return None
        inner = _without(case[path[0]], path[1:], first, last)
        return None if inner is None else _with(case, path[0], inner)
    if not _has(case, first):
        return None
    if isinstance(case, list):
        return case[:first] + case[last:]
    return {key: value for key, value in case.items() if key != first}


def _has(case: Any, key: Any) -> bool:
    if isinstance(case, list):
        return isinstance(key, int) and key < len(case)
    return isinstance(case, dict) and key in case


def _with(case: Any, key: Any, value: Any) -> Any:
    changed = case.copy()
    changed[key] = value
    return changed
