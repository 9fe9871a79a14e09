"""Fleets to place claims in, whose shares of devices are numbered."""

from itertools import count

from draco.allocation.fleet.fleet import Fleet
from draco.placing.search.what_if import PlacedFleet


def a_placed_fleet(fleet: Fleet) -> PlacedFleet:
    return PlacedFleet(fleet, share_ids=map(str, count()))
