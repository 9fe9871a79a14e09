"""How much memory the devices of a large cluster take: `python -m benchmarks.device_memory`.

From 100 to 10,000 nodes with ten GPUs each, which have ten attributes and two capacities, one of them of their own (a UUID). Each
size is measured in a process of its own: the memory it takes with the inventory beyond what it took without.
"""

import argparse
import gc
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_fleet import DRIVER, SIZES, a_gpu, a_slice, put
from benchmarks.table import Row, tell
from draco.allocation.fleet.fleet import Fleet

TARGET_MIB = 250.0
GPUS = 10


def main() -> int:
    """Measure, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="NODES", help=argparse.SUPPRESS)
    nodes_here = parser.parse_args().sample
    if nodes_here is not None:
        print(measure_here(nodes_here))
        return 0
    print(f"{'devices':>8}{'memory':>12}{'per device':>14}")
    met = True
    for nodes in SIZES:
        taken = sample(nodes)
        print(f"{nodes * GPUS:>8}{taken:>8.1f} MiB{taken * 1024 / nodes / GPUS:>10.2f} KiB", flush=True)
        if nodes == SIZES[-1]:
            met = taken <= TARGET_MIB
            tell(row(nodes * GPUS, taken))
    return 0 if met else 1


def row(devices: int, taken_mib: float) -> Row:
    """The figure that has a target."""
    attributes = len(a_gpu(0, 0)["attributes"]) + len(a_gpu(0, 0)["capacity"])
    return Row(
        f"memory for {devices} devices with {attributes} attributes and capacities",
        f"{taken_mib:.0f} MiB",
        "-",
        f"<= {TARGET_MIB:g} MiB",
        taken_mib <= TARGET_MIB,
    )


def sample(nodes: int) -> float:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.device_memory", "--sample", str(nodes)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def measure_here(nodes: int) -> float:
    """MiB that the inventory takes, once a selector has been evaluated on all of it."""
    small = Fleet()
    fill(small, 1)
    gc.collect()
    before = resident_mib()
    fleet = Fleet()
    fill(fleet, nodes)
    gc.collect()
    return resident_mib() - before


def fill(fleet: Fleet, nodes: int) -> None:
    """Publish the nodes' GPUs, and evaluate a selector on them."""
    for node in range(nodes):
        put(fleet, a_slice(node, [a_gpu(node, index) for index in range(GPUS)]))
    fleet.inventory.selectors.scan(f"device.attributes['{DRIVER}'].productName == 'NVIDIA H200'")


def resident_mib() -> float:
    """The process's resident memory now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    sys.exit(main())
