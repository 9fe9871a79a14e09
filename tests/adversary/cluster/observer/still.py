"""The law of stillness: at rest, no pool is published and no claim is allocated repeatedly.

Each publication makes kube-scheduler retry every waiting pod, and every watcher of the pool read it again. A claim that is
allocated and deallocated in turn is of no use. Owns when each happened; the caller decides whether the cluster is at rest. Does
no I/O.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object

OFTEN, WITHIN_S = 5, 40.0
"""More times within these seconds than successive changes need to settle."""


class Still:
    """Told of each slice, and of each claim that is allocated."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}
        self._published: dict[str, list[float]] = defaultdict(list)
        self._allocated: dict[str, list[float]] = defaultdict(list)

    def slice_changed(self, after: Object | None, now: float) -> None:
        """A slice was written or deleted."""
        if after is None:
            return
        pool, generation = after["spec"]["pool"]["name"], after["spec"]["pool"].get("generation", 0)
        if self._generations.get(pool) != generation:
            self._generations[pool] = generation
            self._published[pool].append(now)

    def allocated(self, claim: str, now: float) -> None:
        """A claim was newly allocated."""
        self._allocated[claim].append(now)

    def restless(self, now: float) -> Iterator[Suspicion]:
        """Pools and claims that change repeatedly."""
        for pool in _often(self._published, now):
            text = f"nothing happens, and pool {pool} is published {OFTEN} times and more within {WITHIN_S:g} s"
            yield Suspicion("not still", pool, text)
        for claim in _often(self._allocated, now):
            text = f"nothing happens, and claim {claim} is allocated {OFTEN} times and more within {WITHIN_S:g} s"
            yield Suspicion("not still", claim, text)


def _often(happened: dict[str, list[float]], now: float) -> list[str]:
    """What happened often lately. Older entries are dropped."""
    for key, times in list(happened.items()):
        times[:] = [each for each in times if now - each < WITHIN_S]
        if not times:
            del happened[key]
    return [key for key, times in happened.items() if len(times) >= OFTEN]
