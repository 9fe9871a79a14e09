"""The law of still pools: when nothing happens, no agent publishes its pool over and over.

Each time every pod that waits is tried again by kube-scheduler, and everybody who follows the pool has to look again. Owns when
each pool was published; whether anything happens is for the caller to say. Does no I/O.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object

OFTEN, WITHIN_S = 5, 40.0
"""So many generations in so long are more than what one change after another takes to come to an end."""


class Still:
    """Told of each slice."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}
        self._published: dict[str, list[float]] = defaultdict(list)

    def slice_changed(self, after: Object | None, now: float) -> None:
        """A slice was written or is gone."""
        if after is None:
            return
        pool, generation = after["spec"]["pool"]["name"], after["spec"]["pool"].get("generation", 0)
        if self._generations.get(pool) != generation:
            self._generations[pool] = generation
            self._published[pool].append(now)

    def restless(self, now: float) -> Iterator[Suspicion]:
        """The pools that are not still."""
        for pool, times in self._published.items():
            times[:] = [each for each in times if now - each < WITHIN_S]
            if len(times) >= OFTEN:
                text = f"nothing happens, and pool {pool} is published {OFTEN} times and more within {WITHIN_S:g} s"
                yield Suspicion("not still", pool, text)
