"""Searches places for groups of claims, one group after the other, and says why one finds none.

The fleet is left as it was found: what was placed counts for the groups that come after, and is the asker's to write and to say
again. Evaluates what tenants write, so it belongs into a worker.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final
from uuid import uuid4

from draco.allocation.fleet.fleet import Fleet
from draco.placing.best import BestPlacer
from draco.placing.gang_search import GangSearch, GroupFit
from draco.placing.groups import ClaimGroup, GroupPlacement, holding
from draco.placing.overdue import prospect
from draco.placing.topology import SPREAD
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.names import PoolKey
from draco.resources.texts import counted

_KEPT: Final = "draco-kept"
_NOW: Final = "now"
_NEVER: Final = "even if nobody else had any, only"


class _Counting:
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


def place(
    fleet: Fleet,
    groups: Sequence[ClaimGroup],
    held: Sequence[ResourceClaim],
    *,
    spread: Collection[PoolKey] = (),
) -> list[GroupPlacement]:
    """A placement for each group, as if those before it were allocated already. The nodes of `spread` are filled evenly."""
    with _counting(fleet, spread) as placer:
        for claim in held:
            placer.put(claim)
        search, placements = GangSearch(fleet, placer), list[GroupPlacement]()
        for group in groups:
            placement = _placed(fleet, placer, search, group)
            if placement.kept:
                placer.put(holding(f"{_KEPT}-{len(placements)}", placement.kept))
            placements.append(placement)
    return placements


@contextmanager
def _counting(fleet: Fleet, spread: Collection[PoolKey]) -> Iterator[_Counting]:
    placer = _Counting(fleet, BestPlacer(fleet, share_ids=(str(uuid4()) for _ in count()), spread=spread))
    try:
        yield placer
    finally:
        placer.restore()


def _placed(fleet: Fleet, placer: _Counting, search: GangSearch, group: ClaimGroup) -> GroupPlacement:
    try:
        fit = search.place(group)
        if fit.found >= group.needed:
            return GroupPlacement(fit.results)
        if not group.is_overdue and (group.placed or not group.name):
            return GroupPlacement([], _too_few(group, fit, _NOW))
        ahead = prospect(fleet, placer, group)
    except DracoError as error:
        return GroupPlacement([], str(error))
    if ahead.fit.found < group.needed and not group.placed:  # what others of it have may be given back
        return GroupPlacement([], _too_few(group, ahead.fit, _NEVER), is_hopeless=True)
    return GroupPlacement([], _too_few(group, fit, _NOW), ahead.kept if group.is_overdue else ())


def _too_few(group: ClaimGroup, fit: GroupFit, when: str) -> str:
    if not group.name:
        return f"No device that Draco allocates is free for it on any of {fit.nodes} nodes."
    where = f" within one {group.topology}" if group.topology not in {"", SPREAD} else ""
    return (
        f"{group.name} needs devices for {counted(group.needed, 'pod')} at once{where}; {when} {fit.found} of "
        f"{len(group.members)} get some, on {counted(fit.nodes, 'node')} where they may run."
    )
