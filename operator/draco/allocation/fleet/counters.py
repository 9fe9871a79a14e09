"""Shared counters of pools, at rest and during one search.

Owns what is left of each pool's counters: totals, minus what devices in use consume, minus what the search has taken. As in
Kubernetes, consumption is read from the current slices: a device that is no longer published consumes nothing.
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
    def __init__(self, view: PoolView, state: AllocatedState) -> None:
        self.counters = list(view.counters)
        for candidate in view.candidates:
            if candidate.charges and state.uses(candidate.key):
                self._take(candidate.charges)
        for key, charges in view.others:
            if state.uses(key):
                self._take(charges)
        self.overdrawn = any(left < 0 for left in self.counters)
        """Whether devices in use consume more of some counter than exists; then no device that consumes any counter fits."""

    def _take(self, charges: Iterable[tuple[int, int]]) -> None:
        for place, taken in charges:
            self.counters[place] -= taken


class CounterUse(msgspec.Struct, frozen=True, eq=False):
    """The state of a pool's counters. Pools are alike if both fields are the same objects."""

    shape: Hashable
    """The counters' names, and what each device consumes."""
    left: tuple[int, ...]
    """What devices in use leave of each counter."""


def drawn(pool: Pool, view: PoolView, state: AllocatedState) -> CounterUse:
    """The counters of a plain pool, from the view of its node."""
    names = tuple([(each.name, tuple(each.counters)) for entry in pool.plain for each in entry.spec.shared_counters])
    shape = _once((names, tuple([candidate.charges for candidate in view.candidates])))
    return CounterUse(shape, _once(tuple(_Left(view, state).counters)))


@lru_cache(maxsize=4096)
def _once(part: T) -> T:
    """Intern equal values of thousands of pools, so that comparing them is comparing identities."""
    return part


class Counters:
    """The counters of all pools in a search, each computed when first needed."""

    def __init__(self, views: Iterable[PoolView], state: AllocatedState) -> None:
        self._views = {view.key: view for view in views}
        self._state = state
        self._left: dict[PoolKey, _Left] = {}

    def suffice(self, candidate: Candidate) -> bool:
        """Whether enough is left for a device."""
        left = self._of(candidate)
        return not left.overdrawn and all(taken <= left.counters[place] for place, taken in candidate.charges)

    def take(self, candidate: Candidate) -> bool:
        """Charge a device if all its counters suffice."""
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
