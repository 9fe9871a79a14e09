"""Claims that reservations hold back from being allocated: until the reservation is whole, or something is taken over.

A reservation's claims are made one after the other and get their devices together: one that is not whole, is over, or is not
known holds back all of them. Owns what was so when the allocator looked last, and when a part of it ends though nothing changes:
a pod's claim is not kept waiting for what it might take over for longer than `LONGEST`. What is taken over is `takeovers`'.
"""

from collections.abc import Iterable
from datetime import datetime

from draco.controller.reservations.takeovers import about_to_take_over
from draco.controller.view import BY_RESERVATION, UNALLOCATED, ClusterView
from draco.reservations.claims import reservation_key, reserved_by
from draco.reservations.plan import is_whole
from draco.reservations.takeover import LONGEST
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey


class HeldBackClaims:
    """By claim, as of the last `look`."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._keys: set[ObjectKey] = set()
        self._until_s = float("inf")

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._keys

    def look(self) -> None:
        """Find out which they are now."""
        unallocated, now = self._view.claims.store.by_index(UNALLOCATED, True), self._view.clock.now()
        taking_over = about_to_take_over(self._view, unallocated, now)
        self._keys = _on_hold(self._view, unallocated, now) | taking_over
        begun = (self._waits_since(each) for each in unallocated if each.metadata.key in taking_over)
        rests_s = [(each + LONGEST - now).total_seconds() for each in begun if each is not None]
        # What is written down as taken over goes on until that is written otherwise.
        left_s = min((each for each in rests_s if each > 0), default=float("inf"))
        self._until_s = self._view.clock.monotonic() + left_s

    def _waits_since(self, claim: ResourceClaim) -> datetime | None:
        """As `taken_up` counts: from when its pod was let go."""
        pods = self._view.pods_of(claim.metadata.key)
        times = [claim.metadata.creation_timestamp, *map(self._view.waiting_times.of_pod, pods)]
        return max(filter(None, times), default=None)

    def next_s(self) -> float:
        """In how many seconds one of them is not held back any more though nothing changes; infinite for never."""
        return max(0.0, self._until_s - self._view.clock.monotonic())


def _on_hold(view: ClusterView, claims: Iterable[ResourceClaim], now: datetime) -> set[ObjectKey]:
    """The keys of those among these whose reservation is not whole, is over, or is not known."""
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
