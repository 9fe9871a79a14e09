"""Shared counters of pools, at rest and during one search.

Owns what is left of each pool's counters: its totals, less what devices in use take, less what the search is about to take; and
which pools are alike in that.
What a device in use takes is read from the slices as they are now, as Kubernetes does: a device that is published no longer
takes nothing.
"""

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from draco.allocation.fleet.pools import Candidate, Pool, PoolView
from draco.allocation.fleet.state import AllocatedState
from draco.resources.names import PoolKey

T = TypeVar("T")


class _Left:
    """What is left in one pool."""

    def __init__(self, view: PoolView, state: AllocatedState) -> None:
        self.counters = list(view.counters)
        for candidate in view.candidates:
            if candidate.charges and state.uses(candidate.key):
                self._take(candidate.charges)
        for key, charges in view.others:
            if state.uses(key):
                self._take(charges)
        self.overdrawn = any(left < 0 for left in self.counters)
        """Whether devices in use take more of some counter than there is: then no device that takes any counter fits."""

    def _take(self, charges: Iterable[tuple[int, int]]) -> None:
        for place, taken in charges:
            self.counters[place] -= taken


class CounterUse(msgspec.Struct, frozen=True, eq=False):
    """What the counters of a pool are for its devices. Pools are alike of which both parts are the same objects."""

    shape: Hashable
    """The counters' names, and what each device takes of which."""
    left: tuple[int, ...]
    """What devices in use leave of each."""


def drawn(pool: Pool, view: PoolView, state: AllocatedState) -> CounterUse:
    """The counters of a plain pool, in the view of its node."""
    names = tuple([(each.name, tuple(each.counters)) for entry in pool.plain for each in entry.spec.shared_counters])
    shape = _once((names, tuple([candidate.charges for candidate in view.candidates])))
    return CounterUse(shape, _once(tuple(_Left(view, state).counters)))


@lru_cache(maxsize=4096)
def _once(part: T) -> T:
    """Equal parts of thousands of pools as one object, which is compared at once."""
    return part


class Counters:
    """The counters of all pools that a search meets, worked out for each when it is first asked for."""

    def __init__(self, views: Iterable[PoolView], state: AllocatedState) -> None:
        self._views = {view.key: view for view in views}
        self._state = state
        self._left: dict[PoolKey, _Left] = {}

    def suffice(self, candidate: Candidate) -> bool:
        """Whether there is enough left for a device."""
        left = self._of(candidate)
        return not left.overdrawn and all(taken <= left.counters[place] for place, taken in candidate.charges)

    def take(self, candidate: Candidate) -> bool:
        """Charge a device, if all its counters suffice."""
        if not self.suffice(candidate):
            return False
        left = self._of(candidate)
        for place, taken in candidate.charges:
            left.counters[place] -= taken
        return True

    def give_back(self, candidate: Candidate) -> None:
        """Undo a charge."""
        left = self._of(candidate)
        for place, taken in candidate.charges:
            left.counters[place] += taken

    def _of(self, candidate: Candidate) -> _Left:
        key = candidate.key.pool_key
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = _Left(self._views[key], self._state)
        return left
