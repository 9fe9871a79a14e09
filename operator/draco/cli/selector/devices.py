"""One selector on many devices: its answer for each, with equal outcomes counted together. Reads no file and no cluster."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.cel import AttributePath, DeviceVariable, EvaluationError, Selector, device_view
from draco.cli.selector.cases import described
from draco.explanation.model import SelectorRef
from draco.explanation.problems.dead_ends import dead_ends, unknown_names
from draco.explanation.problems.published import PublishedNames
from draco.explanation.problems.suggestions import guard
from draco.explanation.selection import count, step_of
from draco.explanation.wording import capital
from draco.resources.api.slices import Device, ResourceSlice, current_slices
from draco.resources.names import DeviceKey
from draco.resources.texts import agreeing, are, counted, listed, sentence
from draco.selectors.known_names import published_twice, twice_text

ABSENT: Final = "absent"
_NAMED: Final = 4
"""Devices of a group that are named; the rest are counted."""


class SelectorOutcome(msgspec.Struct, frozen=True):
    """The selector's answer for one device, and what it read there. Exactly one of `match` and `error` is set."""

    device: DeviceKey
    read: dict[str, str]
    match: bool | None = None
    error: str | None = None
    twice: Sequence[str] = ()
    """Names it read that the device publishes with two values."""

    @property
    def answer(self) -> str:
        """The answer as text: true, false or error."""
        return "error" if self.match is None else str(self.match).lower()


class DeviceGroup(msgspec.Struct, frozen=True):
    """Devices of one driver with equal values of everything the selector reads, and so with the same answer."""

    first: SelectorOutcome
    devices: list[DeviceKey]


def outcomes(selector: Selector, slices: Iterable[ResourceSlice]) -> Iterator[SelectorOutcome]:
    """The answer for each device of every pool's newest generation, in published order."""
    paths = sorted(selector.paths)
    for parts in current_slices(slices).values():
        for part in sorted(parts, key=lambda item: item.metadata.name):
            driver, pool = part.pool
            for device in part.spec.devices:
                yield _outcome(selector, paths, DeviceKey(driver, pool, device.name), device)


def _outcome(selector: Selector, paths: Sequence[AttributePath], key: DeviceKey, device: Device) -> SelectorOutcome:
    try:
        view = device_view(key.driver, device)
    except EvaluationError as error:
        return SelectorOutcome(device=key, read={}, error=str(error))
    read = {described(path): _value(path, view) for path in paths}
    names = {path.id for path in paths if path.domain == key.driver}
    twice = [name for name in published_twice(key.driver, device) if name in names]
    try:
        return SelectorOutcome(device=key, read=read, match=selector.matches(view), twice=twice)
    except EvaluationError as error:
        return SelectorOutcome(device=key, read=read, error=str(error), twice=twice)


def doubts(found: Iterable[SelectorOutcome]) -> list[str]:
    """What makes answers uncertain, one sentence per name."""
    devices: dict[tuple[str, str], list[DeviceKey]] = defaultdict(list)
    for each in found:
        for name in each.twice:
            devices[each.device.driver, name].append(each.device)
    return [
        sentence(twice_text(f"{listed(keys)} {are(len(keys))}", driver, name))
        for (driver, name), keys in devices.items()
    ]


def advice(expression: str, slices: Iterable[ResourceSlice]) -> Iterator[str]:
    """What is wrong with an expression that fails on devices, or matches none, and what to write: as `draco explain` says it."""
    fleet = Fleet.of(slices=slices)
    columns = fleet.inventory.columns
    published, every = PublishedNames(columns), bytes(columns.live)
    ref = SelectorRef(source="", index=0, expression=expression)
    step = step_of(fleet, ref, every)
    if not count(step.failed):
        ends = list(dead_ends(fleet, published, [step], every, who="no device"))
    else:
        ends = list(unknown_names(fleet, published, ref, expression, every))
        if not ends and (better := guard(fleet, published, step)):
            yield f"Write {better}."
    yield from (" ".join(sentence(capital(each)) for each in (end.text, end.remedy) if each) for end in ends)


def _value(path: AttributePath, view: DeviceVariable) -> str:
    match path:
        case AttributePath("driver"):
            return view.driver
        case AttributePath("allowMultipleAllocations"):
            return _text(view.allow_multiple_allocations)
    domains = view.attributes if path.kind == "attributes" else view.capacity
    if path.domain is None or path.domain not in domains:
        return ABSENT
    within = domains[path.domain]
    if path.id is None:
        return "present"
    return _text(within[path.id]) if path.id in within else ABSENT


def _text(value: object) -> str:
    """The value as a slice spells it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def folded(found: Iterable[SelectorOutcome]) -> list[DeviceGroup]:
    """Outcomes grouped if equal: matches first, then errors, then the rest; large groups first."""
    groups: dict[tuple[str, str | None, bool | None, tuple[str, ...]], DeviceGroup] = {}
    for outcome in found:
        key = (outcome.device.driver, outcome.error, outcome.match, tuple(outcome.read.values()))
        group = groups.setdefault(key, DeviceGroup(outcome, []))
        group.devices.append(outcome.device)
    order = {"true": 0, "error": 1, "false": 2}
    return sorted(groups.values(), key=lambda group: (order[group.first.answer], -len(group.devices)))


def summary(groups: Sequence[DeviceGroup]) -> str:
    """How many devices match, in one sentence."""
    counts = dict.fromkeys(("true", "false", "error"), 0)
    for group in groups:
        counts[group.first.answer] += len(group.devices)
    total = sum(counts.values())
    if not total:
        return "There is no device to try the selector on."
    matching = f"{counts['true']} of {total} {agreeing(total, 'device matches', 'devices match')}"
    if not counts["error"]:
        return f"{matching}."
    fails = f"{counts['error']} {agreeing(counts['error'], 'makes', 'make')} it fail"
    return f"{matching}, and {fails}: scheduling a pod fails if the scheduler tries such a device for it."


def group_lines(groups: Sequence[DeviceGroup]) -> Iterator[str]:
    """A paragraph per group: answer, devices, values read, and the error if any."""
    for group in groups:
        first = group.first
        yield f"{first.answer:<6}{counted(len(group.devices), 'device')}: {listed(group.devices, _NAMED)}"
        yield from (f"      {name} = {value}" for name, value in first.read.items())
        if first.error:
            yield f"      {first.error}"


def record(outcome: SelectorOutcome) -> dict[str, object]:
    """One outcome for JSON output."""
    said = {"match": outcome.match} if outcome.error is None else {"error": outcome.error}
    return {**outcome.device._asdict(), **said, "read": outcome.read}


def wide_lines(found: Iterable[SelectorOutcome]) -> Iterator[str]:
    """A line per device."""
    for outcome in found:
        read = ", ".join(f"{name} = {value}" for name, value in outcome.read.items())
        yield "  ".join(part for part in (f"{outcome.answer:<5}", str(outcome.device), outcome.error, read) if part)
