"""A selector so rewritten that it works on every device.

Owns the forms that are tried: the driver asked first, the attribute asked for first, names and comparisons put right. A form is
good if it fails on no device and selects all that the selector selects now.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.explanation.problems.published import Published
from draco.explanation.problems.suggestions import corrected
from draco.explanation.selection import Step, count, drivers_of, errors_on, failing, first_rows, met
from draco.selectors.accesses import path_text, paths_of
from draco.selectors.demands import guarded

_MISSING: Final = re.compile(r"no such key: (.*)")
_LOOKED_AT: Final = 200
"""Devices of which the error is read; the most frequent one is told."""


def main_error(fleet: Fleet, step: Step) -> str:
    """What the selector says of most of the devices on which it fails; "" if it fails on none."""
    errors = Counter(errors_on(fleet, step.ref.expression, first_rows(step.failed, _LOOKED_AT)))
    return min(errors, key=lambda each: (-errors[each], each), default="")


def guard(fleet: Fleet, published: Published, step: Step) -> str:
    """The expression that works; "" if none was found."""
    for candidate in _guards(fleet, published, step):
        try:
            if count(failing(fleet, candidate, step.before)):
                continue
            if step.error is not None or count(met(fleet, candidate, step.after)) == count(step.after):
                return candidate
        except CompileError:
            continue
    return ""


def _guards(fleet: Fleet, published: Published, step: Step) -> Iterator[str]:
    expression = step.ref.expression
    missing = _MISSING.search(main_error(fleet, step)) if step.error is None else None
    paths = paths_of(expression)
    if missing is not None:
        at = [path for path in paths if path.id == missing[1].strip()]
        drivers = drivers_of(fleet.inventory.columns, step.failed)
        for path in filter(published.has, at):
            if path.domain not in drivers and path.domain in published.drivers:
                yield guarded(expression, f'device.driver == "{path.domain}"')
            yield guarded(expression, _presence(path))
        known = [path for path in paths if published.has(path)]
        if at and len(known) > 1 and all(map(published.has, at)):
            yield guarded(expression, " && ".join(map(_presence, known)))
    better = corrected(published, expression)
    if better is not None:
        yield better


def _presence(path: AttributePath) -> str:
    if path.id is not None and path.id.isidentifier():
        return f"has({path_text(path)})"
    return f'"{path.id}" in device.{path.kind}["{path.domain}"]'
