"""Whether pods notice that agents are replaced: `python -m benchmarks.upgrade [--archive FILE] [--next FILE] [--real-nodes 10]`.

Needs root and an image with simulated GPUs (`make image IMAGE_ARGS="--target simulated --output build/simulated.tar"`), so it is
not run with the others. On every real node one pod holds a GPU throughout, and others start and end one after another, while helm
upgrades operator and agents and rolls them back. The kubelets report how often they called Prepare and how many calls failed. The
peer is the same with `agent.seamlessUpgrades=false`, where a node has no agent for some seconds.

`--next` is an image of another version. Without it the same image gets another tag: for helm and kubelet that is another version.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.table import Row, tell
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.core import Pod
from draco.resources.api.foreign import read_plain
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, PODS
from draco.resources.names import NVIDIA_DEVICE_CLASS
from draco_local.cluster import chart, clusters, data
from draco_local.cluster.attach import SYSTEM_NAMESPACE
from draco_local.cluster.programs import binaries
from draco_local.cluster.providers.local import LocalCluster
from draco_local.cluster.realnode.config import CONTAINERD_SOCKET
from draco_local.cluster.realnode.image import BUSYBOX_IMAGE
from draco_local.cluster.realnode.nodes import RealNodes

NAMESPACE = "default"
AGENTS = "app.kubernetes.io/component=agent"
GPUS = 3
AT_ONCE = 4
"""Pods that start or end at the same time, few enough to leave CPU time for what is measured."""
TEMPLATE = "one-gpu"
LOOK_S = 0.1
WITHIN_S = 600.0
SEAMLESS = "agent.seamlessUpgrades"


class Calls(NamedTuple):
    """What kubelets count: calls of Prepare that an agent answered, and attempts to prepare a pod that failed."""

    answered: int
    failed: int

    def since(self, before: "Calls") -> "Calls":
        """The counts since `before`."""
        return Calls(self.answered - before.answered, self.failed - before.failed)


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """One upgrade and the way back: how long helm took for each, and what happened to pods meanwhile."""

    upgrade_s: float
    downgrade_s: float
    calls: Calls
    slowest_s: float

    def __str__(self) -> str:
        return (
            f"{self.calls.failed} failed, {self.calls.answered} done, slowest pod {self.slowest_s:.0f} s "
            f"(upgrade {self.upgrade_s:.0f} s, downgrade {self.downgrade_s:.0f} s)"
        )


def a_pod(name: str, node: str) -> dict[str, Any]:
    """A pod with a GPU of its own, which ends as soon as it gets SIGTERM.

    It has a token, as pods do: once kubelet could fetch that, it may read the pod's claim, too, so no attempt fails for that.
    """
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.2; done"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "Default",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}],
            "containers": [container],
        },
    }


class Traffic:
    """Pods that start and end until `end` is called, first on nodes whose agent is being replaced; two at most on a node.

    A pod that ends while there is no agent waits for the next agent: another pod can start beside it.
    """

    def __init__(self, client: Client, nodes: list[str]) -> None:
        self.slowest_s = 0.0
        self._client = client
        self._node_of = {f"passing-{node}-{lane}": node for node in nodes for lane in "ab"}
        self._ended = dict.fromkeys(self._node_of, 0)
        self._begun: dict[str, float] = {}
        self._enough = False

    def end(self) -> None:
        """Start no more; `run` returns when the started ones have ended."""
        self._enough = True

    async def run(self) -> None:
        """Read the pods, and take the next steps."""
        while self._begun or not self._enough:
            pods = {each.metadata.name: each for each in await self._client.list(PODS, namespace=NAMESPACE)}
            for name in list(self._begun):
                await self._go_on(name, pods.get(name))
            room = 0 if self._enough else AT_ONCE - len(self._begun)
            for name in (await self._in_turn())[: max(0, room)]:
                await self._client.create(PODS, a_pod(name, self._node_of[name]))
                self._begun[name] = time.monotonic()
            await asyncio.sleep(LOOK_S)

    async def _go_on(self, name: str, pod: Pod | None) -> None:
        if pod is None:
            self._ended[name] += 1
            del self._begun[name]
        elif pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None:
            self.slowest_s = max(self.slowest_s, time.monotonic() - self._begun[name])
            await self._client.delete(PODS, pod.metadata.key)

    async def _in_turn(self) -> list[str]:
        """Pods to start: those of nodes where an agent is being replaced, then those that were started least often."""
        agents = await self._client.list(PODS, namespace=SYSTEM_NAMESPACE, label_selector=AGENTS)
        serving = Counter(each.spec.node_name for each in agents if each.metadata.deletion_timestamp is None)
        leaving = {each.spec.node_name for each in agents if each.metadata.deletion_timestamp is not None}
        settled = {node for node in self._node_of.values() if serving[node] == 1 and node not in leaving}
        idle = [name for name in self._node_of if name not in self._begun]
        return sorted(idle, key=lambda name: (self._node_of[name] in settled, self._ended[name]))


async def prepare_calls(client: Client, nodes: list[str]) -> Calls:
    """What the kubelets have counted since they started."""
    answered = failed = 0
    for node in nodes:
        said = await client.connection.request("GET", f"/api/v1/nodes/{node}/proxy/metrics")
        for family in text_string_to_metric_families(said.decode()):
            for one in family.samples:
                if one.name == "dra_grpc_operations_duration_seconds_count":
                    prepare = one.labels["method_name"].endswith("/NodePrepareResources")
                    answered += int(one.value) if prepare and one.labels["grpc_status_code"] == "OK" else 0
                elif one.name == "dra_operations_duration_seconds_count":
                    prepare = one.labels["operation_name"] == "PrepareResources"
                    failed += int(one.value) if prepare and one.labels["is_error"] == "true" else 0
    return Calls(answered, failed)


async def holders(client: Client) -> dict[str, tuple[str, str, int]]:
    """The pods that hold a GPU throughout: each one's uid, container and number of restarts."""
    listed = read_plain(await client.connection.request("GET", PODS.path(namespace=NAMESPACE)))
    return {
        each["metadata"]["name"]: (each["metadata"]["uid"], status["containerID"], status["restartCount"])
        for each in listed["items"]
        if each["metadata"]["name"].startswith("holder-")
        for status in each["status"].get("containerStatuses", [])
        if "running" in status["state"]
    }


async def until(check: Callable[[], Awaitable[bool]], what: str) -> None:
    """Return when the condition holds; raises TimeoutError after a while."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                if await check():
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise TimeoutError(f"not within {WITHIN_S:.0f} s: {what}") from None


class Helm:
    """The release that `draco cluster up` has installed."""

    def __init__(self, kubeconfig: Path) -> None:
        self._program = binaries.find("helm")["helm"]
        self._where = ("--kubeconfig", str(kubeconfig), "--namespace", SYSTEM_NAMESPACE)

    async def call(self, verb: str, *arguments: str | Path) -> float:
        """Seconds until helm says that all pods are replaced and ready."""
        options = ("--wait", "--timeout", f"{WITHIN_S:.0f}s")
        command = [self._program, verb, chart.RELEASE, *arguments, *self._where, *options]
        began = time.monotonic()
        done = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise click.ClickException(f"helm {verb}: {done.stderr.strip()}")
        return time.monotonic() - began

    async def upgrade(self, values: Mapping[str, str]) -> float:
        """The same with other values."""
        options = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        return await self.call("upgrade", data.chart(), "--reuse-values", *options)


async def replaced(client: Client, helm: Helm, nodes: list[str], image: Mapping[str, str]) -> Replacement:
    """Upgrade to an image and roll back, with pods that start and end."""
    before = await prepare_calls(client, nodes)
    traffic = Traffic(client, nodes)
    async with asyncio.timeout(4 * WITHIN_S), asyncio.TaskGroup() as group:
        group.create_task(traffic.run())
        upgrade_s = await helm.upgrade(image)
        downgrade_s = await helm.call("rollback")
        traffic.end()
    return Replacement(
        upgrade_s=upgrade_s,
        downgrade_s=downgrade_s,
        calls=(await prepare_calls(client, nodes)).since(before),
        slowest_s=traffic.slowest_s,
    )


async def measure(kubeconfig: Path, nodes: list[str], image: Mapping[str, str]) -> tuple[Replacement, Replacement]:
    """With seamless upgrades, and without. Fails if a pod that held its GPU noticed anything."""
    request = {"name": "gpu", "exactly": {"deviceClassName": NVIDIA_DEVICE_CLASS}}
    template = {
        "apiVersion": CLAIM_TEMPLATES.api_version,
        "kind": CLAIM_TEMPLATES.kind,
        "metadata": {"name": TEMPLATE, "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    helm = Helm(kubeconfig)
    async with Client(await connect(kubeconfig)) as client:
        await client.create(CLAIM_TEMPLATES, template)
        for node in nodes:
            await client.create(PODS, a_pod(f"holder-{node}", node))

        async def all_hold() -> bool:
            return len(await holders(client)) == len(nodes)

        await until(all_hold, "a pod on every node holds a GPU")
        held, claims = await holders(client), await allocations(client)
        seamless = await replaced(client, helm, nodes, image)
        click.echo(f"Seamless: {seamless}", err=True)
        await helm.upgrade({SEAMLESS: "false"})
        without = await replaced(client, helm, nodes, image)
        if await holders(client) != held or not claims.items() <= (await allocations(client)).items():
            raise click.ClickException("a pod that held its GPU throughout was restarted, or its claim was changed")
    return seamless, without


async def allocations(client: Client) -> dict[str, Any]:
    """What every claim has, by uid."""
    return {each.metadata.uid: each.status.allocation for each in await client.list(CLAIMS, namespace=NAMESPACE)}


def on_every_node(nodes: RealNodes, image: str, following: Path | None) -> str:
    """Put the next version's image on every node, and return its name."""
    ctr: list[str | Path] = [
        binaries.find("ctr")["ctr"],
        "--address",
        CONTAINERD_SOCKET,
        "--namespace",
        "k8s.io",
        "images",
    ]
    if following is None:
        name = f"{image.rpartition(':')[0]}:next"
        command: list[str | Path] = [*ctr, "tag", "--force", image, name]
    else:
        name = chart.image_of(following)
        command = [*ctr, "import", following.absolute()]
    for node in nodes.nodes:
        done = nodes.exec_on_node(node, command)
        if done.returncode:
            raise click.ClickException(f"{node} does not take {name}: {done.stderr.strip()}")
    return name


@click.command()
@click.option("--archive", type=click.Path(path_type=Path), default=Path("build/simulated.tar"), show_default=True)
@click.option("--next", "following", type=click.Path(path_type=Path), help="An image of another version.")
@click.option("--real-nodes", "count", default=10, show_default=True)
def main(archive: Path, following: Path | None, count: int) -> None:
    """Upgrade and roll back agents while pods start and end."""
    image = chart.image_of(archive)
    name = f"bench-{os.getpid()}"
    equipment = ["--nodes", "0", "--real-nodes", str(count), "--gpus", str(GPUS), "--from-image", str(archive)]
    draco = [sys.executable, "-m", "draco"]
    try:
        up = subprocess.run([*draco, "cluster", "up", "--name", name, *equipment], check=False, stdout=sys.stderr)
        if up.returncode:
            sys.exit(1)
        cluster = clusters.opened(name)
        assert isinstance(cluster, LocalCluster)
        repository, _, tag = on_every_node(cluster.real_nodes, image, following).rpartition(":")
        wanted = {"image.repository": repository, "image.tag": tag}
        seamless, without = asyncio.run(measure(cluster.kubeconfig, cluster.nodes, wanted))
    finally:
        subprocess.run([*draco, "cluster", "down", "--name", name], check=False, stdout=sys.stderr)
    met = seamless.calls.failed == 0 and seamless.calls.answered > 0
    tell(Row(f"Prepares while {count} agents are upgraded and back", str(seamless), str(without), "0 failed", met))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
