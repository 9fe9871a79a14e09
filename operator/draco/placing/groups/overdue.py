"""What becomes of a group that finds no place: whether it ever could, and what is kept free for it once it is overdue.

Owns the question "and if others ended?": claims of Draco's are taken away, from the pools with the fewest first, until the group
fits. What of its place is free already is kept for it then, so that small claims cannot pass it for ever. Takes nothing from
anybody: only what is free is kept.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from draco.allocation.fleet.fleet import FREE, Fleet
from draco.allocation.ownership.claims import is_for_operator
from draco.placing.groups.gang_search import GangSearch, GroupFit
from draco.placing.groups.group import ClaimGroup, allocated
from draco.placing.search.what_if import WhatIfPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import DeviceKey, PoolKey, gpu_name


class Forecast(NamedTuple):
    """What a group gets once others end: `fit` is what it then finds, `kept` what of it is free now, if it is overdue."""

    fit: GroupFit
    kept: Sequence[DeviceKey] = ()


class _Ended:
    """Takes claims away as if they had ended, in their order, and puts them back."""

    def __init__(self, placer: WhatIfPlacer, claims: list[ResourceClaim]) -> None:
        self._placer = placer
        self._claims = claims
        self._number = 0

    def first(self, number: int) -> None:
        """Have just so many be taken away."""
        for claim in self._claims[self._number : number]:
            self._placer.put(allocated(claim, None))
        for claim in self._claims[number : self._number]:
            self._placer.put(claim)
        self._number = number


def forecast(fleet: Fleet, placer: WhatIfPlacer, group: ClaimGroup) -> Forecast:
    """The place that the group finds once others have ended: all of them, if it never fits.

    If it is overdue these are as few as can be, so that all that is free counts for it. What kube-scheduler will allocate to its
    pods is nobody's to free, and looked at when there is a place.
    """
    members = [msgspec.structs.replace(each, others=()) for each in group.members]
    group = msgspec.structs.replace(group, members=members)
    search, claims = GangSearch(fleet, placer), _freeable(fleet)
    ended = _Ended(placer, claims)

    def fit_without(number: int) -> GroupFit:
        ended.first(number)
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
        ended.first(0)
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
