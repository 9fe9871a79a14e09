"""What it costs to know who uses the GPUs: `python -m benchmarks.usage_metrics`.

A node with simulated GPUs and processes, which are in the containers of as many claims as there are GPUs. Measures the processor
time of one reading of NVML and /proc, its attribution to claims, the comparison with the last report, and a scrape of all of its
series, as a part of the 15 s from one reading to the next.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import click
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from benchmarks.table import Row, tell
from draco.agent.files import Files
from draco.agent.hardware.monitor import HardwareView
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_usage import NvmlUsage
from draco.agent.mig.holders import Holders
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import ClaimPod, PreparationState, PreparedClaim, PreparedDevice
from draco.agent.settings import AgentSettings
from draco.agent.state.node import NodeState
from draco.agent.usage.claim_conditions import UsageConditions
from draco.agent.usage.findings import UsageFindings
from draco.agent.usage.metrics import UsageMetrics
from draco.agent.usage.reading import UsageReader
from draco.agent.usage.report import UsageReporter
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.resources.names import ClaimUid
from draco_local.simulator.gpus import procfs, state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from draco_local.simulator.gpus.procfs import cgroup_of
from draco_local.simulator.nvml.library import SimulatedNvml

TARGET_PERCENT = 1.0
CONTAINERS = 10
"""Containers of each claim's pod."""


def build(folder: Path, *, gpus: int, processes: int) -> Path:
    """A node whose GPUs have so many processes each; returns its state file."""
    path = folder / "gpus.json"
    state.create(path, board="H100-80GB", gpus=gpus, node_name="node-0")
    with state.mutate(path) as node:
        for number, gpu in enumerate(node.gpus):
            for each in range(processes):
                container = f"main-{each % CONTAINERS}"
                cgroup = cgroup_of(pod_uid(number), container)
                pid = 1000 + number * processes + each
                gpu.processes.append(GpuProcess(pid, memory_mib=500, utilization=1, cgroup=cgroup, container=container))
    procfs.build(path, state.load(path))
    return path


def pod_uid(number: int) -> str:
    """The UID of a GPU's pod."""
    return f"0f5a2f0e-0000-4000-8000-{number:012d}"


async def measure(path: Path, rounds: int) -> tuple[list[float], int]:
    """Processor seconds of each round, and the number of series."""
    clock = SystemClock()
    nvml = Nvml(SimulatedNvml(path))
    nvml.open()
    gpus = nvml.gpus()
    known = NodeState(clock)
    known.learn(view=HardwareView(driver=nvml.driver(), gpus=tuple(gpus)))
    record = Checkpoint(path.with_name("checkpoint.json"), Files(), boot_id="boot")
    for number, gpu in enumerate(gpus):
        device = PreparedDevice(request="gpu", pool="node-0", device=f"gpu-{number}", gpu=gpu.uuid, minor=number)
        pods = (ClaimPod(name=f"pod-{number}", uid=pod_uid(number)),)
        uid, prepared = ClaimUid(f"claim-{number}"), PreparationState.PREPARED
        record.put(PreparedClaim(uid=uid, namespace="n", name=uid, state=prepared, devices=[device], pods=pods))
    client = cast("Client", None)  # nothing is asked for
    holders = Holders(procfs.tree(path))
    usage = NvmlUsage(nvml, now=time.time)
    every_s = AgentSettings(node_name="node-0").usage_s
    reader = UsageReader(client, known, record, usage, holders, clock=clock, every_s=every_s)
    findings = UsageFindings()
    conditions = UsageConditions(findings, after_s=7200.0, changed=lambda _claim: None)
    reporter = UsageReporter(client, findings, node="node-0", clock=clock)
    for follower in (findings, conditions, reporter):
        reader.subscribe(follower.read)
    registry = CollectorRegistry()
    metrics = UsageMetrics(registry, findings.unused)
    took_s, text = [], b""
    for _ in range(rounds):
        began = time.process_time()
        await reader.read()
        metrics.set(reader.latest, now_s=clock.monotonic())
        text = generate_latest(registry)
        took_s.append(time.process_time() - began)
    return took_s, sum(not line.startswith(b"#") for line in text.splitlines())


@click.command()
@click.option("--gpus", default=8, show_default=True, help="GPUs of the node.")
@click.option("--processes", default=100, show_default=True, help="Processes on each GPU.")
@click.option("--rounds", default=40, show_default=True, help="Readings to measure.")
def main(gpus: int, processes: int, rounds: int) -> None:
    """Measure what the metrics of usage cost the agent."""
    with tempfile.TemporaryDirectory(prefix="draco-") as folder:
        took_s, series = asyncio.run(measure(build(Path(folder), gpus=gpus, processes=processes), rounds))
    every_s = AgentSettings(node_name="node-0").usage_s
    percent = 100 * statistics.median(took_s) / every_s
    click.echo(f"{series} series; {1000 * statistics.median(took_s):.1f} ms, {1000 * max(took_s):.1f} ms at most")
    tell(
        Row(
            figure=f"usage metrics of {gpus} GPUs with {processes} processes each (part of a core)",
            measured=f"{percent:.2f} %, {1000 * statistics.median(took_s):.0f} ms every {every_s:g} s",
            peer="none runs without a GPU",
            target=f"at most {TARGET_PERCENT:g} %",
            met=percent <= TARGET_PERCENT,
        )
    )
    sys.exit(0 if percent <= TARGET_PERCENT else 1)


if __name__ == "__main__":
    main()
