"""Finds places for groups of claims, one after another, and says why a group finds none. Must run in a worker.

Leaves the fleet unchanged: a placed group counts only for the groups after it, and the caller writes the results. For a group
without a place it also forecasts: Draco's claims are removed, from the pools with the fewest first, until the group fits. Once
the group is overdue, the free devices of that place are kept for it, so that small claims cannot starve it.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from draco.allocation.fleet.fleet import HELD, Fleet
from draco.allocation.ownership.claims import is_for_operator
from draco.placing.groups.gang_search import GangSearch, GroupFit
from draco.placing.groups.group import ClaimGroup, GroupPlacement, allocated, withheld
from draco.placing.groups.topology import SPREAD
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.errors import DracoError
from draco.resources.names import DeviceKey, PoolKey, gpu_name
from draco.resources.texts import agreeing, counted, listed

_KEPT: Final = "draco-kept"
_NOW: Final = "now"
_NEVER: Final = "even if nobody else had any, only"


def place(
    placer: BestPlacer,
    groups: Sequence[ClaimGroup],
    held: Sequence[ResourceClaim],
    *,
    spread: Collection[PoolKey] = (),
) -> list[GroupPlacement]:
    """A placement for each group, as if those before it were allocated. The nodes of `spread` are filled evenly."""
    with placer.as_if(spread=spread):
        for claim in held:
            placer.put(claim)
        search, placements = GangSearch(placer), list[GroupPlacement]()
        for group in groups:
            placement = _placed(placer, search, group)
            if placement.kept:
                placer.put(withheld(f"{_KEPT}-{len(placements)}", placement.kept))
            placements.append(placement)
    return placements


def _placed(placer: BestPlacer, search: GangSearch, group: ClaimGroup) -> GroupPlacement:
    try:
        fit = search.place(group)
        if fit.found >= group.needed:
            return GroupPlacement(own_results(group, fit))
        if not group.is_overdue and (group.placed or not group.name):
            return GroupPlacement([], _too_few(group, fit, _NOW))
        digest = _digest(group)
        if not group.is_overdue and digest in placer.possible:
            return GroupPlacement([], _too_few(group, fit, _NOW))
        ahead = forecast(placer, group)
    except DracoError as error:
        return GroupPlacement([], str(error))
    if ahead.fit.found >= group.needed:
        placer.possible[digest] = None
    elif not group.placed:  # its other members may still release devices
        return GroupPlacement([], _too_few(group, ahead.fit, _NEVER), is_hopeless=True)
    return GroupPlacement([], _too_few(group, fit, _NOW), ahead.kept)


def _digest(group: ClaimGroup) -> bytes:
    """Digest of what decides whether the group ever fits; excludes conditions and versions, which change while it waits."""
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
    """The results of the members' claims, without the foreseen ones of their others."""
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
    """What a group gets once other claims end: `fit` is the result, `kept` its devices that are free now, if it is overdue."""

    fit: GroupFit
    kept: Sequence[DeviceKey] = ()


def forecast(placer: BestPlacer, group: ClaimGroup) -> Forecast:
    """The place the group finds once other claims have ended: all of them, if it never fits.

    For an overdue group as few as possible, so that all free devices count for it. Ignores claims of other allocators.
    """
    members = [msgspec.structs.replace(each, others=()) for each in group.members]
    group = msgspec.structs.replace(group, members=members)
    search, claims = GangSearch(placer), _freeable(placer.fleet)
    ended = 0

    def end(number: int) -> None:
        """Make exactly the first `number` claims look ended."""
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
    return Forecast(fit, sorted(_free_of(placer.fleet, fit)))


def _freeable(fleet: Fleet) -> list[ResourceClaim]:
    """Draco's claims, those of the pools with the fewest first, then placeholders."""
    pools: dict[PoolKey, list[ResourceClaim]] = {}
    withheld = []
    for claim in fleet.claims.values():
        if not claim.devices_held:
            continue
        if not claim.metadata.namespace:  # a placeholder, such as for a GPU being handed over
            withheld.append(claim)
        elif is_for_operator(claim, fleet.classes):
            first = claim.devices_held[0]
            pools.setdefault(first.pool_key, []).append(claim)
    in_order = sorted(pools.items(), key=lambda pool: (len(pool[1]), pool[0]))
    return [*(claim for _, claims in in_order for claim in claims), *withheld]


def _free_of(fleet: Fleet, fit: GroupFit) -> Iterable[DeviceKey]:
    """The devices of the GPUs that the group would get, without those that a claim has alone; others get no further share."""
    chosen = {each.key for results in fit.results for result in results for each in result.devices.results}
    gpus = {(key.pool_key, gpu_name(key.device)) for key in chosen}
    short = fleet.short
    for pool, gpu in gpus:
        known = fleet.inventory.pool(pool)
        for entry in known.entries if known is not None else ():
            for row, device in zip(entry.rows, entry.spec.devices, strict=True):
                if gpu_name(device.name) == gpu and fleet.held[row] != HELD and not short[row]:
                    yield DeviceKey(pool.driver, pool.pool, device.name)
