"""How long it takes to place a gang of 64 claims over 1,000 nodes: `python -m benchmarks.gang_placement [--nodes N]`.

Three gangs, each on a free fleet of its own: 64 claims for one GPU each, for eight GPUs each, and for one partition of a GPU
each. `BestPlacer` places the claims one after the other, each on what the previous ones leave. The peer takes the first place
that fits (`first_fitting`), in the same run.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from benchmarks.gpu_fleet import (
    GPU_CLASS,
    Json,
    a_claim,
    a_gpu,
    a_node,
    a_partitioned_node,
    a_slice,
    claim_of,
    node_name,
    put,
)
from benchmarks.table import Row, tell
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import first_fitting
from draco.placing.groups.group import allocated
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim

NODES, GPUS, MEMBERS = 1_000, 8, 64
TARGET_S = 40e-3
ROUNDS = 3


def main() -> int:
    """Measure, print, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    asked = parser.parse_args()
    whole, divisible = whole_gpus(asked.nodes), partitioned(asked.nodes)
    partition = "device.attributes['gpu.nvidia.com'].?profile.orValue('') == '1g.10gb'"
    rows = [
        row("one GPU each", asked.nodes, whole, a_claim("member", "true")),
        row("eight GPUs each", asked.nodes, whole, a_claim("member", "true", count=GPUS)),
        row("one MIG partition each", asked.nodes, divisible, a_claim("member", partition)),
    ]
    tell(*rows)
    return 0 if all(each.met for each in rows) else 1


def whole_gpus(nodes: int) -> Fleet:
    """Nodes of eight GPUs, all free."""
    fleet = Fleet()
    put(fleet, GPU_CLASS)
    for node in range(nodes):
        put(fleet, a_node(node), a_slice(node, [a_gpu(node, index) for index in range(GPUS)]))
    fleet.settle()
    return fleet


def partitioned(nodes: int) -> Fleet:
    """Nodes of eight GPUs that are published with every partition, all free."""
    fleet = Fleet()
    text = msgspec.json.encode([each for each in a_partitioned_node(GPUS) if each["kind"] in {"Node", "ResourceSlice"}])
    put(fleet, GPU_CLASS)
    for node in range(nodes):
        objects: list[Json] = msgspec.json.decode(text.replace(node_name(0).encode(), node_name(node).encode()))
        put(fleet, *objects)
    fleet.settle()
    return fleet


def row(what: str, nodes: int, fleet: Fleet, raw: Json) -> Row:
    """Seconds to place a whole gang, the best of some rounds, beside those of the first place that fits."""
    best_s = min(seconds(fleet, raw, placing_best(fleet)) for _ in range(ROUNDS))
    first_s = seconds(fleet, raw, placing_first(fleet))
    return Row(
        f"gang of {MEMBERS} over {nodes:,} nodes x {GPUS}, {what}: decided",
        f"{best_s * 1e3:.1f} ms",
        f"{first_s * 1e3:.1f} ms for the first that fits",
        f"<= {TARGET_S * 1e3:g} ms",
        best_s <= TARGET_S,
    )


Place = Callable[[ResourceClaim], Sequence[AllocationResult] | None]
Put = Callable[[ResourceClaim], None]


def placing_best(fleet: Fleet) -> Callable[[], tuple[Place, Put]]:
    """Placing at the best place, with a new placer."""

    def begin() -> tuple[Place, Put]:
        placer = BestPlacer(fleet, share_ids=map(str, count()))

        def place(claim: ResourceClaim) -> Sequence[AllocationResult] | None:
            found = placer.best([claim], fleet.nodes)
            return None if found is None else found.results

        return place, placer.put

    return begin


def placing_first(fleet: Fleet) -> Callable[[], tuple[Place, Put]]:
    """Placing at the first place that fits."""

    def place(claim: ResourceClaim) -> Sequence[AllocationResult] | None:
        found = first_fitting(fleet, [claim], share_ids=map(str, count()))
        return None if found is None else found[1]

    return lambda: (place, fleet.put_claim)


def seconds(fleet: Fleet, raw: Json, begin: Callable[[], tuple[Place, Put]]) -> float:
    """Seconds to place all members; afterwards the fleet is as it was."""
    claims = [
        claim_of(raw | {"metadata": {"name": f"member-{number}", "namespace": "default"}}) for number in range(MEMBERS)
    ]
    gc.collect()
    gc.disable()
    began = time.process_time()
    place, count_it = begin()
    for claim in claims:
        results = place(claim)
        if results is None:
            raise RuntimeError("a member of the gang found no place")
        count_it(allocated(claim, results[0]))
    took = time.process_time() - began
    gc.enable()
    for claim in claims:
        fleet.remove_claim(claim.metadata.key)
    fleet.settle()
    return took


if __name__ == "__main__":
    sys.exit(main())
