"""How soon an installation with helm works: `python -m benchmarks.installation [--archive FILE] [--real-nodes 2]`.

Needs root and an image with simulated GPUs (`make image IMAGE_ARGS="--target simulated --output build/simulated.tar"`), so it is
not run with the others. Starts real nodes, uninstalls what `draco cluster up` installed there, and measures a second
installation, whose image the nodes have: until helm reports all pods ready, and on each node from the start of the agent's pod
until its first slice is published. There is no peer.
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import msgspec

from benchmarks.table import Row, tell
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.kinds import PODS, SLICES
from draco_local.cluster import chart, clusters
from draco_local.cluster.attach import SYSTEM_NAMESPACE
from draco_local.cluster.programs import binaries

READY_S = 30.0
FIRST_SLICE_S = 3.0
LOOK_S = 0.05
WITHIN_S = 180.0
AGENTS = "app.kubernetes.io/component=agent"


class Observed(msgspec.Struct):
    """When things were first seen, in monotonic seconds by node."""

    running: dict[str, float] = {}
    published: dict[str, float] = {}

    def slices_s(self) -> list[float]:
        """From the agent's pod running to its first slice, for each node."""
        return [max(0.0, at - self.running[node]) for node, at in self.published.items()]


async def observe(client: Client, nodes: int, seen: Observed) -> None:
    """Watch until every node has published."""
    while len(seen.published) < nodes or len(seen.running) < nodes:
        pods, slices = await asyncio.gather(
            client.list(PODS, namespace=SYSTEM_NAMESPACE, label_selector=AGENTS), client.list(SLICES)
        )
        now = time.monotonic()
        for pod in pods:
            if pod.status.phase == "Running":
                seen.running.setdefault(pod.spec.node_name, now)
        for each in slices:
            if node := each.spec.node_name:
                seen.published.setdefault(node, now)
        await asyncio.sleep(LOOK_S)


async def nothing_left(client: Client) -> None:
    """Return when no pod of Draco runs and no slice is published."""
    while True:
        if not await client.list(PODS, namespace=SYSTEM_NAMESPACE):
            break
        await asyncio.sleep(LOOK_S)
    for each in await client.list(SLICES):
        await client.delete(SLICES, each.metadata.key)


def uninstall(helm: Path, kubeconfig: Path) -> None:
    """Uninstall what `draco cluster up` has installed."""
    where: list[str | Path] = ["--kubeconfig", kubeconfig, "--namespace", SYSTEM_NAMESPACE]
    subprocess.run([helm, *where, "uninstall", chart.RELEASE, "--wait"], check=True, capture_output=True)


async def install_again(helm: Path, kubeconfig: Path, image: str, nodes: int) -> tuple[float, Observed]:
    """Seconds until helm has finished, and what was seen meanwhile."""
    seen = Observed()
    async with Client(await connect(kubeconfig)) as client, asyncio.timeout(WITHIN_S):
        await nothing_left(client)
        began = time.monotonic()
        looking = asyncio.create_task(observe(client, nodes, seen))
        await asyncio.to_thread(chart.install, helm, kubeconfig, image, operator=True, within_s=WITHIN_S)
        ready_s = time.monotonic() - began
        await looking
    return ready_s, seen


@click.command()
@click.option("--archive", type=click.Path(path_type=Path), default=Path("build/simulated.tar"), show_default=True)
@click.option("--real-nodes", "nodes", default=2, show_default=True)
def main(archive: Path, nodes: int) -> None:
    """Measure how soon an installation with helm works."""
    image = chart.image_of(archive)
    name = f"bench-{os.getpid()}"
    up = ["cluster", "up", "--name", name, "--nodes", "0", "--real-nodes", str(nodes), "--from-image", str(archive)]
    draco = [sys.executable, "-m", "draco"]
    began = time.monotonic()
    try:
        subprocess.run([*draco, *up], check=True, stdout=sys.stderr)
        up_s = time.monotonic() - began
        kubeconfig, helm = clusters.opened(name).kubeconfig, binaries.find("helm")["helm"]
        uninstall(helm, kubeconfig)
        ready_s, seen = asyncio.run(install_again(helm, kubeconfig, image, nodes))
    finally:
        subprocess.run([*draco, "cluster", "down", "--name", name], check=False, stdout=sys.stderr)
    first_s = max(seen.slices_s())
    tell(
        Row(f"cluster of {nodes} real nodes with Draco from an image, up", f"{up_s:.0f} s", "-", "-", True),
        Row(
            f"helm install to ready, {nodes} real nodes",
            f"{ready_s:.1f} s",
            "-",
            f"<= {READY_S:g} s",
            ready_s <= READY_S,
        ),
        Row(
            "agent's pod running to first slice",
            f"{first_s:.1f} s",
            "-",
            f"<= {FIRST_SLICE_S:g} s",
            first_s <= FIRST_SLICE_S,
        ),
    )
    sys.exit(0 if ready_s <= READY_S and first_s <= FIRST_SLICE_S else 1)


if __name__ == "__main__":
    main()
