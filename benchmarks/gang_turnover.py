"""How soon a waiting gang runs in place of one that ends: with Draco, and with kube-scheduler's GangScheduling.

On the cluster of `gang_trace`, gangs hold all GPUs and one more waits; the oldest is deleted, and the time is taken until the
last pod of the waiting one is bound. Whatever its order, a queue pays this at each change: the GPUs are idle meanwhile.

    python -m benchmarks.gang_turnover --rounds 10
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gang_trace import GPUS, Job, Replay, with_each
from benchmarks.table import Row, tell

SIZE = 64
WAITS_S = 1.5
"""By then the allocator has looked at the waiting gang."""
WITHIN_S = 60.0


async def turnovers(replay: Replay, prefix: str, gangs: int, rounds: int) -> list[float]:
    """Seconds from when a gang begins to be deleted until the next one runs. `gangs` of them fit in."""
    jobs = [Job(f"{prefix}-{number}", 0.0, SIZE, 0.0) for number in range(gangs + rounds)]
    for job in jobs[:gangs]:
        bound = await replay.begin(job)
        await asyncio.wait_for(bound.wait(), WITHIN_S)
    took_s = []
    for oldest, job in zip(jobs, jobs[gangs:], strict=False):
        bound = await replay.begin(job)
        await asyncio.sleep(WAITS_S)
        began_s = time.monotonic()
        await replay.end(oldest)
        await asyncio.wait_for(bound.wait(), WITHIN_S)
        took_s.append(round(time.monotonic() - began_s, 2))
    for job in jobs[rounds:]:
        await replay.end(job)
    return took_s


async def main() -> int:
    """Run the benchmark; 0 when the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()

    async def measured(replay: Replay, prefix: str) -> list[float]:
        return await turnovers(replay, prefix, options.nodes * GPUS // SIZE, options.rounds)

    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        theirs, ours = (statistics.median(each) for each in await with_each(Path(folder), options.nodes, measured))
    row = Row(
        f"a gang of {SIZE} that waits runs after the one before it is deleted, p50",
        f"{ours:.2f} s, {ours / theirs:.2f} of the scheduler's",
        f"{theirs:.2f} s with kube-scheduler and GangScheduling",
        "at most 1.25 times the scheduler's",
        ours <= 1.25 * theirs,
    )
    tell(row)
    return 0 if row.met else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
