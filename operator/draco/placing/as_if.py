"""Placing claims as if things were otherwise: whatever was put while that is asked, the fleet is left as it was found.

Owns what has to be put back. Chooses nothing.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from uuid import uuid4

from draco.allocation.fleet.fleet import Fleet
from draco.placing.best import BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import PoolKey


class PlacerAsIf:
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
                self._fleet.remove_claim(key)
            else:
                self._fleet.put_claim(known)


@contextmanager
def as_if(fleet: Fleet, *, spread: Collection[PoolKey] = ()) -> Iterator[PlacerAsIf]:
    """A placer of this fleet. The nodes of the pools in `spread` are filled evenly."""
    placer = PlacerAsIf(fleet, BestPlacer(fleet, share_ids=(str(uuid4()) for _ in count()), spread=spread))
    try:
        yield placer
    finally:
        placer.restore()
