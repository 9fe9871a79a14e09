"""Simulated nodes with real agents under a real control plane: pods with claims run, end, and survive restarts."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.events.events import EventRecorder
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, GPU_NODES, NODES, PODS, SLICES, Kind
from draco.resources.names import NVIDIA_DRIVER, NodeName
from draco_local.simulator.kubelet.podfeed import PodFeed
from draco_local.simulator.nodes import SimulatedNode, SimulatedNodes, TooLongForSockets, run_nodes

RAW_PODS: Kind[Any] = Kind("", "v1", "pods", "Pod", True, dict)
NODE_COUNT, GPUS = 3, 8


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="draco-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def running(client: Client, folder: Path, **options: Any) -> AsyncIterator[None]:
    """The nodes, until all of them have published their GPUs; cancelled at the end."""
    nodes = SimulatedNodes(root=folder, count=NODE_COUNT, gpus=GPUS, prefix="sim", **options)
    task = asyncio.create_task(run_nodes(nodes, client, clock=SystemClock()))
    try:
        async with asyncio.timeout(60):
            while await published_gpus(client) < NODE_COUNT * GPUS:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.1)
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def published_gpus(client: Client) -> int:
    slices = await client.list(SLICES, field_selector=f"spec.driver={NVIDIA_DRIVER}")
    return sum(len(item.spec.devices) for item in slices if (item.spec.node_name or "").startswith("sim-"))


@pytest.fixture
async def cluster(client: Client, crds: None, folder: Path) -> AsyncIterator[Client]:
    """A device class. Afterwards nodes and slices are deleted, which would attract the next test's pods.

    So are GpuNodes: the next test's agents would adopt them and lose them once they are collected.
    """
    selector = {"cel": {"expression": f'device.driver == "{NVIDIA_DRIVER}"'}}
    device_class = {"spec": {"selectors": [selector]}}
    await client.apply(DEVICE_CLASSES, ObjectKey("", NVIDIA_DRIVER), device_class, manager="tests")
    yield client
    for index in range(NODE_COUNT):
        for kind in (NODES, GPU_NODES):
            with contextlib.suppress(NotFound):
                await client.delete(kind, ObjectKey("", f"sim-{index}"))
    async with asyncio.timeout(60):  # a node's slices are deleted with it
        while await published_gpus(client):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.1)


async def make_claim(client: Client, namespace: str, name: str) -> ResourceClaim:
    request = {"name": "gpu", "exactly": {"deviceClassName": NVIDIA_DRIVER}}
    spec = {"devices": {"requests": [request]}}
    return await client.create(CLAIMS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


async def make_pod(
    client: Client,
    namespace: str,
    name: str,
    claim: str,
    annotations: Mapping[str, str] = MappingProxyType({}),
    **spec_of_its_own: Any,
) -> None:
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        "terminationGracePeriodSeconds": 1,
        **spec_of_its_own,
    }
    metadata = {"name": name, "namespace": namespace, "annotations": dict(annotations)}
    await client.create(PODS, {"metadata": metadata, "spec": spec})


async def until_running(client: Client, namespace: str, *pods: str) -> None:
    async with asyncio.timeout(60):
        for name in pods:
            while (await client.get(PODS, ObjectKey(namespace, name))).status.phase != "Running":  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.05)


async def until_gone(client: Client, namespace: str, *pods: str) -> None:
    async with asyncio.timeout(60):
        for name in pods:
            with contextlib.suppress(NotFound):
                while await client.get(PODS, ObjectKey(namespace, name)):  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0.05)


async def until_claim(client: Client, namespace: str, name: str, wanted: str) -> ResourceClaim:
    """Wait until the claim is "ready" (its device says so) or "free"."""
    async with asyncio.timeout(60):
        while True:
            claim = await client.get(CLAIMS, ObjectKey(namespace, name))
            conditions = {
                (condition.type, condition.status) for device in claim.status.devices for condition in device.conditions
            }
            if wanted == "ready" and ("Ready", "True") in conditions:
                return claim
            if wanted == "free" and claim.status.allocation is None:
                return claim
            await asyncio.sleep(0.05)


def cdi_specs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/cdi/*.json"))


async def test_a_pod_with_a_claim_runs_and_gives_its_gpu_back(
    control_plane: object, cluster: Client, namespace: str, folder: Path
) -> None:
    async with running(cluster, folder):
        await make_claim(cluster, namespace, "gpu")
        await make_pod(cluster, namespace, "pod", "gpu")
        await until_running(cluster, namespace, "pod")
        claim = await until_claim(cluster, namespace, "gpu", "ready")
        assert claim.status.allocation is not None
        device = claim.status.allocation.devices.results[0]
        assert len(cdi_specs(folder)) == 1
        assert cdi_specs(folder)[0].parent.parent.name == device.pool
        await cluster.delete(PODS, ObjectKey(namespace, "pod"))
        await until_gone(cluster, namespace, "pod")
        assert cdi_specs(folder) == []
        await until_claim(cluster, namespace, "gpu", "free")


async def test_two_pods_share_a_claim_until_the_last_is_gone(
    control_plane: object, cluster: Client, namespace: str, folder: Path
) -> None:
    async with running(cluster, folder):
        await make_claim(cluster, namespace, "gpu")
        for name in ("first", "second"):
            await make_pod(cluster, namespace, name, "gpu")
        await until_running(cluster, namespace, "first", "second")
        await cluster.delete(PODS, ObjectKey(namespace, "first"))
        await until_gone(cluster, namespace, "first")
        assert len(cdi_specs(folder)) == 1
        await cluster.delete(PODS, ObjectKey(namespace, "second"))
        await until_gone(cluster, namespace, "second")
        assert cdi_specs(folder) == []


async def test_every_gpu_of_the_cluster_can_be_in_use_at_once(
    control_plane: object, cluster: Client, namespace: str, folder: Path
) -> None:
    names = [f"pod-{index}" for index in range(NODE_COUNT * GPUS)]
    async with running(cluster, folder):
        for name in names:
            await make_claim(cluster, namespace, name)
            await make_pod(cluster, namespace, name, name)
        await until_running(cluster, namespace, *names)
        claims = await cluster.list(CLAIMS, namespace=namespace)
        devices = {
            (result.pool, result.device)
            for claim in claims
            if claim.status.allocation
            for result in claim.status.allocation.devices.results
        }
        assert len(devices) == len(names)
        for name in names:
            await cluster.delete(PODS, ObjectKey(namespace, name))
        await until_gone(cluster, namespace, *names)


async def test_a_restart_of_all_nodes_loses_nothing(
    control_plane: object, cluster: Client, namespace: str, folder: Path
) -> None:
    async with running(cluster, folder):
        for name in ("stays", "goes"):
            await make_claim(cluster, namespace, name)
            await make_pod(cluster, namespace, name, name)
        await until_running(cluster, namespace, "stays", "goes")
        specs = cdi_specs(folder)
    started = (await cluster.get(RAW_PODS, ObjectKey(namespace, "stays")))["status"]["startTime"]
    await cluster.delete(PODS, ObjectKey(namespace, "goes"))
    async with running(cluster, folder):
        await until_gone(cluster, namespace, "goes")
        await until_claim(cluster, namespace, "goes", "free")
        pod = await cluster.get(RAW_PODS, ObjectKey(namespace, "stays"))
        assert (pod["status"]["phase"], pod["status"]["startTime"]) == ("Running", started)
        assert len(cdi_specs(folder)) == 1
        assert set(cdi_specs(folder)) < set(specs)
        await cluster.delete(PODS, ObjectKey(namespace, "stays"))
        await until_gone(cluster, namespace, "stays")


async def test_pods_outlive_their_agent_and_new_ones_wait_for_the_next(
    control_plane: object, cluster: Client, namespace: str, folder: Path
) -> None:
    nodes = SimulatedNodes(root=folder, count=1, gpus=GPUS, prefix="sim")
    clock = SystemClock()
    events = EventRecorder(cluster, controller="kubelet", instance="tests", clock=clock)
    feed = PodFeed(cluster, events=events, clock=clock)
    node = SimulatedNode(NodeName("sim-0"), nodes, cluster, feed=feed, clock=clock)
    node.create_gpus()
    async with asyncio.TaskGroup() as tasks:
        around = [tasks.create_task(work) for work in (events.run(), feed.run(), node.kubelet.run())]
        await node.kubelet.ready.wait()
        feed.add(node.kubelet)
        agent = tasks.create_task(node.run_agent())
        await make_claim(cluster, namespace, "early")
        await make_pod(cluster, namespace, "early", "early")
        await until_running(cluster, namespace, "early")

        agent.cancel()
        await asyncio.wait({agent})
        await make_claim(cluster, namespace, "late")
        await make_pod(cluster, namespace, "late", "late")  # its slices are still there, so it is scheduled
        await until_waiting_for_driver(cluster, namespace, "late")
        assert (await cluster.get(PODS, ObjectKey(namespace, "early"))).status.phase == "Running"

        agent = tasks.create_task(node.run_agent())
        await until_running(cluster, namespace, "late")
        for name in ("early", "late"):
            await cluster.delete(PODS, ObjectKey(namespace, name))
        await until_gone(cluster, namespace, "early", "late")
        assert cdi_specs(folder) == []
        for task in (*around, agent):
            task.cancel()


async def test_a_node_that_fails_comes_back_and_the_others_go_on(
    control_plane: object, cluster: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draco_local.simulator.nodes.NODE_RESTART_S", 0.2)
    async with running(cluster, folder):
        shutil.rmtree(folder / "sim-1" / "plugins_registry")
        names = [f"pod-{index}" for index in range(NODE_COUNT * GPUS)]
        for name in names:
            await make_claim(cluster, namespace, name)
            await make_pod(cluster, namespace, name, name)
        await until_running(cluster, namespace, *names)
        for name in names:
            await cluster.delete(PODS, ObjectKey(namespace, name))
        await until_gone(cluster, namespace, *names)


async def until_waiting_for_driver(client: Client, namespace: str, pod: str) -> None:
    async with asyncio.timeout(60):
        while True:
            conditions = (await client.get(PODS, ObjectKey(namespace, pod))).status.conditions
            if any(f"{NVIDIA_DRIVER} is not registered" in condition.message for condition in conditions):
                return
            await asyncio.sleep(0.05)


def test_a_folder_too_deep_for_sockets_is_refused_with_a_way_out() -> None:
    nodes = SimulatedNodes(root=Path("/tmp") / ("x" * 90))
    with pytest.raises(TooLongForSockets, match="--root"):
        nodes.check()
