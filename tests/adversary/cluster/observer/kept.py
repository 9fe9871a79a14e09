"""The law of what is kept: at rest no operator has a question or a key that waits, and its memory is within a bound.

What tenants had is gone by then or stands still, so whatever waits is of objects that nobody has any more, or is done by nobody.
Owns what a scrape of a replica's metrics and its memory may say. Does no I/O.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.adversary.cluster.observer.suspicion import Suspicion

WAITING = ("draco_worker_waiting", "draco_queue_depth")
"""Gauges of what waits for its turn."""
MOST_MIB = 512
"""An operator of such a cluster takes about a quarter of it."""


class Scraped(NamedTuple):
    """What a replica says of itself, in Prometheus' form, and the memory that it takes."""

    metrics: str
    memory_mib: float


def kept_at_rest(replicas: Mapping[str, Scraped]) -> Iterator[Suspicion]:
    """What is left with these replicas at rest."""
    for name, scraped in replicas.items():
        for line in scraped.metrics.splitlines():
            if line.startswith(WAITING) and float(line.rsplit(" ", 1)[1]) > 0:
                yield Suspicion("kept", f"{name} {line.rsplit(' ', 1)[0]}", f"nothing happens, and {name} says {line}")
        if scraped.memory_mib > MOST_MIB:
            text = f"{name} takes {scraped.memory_mib:.0f} MiB of memory, more than {MOST_MIB}"
            yield Suspicion("kept", f"{name} memory", text)
