"""Placing claims on a changed fleet, which is restored afterwards; keeps caches between questions."""

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
    """A placer that can restore the fleet's claims."""

    def __init__(self, fleet: Fleet, placer: BestPlacer) -> None:
        self._fleet = fleet
        self._placer = placer
        self.best = placer.best
        self._before: dict[ObjectKey, ResourceClaim | None] = {}

    def put(self, claim: ResourceClaim) -> None:
        """Add or replace the claim."""
        self._before.setdefault(claim.metadata.key, self._fleet.claims.get(claim.metadata.key))
        self._placer.put(claim)

    def restore(self) -> None:
        """Undo all changes."""
        for key, known in self._before.items():
            if known is None:
                self._placer.remove(key)
            else:
                self._placer.put(known)


class PlacedFleet:
    """A fleet with its placer, which caches what nodes are like between questions.

    Change claims through this class; call `forget` after any other change of the fleet.
    """

    def __init__(self, fleet: Fleet, *, share_ids: Iterator[str]) -> None:
        """`share_ids` gives a new identifier for each share of a device."""
        self.fleet = fleet
        self._share_ids = share_ids
        self.possible: LRUCache[bytes, None] = LRUCache(_MAX_POSSIBLE)
        """Digests of groups that fit once enough of Draco's claims end, for the rest of the fleet as it is."""
        self._placer = BestPlacer(fleet, share_ids=share_ids)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Add or replace a claim."""
        self._placer.put(claim)

    def remove_claim(self, key: ObjectKey) -> None:
        """Remove a claim, if known."""
        self._placer.remove(key)

    def forget(self) -> None:
        """Drop the caches after a change of anything but claims."""
        self._placer = BestPlacer(self.fleet, share_ids=self._share_ids)
        self.possible.clear()

    @contextmanager
    def as_if(self, *, spread: Collection[PoolKey] = ()) -> Iterator[WhatIfPlacer]:
        """A placer of this fleet; all its changes are undone at the end. Nodes of the pools in `spread` are filled evenly."""
        if self._placer.spread != frozenset(spread):
            self._placer = BestPlacer(self.fleet, share_ids=self._share_ids, spread=spread)
        placer = WhatIfPlacer(self.fleet, self._placer)
        try:
            yield placer
        finally:
            placer.restore()
            self._placer.tidy()
