"""What a DeviceReservation asks for: whether it can be reserved, until when, and at which priority.

Finds problems from the DeviceClasses alone; it does not evaluate selectors. The priority is resolved as the API server does for a
pod: the named class, else the cluster's default, else 0; never a system class, because no ResourceQuota limits its use by
reservations. It is resolved once and stored, so later changes of the class have no effect.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_operators
from draco.resources.api.claims import DeviceClass, ResourceClaimSpec
from draco.resources.api.foreign import DEEPEST_OPAQUE, is_cut
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.scheduling import PriorityClass
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR
from draco.resources.texts import nearest, sentence, shown
from draco.resources.windows import lasting

LABEL: Final = f"{LABEL_ALLOCATOR}={ALLOCATED_BY_OPERATOR}"


class ReservationProblem(msgspec.Struct, frozen=True):
    """Why no claims can be made: a reason in one word, and a sentence with the fix."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


def problem_of(spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]) -> ReservationProblem | None:
    """The first problem; None if there is none."""
    if any(each.opaque is not None and is_cut(each.opaque.parameters) for each in spec.devices.config):
        return ReservationProblem(
            "ParametersTooDeep",
            f"opaque.parameters in the config of its claims are nested {DEEPEST_OPAQUE} levels deep or more, and Draco does "
            "not copy such parameters: nest them less deeply.",
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


def expires_at(reservation: DeviceReservation) -> datetime | None:
    """When the reservation ends; None if it lasts until it is deleted."""
    spec, created = reservation.spec, reservation.metadata.creation_timestamp
    if spec.expires_at is not None:
        # A time without a zone is UTC, as everywhere in Kubernetes.
        return spec.expires_at.astimezone(UTC) if spec.expires_at.tzinfo else spec.expires_at.replace(tzinfo=UTC)
    return created + lasting(spec.duration) if spec.duration and created is not None else None


def is_expired(reservation: DeviceReservation, now: datetime) -> bool:
    """Whether it has ended."""
    end = expires_at(reservation)
    return end is not None and end <= now


def is_past_from_the_start(reservation: DeviceReservation) -> bool:
    """Whether it had already ended when it was created."""
    end, created = expires_at(reservation), reservation.metadata.creation_timestamp
    return end is not None and created is not None and end <= created


HIGHEST: Final = 1_000_000_000
"""The highest value of a user-defined class (source: scheduling.HighestUserDefinablePriority)."""
NEVER: Final = "Never"


class ReservationPriority(msgspec.Struct, frozen=True):
    """The value of a class, and its preemptionPolicy."""

    value: int = 0
    preemption_policy: str = ""


def priority_of(name: str, classes: Iterable[PriorityClass]) -> ReservationPriority | ReservationProblem:
    """The priority from the class of this name; "" means the default class."""
    known = {each.metadata.name: each for each in classes}
    if name and name not in known:
        return ReservationProblem(
            "NoPriorityClass", sentence(f"There is no PriorityClass {shown(name)}{nearest(name, known)}")
        )
    defaults = (each for each in known.values() if each.global_default)
    found = known[name] if name else min(defaults, key=lambda each: each.value, default=None)
    if found is None:
        return ReservationPriority()
    if found.value > HIGHEST:
        return ReservationProblem(
            "SystemPriority",
            f"PriorityClass {shown(found.metadata.name)} is for the system's own pods: name one of at most {HIGHEST:,}.",
        )
    return ReservationPriority(found.value, found.preemption_policy)
