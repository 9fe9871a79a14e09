"""The priority at which a reservation keeps devices, as preemption asks for it of what the operator knows.

Reads the view; writes nothing. The rule is `placing.preempting.victims`'s.
"""

from draco.controller.view import BY_TAKER, ClusterView
from draco.placing.preempting import victims
from draco.reservations.claims import reservation_key
from draco.resources.api.claims import ResourceClaim


def reserved_at(view: ClusterView, claim: ResourceClaim) -> int | None:
    """The priority of the claim's reservation; None if it has none, and above all others where that is not known yet."""
    key, reservations = reservation_key(claim), view.reservations.store
    own = reservations.get(key) if key is not None else None
    return victims.reserved_at(claim, own, reservations.by_index(BY_TAKER, claim.metadata.uid))
