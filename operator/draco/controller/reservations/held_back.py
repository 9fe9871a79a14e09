"""Claims that reservations hold back from being allocated: until the reservation is whole, or something is taken over.

Owns what was so when the allocator looked last, and when a part of it ends though nothing changes: a pod's claim is not kept
waiting for what it might take over for longer than `LONGEST`. Which they are is `wholeness`' and `takeovers`'.
"""

from draco.controller.reservations.takeovers import about_to_take_over
from draco.controller.reservations.wholeness import on_hold
from draco.controller.view import UNALLOCATED, ClusterView
from draco.kube.clock import Clock
from draco.reservations.takeover import LONGEST
from draco.resources.api.meta import ObjectKey


class HeldBackClaims:
    """By claim, as of the last `look`."""

    def __init__(self, view: ClusterView, *, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._keys: set[ObjectKey] = set()
        self._until_s = float("inf")

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._keys

    def look(self) -> None:
        """Find out which they are now."""
        unallocated, now = self._view.claims.store.by_index(UNALLOCATED, True), self._clock.now()
        taking_over = about_to_take_over(self._view, unallocated, now)
        self._keys = on_hold(self._view, unallocated, now) | taking_over
        created = (each.metadata.creation_timestamp for each in unallocated if each.metadata.key in taking_over)
        rests_s = [(each + LONGEST - now).total_seconds() for each in created if each is not None]
        # What is written down as taken over goes on until that is written otherwise.
        left_s = min((each for each in rests_s if each > 0), default=float("inf"))
        self._until_s = self._clock.monotonic() + left_s

    def next_s(self) -> float:
        """In how many seconds one of them is not held back any more though nothing changes; infinite for never."""
        return max(0.0, self._until_s - self._clock.monotonic())
