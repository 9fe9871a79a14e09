"""Placers whose shares of devices are numbered."""

from itertools import count

from draco.allocation.fleet.fleet import Fleet
from draco.placing.search.best import BestPlacer


def a_placer(fleet: Fleet) -> BestPlacer:
    return BestPlacer(fleet, share_ids=map(str, count()))
