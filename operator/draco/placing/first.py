"""Takes the first node by name, and the first devices there that fit. Owns no preference."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import first_fitting
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node


class FirstPlacement(msgspec.Struct, frozen=True):
    """A node and, for each claim, its devices."""

    node: str
    results: list[AllocationResult]


class FirstPlacer:
    """Chooses in a fleet, which counts what was chosen."""

    def __init__(self, fleet: Fleet, *, share_ids: Iterator[str]) -> None:
        self._fleet = fleet
        self._share_ids = share_ids

    def best(self, claims: Sequence[ResourceClaim], nodes: Mapping[str, Node]) -> FirstPlacement | None:
        """The first place. Raises AllocationError."""
        found = first_fitting(self._fleet, claims, [nodes[name] for name in sorted(nodes)], share_ids=self._share_ids)
        return None if found is None else FirstPlacement(found[0].metadata.name, found[1])

    def put(self, claim: ResourceClaim) -> None:
        """Count the claim as it now is."""
        self._fleet.put_claim(claim)
