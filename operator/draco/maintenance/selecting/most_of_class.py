"""Whether a request takes most of a DeviceClass, for which it needs a permit. Pure."""

from collections.abc import Collection, Iterable

import msgspec

from draco.maintenance.gate import SelectionProblem
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.maintenance.selecting.selectors import most_of_class
from draco.resources.api.maintenance import DeviceMaintenance


class ClassSupply(msgspec.Struct, frozen=True):
    """The physical GPUs of a class, and those of them that its claims can have now."""

    name: str
    gpus: frozenset[PhysicalGpu]
    free: frozenset[PhysicalGpu]


def takes_most(
    request: DeviceMaintenance, gpus: Collection[PhysicalGpu], classes: Iterable[ClassSupply]
) -> SelectionProblem | None:
    """Whether a request takes more than half of a class without being permitted to.

    One that names a single device takes what it says: nobody does that by mistake.
    """
    selector = request.spec.device_selector
    if request.spec.allow_most_of_class or (selector.pool and selector.device):
        return None
    for each in sorted(classes, key=lambda each: each.name):
        taken = len(each.gpus.intersection(gpus))
        if 2 * taken > len(each.gpus):
            return most_of_class(each.name, taken, len(each.gpus))
    return None
