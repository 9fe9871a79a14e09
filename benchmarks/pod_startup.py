"""How much Draco's agent adds to the start of a pod: `python -m benchmarks.pod_startup`.

Measures, on one real control plane with simulated nodes, the time from `kubectl apply` of a pod with a claim to the moment a
watcher sees it Running, and beside it the part that begins when the pod exists. The peer is the same cluster, scheduler and
kubelet stand-in with a DRA driver that does nothing when kubelet asks it to prepare a claim. Samples of both alternate, so that
other load on the machine affects both alike.
"""

import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import grpc.aio
import msgspec

from benchmarks.table import Row, tell
from draco.agent.plugin.api import dra_v1_pb2, registration_pb2
from draco.agent.plugin.wire import DRA_V1, REGISTRATION, handlers
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.events.events import EventRecorder
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.logs import configure_log
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, PODS, SLICES
from draco.resources.names import NVIDIA_DEVICE_CLASS, NVIDIA_DRIVER
from draco_local.cluster import attach
from draco_local.cluster.controlplane import ALL, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from draco_local.simulator.kubelet.node_object import NodeObject, NodeShape
from draco_local.simulator.kubelet.podfeed import PodFeed
from draco_local.simulator.kubelet.standin import Kubelet, KubeletSettings

TARGET = 1.10
TARGET_FROM_CREATED = 1.15
NODES, GPUS = 2, 8
PEER_DRIVER = "noop.example.com"
NAMESPACE = "default"
READY_WITHIN_S = 60.0


class Start(NamedTuple):
    """One pod's start, in seconds until a watcher saw it Running."""

    from_apply_s: float
    from_created_s: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The starts of both, in the order in which they were taken."""

    draco: list[Start]
    peer: list[Start]

    @property
    def ratio(self) -> float:
        """Ratio of the medians from `kubectl apply` on: 1.0 means that the agent costs no time."""
        return _p50(start.from_apply_s for start in self.draco) / _p50(start.from_apply_s for start in self.peer)

    @property
    def ratio_from_created(self) -> float:
        """Ratio of the medians from the pod's creation on: without kubectl, which both start alike."""
        return _p50(start.from_created_s for start in self.draco) / _p50(start.from_created_s for start in self.peer)

    def __str__(self) -> str:
        lines = [f"{len(self.draco)} pods each, alternating; p50 / p95"]
        for name, starts in (("Draco's agent", self.draco), ("driver that does nothing", self.peer)):
            apply = _p50_and_p95(start.from_apply_s for start in starts)
            created = _p50_and_p95(start.from_created_s for start in starts)
            lines.append(f"  {name:24}  kubectl apply to Running {apply:>14}   pod created to Running {created:>14}")
        return "\n".join(lines)


def _p50(samples: Iterable[float]) -> float:
    return statistics.median(samples)


def _p50_and_p95(samples: Iterable[float]) -> str:
    known = list(samples)
    return f"{statistics.median(known) * 1000:.0f} / {statistics.quantiles(known, n=20)[18] * 1000:.0f} ms"


class Starts:
    """Applies pods with kubectl and sees in one watch when they exist, run, and are gone."""

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self._client = client
        self._kubectl = [str(binaries.find("kubectl")["kubectl"]), "--kubeconfig", str(kubeconfig)]
        self.pods = Informer(client, PODS, namespace=NAMESPACE, clock=SystemClock())
        self.pods.subscribe(self._changed)
        self._moments: dict[tuple[str, str], asyncio.Future[float]] = {}

    def _changed(self, change: Change[Pod]) -> None:
        if change.before is None:
            self._note(change.key.name, "created")
        if change.after is None:
            self._note(change.key.name, "gone")
        elif change.after.status.phase == "Running":
            self._note(change.key.name, "running")

    def _note(self, name: str, what: str) -> None:
        moment = self._moment(name, what)
        if not moment.done():
            moment.set_result(time.perf_counter())

    def _moment(self, name: str, what: str) -> "asyncio.Future[float]":
        return self._moments.setdefault((name, what), asyncio.get_running_loop().create_future())

    async def one(self, name: str, device_class: str) -> Start:
        """Start one pod with a claim of its own, time it, and remove both again."""
        metadata = {"name": name, "namespace": NAMESPACE}
        request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
        pod = {
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        items = [
            {
                "apiVersion": CLAIMS.api_version,
                "kind": CLAIMS.kind,
                "metadata": metadata,
                "spec": {"devices": {"requests": [request]}},
            },
            {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata, "spec": pod},
        ]
        began = time.perf_counter()
        await self._apply({"apiVersion": "v1", "kind": "List", "items": items})
        async with asyncio.timeout(60):
            ran = await self._moment(name, "running")
        created = await self._moment(name, "created")
        await self._client.delete(PODS, ObjectKey(NAMESPACE, name))
        async with asyncio.timeout(60):
            await self._moment(name, "gone")
        await self._client.delete(CLAIMS, ObjectKey(NAMESPACE, name))
        return Start(ran - began, ran - created)

    async def _apply(self, manifest: dict[str, Any]) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._kubectl, "apply", "-f", "-", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        await process.communicate(msgspec.json.encode(manifest))
        if process.returncode:
            raise click.ClickException("kubectl apply failed")


async def measure(pairs: int) -> Result:
    """Start a cluster, warm it up, take this many samples of each, and stop the cluster."""
    with tempfile.TemporaryDirectory(prefix="draco-", dir="/tmp") as folder:
        plane = ControlPlane(Path(folder) / "cluster", Settings(programs=binaries.find(*ALL)))
        try:
            await asyncio.to_thread(plane.start)
            async with Client(await connect(plane.kubeconfig)) as client:
                await attach.install(client)
                await _install_peer_class(client)
                with _nodes(plane, Path(folder) / "d", Path(folder) / "p"):
                    await _until_published(client)
                    return await _sample(client, plane.kubeconfig, pairs)
        finally:
            await asyncio.to_thread(plane.destroy)


async def _sample(client: Client, kubeconfig: Path, pairs: int) -> Result:
    starts = Starts(client, kubeconfig)
    watching = asyncio.create_task(starts.pods.run())
    try:
        await starts.pods.synced.wait()
        classes = {"draco": NVIDIA_DEVICE_CLASS, "peer": PEER_DRIVER}
        samples: dict[str, list[Start]] = {name: [] for name in classes}
        warm_up = 5
        for index in range(warm_up + pairs):
            order = list(classes) if index % 2 else list(reversed(classes))
            for name in order:
                took = await starts.one(f"{name}-{index}", classes[name])
                if index >= warm_up:
                    samples[name].append(took)
        return Result(draco=samples["draco"], peer=samples["peer"])
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


@contextlib.contextmanager
def _nodes(plane: ControlPlane, draco: Path, peer: Path) -> Any:
    """The simulated nodes of both, one process each."""
    common = [sys.executable, "-m"]
    count = ["--kubeconfig", str(plane.kubeconfig), "--nodes", str(NODES), "--log-level", "warning"]
    commands = [
        [
            *common,
            "draco_local.simulator.nodes",
            *count,
            "--gpus",
            str(GPUS),
            "--root",
            str(draco),
            "--name-prefix",
            "draco",
        ],
        [*common, "benchmarks.pod_startup", "--peer-root", str(peer), *count],
    ]
    processes = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(20)


async def _install_peer_class(client: Client) -> None:
    selector = {"cel": {"expression": f'device.driver == "{PEER_DRIVER}"'}}
    await client.apply(
        DEVICE_CLASSES, ObjectKey("", PEER_DRIVER), {"spec": {"selectors": [selector]}}, manager="benchmark"
    )


async def _until_published(client: Client) -> None:
    async with asyncio.timeout(READY_WITHIN_S):
        while True:
            slices = await client.list(SLICES)
            by_driver = dict.fromkeys((NVIDIA_DRIVER, PEER_DRIVER), 0)
            for item in slices:
                by_driver[item.spec.driver] += len(item.spec.devices)
            if all(devices == NODES * GPUS for devices in by_driver.values()):
                return
            await asyncio.sleep(0.1)


# The peer: the same stand-in for kubelet, and a plugin that answers at once.


async def run_peer(kubeconfig: Path, root: Path, count: int) -> None:
    """Run the peer's nodes until SIGTERM."""
    clock = SystemClock()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Client(await connect(kubeconfig)) as client, contextlib.AsyncExitStack() as stack:
        events = EventRecorder(client, controller="kubelet", instance="peer", clock=clock)
        feed = PodFeed(client, events=events, clock=clock)
        tasks = [asyncio.create_task(work) for work in (events.run(), feed.run())]
        for index in range(count):
            name = f"peer-{index}"
            kubelet = Kubelet(
                KubeletSettings(node_name=name, root=root / name),
                client,
                node=NodeObject(name, client, shape=NodeShape(), clock=clock),
                clock=clock,
                wake=lambda pod, name=name: feed.wake(name, pod),  # type: ignore[misc]
                complain=feed.complain,
            )
            tasks.append(asyncio.create_task(kubelet.run()))
            await kubelet.ready.wait()
            feed.add(kubelet)
            await stack.enter_async_context(_plugin(root / name))
            await client.create(SLICES, _peer_slice(name))
        await stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _peer_slice(node: str) -> dict[str, Any]:
    spec = {"driver": PEER_DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
    devices = [{"name": f"gpu-{index}"} for index in range(GPUS)]
    return {"metadata": {"name": f"{node}-{PEER_DRIVER}"}, "spec": {**spec, "devices": devices}}


@asynccontextmanager
async def _plugin(root: Path) -> AsyncIterator[None]:
    home = root / "plugins" / PEER_DRIVER
    home.mkdir(parents=True, exist_ok=True)
    info = registration_pb2.PluginInfo(
        type="DRAPlugin", name=PEER_DRIVER, endpoint=str(home / "dra.sock"), supported_versions=["v1.DRAPlugin"]
    )

    async def get_info(_request: Any, _context: Any) -> Any:
        return info

    async def notify(_request: Any, _context: Any) -> Any:
        return registration_pb2.RegistrationStatusResponse()

    async def prepare(request: Any, _context: Any) -> Any:
        answers = {claim.uid: dra_v1_pb2.NodePrepareResourceResponse() for claim in request.claims}
        return dra_v1_pb2.NodePrepareResourcesResponse(claims=answers)

    async def unprepare(request: Any, _context: Any) -> Any:
        answers = {claim.uid: dra_v1_pb2.NodeUnprepareResourceResponse() for claim in request.claims}
        return dra_v1_pb2.NodeUnprepareResourcesResponse(claims=answers)

    server = grpc.aio.server()
    registration = handlers(REGISTRATION, {"GetInfo": get_info, "NotifyRegistrationStatus": notify})
    plugin = handlers(DRA_V1, {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare})
    server.add_generic_rpc_handlers((registration, plugin))
    server.add_insecure_port(f"unix:{info.endpoint}")
    server.add_insecure_port(f"unix:{root / 'plugins_registry' / PEER_DRIVER}-reg.sock")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=None)


@click.command()
@click.option("--pairs", default=100, show_default=True, help="Pods of each kind.")
@click.option("--peer-root", type=click.Path(path_type=Path), hidden=True)
@click.option("--kubeconfig", type=click.Path(path_type=Path), hidden=True)
@click.option("--nodes", default=NODES, hidden=True)
@click.option("--log-level", default="warning", hidden=True)
def main(pairs: int, peer_root: Path | None, kubeconfig: Path | None, nodes: int, log_level: str) -> None:
    """Compare the start of pods with Draco's agent and with a driver that does nothing."""
    configure_log(log_level)
    if peer_root and kubeconfig:
        asyncio.run(run_peer(kubeconfig, peer_root, nodes))
        return
    result = asyncio.run(measure(pairs))
    click.echo(str(result))
    figures = {
        "kubectl apply": (result.ratio, TARGET, lambda start: start.from_apply_s),
        "the pod exists": (result.ratio_from_created, TARGET_FROM_CREATED, lambda start: start.from_created_s),
    }
    for since, (ratio, target, took_s) in figures.items():
        draco, peer = (_p50(map(took_s, starts)) * 1000 for starts in (result.draco, result.peer))
        tell(
            Row(
                figure=f"pod with a claim, {since} to Running (median)",
                measured=f"{draco:.0f} ms",
                peer=f"{peer:.0f} ms with a driver that does nothing ({ratio:.2f} times)",
                target=f"at most {target:g} times the peer",
                met=ratio <= target,
            )
        )
    sys.exit(0 if all(ratio <= target for ratio, target, _ in figures.values()) else 1)


if __name__ == "__main__":
    main()
