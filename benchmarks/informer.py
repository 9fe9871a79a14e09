"""How fast all claims of a cluster are listed and decoded: `python -m benchmarks.informer --claims 10000`.

Starts an API server, fills it with claims, and measures in fresh processes, alternating, the time from the first request to the
last object decoded: Draco's informer until it has synced, and as the peer kubernetes_asyncio's typed list in pages of 500. Also
reported are the client's CPU time and memory.
"""

import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
import structlog

from benchmarks.table import Row, tell
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.watch.informer import Informer
from draco.resources.kinds import CLAIMS
from draco_local.cluster.controlplane import STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries

TARGET = 10.0
WRITERS = 32

Side = Literal["draco", "peer"]


class Sample(msgspec.Struct, frozen=True):
    """Seconds until all are known, seconds of CPU time, and MiB of memory taken, in one fresh process."""

    wall_s: float
    cpu_s: float
    memory_mib: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of both sides."""

    claims: int
    draco: list[Sample]
    peer: list[Sample]

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer, by the medians of wall time."""
        return _median(s.wall_s for s in self.peer) / _median(s.wall_s for s in self.draco)

    @property
    def cpu_ratio(self) -> float:
        """The same by the client's CPU time, which a busy machine disturbs less."""
        return _median(s.cpu_s for s in self.peer) / _median(s.cpu_s for s in self.draco)

    def __str__(self) -> str:
        lines = [f"{self.claims} claims, medians of {len(self.draco)}{'time':>12}{'processor':>12}{'memory':>12}"]
        for name, samples in (("Draco's informer", self.draco), ("kubernetes_asyncio typed", self.peer)):
            wall, cpu = _median(s.wall_s for s in samples), _median(s.cpu_s for s in samples)
            memory = _median(s.memory_mib for s in samples)
            lines.append(f"{name:{len(lines[0]) - 36}}{wall:>10.2f} s{cpu:>10.2f} s{memory:>8.0f} MiB")
        verdict = "met" if self.ratio >= TARGET else "MISSED"
        lines.append(
            f"ratio {self.ratio:.1f} (target: at least {TARGET:g}, {verdict}); of processor time {self.cpu_ratio:.1f}"
        )
        return "\n".join(lines)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def a_claim(number: int) -> dict[str, Any]:
    """About what a training job's claim looks like: 2.5 KB as the server returns it."""
    selector = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$')"
    return {
        "metadata": {
            "name": f"claim-{number:06}",
            "namespace": "default",
            "labels": {"app": "training", "job": f"job-{number // 8}", "team": f"team-{number % 17}"},
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpus", "note": "x" * 200},
        },
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": name,
                        "exactly": {
                            "deviceClassName": "gpu.nvidia.com",
                            "allocationMode": "ExactCount",
                            "count": 2,
                            "selectors": [{"cel": {"expression": selector}}],
                            "tolerations": [{"key": "draco.dev/maintenance", "operator": "Exists"}],
                        },
                    }
                    for name in ("first", "second")
                ],
                "constraints": [{"requests": ["first", "second"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}],
                "config": [
                    {
                        "requests": ["first"],
                        "opaque": {
                            "driver": "gpu.nvidia.com",
                            "parameters": {
                                "apiVersion": "resource.nvidia.com/v1beta1",
                                "kind": "GpuConfig",
                                "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
                            },
                        },
                    }
                ],
            }
        },
    }


async def fill(kubeconfig: Path, count: int) -> None:
    """Create the claims."""
    numbers = iter(range(count))

    async def write(client: Client) -> None:
        for number in numbers:
            await client.create(CLAIMS, a_claim(number))

    async with Client(await connect(kubeconfig)) as client:
        await asyncio.gather(*(write(client) for _ in range(WRITERS)))


async def know(kubeconfig: Path, side: Side) -> int:
    """Load all claims into memory, and return how many there are."""
    return await (_informer(kubeconfig) if side == "draco" else _typed_list(kubeconfig))


async def _informer(kubeconfig: Path) -> int:
    async with Client(await connect(kubeconfig)) as client:
        informer = Informer(client, CLAIMS, clock=SystemClock())
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return len(informer.store)


async def _typed_list(kubeconfig: Path) -> int:
    from kubernetes_asyncio import client, config  # noqa: PLC0415 - not to weigh on the other side's process

    configuration = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    items: list[Any] = []
    token = ""
    async with client.ApiClient(configuration) as api:
        while True:
            page = await client.ResourceV1Api(api).list_resource_claim_for_all_namespaces(limit=500, _continue=token)
            items += page.items
            token = page.metadata._continue
            if not token:
                return len(items)


def sample(kubeconfig: Path, side: Side, count: int) -> Sample:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.informer", "--sample", side, "--kubeconfig", str(kubeconfig)]
    done = subprocess.run([*command, "--claims", str(count)], stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Sample)


def measure_here(kubeconfig: Path, side: Side, count: int) -> Sample:
    """Measure in this process, its imports apart: both sides authenticate by kubernetes_asyncio."""
    import kubernetes_asyncio.client  # noqa: F401, PLC0415 - only where it is measured

    import draco.kube.connect.authentication  # noqa: F401, PLC0415 - the same; Draco loads it with the first connection

    if side == "peer":
        gc.freeze()  # its collections skip what was imported

    memory, cpu, began = _memory_mib("VmRSS"), time.process_time(), time.monotonic()
    found = asyncio.run(know(kubeconfig, side))
    result = Sample(time.monotonic() - began, time.process_time() - cpu, _memory_mib("VmHWM") - memory)
    if found != count:
        raise click.ClickException(f"{found} claims were found where there are {count}")
    return result


def _memory_mib(field: str) -> float:
    """VmRSS is the memory now, VmHWM the most there has been."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024


@click.command()
@click.option("--claims", default=10_000, show_default=True, help="How many claims there are.")
@click.option("--rounds", default=3, show_default=True, help="Samples of each side.")
@click.option("--sample", "side", type=click.Choice(["draco", "peer"]), hidden=True)
@click.option("--kubeconfig", type=click.Path(path_type=Path), hidden=True)
def main(claims: int, rounds: int, side: Side | None, kubeconfig: Path | None) -> None:
    """Measure how fast claims are listed and decoded, against kubernetes_asyncio's typed list."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    if side and kubeconfig:
        print(msgspec.json.encode(measure_here(kubeconfig, side, claims)).decode())
        return
    with tempfile.TemporaryDirectory(prefix="draco-benchmark-") as folder:
        plane = ControlPlane(Path(folder) / "state", Settings(programs=binaries.find(*STORE)))
        try:
            plane.start()
            print(f"creating {claims} claims", file=sys.stderr)
            asyncio.run(fill(plane.kubeconfig, claims))
            pairs = [[sample(plane.kubeconfig, each, claims) for each in ("draco", "peer")] for _ in range(rounds)]
        finally:
            plane.stop()
    result = Result(claims=claims, draco=[pair[0] for pair in pairs], peer=[pair[1] for pair in pairs])
    print(result)
    draco, peer = (_median(one.wall_s for one in side) for side in (result.draco, result.peer))
    tell(
        Row(
            f"informer, {claims} claims listed and decoded",
            f"{draco:.2f} s",
            f"{peer:.2f} s with kubernetes_asyncio's typed list ({result.ratio:.1f} times)",
            f">= {TARGET:g} times faster",
            result.ratio >= TARGET,
        )
    )
    sys.exit(0 if result.ratio >= TARGET else 1)


if __name__ == "__main__":
    main()
