"""Rules about DeviceClasses and who allocates their claims.

Owns what is said of them in place. Whether a class breaks the rule is `allocation.ownership.classes`'s, on sample devices.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from draco.allocation.ownership.classes import ClassFault, OfDriver, class_fault
from draco.linting.model import Finding, Manifest, SetField, finding
from draco.linting.objects import drivers_of_classes, name_of, of_kind
from draco.linting.samples import sample_devices
from draco.resources.api.claims import DeviceClass
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR, NVIDIA_DRIVER

_LABEL = ("metadata", "labels", LABEL_ALLOCATOR)


def check_allocators(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Classes whose claims both Draco and kube-scheduler may allocate, or neither."""
    drivers = drivers_of_classes(manifests)
    for index, manifest in of_kind(manifests, "DeviceClass"):
        try:
            device_class = msgspec.convert(manifest.tree, DeviceClass)
        except msgspec.ValidationError:
            continue  # other rules say what is wrong with it
        driver = drivers.get(name_of(manifest.tree), NVIDIA_DRIVER)
        fault = class_fault(device_class, _samples(driver))
        message = f"{fault.cause}: {fault.fix}" if fault else ""
        if fault is ClassFault.BOTH:
            yield finding("class-of-both-allocators", message, index, ("spec",), severity="warning")
        elif fault is ClassFault.NEITHER:
            label = SetField(_LABEL, ALLOCATED_BY_OPERATOR)
            yield finding("class-of-no-allocator", message, index, ("spec",), label)


@cache
def _samples(driver: str) -> list[OfDriver]:
    return [OfDriver(driver, each) for each in sample_devices()]
