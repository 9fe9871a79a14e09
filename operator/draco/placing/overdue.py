"""What becomes of a group that finds no place: whether it ever could, and what is kept free for it once it is overdue.

Owns the question "and if others ended?": claims of Draco's are taken away, from the pools with the fewest first, until the group
fits. What of its place is free already is kept for it then, so that small claims cannot pass it for ever. Takes nothing from
anybody: only what is free is kept.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from draco.allocation.fleet.fleet import FREE, Fleet
from draco.allocation.ownership.claims import is_for_operator
from draco.placing.companions import Placed, Placer
from draco.placing.gang_search import GangSearch, GroupFit
from draco.placing.groups import ClaimGroup, allocated
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import DeviceKey, PoolKey, gpu_name


class Prospect(NamedTuple):
    """What a group gets once others end: `fit` is what it then finds, `kept` what is free of it now."""

    fit: GroupFit
    kept: list[DeviceKey]


def prospect(fleet: Fleet, placer: Placer[Placed], group: ClaimGroup) -> Prospect:
    """The place that the group finds with the fewest pools freed of Draco's claims; with all of them, if it never fits.

    What kube-scheduler will allocate to its pods is nobody's to free, and looked at when there is a place.
    """
    members = [msgspec.structs.replace(each, others=()) for each in group.members]
    group = msgspec.structs.replace(group, members=members)
    search, taken_away = GangSearch(fleet, placer), list[ResourceClaim]()
    waiting, step = _freeable(fleet), 1
    try:
        while True:
            fit = search.place(group)
            fits = fit.found >= group.needed
            if fits:
                search.undo(group, fit)
            if fits or not waiting:
                break
            for claim in (claim for claims in waiting[:step] for claim in claims):
                placer.put(allocated(claim, None))
                taken_away.append(claim)
            waiting, step = waiting[step:], step * 2
    finally:
        for claim in taken_away:
            placer.put(claim)
    return Prospect(fit, sorted(_free_of(fleet, fit)) if fits else [])


def _freeable(fleet: Fleet) -> list[list[ResourceClaim]]:
    """The claims of Draco's by the pool of their first device, the smallest number first; last, what is withheld for now."""
    pools: dict[PoolKey, list[ResourceClaim]] = {}
    withheld = []
    for claim in fleet.claims.values():
        if not claim.devices_held:
            continue
        if not claim.metadata.namespace:  # a placeholder: GPUs that are still being handed over, among others
            withheld.append(claim)
        elif is_for_operator(claim, fleet.classes):
            first = claim.devices_held[0]
            pools.setdefault(PoolKey(first.driver, first.pool), []).append(claim)
    in_order = [claims for _, claims in sorted(pools.items(), key=lambda pool: (len(pool[1]), pool[0]))]
    return [*in_order, withheld] if withheld else in_order


def _free_of(fleet: Fleet, fit: GroupFit) -> Iterable[DeviceKey]:
    """What is free of the GPUs that the group would get."""
    chosen = {each.key for results in fit.results for result in results for each in result.devices.results}
    gpus = {(PoolKey(key.driver, key.pool), gpu_name(key.device)) for key in chosen}
    short = fleet.short
    for pool, gpu in gpus:
        known = fleet.inventory.pool(pool)
        for entry in known.entries if known is not None else ():
            for row, device in zip(entry.rows, entry.spec.devices, strict=True):
                if gpu_name(device.name) == gpu and fleet.held[row] == FREE and not short[row]:
                    yield DeviceKey(pool.driver, pool.pool, device.name)
