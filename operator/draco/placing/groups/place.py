"""Searches places for groups of claims, one group after the other, and says why one finds none.

The fleet is left as it was found: what was placed counts for the groups that come after, and is the asker's to write and to say
again. Evaluates what tenants write, so it belongs into a worker.
"""

from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from draco.placing.groups.gang_search import GangSearch, GroupFit
from draco.placing.groups.group import ClaimGroup, GroupPlacement, withheld
from draco.placing.groups.overdue import forecast
from draco.placing.groups.topology import SPREAD
from draco.placing.search.what_if import PlacedFleet, WhatIfPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.errors import DracoError
from draco.resources.names import PoolKey
from draco.resources.texts import agreeing, counted, listed

_KEPT: Final = "draco-kept"
_NOW: Final = "now"
_NEVER: Final = "even if nobody else had any, only"


def place(
    placed: PlacedFleet,
    groups: Sequence[ClaimGroup],
    held: Sequence[ResourceClaim],
    *,
    spread: Collection[PoolKey] = (),
) -> list[GroupPlacement]:
    """A placement for each group, as if those before it were allocated already. The nodes of `spread` are filled evenly."""
    with placed.as_if(spread=spread) as placer:
        for claim in held:
            placer.put(claim)
        search, placements = GangSearch(placed.fleet, placer), list[GroupPlacement]()
        for group in groups:
            placement = _placed(placed, placer, search, group)
            if placement.kept:
                placer.put(withheld(f"{_KEPT}-{len(placements)}", placement.kept))
            placements.append(placement)
    return placements


def _placed(placed: PlacedFleet, placer: WhatIfPlacer, search: GangSearch, group: ClaimGroup) -> GroupPlacement:
    try:
        fit = search.place(group)
        if fit.found >= group.needed:
            return GroupPlacement(own_results(group, fit))
        if not group.is_overdue and (group.placed or not group.name):
            return GroupPlacement([], _too_few(group, fit, _NOW))
        digest = _digest(group)
        if not group.is_overdue and digest in placed.possible:
            return GroupPlacement([], _too_few(group, fit, _NOW))
        ahead = forecast(placed.fleet, placer, group)
    except DracoError as error:
        return GroupPlacement([], str(error))
    if ahead.fit.found >= group.needed:
        placed.possible[digest] = None
    elif not group.placed:  # what others of it have may be given back
        return GroupPlacement([], _too_few(group, ahead.fit, _NEVER), is_hopeless=True)
    return GroupPlacement([], _too_few(group, fit, _NOW), ahead.kept)


def _digest(group: ClaimGroup) -> bytes:
    """Of what decides whether the group ever finds a place: not of conditions and versions, which change while it waits."""
    members = [
        (
            [each.spec for each in member.claims],
            [each.spec for each in member.pods],
            [each.status.allocation for each in member.beside],
            member.without,
        )
        for member in group.members
    ]
    placed = [each.status.allocation for each in group.placed]
    return sha256(msgspec.msgpack.encode((members, group.needed, group.topology, placed))).digest()


def own_results(group: ClaimGroup, fit: GroupFit) -> list[list[AllocationResult]]:
    """The results of the members' claims, without what is foreseen for their others."""
    return [results[: len(member.claims)] for member, results in zip(group.members, fit.results, strict=True)]


def _too_few(group: ClaimGroup, fit: GroupFit, when: str) -> str:
    names = listed(dict.fromkeys(str(each.metadata.key) for each in fit.lacking))
    lacking = f"No node with Draco's devices also has devices for {names}, which kube-scheduler allocates."
    if not group.name:
        return (
            lacking
            if names
            else f"No device that Draco allocates is free for it ({counted(fit.nodes, 'node')} searched)."
        )
    noun = "pod" if any(member.pods for member in group.members) else "claim"
    where = f" within one {group.topology}" if group.topology not in {"", SPREAD} else ""
    return (
        f"{group.name} needs devices for {counted(group.needed, noun)} at once{where}; {when} {fit.found} of "
        f"{len(group.members)} {agreeing(fit.found, 'gets', 'get')} some, on {counted(fit.nodes, 'node')} that they may use."
        f"{f' {lacking}' if names else ''}"
    )
