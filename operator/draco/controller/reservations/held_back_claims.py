"""Claims that reservations hold back from allocation: until the reservation is complete, or devices are taken over.

A reservation's claims are created one by one and allocated together: one that is incomplete, over or unknown holds back all its
claims. Owns the state at the allocator's last look, and when part of it expires: a pod's claim waits at most `LONGEST` for what
it might take over. `takeovers` handles the take-overs.
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
    """The held-back claims as of the last `look`."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._keys: set[ObjectKey] = set()
        self._until_s = float("inf")

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._keys

    def look(self) -> None:
        """Compute the claims held back now."""
        unallocated, now = self._view.claims.store.by_index(UNALLOCATED, True), self._view.clock.now()
        taking_over = about_to_take_over(self._view, unallocated, now)
        self._keys = _on_hold(self._view, unallocated, now) | taking_over
        begun = (self._waits_since(each) for each in unallocated if each.metadata.key in taking_over)
        rests_s = [(each + LONGEST - now).total_seconds() for each in begun if each is not None]
        # A recorded take-over is kept until the record changes.
        left_s = min((each for each in rests_s if each > 0), default=float("inf"))
        self._until_s = self._view.clock.monotonic() + left_s

    def _waits_since(self, claim: ResourceClaim) -> datetime | None:
        """As `taken_up` counts: from when its pod was ungated."""
        pods = self._view.pods_of(claim.metadata.key)
        times = [claim.metadata.creation_timestamp, *map(self._view.waiting_times.of_pod, pods)]
        return max(filter(None, times), default=None)

    def next_s(self) -> float:
        """Seconds until one is released with time alone; infinite for never."""
        return max(0.0, self._until_s - self._view.clock.monotonic())


def _on_hold(view: ClusterView, claims: Iterable[ResourceClaim], now: datetime) -> set[ObjectKey]:
    """The keys of the claims whose reservation is incomplete, over, or unknown."""
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
