"""Whether it is certain who allocates the claims of a DeviceClass: Draco or kube-scheduler.

A class with the label draco.dev/allocator=operator must select only devices that Draco allocates, otherwise both may allocate its
claims. A class without it must not select only these, otherwise nobody does. Its selectors are evaluated on each device as
published when Draco allocates it, and when it does not; devices that they cannot tell apart are evaluated once.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from draco.allocation.ownership.claims import ONLY_OPERATOR_ALLOCATED, is_operators
from draco.cel import CompileError, EvaluationError, Selector, compile_selector, device_view
from draco.cel.values.bounds import MAX_COST
from draco.cel.values.device import split_name
from draco.resources.api.claims import DeviceClass
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.names import ALLOCATED_BY_OPERATOR, ATTRIBUTE_ALLOCATOR, LABEL_ALLOCATOR

_ATTRIBUTE = {ATTRIBUTE_ALLOCATOR: DeviceAttribute(string=ALLOCATED_BY_OPERATOR)}


class OfDriver(NamedTuple):
    """A device and its driver."""

    driver: str
    device: Device


class ClassFault(Enum):
    """What is wrong with a class, and how to fix it."""

    BOTH = "both"
    NEITHER = "neither"

    @property
    def cause(self) -> str:
        """What is wrong, as the rest of a sentence about the class."""
        return _SAID[self][0]

    @property
    def fix(self) -> str:
        """How to fix it."""
        return _SAID[self][1]


_LABEL = f"{LABEL_ALLOCATOR}={ALLOCATED_BY_OPERATOR}"
_SAID = {
    ClassFault.BOTH: (
        f"both Draco and kube-scheduler may allocate its claims: it has the label {_LABEL} and selects others' devices, too",
        f"add the selector {ONLY_OPERATOR_ALLOCATED}",
    ),
    ClassFault.NEITHER: (
        f"nobody allocates its claims: it selects only devices that Draco allocates, and lacks the label {_LABEL}",
        f"give it the label {_LABEL}",
    ),
}


def class_fault(device_class: DeviceClass, devices: Iterable[OfDriver]) -> ClassFault | None:
    """What is wrong with the class for these devices; None if nothing is, or the API server would refuse one of its selectors."""
    try:
        selectors = [compile_selector(each.cel.expression if each.cel else "") for each in device_class.spec.selectors]
    except CompileError:
        return None
    if any((cost := each.estimated_cost) is None or cost > MAX_COST for each in selectors):
        return None
    by_draco = False
    for each in _distinct(selectors, devices):
        dracos, others = _selects(selectors, each)
        if others:
            return ClassFault.BOTH if is_operators(device_class) else None
        by_draco = by_draco or dracos
    return ClassFault.NEITHER if by_draco and not is_operators(device_class) else None


def _distinct(selectors: Sequence[Selector], devices: Iterable[OfDriver]) -> Iterator[OfDriver]:
    if any(each.reads_everything for each in selectors):
        yield from devices
        return
    paths = sorted({path for each in selectors for path in each.paths}, key=str)
    seen = set()
    for each in devices:
        values: dict[tuple[str, str, str], object] = {}
        domains = set()
        for kind, fields in (("attributes", each.device.attributes), ("capacity", each.device.capacity)):
            for name, value in fields.items():
                domain, identifier = split_name(name, each.driver)
                values[kind, domain, identifier] = value
                domains.add((kind, domain))
        shown: list[Hashable] = [each.driver, bool(each.device.allow_multiple_allocations)]
        for path in paths:
            place = (path.kind, path.domain or "")
            shown.append(str(values.get((*place, path.id))) if path.id is not None else place in domains)
        key = tuple(shown)
        if key not in seen:
            seen.add(key)
            yield each


def _selects(selectors: Sequence[Selector], each: OfDriver) -> tuple[bool, bool]:
    """Whether the class selects the device when Draco allocates it, and when it does not."""
    plain = {name: value for name, value in each.device.attributes.items() if name != ATTRIBUTE_ALLOCATOR}
    dracos, others = (
        _matches(selectors, each.driver, msgspec.structs.replace(each.device, attributes=attributes))
        for attributes in (plain | _ATTRIBUTE, plain)
    )
    return dracos, others


def _matches(selectors: Sequence[Selector], driver: str, device: Device) -> bool:
    try:
        view = device_view(driver, device)
        return all(each.matches(view) for each in selectors)
    except EvaluationError:
        return False
