"""Explains why selectors that evaluate without errors select no device.

Owns the search for the part of a selector that no device meets, or two parts that no device meets both, and the text about what
is published instead.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.explanation.model import ProblemKind, SelectorRef
from draco.explanation.problems.published import PublishedNames, closest, closest_value
from draco.explanation.problems.suggestions import corrected, rewritten, unpublished
from draco.explanation.selection import SelectorStep, count, drivers_of, failing, met
from draco.resources.names import NVIDIA_DRIVER
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.resources.texts import agreeing, are, listed, plain
from draco.selectors.accesses import path_text, paths_of
from draco.selectors.comparisons import Comparison, Plain, accepting, comparison, holds, literal, text_test
from draco.selectors.demands import Demand, demands
from draco.selectors.known_names import INSTEAD
from draco.selectors.tokens import TextChange, replaced

_SHOWN: Final = 4
_KINDS: Final[Mapping[type, str]] = {
    bool: "a bool",
    int: "an int",
    float: "a double",
    str: "a string",
    Quantity: "a quantity",
    SemVer: "a version",
}
_WORDS: Final = {"attributes": "attribute", "capacity": "capacity"}


class DeadEnd(msgspec.Struct, frozen=True):
    """One reason why nothing is selected."""

    kind: ProblemKind
    ref: SelectorRef
    text: str
    remedy: str = ""
    name: str = ""
    """The attribute or capacity that no device has."""
    change: TextChange | None = None
    """The part of the expression that the remedy replaces, and its new text; None if the remedy is anything else."""


class _Part(msgspec.Struct, frozen=True, eq=False):
    ref: SelectorRef
    demand: Demand
    met: bytes


def dead_ends(
    fleet: Fleet, published: PublishedNames, steps: Sequence[SelectorStep], among: bytes, *, who: str
) -> Iterator[DeadEnd]:
    """Why none of the marked devices passes the steps. `who` is the subject for these devices: "no device of …"."""
    parts = list(_parts(fleet, steps, among))
    contradiction = next(_contradictions(parts), None)
    if contradiction is not None:
        yield contradiction
        return
    dead = [part for part in parts if not count(part.met)]
    ends: dict[str, DeadEnd] = {}
    for part in dead:
        unknown = list(unknown_names(fleet, published, part.ref, part.demand.text, among))
        for each in unknown or [_dead(fleet, published, part, among, who)]:
            ends.setdefault(each.text, each)  # a guard and what it guards read the same name
    yield from _changed_together(list(ends.values()))
    if not dead:
        yield from _opposed(parts, who)


def _changed_together(ends: Sequence[DeadEnd]) -> Iterator[DeadEnd]:
    """The ends, with all changes of one selector in the first's remedy, because a selector with one of them is as dead."""
    changes: dict[SelectorRef, list[TextChange]] = {}
    for end in ends:
        if end.change is not None:
            changes.setdefault(end.ref, []).append(end.change)
    for end in ends:
        if end.change is None:
            yield end
            continue
        expression = end.ref.expression
        for change in sorted(changes.pop(end.ref, ()), reverse=True):
            expression = replaced(expression, *change)
        remedy = f"write {expression}" if expression != end.ref.expression else ""
        yield msgspec.structs.replace(end, remedy=remedy)


def _parts(fleet: Fleet, steps: Sequence[SelectorStep], among: bytes) -> Iterator[_Part]:
    for step in steps:
        for demand in demands(step.ref.expression):
            try:
                yield _Part(step.ref, demand, met(fleet, demand.text, among))
            except CompileError:  # the part alone may mean something else
                continue


def unknown_names(
    fleet: Fleet, published: PublishedNames, ref: SelectorRef, expression: str, among: bytes
) -> Iterator[DeadEnd]:
    """Names that the expression (all or part of the selector) reads and no device publishes."""
    drivers = drivers_of(fleet.inventory.columns, among)
    better = next((each for each in rewritten(published, ref.expression, drivers) if _works(fleet, each, among)), "")
    for path in unpublished(published, expression):
        meant = published.meant(path)
        word = _WORDS[path.kind]
        if path.domain in published.domains():
            kind = ProblemKind.UNKNOWN_ATTRIBUTE if path.kind == "attributes" else ProblemKind.UNKNOWN_CAPACITY
            text = f"no device publishes the {word} {path.domain}/{path.id}"
        else:
            kind = ProblemKind.UNKNOWN_DOMAIN
            text = f"no device publishes {path.domain}/{path.id}: nothing has the domain {path.domain}"
        remedy = f"write {better}" if better else ""
        if meant is not None and (not better or meant.kind != path.kind):
            text += f" ({_meant(path, meant)})"
        if meant is not None and not better and published.is_on(meant, among):
            remedy = f"ask for {path_text(meant)}"
        elif not better and path.domain == NVIDIA_DRIVER and (instead := INSTEAD.get(plain(path.id or ""))):
            remedy = instead.advice
        yield DeadEnd(kind, ref, text, remedy or _what_is_there(published, path), path.id or "")


def _what_is_there(published: PublishedNames, path: AttributePath) -> str:
    """The remedy for a name that no published one is like; "" if nothing is published."""
    others = published.names("attributes", path.domain or "")
    if others:
        return f"select by an attribute that is published: {listed(others, _SHOWN)}"
    if path.domain not in published.domains() and (domains := published.domains()):
        return f"start the driver that publishes it, or write one of the published domains: {listed(domains, _SHOWN)}"
    return ""


def _works(fleet: Fleet, expression: str, among: bytes) -> bool:
    """Whether an expression selects some of the marked devices and fails on none."""
    try:
        return count(met(fleet, expression, among)) > 0 and not count(failing(fleet, expression, among))
    except CompileError:
        return False


def _meant(path: AttributePath, meant: AttributePath) -> str:
    other_kind = meant.kind != path.kind
    what = f"{meant.domain}/{meant.id}"
    if (meant.domain, meant.id) == (path.domain, path.id):
        return f"it is {'a capacity' if meant.kind == 'capacity' else 'an attribute'}, not {_a(path)}"
    return f"did you mean {what}{f', {_a(meant)}' if other_kind else ''}?"


def _a(path: AttributePath) -> str:
    return "a capacity" if path.kind == "capacity" else "an attribute"


def _dead(fleet: Fleet, published: PublishedNames, part: _Part, among: bytes, who: str) -> DeadEnd:
    demand, ref = part.demand, part.ref
    compared = comparison(demand)
    if compared is not None:
        return _dead_comparison(fleet, published, part, compared, among=among, who=who)
    paths = paths_of(demand.text)
    reads = {path: published.values(path, among) for path in paths}
    # A heuristic for whether the result depends on the device at all.
    if not paths and "device" not in demand.text and len(fleet.inventory):
        return DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, ref, f"{demand.text} is false for every device")
    if len(paths) == 1 and not reads[paths[0]]:
        return _absent(ref, paths[0], who)
    shown = "; ".join(f"{path_text(path)} is {_listed(values)}" for path, values in reads.items() if values)
    text = f"{who} meets {demand.text}{f' ({shown})' if shown else ''}"
    tested = text_test(demand)
    near = closest_value(tested[1], reads.get(tested[0], ())) if tested is not None else None
    change = _demanding(demand, tested[0], near) if tested is not None and near is not None else None
    return DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, ref, text, change=change)


def _dead_comparison(
    fleet: Fleet, published: PublishedNames, part: _Part, compared: Comparison, *, among: bytes, who: str
) -> DeadEnd:
    ref = part.ref
    if compared.path.kind == "driver":
        return _unknown_driver(published, ref, compared, who)
    doubted = published.doubted(compared.path, among)
    row = next((row for value, row in doubted.items() if holds(compared.operator, value, compared.values)), None)
    if row is not None:
        return _doubtful(fleet, ref, compared.path, row)
    values = published.values(compared.path, among)
    if not values:
        return _absent(ref, compared.path, who)
    return _uncomparable(published, ref, compared, values, who) or _unmet(ref, part.demand, compared, values, who)


def _doubtful(fleet: Fleet, ref: SelectorRef, path: AttributePath, row: int) -> DeadEnd:
    """A device that has two values for a name, only one of which the selector wants."""
    text = (
        f"{fleet.inventory.key(row)} fits by its value of {path.id} and not by that of {path.domain}/{path.id}; up to Kubernetes "
        "1.37 kube-scheduler reads either at random, and Draco reads the latter"
    )
    return DeadEnd(ProblemKind.PUBLISHED_TWICE, ref, text, "have its driver publish one of the two")


def _absent(ref: SelectorRef, path: AttributePath, who: str) -> DeadEnd:
    kind = ProblemKind.UNKNOWN_ATTRIBUTE if path.kind == "attributes" else ProblemKind.UNKNOWN_CAPACITY
    return DeadEnd(kind, ref, f"{who} has {path_text(path)}")


def _unknown_driver(published: PublishedNames, ref: SelectorRef, compared: Comparison, who: str) -> DeadEnd:
    wanted = " or ".join(str(value) for value in compared.values)
    drivers = published.drivers
    near = closest(str(compared.value), drivers)
    if set(map(str, compared.values)) & set(drivers):
        return DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, ref, f"{who} is of the driver {wanted}")
    there = f"the {agreeing(len(drivers), 'driver', 'drivers')} {are(len(drivers))} {', '.join(drivers[:_SHOWN])}"
    text = f"no device has the driver {wanted}; {there}"
    change = TextChange(compared.start, compared.end, literal(near)) if near and compared.start >= 0 else None
    return DeadEnd(ProblemKind.UNKNOWN_DRIVER, ref, text, change=change)


def _uncomparable(
    published: PublishedNames, ref: SelectorRef, compared: Comparison, values: Collection[Plain], who: str
) -> DeadEnd | None:
    """A comparison with another type, such as a version with a string, which is never true; None if types match."""
    if any(holds(compared.operator, each, [value]) is not None for each in values for value in compared.values):
        return None
    if compared.operator == "in" and any(type(each) is type(value) for each in values for value in compared.values):
        return None
    better = corrected(published, ref.expression)
    text = (
        f"{path_text(compared.path)} is {_KINDS[type(next(iter(values)))]} ({_listed(values)}) and is compared with "
        f"{_KINDS[type(compared.value)]}, {_shown(compared.value)}, so {who} meets it"
    )
    return DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, ref, text, f"write {better}" if better else "")


def _demanding(demand: Demand, path: AttributePath, value: Plain) -> TextChange:
    """Replace a demand by a comparison with a value."""
    return TextChange(demand.start, demand.end, f"{path_text(path)} == {literal(value)}")


def _unmet(ref: SelectorRef, demand: Demand, compared: Comparison, values: Collection[Plain], who: str) -> DeadEnd:
    path, alike = path_text(compared.path), [each for each in values if type(each) is type(compared.value)]
    sign = "==" if compared.operator == "in" else compared.operator
    wanted = " or ".join(f"{path} {sign} {_shown(value)}" for value in compared.values)
    match compared.operator:
        case ">=" | ">":
            best = max(alike, default=None)
            there = f"the largest is {_shown(best)}"
        case "<=" | "<":
            best = min(alike, default=None)
            there = f"the smallest is {_shown(best)}"
        case "!=":
            best, there = None, "they all have that"
        case _:
            near = [closest_value(value, alike) for value in compared.values]
            best = next((each for each in near if each is not None), None)
            few = len(values) <= _SHOWN or best is None
            there = f"there is {_listed(values)}" if few else f"the closest is {_shown(best)}"
    text = f"{who} has {wanted}; {there}"
    change = None
    if best is not None and compared.start >= 0 and compared.operator != "!=":
        change = accepting(demand, compared, best)
    elif best is not None and compared.operator == "in" and not isinstance(best, Quantity | SemVer):
        change = _demanding(demand, compared.path, best)
    return DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, ref, text, change=change)


def _contradictions(parts: Sequence[_Part]) -> Iterator[DeadEnd]:
    """Pairs of parts that exclude each other, whatever is published."""
    for (one, left), (other, right) in combinations([(part, comparison(part.demand)) for part in parts], 2):
        if left is not None and right is not None and left.path == right.path and _excludes(left, right):
            text = f"{one.demand.text} and {other.demand.text} can never both be true"
            yield DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, other.ref, text)


def _excludes(one: Comparison, other: Comparison) -> bool:
    """Whether no value meets both comparisons."""
    for equal, compared in ((one, other), (other, one)):
        if equal.operator in {"==", "in"}:
            return all(holds(compared.operator, value, compared.values) is False for value in equal.values)
    for low, high in ((one, other), (other, one)):
        if low.operator in {">", ">="} and high.operator in {"<", "<="}:
            # A value above one and below the other lies between them; if the bounds are equal, both must include it.
            return not (
                holds("<", low.value, high.values) is not False
                or (low.operator == ">=" and high.operator == "<=" and holds("==", low.value, high.values) is not False)
            )
    return False


def _opposed(parts: Sequence[_Part], who: str) -> Iterator[DeadEnd]:
    """Pairs of parts that no device meets both."""
    for one, other in combinations(parts, 2):
        if int.from_bytes(one.met, "little") & int.from_bytes(other.met, "little"):
            continue
        text = (
            f"{who} meets both {one.demand.text} (met by {count(one.met)}) and {other.demand.text} (met by "
            f"{count(other.met)})"
        )
        yield DeadEnd(ProblemKind.SELECTOR_NEVER_TRUE, other.ref, text)
        return


def _shown(value: Plain | None) -> str:
    """A value as text."""
    if value is None:
        return "nothing"
    return str(value) if isinstance(value, Quantity | SemVer) else literal(value)


def _listed(values: Collection[Plain]) -> str:
    return listed(sorted(map(_shown, values)), _SHOWN, rest="other values")
