"""The priority at which a reservation keeps devices, as preemption asks for it.

Owns the look at which reservation a claim's devices go back to: the one that controls the claim, or from which it took them over.
Reads the view; writes nothing.
"""

from draco.controller.view import BY_TAKER, ClusterView
from draco.placing.preempting.victims import IMMUNE
from draco.reservations.claims import reservation_key, reserved_by
from draco.resources.api.claims import ResourceClaim


def reserved_at(view: ClusterView, claim: ResourceClaim) -> int | None:
    """The priority of the claim's reservation; None if it has none, and above all others where that is not known yet.

    Nobody takes what is on its way to a pod's claim, either.
    """
    if uid := reserved_by(claim):
        key = reservation_key(claim)
        reservation = view.reservations.store.get(key) if key is not None else None
        if reservation is None or reservation.metadata.uid != uid or reservation.status.priority is None:
            return IMMUNE
        yields = (each.reserved for each in reservation.status.takeovers if each.allocation is not None)
        return IMMUNE if claim.metadata.name in yields else reservation.status.priority
    priorities = [
        IMMUNE if each.status.priority is None else each.status.priority
        for each in view.reservations.store.by_index(BY_TAKER, claim.metadata.uid)
    ]
    return max(priorities, default=None)
