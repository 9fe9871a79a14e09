"""Suggests what the author of a claim probably meant to write.

Owns rewriting selectors that name unpublished attributes, compare quantities and versions as numbers and strings, or fail on some
devices. Callers must try a suggestion, except for a guarded form, which is tried here: it fails on no device and selects
everything that the selector selects now.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.cel.syntax.ast import Call
from draco.explanation.problems.published import PublishedNames
from draco.explanation.selection import SelectorStep, count, drivers_of, errors_on, failing, first_rows, met
from draco.resources.quantity import Quantity, quantity_meant
from draco.resources.semver import SemVer
from draco.selectors import corrections
from draco.selectors.accesses import path_text, paths_of, with_path
from draco.selectors.comparisons import Comparison, by_function, comparison, literal, version_meant
from draco.selectors.demands import Demand, demands, guarded, with_demand

_FAR: Final = 2**20


def corrected(published: PublishedNames, expression: str) -> str | None:
    """The expression with published names and proper comparisons; None if nothing needs correction."""
    changed = expression
    for path in unpublished(published, expression):
        meant = published.meant(path)
        if meant is not None:
            changed = with_path(changed, path, meant) or changed
    for demand in reversed(demands(changed)):
        better = _compared_properly(published, demand)
        if better is not None:
            changed = with_demand(changed, demand, better)
    return changed if changed != expression else None


def rewritten(published: PublishedNames, expression: str, drivers: Sequence[str]) -> Iterator[str]:
    """Forms that the author may have meant, the likeliest first: by what is published, then by what `draco lint` knows.

    Then the same, guarded against devices that lack what they read.
    """
    meant = corrections.corrected(expression, drivers[0] if len(drivers) == 1 else None)[1]
    tried = (corrected(published, expression), corrected(published, meant), meant)
    forms = [each for each in dict.fromkeys(tried) if each and each != expression]
    yield from forms
    for form in forms:
        if known := [path for path in paths_of(form) if published.has(path)]:
            yield guarded(form, " && ".join(map(_presence, known)))


def unpublished(published: PublishedNames, expression: str) -> list[AttributePath]:
    """The attributes and capacities that an expression reads and no device publishes."""
    return [path for path in paths_of(expression) if not published.has(path)]


def _compared_properly(published: PublishedNames, demand: Demand) -> str | None:
    """A comparison of a quantity or version, rewritten to use its function; None if it needs no change."""
    read = comparison(demand)
    root = demand.root
    if read is None or not isinstance(root, Call) or root.function in {"isGreaterThan", "isLessThan", "@in", "!_"}:
        return None
    if any(isinstance(each, Call) and each.function == "compareTo" for each in root.arguments):
        return None
    if isinstance(read.value, Quantity | SemVer) and read.operator in {"==", "!="}:
        return None
    if read.path.kind == "capacity":
        return _by_function(_in_gibibytes(published, read), "quantity")
    if read.path.kind == "attributes" and published.is_version(read.path):
        return _by_function(read, "semver")
    return None


def _in_gibibytes(published: PublishedNames, read: Comparison) -> Comparison:
    """The comparison in Gi if its plain number is far below all published values: 40 of memory means 40Gi."""
    smallest = published.smallest(read.path)
    if type(read.value) is not int or read.value <= 0 or smallest is None or smallest < Quantity.of(_FAR * read.value):
        return read
    return msgspec.structs.replace(read, values=(Quantity.parse(f"{read.value}Gi"),))


def _by_function(read: Comparison, function: str) -> str | None:
    """The comparison by function; None if it is right already, or its constant has no such meaning."""
    value = read.value
    if isinstance(value, bool):
        return None
    if not isinstance(value, Quantity | SemVer):
        meant = quantity_meant(str(value)) if function == "quantity" else version_meant(str(value))
        if meant is None:
            return None
        value = Quantity.parse(meant) if function == "quantity" else meant
    return by_function(path_text(read.path), read.operator, f"{function}({literal(str(value))})")


_MISSING: Final = re.compile(r"no such key: (.*)")
_LOOKED_AT: Final = 200
"""Devices whose errors are read; the most frequent error is reported."""


def main_error(fleet: Fleet, step: SelectorStep) -> str:
    """The most frequent error of the selector; "" if it fails on no device."""
    errors = Counter(errors_on(fleet, step.ref.expression, first_rows(step.failed, _LOOKED_AT)))
    return min(errors, key=lambda each: (-errors[each], each), default="")


def _missing_name(fleet: Fleet, step: SelectorStep) -> str:
    """The name that devices lack, if that is the most frequent error of the selector; else ""."""
    missing = _MISSING.search(main_error(fleet, step)) if step.error is None else None
    return missing[1].strip() if missing is not None else ""


def guard(fleet: Fleet, published: PublishedNames, step: SelectorStep) -> str:
    """A guarded form of the expression that works, and reads only what one of the devices has; "" if none was found."""
    for candidate in _guards(fleet, published, step):
        try:
            is_read = all(published.is_on(path, step.before) for path in paths_of(candidate))
            if not is_read or count(failing(fleet, candidate, step.before)):
                continue
            if step.error is not None or count(met(fleet, candidate, step.after)) == count(step.after):
                return candidate
        except CompileError:
            continue
    return ""


def _guards(fleet: Fleet, published: PublishedNames, step: SelectorStep) -> Iterator[str]:
    expression = step.ref.expression
    missing = _missing_name(fleet, step)
    paths = paths_of(expression)
    if missing:
        at = [path for path in paths if path.id == missing]
        drivers = drivers_of(fleet.inventory.columns, step.failed)
        for path in filter(published.has, at):
            if path.domain not in drivers and path.domain in published.drivers:
                yield guarded(expression, f'device.driver == "{path.domain}"')
            yield guarded(expression, _presence(path))
        known = [path for path in paths if published.has(path)]
        if at and len(known) > 1 and all(map(published.has, at)):
            yield guarded(expression, " && ".join(map(_presence, known)))
    yield from rewritten(published, expression, drivers_of(fleet.inventory.columns, step.before))


def _presence(path: AttributePath) -> str:
    if path.id is not None and path.id.isidentifier() and path.kind != "capacity":
        return f"has({path_text(path)})"
    return f'"{path.id}" in device.{path.kind}["{path.domain}"]'
