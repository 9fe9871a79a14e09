"""Placing claims as if things were otherwise: whatever was put while that is asked, the fleet is left as it was found.

Owns what has to be put back, and what is kept from one question to the next: the placer, and which groups can find a place at
all. Chooses nothing.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from cachetools import LRUCache

from draco.allocation.fleet.fleet import Fleet
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import PoolKey

_MAX_POSSIBLE: Final = 1024


class WhatIfPlacer:
    """A placer that remembers what the fleet was before it."""

    def __init__(self, fleet: Fleet, placer: BestPlacer) -> None:
        self._fleet = fleet
        self._placer = placer
        self.best = placer.best
        self._before: dict[ObjectKey, ResourceClaim | None] = {}

    def put(self, claim: ResourceClaim) -> None:
        """Count the claim as it now is."""
        self._before.setdefault(claim.metadata.key, self._fleet.claims.get(claim.metadata.key))
        self._placer.put(claim)

    def restore(self) -> None:
        """Have the fleet be as before."""
        for key, known in self._before.items():
            if known is None:
                self._placer.remove(key)
            else:
                self._placer.put(known)


class PlacedFleet:
    """A fleet, and the placer of the last question about it, which remembers what nodes are like.

    The next question is about much the same: claims come and go one by one, and a node of which nothing has changed is searched
    only once. Claims change through here; what else of the fleet changes is said by `forget`.
    """

    def __init__(self, fleet: Fleet, *, share_ids: Iterator[str]) -> None:
        """`share_ids` gives a fresh identifier for each share of a device."""
        self.fleet = fleet
        self._share_ids = share_ids
        self.possible: LRUCache[bytes, None] = LRUCache(_MAX_POSSIBLE)
        """Digests of groups that find a place once enough of Draco's claims have ended, as the rest of the fleet is."""
        self._placer = BestPlacer(fleet, share_ids=share_ids)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Take a claim as it now is."""
        self._placer.put(claim)

    def remove_claim(self, key: ObjectKey) -> None:
        """Forget a claim; nothing happens if it is not known."""
        self._placer.remove(key)

    def forget(self) -> None:
        """More has changed than claims."""
        self._placer = BestPlacer(self.fleet, share_ids=self._share_ids)
        self.possible.clear()

    @contextmanager
    def as_if(self, *, spread: Collection[PoolKey] = ()) -> Iterator[WhatIfPlacer]:
        """A placer of this fleet. The nodes of the pools in `spread` are filled evenly."""
        if self._placer.spread != frozenset(spread):
            self._placer = BestPlacer(self.fleet, share_ids=self._share_ids, spread=spread)
        placer = WhatIfPlacer(self.fleet, self._placer)
        try:
            yield placer
        finally:
            placer.restore()
            self._placer.tidy()
