"""The priority at which a DeviceReservation keeps what a claim has: preemption takes it only for a higher one.

Owns the rule: which reservation the claim's devices go back to, the one that controls the claim or one from which it took them
over, and that what is on its way to a pod's claim is nobody's to take. Pure.
"""

from collections.abc import Iterable

from draco.placing.preempting.victims import IMMUNE
from draco.reservations.claims import reserved_by
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.reservations import DeviceReservation


def reserved_at(
    claim: ResourceClaim, reservation: DeviceReservation | None, taken_from: Iterable[DeviceReservation]
) -> int | None:
    """The priority of the claim's reservation; None if it has none, and IMMUNE where it is not known yet.

    `reservation` has the name that the claim's controller has, and `taken_from` are those from which it took devices over.
    """
    if uid := reserved_by(claim):
        if reservation is None or reservation.metadata.uid != uid or reservation.status.priority is None:
            return IMMUNE
        yields = (each.reserved for each in reservation.status.takeovers if each.allocation is not None)
        return IMMUNE if claim.metadata.name in yields else reservation.status.priority
    priorities = (IMMUNE if each.status.priority is None else each.status.priority for each in taken_from)
    return max(priorities, default=None)
