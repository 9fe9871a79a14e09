"""Whether what a DeviceReservation asks for can be reserved, by the DeviceClasses alone.

Owns the problems and their sentences: a class that does not exist, one whose claims kube-scheduler allocates, administrative
access, which takes nothing, and parameters that are too deep to be passed on. Whether devices match is for those who evaluate
selectors.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_operators
from draco.resources.api.claims import DeviceClass, ResourceClaimSpec
from draco.resources.api.foreign import DEEPEST_OPAQUE, is_cut
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR
from draco.resources.texts import nearest, sentence, shown

LABEL: Final = f"{LABEL_ALLOCATOR}={ALLOCATED_BY_OPERATOR}"


class ReservationProblem(msgspec.Struct, frozen=True):
    """What keeps claims from being made: as one word, and as a sentence with what to do."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


def problem_of(spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]) -> ReservationProblem | None:
    """The first problem, if there is any."""
    if any(each.opaque is not None and is_cut(each.opaque.parameters) for each in spec.devices.config):
        return ReservationProblem(
            "ParametersTooDeep",
            f"opaque.parameters in the config of its claims are nested {DEEPEST_OPAQUE} levels deep or more, and Draco does "
            "not pass on what is: nest them less deeply.",
        )
    if any(each.exactly is not None and each.exactly.admin_access for each in spec.devices.requests):
        return ReservationProblem(
            "AdminAccess",
            "A claim with adminAccess takes no device, so there is nothing to reserve: leave adminAccess out.",
        )
    names = list(dict.fromkeys(each.device_class_name for each in spec.asked))
    for name in names:
        if name not in classes:
            said = sentence(f"There is no DeviceClass {shown(name)}{nearest(name, classes)}")
            return ReservationProblem("NoDeviceClass", said)
    for name in names:
        if not is_operators(classes[name]):
            mine = sorted(each for each, found in classes.items() if is_operators(found))
            fix = f"ask for {' or '.join(mine[:2])}" if mine else "ask for a class whose GPUs are handed over to Draco"
            return ReservationProblem(
                "NotAllocatedByDraco",
                f"Claims of DeviceClass {shown(name)} are allocated by kube-scheduler, which reserves nothing: {fix} "
                f"(label {LABEL}).",
            )
    if not names:
        return ReservationProblem("NoRequest", "The template requests no devices: add a request.")
    return None
