"""The law of what is kept: at rest no operator has a question or a key that waits, and says so, and its memory is within a bound.

What tenants had is gone by then or stands still, so whatever waits is of objects that nobody has any more, or is done by nobody.
Owns what a scrape of a replica's metrics and its memory may say. Does no I/O.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.adversary.cluster.observer.suspicion import Suspicion

WAITING = ("draco_worker_waiting", "draco_queue_depth")
"""Gauges of what waits for its turn."""
GIVEN_THE_GATE = 'draco_admission_reviews_total{outcome="gated"}'
MOST_MIB = 512
"""An operator of such a cluster, with its workers, takes about half of it."""


class Scraped(NamedTuple):
    """What a replica says of itself, in Prometheus' form, and the memory that it takes with its workers."""

    metrics: str
    memory_mib: float

    @property
    def gated(self) -> int:
        """How many new pods it has given the scheduling gate since it began."""
        said = [line for line in self.metrics.splitlines() if line.startswith(GIVEN_THE_GATE)]
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in said))


class Kept:
    """What every look since rest began has found. What waits is looked at again now and then, which is not kept."""

    def __init__(self) -> None:
        self._always: dict[str, Suspicion] | None = None

    def look(self, found: Iterable[Suspicion]) -> list[Suspicion]:
        """What this look has found as well as all before."""
        now = {each.key: each for each in found}
        self._always = now if self._always is None else {key: now[key] for key in self._always if key in now}
        return list(self._always.values())


def kept_at_rest(replicas: Mapping[str, Scraped]) -> Iterator[Suspicion]:
    """What is left with these replicas at rest."""
    for name, scraped in replicas.items():
        said = [line.rsplit(" ", 1) for line in scraped.metrics.splitlines() if line.startswith(WAITING)]
        for gauge in WAITING:
            if not any(each.startswith(gauge) for each, _ in said):
                yield Suspicion("kept", f"{name} {gauge}", f"{name} does not say {gauge}")
        for gauge, value in said:
            if float(value) > 0:
                yield Suspicion("kept", f"{name} {gauge}", f"nothing happens, and {name} says {gauge} {value}")
        if scraped.memory_mib > MOST_MIB:
            text = f"{name} takes {scraped.memory_mib:.0f} MiB of memory, more than {MOST_MIB}"
            yield Suspicion("kept", f"{name} memory", text)
