"""Whether it is certain who allocates the claims of a DeviceClass: Draco or kube-scheduler.

A class with the label draco.dev/allocator=operator must select only devices that Draco allocates, otherwise both may allocate its
claims. A class without it must not select only these, otherwise nobody does. Its selectors are evaluated on each device as
published when Draco allocates it, and when it does not.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import msgspec

from draco.allocation.ownership.claims import ONLY_OPERATOR_ALLOCATED, is_operators
from draco.cel import CompileError, DeviceTest, compile_selector
from draco.cel.values.bounds import MAX_COST
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
    test, by_draco = DeviceTest(selectors), False
    for driver, device in devices:
        plain = {name: value for name, value in device.attributes.items() if name != ATTRIBUTE_ALLOCATOR}
        if test.says(driver, msgspec.structs.replace(device, attributes=plain)) is True:
            return ClassFault.BOTH if is_operators(device_class) else None
        dracos = msgspec.structs.replace(device, attributes=plain | _ATTRIBUTE)
        by_draco = by_draco or test.says(driver, dracos) is True
    return ClassFault.NEITHER if by_draco and not is_operators(device_class) else None
