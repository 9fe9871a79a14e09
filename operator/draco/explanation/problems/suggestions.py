"""What somebody probably meant to write.

Owns the rewriting of a selector that names what nobody publishes, or that compares quantities and versions as if they were
numbers and texts. Whether a suggestion does any good must be tried by whoever makes it.
"""

from typing import Final

import msgspec

from draco.cel.paths import AttributePath
from draco.cel.syntax.ast import Call
from draco.explanation.problems.published import Published
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.selectors.accesses import path_text, paths_of, with_path
from draco.selectors.comparisons import Comparison, by_function, comparison, literal, quantity_meant, version_meant
from draco.selectors.demands import Demand, demands, with_demand

_FAR: Final = 2**20


def corrected(published: Published, expression: str) -> str | None:
    """The expression with the names that are published and with proper comparisons; None if there is nothing to correct."""
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


def unpublished(published: Published, expression: str) -> list[AttributePath]:
    """The attributes and capacities that an expression reads and nobody publishes."""
    return [path for path in paths_of(expression) if not published.has(path)]


def _compared_properly(published: Published, demand: Demand) -> str | None:
    """A comparison of a quantity or version by the function there is for it."""
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


def _in_gibibytes(published: Published, read: Comparison) -> Comparison:
    """A plain number that is far below all that is published: somebody who writes 40 of a memory means 40Gi."""
    smallest = published.smallest(read.path)
    if type(read.value) is not int or read.value <= 0 or smallest is None or smallest < Quantity.of(_FAR * read.value):
        return read
    return msgspec.structs.replace(read, values=(Quantity.parse(f"{read.value}Gi"),))


def _by_function(read: Comparison, function: str) -> str | None:
    """None where the comparison is right as it is, or the constant cannot be read as what it is compared with."""
    value = read.value
    if isinstance(value, bool):
        return None
    if not isinstance(value, Quantity | SemVer):
        meant = quantity_meant(str(value)) if function == "quantity" else version_meant(str(value))
        if meant is None:
            return None
        value = Quantity.parse(meant) if function == "quantity" else meant
    return by_function(path_text(read.path), read.operator, f"{function}({literal(str(value))})")
