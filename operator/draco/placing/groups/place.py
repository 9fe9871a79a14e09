"""Searches places for groups of claims, one group after the other, and says why one finds none.

The fleet is left as it was found: what was placed counts for the groups that come after, and is the asker's to write and to say
again. Evaluates what tenants write, so it belongs into a worker.

Owns also what becomes of a group that finds no place, the question "and if others ended?": claims of Draco's are taken away,
from the pools with the fewest first, until the group fits. What of its place is free already is kept for it once it is overdue,
so that small claims cannot pass it for ever. Takes nothing from anybody: only what is free is kept.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from draco.allocation.fleet.fleet import FREE, Fleet
from draco.allocation.ownership.claims import is_for_operator
from draco.placing.groups.gang_search import GangSearch, GroupFit
from draco.placing.groups.group import ClaimGroup, GroupPlacement, allocated, withheld
from draco.placing.groups.topology import SPREAD
from draco.placing.search.what_if import PlacedFleet, WhatIfPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.errors import DracoError
from draco.resources.names import DeviceKey, PoolKey, gpu_name
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


class Forecast(NamedTuple):
    """What a group gets once others end: `fit` is what it then finds, `kept` what of it is free now, if it is overdue."""

    fit: GroupFit
    kept: Sequence[DeviceKey] = ()


def forecast(fleet: Fleet, placer: WhatIfPlacer, group: ClaimGroup) -> Forecast:
    """The place that the group finds once others have ended: all of them, if it never fits.

    If it is overdue these are as few as can be, so that all that is free counts for it. What kube-scheduler will allocate to its
    pods is nobody's to free, and looked at when there is a place.
    """
    members = [msgspec.structs.replace(each, others=()) for each in group.members]
    group = msgspec.structs.replace(group, members=members)
    search, claims = GangSearch(fleet, placer), _freeable(fleet)
    ended = 0

    def end(number: int) -> None:
        """Have just so many of the claims be as if they had ended, in their order."""
        nonlocal ended
        for claim in claims[ended:number]:
            placer.put(allocated(claim, None))
        for claim in claims[number:ended]:
            placer.put(claim)
        ended = number

    def fit_without(number: int) -> GroupFit:
        end(number)
        found = search.place(group)
        if is_place(found):
            search.undo(group, found)
        return found

    def is_place(found: GroupFit) -> bool:
        return found.found >= group.needed

    try:
        too_few, enough = -1, 0
        while not is_place(fit := fit_without(enough)) and enough < len(claims):
            too_few, enough = enough, min(2 * enough + 1, len(claims))
        if not is_place(fit) or not group.is_overdue:
            return Forecast(fit)
        fewest = bisect_left(range(enough), True, too_few + 1, key=lambda number: is_place(fit_without(number)))
        fit = fit_without(fewest)
    finally:
        end(0)
    return Forecast(fit, sorted(_free_of(fleet, fit)))


def _freeable(fleet: Fleet) -> list[ResourceClaim]:
    """The claims of Draco's, those of the pools with the smallest number first; last, what is withheld for now."""
    pools: dict[PoolKey, list[ResourceClaim]] = {}
    withheld = []
    for claim in fleet.claims.values():
        if not claim.devices_held:
            continue
        if not claim.metadata.namespace:  # a placeholder: GPUs that are still being handed over, among others
            withheld.append(claim)
        elif is_for_operator(claim, fleet.classes):
            first = claim.devices_held[0]
            pools.setdefault(first.pool_key, []).append(claim)
    in_order = sorted(pools.items(), key=lambda pool: (len(pool[1]), pool[0]))
    return [*(claim for _, claims in in_order for claim in claims), *withheld]


def _free_of(fleet: Fleet, fit: GroupFit) -> Iterable[DeviceKey]:
    """What is free of the GPUs that the group would get."""
    chosen = {each.key for results in fit.results for result in results for each in result.devices.results}
    gpus = {(key.pool_key, gpu_name(key.device)) for key in chosen}
    short = fleet.short
    for pool, gpu in gpus:
        known = fleet.inventory.pool(pool)
        for entry in known.entries if known is not None else ():
            for row, device in zip(entry.rows, entry.spec.devices, strict=True):
                if gpu_name(device.name) == gpu and fleet.held[row] == FREE and not short[row]:
                    yield DeviceKey(pool.driver, pool.pool, device.name)
