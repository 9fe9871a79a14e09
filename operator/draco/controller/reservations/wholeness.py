"""The claims of reservations as they are known now, and which are not to get devices yet.

Those are claims whose reservation is not whole, is over, or is not known.

A reservation's claims are made one after the other and get their devices together. The allocator asks here which of them are
still to come; owns nothing and writes nothing.
"""

from collections.abc import Iterable
from datetime import datetime

from draco.controller.view import BY_RESERVATION, ClusterView
from draco.reservations.claims import reservation_key, reserved_by
from draco.reservations.plan import ReservedClaims, is_whole, names_to_look_at
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation


def own_claims(view: ClusterView, reservation: DeviceReservation) -> ReservedClaims:
    """What is there of a reservation, and what is in its way."""
    store, uid, namespace = view.claims.store, reservation.metadata.uid, reservation.metadata.namespace
    own = [each for each in store.by_index(BY_RESERVATION, uid) if each.metadata.namespace == namespace]
    at_names = filter(None, map(store.get, names_to_look_at(reservation, len(own))))
    return ReservedClaims(
        own=own,
        foreign={each.metadata.name for each in at_names if reserved_by(each) != uid},
        awaited={each.metadata.name for each in own if view.pending_pods(each.metadata.key)},
    )


def on_hold(view: ClusterView, claims: Iterable[ResourceClaim], now: datetime) -> set[ObjectKey]:
    """The keys of those claims among these."""
    held: dict[str, bool] = {}
    found = set()
    for claim in claims:
        uid = reserved_by(claim)
        if uid and uid not in held:
            key = reservation_key(claim)
            reservation = view.reservations.store.get(key) if key else None
            is_known = reservation is not None and reservation.metadata.uid == uid
            held[uid] = not (
                is_known and reservation and is_whole(reservation, view.claims.store.by_index(BY_RESERVATION, uid), now)
            )
        if uid and held[uid]:
            found.add(claim.metadata.key)
    return found
