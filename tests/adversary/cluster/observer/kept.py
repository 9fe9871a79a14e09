"""The law of leftovers: at rest, an operator's metrics show no waiting question or key, and its memory is bounded.

By then tenants' objects are deleted or unchanging, so anything that waits belongs to deleted objects or was forgotten.
Owns what a replica's metrics and memory may show. Does no I/O.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.adversary.cluster.observer.suspicion import Suspicion

WAITING = ("draco_worker_waiting", "draco_queue_depth")
"""Gauges of waiting work."""
GIVEN_THE_GATE = 'draco_admission_reviews_total{outcome="gated"}'
MOST_MIB = 512
"""About twice what an operator of this cluster takes with its workers."""


class Scraped(NamedTuple):
    """A replica's metrics in Prometheus' text format, and its memory with its workers."""

    metrics: str
    memory_mib: float

    @property
    def gated(self) -> int:
        """How many new pods it has gated since it started."""
        said = [line for line in self.metrics.splitlines() if line.startswith(GIVEN_THE_GATE)]
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in said))


class Kept:
    """Suspicions that every look since rest began has found. Periodic rechecks appear only now and then, so they drop out."""

    def __init__(self) -> None:
        self._always: dict[str, Suspicion] | None = None

    def look(self, found: Iterable[Suspicion]) -> list[Suspicion]:
        """The suspicions that this look and all earlier ones found."""
        now = {each.key: each for each in found}
        self._always = now if self._always is None else {key: now[key] for key in self._always if key in now}
        return list(self._always.values())


def kept_at_rest(replicas: Mapping[str, Scraped]) -> Iterator[Suspicion]:
    """Leftovers of these replicas at rest."""
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
