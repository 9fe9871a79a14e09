"""How soon claims are allocated, and how many a second: by Draco, and by kube-scheduler in the same run.

One real API server with a kube-scheduler and the chart's admission policies. First the nodes publish their GPUs for the
scheduler, and pods come, each with a claim for one GPU that is there already: one by one on a cluster that has nothing else to
do, then as fast as they can be created, until 95 % of the GPUs are in use. Then all of them go, the same GPUs are published as
agents publish what is handed over, `draco operator` takes them over as the chart's account, and the same is done with claims that
have no pods, all alike, as a template's are. The scheduler runs on meanwhile, as it would. The limit on the scheduler's calls is
raised; Draco has none.

What counts is the time from the request that creates the pod, or the claim, until a watch tells of the allocation.

    python -m benchmarks.claim_allocation --nodes 500 --gpus 8
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from benchmarks.operator_scale import (
    SERVICE_ACCOUNTS,
    OperatorProcess,
    a_cluster,
    a_node,
    a_slice,
    an_operator,
    in_parallel,
    say,
    until,
)
from benchmarks.table import Row, tell
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import Invalid, NotFound
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, GPU_NODES, MIG_POLICIES, NODES, PODS, SLICES
from draco.resources.names import (
    ALLOCATED_BY_OPERATOR,
    ATTRIBUTE_ALLOCATOR,
    NVIDIA_DEVICE_CLASS,
    NVIDIA_DRIVER,
    TAINT_OPERATOR_ALLOCATED,
)
from draco_local.cluster.controlplane import APISERVER, ETCD, SCHEDULER, ControlPlane
from tests.component.allocation.lab import ALLOCATE, USER, ChartParts
from tests.component.chart.rendering import NAMESPACE

FILLED = 0.95
TARGET_P50, TARGET_P99, TARGET_RATE = 0.5, 1.0, 1.5
AT_ONCE = 32
TIMES = 200
WARM_UP = 10
PAUSE_S = 0.02
WITHIN_S = 900.0
OPERATORS_CLASS = "gpu.draco.dev"


class Figures(NamedTuple):
    """Of one allocator: seconds on an idle cluster, and claims a second while it fills."""

    idle_s: list[float]
    rate: float
    load: float
    """The machine's load average at the end."""

    @property
    def p50_s(self) -> float:
        """The median."""
        return statistics.median(self.idle_s)

    @property
    def p99_s(self) -> float:
        """What one of a hundred exceeds."""
        return sorted(self.idle_s)[max(0, -(-len(self.idle_s) * 99 // 100) - 1)]

    def __str__(self) -> str:
        return (
            f"{self.p50_s * 1000:.1f} and {self.p99_s * 1000:.1f} ms, {self.rate:.0f}/s (load average {self.load:.1f})"
        )


class Allocations:
    """When the watch told of each allocation, by the claim's name."""

    def __init__(self, client: Client) -> None:
        self.informer: Informer[ResourceClaim] = Informer(client, CLAIMS, clock=SystemClock())
        self.informer.subscribe(self._look)
        self.at_s: dict[str, float] = {}
        self._changed = asyncio.Event()

    def _look(self, change: Change[ResourceClaim]) -> None:
        claim = change.after
        if claim is not None and claim.status.allocation is not None and claim.metadata.name not in self.at_s:
            self.at_s[claim.metadata.name] = time.monotonic()
            self._changed.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        """Return when there is enough."""
        async with asyncio.timeout(WITHIN_S):
            while not enough():
                self._changed.clear()
                await self._changed.wait()


async def measure(
    claims: Allocations, prepare: Callable[[str], Awaitable[None]], begin: Callable[[str], Awaitable[None]], number: int
) -> Figures:
    """One by one first, and then all others at once; `number` in all. `prepare` is not measured."""
    idle_s = []
    one_by_one = min(TIMES, number // 4) + WARM_UP
    for each in range(one_by_one):
        name = f"idle-{each}"
        await prepare(name)
        await asyncio.sleep(PAUSE_S)  # whatever the preparation has others do is over
        began_s = time.monotonic()
        await begin(name)
        await claims.until(lambda name=name: name in claims.at_s)  # type: ignore[misc]
        idle_s.append(claims.at_s[name] - began_s)
        await asyncio.sleep(PAUSE_S)
    names = [f"fill-{each}" for each in range(number - one_by_one)]
    await in_parallel([prepare(name) for name in names], AT_ONCE)
    began_s = time.monotonic()
    await in_parallel([begin(name) for name in names], AT_ONCE)
    say(f"{len(names)} created in {time.monotonic() - began_s:.1f} s")
    await claims.until(lambda: all(name in claims.at_s for name in names))
    rate = len(names) / (max(claims.at_s[name] for name in names) - began_s)
    return Figures(idle_s[WARM_UP:], rate, os.getloadavg()[0])


async def main() -> int:
    """Run the benchmark; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--filled", type=float, default=FILLED)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        theirs, ours = await run(Path(folder), options.nodes, options.gpus, options.filled)
    shown = rows(theirs, ours, f"{options.nodes} nodes x {options.gpus} GPUs", options.filled)
    tell(*shown)
    return 0 if all(row.met for row in shown) else 1


def rows(theirs: Figures, ours: Figures, known: str, filled: float = FILLED) -> list[Row]:
    """Draco's figures as parts and multiples of kube-scheduler's."""
    p50, p99, rate = ours.p50_s / theirs.p50_s, ours.p99_s / theirs.p99_s, ours.rate / theirs.rate
    scheduler = "with kube-scheduler, from the pod"
    return [
        Row(
            f"claim created until allocated by Draco, median, {known}, idle",
            f"{ours.p50_s * 1000:.1f} ms, {p50:.2f} of the scheduler's",
            f"{theirs.p50_s * 1000:.1f} ms {scheduler}",
            f"<= {TARGET_P50:g} of the scheduler's",
            p50 <= TARGET_P50,
        ),
        Row(
            "the same, p99",
            f"{ours.p99_s * 1000:.1f} ms, {p99:.2f} of the scheduler's",
            f"{theirs.p99_s * 1000:.1f} ms {scheduler}",
            f"<= {TARGET_P99:g} of the scheduler's",
            p99 <= TARGET_P99,
        ),
        Row(
            f"claims allocated while {filled:.0%} of the GPUs fill up, {known}",
            f"{ours.rate:.0f}/s, {rate:.2f} times the scheduler's",
            f"{theirs.rate:.0f}/s with kube-scheduler",
            f">= {TARGET_RATE:g} times the scheduler's",
            rate >= TARGET_RATE,
        ),
    ]


async def run(folder: Path, nodes: int, gpus: int, filled: float = FILLED) -> tuple[Figures, Figures]:
    """Kube-scheduler's figures and Draco's."""
    number = int(filled * nodes * gpus)
    async with a_cluster(folder, [ETCD, APISERVER, SCHEDULER]) as (plane, client):
        await publish_for_the_scheduler(plane, client, nodes, gpus)
        theirs = await with_scheduler(client, number)
        say(f"kube-scheduler: {theirs}")
        await clear(client)
        async with handed_over(plane, client, folder, nodes, gpus):
            ours = await with_draco(client, number)
            say(f"Draco: {ours}")
    return theirs, ours


async def publish_for_the_scheduler(
    plane: ControlPlane, client: Client, nodes: int, gpus: int, chart: tuple[str, ...] = ALLOCATE
) -> None:
    """Install what the chart has for an operator that allocates, and make nodes whose GPUs are the scheduler's."""
    ChartParts(plane, chart).install()
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA_DRIVER}'"}}
    await client.create(DEVICE_CLASSES, {"metadata": {"name": NVIDIA_DEVICE_CLASS}, "spec": {"selectors": [selector]}})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    await in_parallel([add_node(client, each, gpus) for each in range(nodes)], AT_ONCE)
    await until(lambda: claims_are_admitted(client), 60, pause_s=0.2)


@contextlib.asynccontextmanager
async def handed_over(
    plane: ControlPlane, client: Client, folder: Path, nodes: int, gpus: int, *options: str
) -> AsyncIterator[None]:
    """All GPUs of the nodes are Draco's, and its operator runs with these further options."""
    await in_parallel([hand_over(client, each, gpus) for each in range(nodes)], AT_ONCE)
    policy = {"mode": "Disabled", "allocator": "Operator"}
    async with allocating(plane, client, folder, nodes * gpus, policy, *options):
        yield


@contextlib.asynccontextmanager
async def allocating(
    plane: ControlPlane, client: Client, folder: Path, gpus: int, policy: dict[str, str], *options: str
) -> AsyncIterator[OperatorProcess]:
    """The operator as the chart's account, once it has taken over so many GPUs and has nothing more to do."""
    await client.create(MIG_POLICIES, {"metadata": {"name": "draco"}, "spec": policy})
    kubeconfig = folder / "operator"
    write_login(plane, kubeconfig, await a_token(client))
    options = ("--namespace", NAMESPACE, "--allocate", "--handover-settle", "1", *options)
    async with an_operator(plane, folder, *options, kubeconfig=kubeconfig) as operator:
        await operator.until_ready(120)

        async def owned() -> bool:
            said = [each for each in operator.events() if each["event"] == "handover.owned"]
            return bool(said) and len(said[-1]["gpus"]) == gpus

        await until(owned, 120, pause_s=0.2)
        await operator.until_idle(120)
        yield operator


async def a_token(client: Client) -> str:
    """One of the chart's account, which is what the operator has in a cluster."""
    account = ObjectKey(NAMESPACE, USER.rpartition(":")[2])
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": account.name, "namespace": account.namespace}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    answer = await client.create_subresource(SERVICE_ACCOUNTS, account, "token", request)
    return str(answer["status"]["token"])


def write_login(plane: ControlPlane, path: Path, token: str) -> None:
    """Write a kubeconfig that has this token instead of a certificate."""
    plane.write_kubeconfig(path, USER)
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(document))


async def claims_are_admitted(client: Client) -> bool:
    """Whether the API server knows by now what its new policies read: until then it refuses every claim."""
    try:
        await add_claim(client, "probe", NVIDIA_DEVICE_CLASS)
    except Invalid:
        return False
    await client.delete(CLAIMS, ObjectKey("default", "probe"))
    return True


async def with_scheduler(client: Client, number: int) -> Figures:
    """Pods, each with a claim that waits for it."""
    return await watched(
        client, lambda name: add_claim(client, name, NVIDIA_DEVICE_CLASS), lambda name: add_pod(client, name), number
    )


async def with_draco(client: Client, number: int) -> Figures:
    """Claims that have no pods."""
    return await watched(
        client, lambda _: asyncio.sleep(0), lambda name: add_claim(client, name, OPERATORS_CLASS), number
    )


async def watched(
    client: Client, prepare: Callable[[str], Awaitable[None]], begin: Callable[[str], Awaitable[None]], number: int
) -> Figures:
    """What is measured by a watch of its own."""
    claims = Allocations(client)
    watching = asyncio.create_task(claims.informer.run())
    try:
        await claims.informer.synced.wait()
        return await measure(claims, prepare, begin, number)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def add_node(client: Client, number: int, gpus: int) -> None:
    """A Node that pods may run on, its GPUs, and what its agent would say of them."""
    name = f"node-{number:05}"
    await client.create(NODES, a_node(name))
    resources = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "There is no kubelet."}
    status: dict[str, Any] = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    await client.patch(NODES, ObjectKey("", name), {"status": status}, subresource="status")
    await client.patch(
        NODES, ObjectKey("", name), {"spec": {"taints": None}}
    )  # not-ready, which nobody else takes away
    await client.create(SLICES, a_slice(name, number, gpus))
    await client.create(GPU_NODES, {"metadata": {"name": name}})
    seen = [
        {"device": each["name"], "uuid": each["attributes"]["uuid"]["string"], "mig": {"capable": True}}
        for each in a_slice(name, number, gpus)["spec"]["devices"]
    ]
    status = {"driver": NVIDIA_DRIVER, "gpus": seen}
    await client.patch(GPU_NODES, ObjectKey("", name), {"status": status}, subresource="status")


async def hand_over(client: Client, number: int, gpus: int) -> None:
    """Publish the GPUs of a node with Draco's taint and attribute, as its agent would."""
    name = f"node-{number:05}"
    found = a_slice(name, number, gpus)
    found["spec"]["pool"]["generation"] = 2
    devices = msgspec.convert(found["spec"]["devices"], list[Device])
    found["spec"]["devices"] = msgspec.to_builtins([published_as_dracos(each) for each in devices])
    await client.patch(SLICES, ObjectKey("", found["metadata"]["name"]), {"spec": found["spec"]})


def published_as_dracos(device: Device) -> Device:
    """The device as an agent publishes it once its GPU is handed over."""
    attributes = device.attributes | {ATTRIBUTE_ALLOCATOR: DeviceAttribute(string=ALLOCATED_BY_OPERATOR)}
    taint = DeviceTaint(key=TAINT_OPERATOR_ALLOCATED, effect="NoSchedule")
    return msgspec.structs.replace(device, attributes=attributes, taints=[taint])


async def add_claim(client: Client, name: str, device_class: str, *, owner: Pod | None = None, gpus: int = 1) -> None:
    """A claim for so many GPUs; as one that a template makes for the pod, if one owns it."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": gpus}}
    spec = {"devices": {"requests": [request]}}
    meta: dict[str, Any] = {"name": name, "namespace": "default"}
    if owner is not None:
        of_pod = {"apiVersion": "v1", "kind": "Pod", "name": owner.metadata.name, "uid": owner.metadata.uid}
        meta["ownerReferences"] = [{**of_pod, "controller": True}]
    await client.create(CLAIMS, {"metadata": meta, "spec": spec})


async def add_pod(client: Client, name: str) -> None:
    """A pod with the claim of its name."""
    spec = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    await client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def end(client: Client, key: ObjectKey) -> None:
    """Delete a pod and its claim; what kube-controller-manager would do in between is done here.

    The claim is on its way out before it loses its allocation: else it waits for another one.
    """
    with contextlib.suppress(NotFound):
        await client.delete(PODS, key, grace_period_s=0)
    with contextlib.suppress(NotFound):  # one that was never allocated goes at once
        await client.delete(CLAIMS, key)
        await client.patch(CLAIMS, key, {"status": {"reservedFor": None, "allocation": None}}, subresource="status")
        await client.patch(CLAIMS, key, {"metadata": {"finalizers": None}})


async def clear(client: Client) -> None:
    """End all pods and claims."""
    await in_parallel(
        [end(client, each.metadata.key) for each in await client.list(CLAIMS, namespace="default")], AT_ONCE
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
