"""How fast claims are allocated on one node of partitioned GPUs: `python -m benchmarks.partitioned_node`.

From one to eight GPUs, each published whole and with the partitions that it can be cut into, which draw from its counters. All
are in use except a part of the last GPU, and a claim asks for a partition that fits only there. The peer is Kubernetes' own
allocator, in the same run; the time to build it is shown, but not counted.
"""

import itertools
import statistics
import sys
import time
from typing import NamedTuple

from benchmarks.gpu_fleet import DRIVER, Json, a_claim, a_partitioned_node, claim_of, node_name, put
from benchmarks.table import Row, tell
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import allocate
from tests.oracle.programs import oracle

TARGET = 1.0
ROUNDS = 201
GPUS = (1, 2, 4, 8)
WANTED = a_claim("wanted", f"device.attributes['{DRIVER}'].?profile.orValue('') == '3g.40gb'")


class Measured(NamedTuple):
    """Medians in seconds of one allocation."""

    devices: int
    draco_s: float
    go_s: float
    go_build_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as Kubernetes' allocator."""
        return self.go_s / self.draco_s

    def __str__(self) -> str:
        times = "".join(f"{each * 1e3:>9.3f} ms" for each in self[1:])
        return f"{self.devices:>8}{times}{self.ratio:>7.1f}x"


def main() -> int:
    """Measure, and say whether the target is met."""
    print(f"{'devices':>8}{'Draco':>12}{'Go':>12}{'Go build':>12}{'ratio':>8}")
    met = True
    for gpus in GPUS:
        measured = measure(gpus)
        print(measured, flush=True)
        if gpus == GPUS[-1]:
            met = measured.ratio >= TARGET
            tell(row(measured))
    return 0 if met else 1


def row(measured: Measured) -> Row:
    """The figure that has a target."""
    return Row(
        f"allocate on a node of {measured.devices} devices that draw from counters",
        f"{measured.draco_s * 1e3:.2f} ms",
        f"{measured.go_s * 1e3:.2f} ms in Kubernetes' allocator ({measured.ratio:.1f} times)",
        "no slower",
        measured.ratio >= TARGET,
    )


def measure(gpus: int) -> Measured:
    """Both sides on a node of so many GPUs."""
    objects = a_partitioned_node(gpus)
    fleet = Fleet()
    put(fleet, *objects)
    taken = [draco_s(fleet, gpus) for _ in range(ROUNDS)]
    return Measured(len(fleet.inventory), statistics.median(taken), *go_s(objects, gpus))


def draco_s(fleet: Fleet, gpus: int) -> float:
    """Seconds of one allocation."""
    claim, node, ids = claim_of(WANTED), fleet.nodes[node_name(0)], map(str, itertools.count())
    began = time.perf_counter()
    results = allocate(fleet.inventory, fleet.state, node, [claim], fleet.classes, share_ids=ids)
    took = time.perf_counter() - began
    if results is None or results[0].devices.results[0].device != expected(gpus):
        raise RuntimeError("the partition that is left was not found")
    return took


def expected(gpus: int) -> str:
    """The one partition that is left of its kind."""
    return f"gpu-{gpus - 1}-mig-3g-40gb-4"


def go_s(objects: list[Json], gpus: int) -> tuple[float, float]:
    """Seconds of one allocation, and seconds to build the allocator."""
    question = {"objects": [*objects, WANTED], "claims": ["default/wanted"], "timing": {"repeat": ROUNDS}}
    with oracle("allocator") as go:
        [answer] = go.ask(question)
    if answer.get("error") or answer["results"][0]["devices"]["results"][0]["device"] != expected(gpus):
        raise RuntimeError(f"Kubernetes' allocator has found another device: {answer}")
    return statistics.median(answer["searchSeconds"]), statistics.median(answer["buildSeconds"])


if __name__ == "__main__":
    sys.exit(main())
