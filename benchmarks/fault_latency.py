"""How long it takes from a fault that NVML reports to the taint in the API.

Runs a real agent process on a node with eight simulated H100s. One GPU after the other gets an XID, and the time is taken until a
watch of the ResourceSlices in this process shows the taint. When all GPUs have one they are reset, and the next round begins when
the agent has seen that they are healthy.

    python -m benchmarks.fault_latency --trials 104
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import structlog

from benchmarks.operator_scale import a_cluster, say
from benchmarks.table import Row, tell
from benchmarks.taint_latency import ms, p99
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import NODES, SLICES
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state

TARGET_P99_S = 0.5
GPUS = 8
NODE = "node-0"
XID = 95
RESET = faults.RECOVERY_ACTIONS["reset"]


class Watched:
    """Which devices have which taints of faults, as the API server reports it."""

    def __init__(self, client: Client) -> None:
        self.tainted: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._informer = Informer(client, SLICES, clock=SystemClock())
        self._informer.subscribe(self._note)
        self.devices = 0
        self.task = asyncio.create_task(self._informer.run())

    def _note(self, change: Change[ResourceSlice]) -> None:
        at = time.monotonic()
        devices = change.after.spec.devices if change.after is not None else []
        self.devices = len(devices)
        now = {one.name for one in devices if any(taint.effect == "NoSchedule" for taint in one.taints)}
        self.tainted = {name: self.tainted.get(name, at) for name in now}
        self._changed.set()

    async def until(self, tainted: int, devices: int = GPUS) -> None:
        """Return once this many devices are published, and this many of them tainted."""
        async with asyncio.timeout(60):
            while (len(self.tainted), self.devices) != (tainted, devices):
                self._changed.clear()
                await self._changed.wait()


async def main() -> int:
    """Run the benchmark; 0 when the target is met."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=104)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with a_cluster(folder) as (plane, client):
            await client.create(NODES, Node(metadata=ObjectMeta(name=NODE)))
            path = folder / "node" / "gpus.json"
            state.create(path, gpus=GPUS, node_name=NODE)
            arguments = [
                *("-m", "draco_local.simulator.agent", f"--state={path}", f"--node-name={NODE}"),
                *(
                    f"--kubelet-dir={path.parent}",
                    f"--cdi-dir={path.parent / 'cdi'}",
                    f"--kubeconfig={plane.kubeconfig}",
                ),
            ]
            with (folder / "log").open("wb") as log:
                agent = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=log, stderr=log)
                try:
                    seconds = await measure(client, path, options.trials)
                except TimeoutError:
                    say((folder / "log").read_text()[-3000:])
                    raise
                finally:
                    agent.terminate()
                    await agent.wait()
    slowest = p99(seconds)
    rows = [
        Row("fault reported to tainted in the API, p50", ms(statistics.median(seconds)), "-", "-", met=True),
        Row(
            "fault reported to tainted in the API, p99",
            ms(slowest),
            "-",
            f"<= {ms(TARGET_P99_S)}",
            slowest <= TARGET_P99_S,
        ),
    ]
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


async def measure(client: Client, path: Path, trials: int) -> list[float]:
    """Break one GPU after the other, and heal them when all are broken."""
    watched = Watched(client)
    seconds: list[float] = []
    await watched.until(0)
    while len(seconds) < trials:
        for gpu in range(min(GPUS, trials - len(seconds))):
            at = time.monotonic()
            faults.xid(path, gpu, XID)
            await watched.until(gpu + 1)
            seconds.append(watched.tainted[f"gpu-{gpu}"] - at)
            await asyncio.sleep(0.3)  # the consequences of one fault must not delay the next
        say(f"{len(seconds)} trials")
        for gpu in range(GPUS):
            faults.recovery_action(path, gpu, RESET)
        await watched.until(GPUS)
        await asyncio.sleep(1.0)  # the agent reads the GPUs once more, and so sees that a reset is requested
        for gpu in range(GPUS):
            faults.reset(path, gpu)
        faults.xid(path, 0, 13)  # wakes it: nothing reports a reset
        await watched.until(0)
    watched.task.cancel()
    await asyncio.wait({watched.task})
    return seconds


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
