"""Kubelet stand-ins on a real API server, and pods and claims as a scheduler would leave them."""

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from draco_local.simulator.kubelet.node_object import NodeObject, NodeShape
from draco_local.simulator.kubelet.podfeed import PodFeed
from draco_local.simulator.kubelet.standin import Kubelet, KubeletSettings

DRIVER = "gpu.example.com"


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet directory whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="draco-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node_name() -> str:
    """A node name of this test alone, because the pods of earlier tests stay."""
    return f"sim-{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def running_kubelet(client: Client, root: Path, node_name: str, **settings: Any) -> AsyncIterator[Kubelet]:
    """A stand-in for one node's kubelet, cancelled at the end like a killed process."""
    clock = settings.pop("clock", SystemClock())
    renew_s = settings.pop("renew_s", 10.0)
    events = EventRecorder(client, controller="kubelet", instance="tests", clock=clock)
    feed = PodFeed(client, events=events, clock=clock)
    kubelet = Kubelet(
        KubeletSettings(node_name=node_name, root=root, **settings),
        client,
        node=NodeObject(node_name, client, shape=NodeShape(), clock=clock, renew_s=renew_s),
        clock=clock,
        wake=lambda pod: feed.wake(node_name, pod),
        complain=feed.complain,
    )
    feed.add(kubelet)  # as early as possible: nothing may count as deleted before the first list has arrived
    tasks = [asyncio.create_task(work) for work in (feed.run(), events.run(), kubelet.run())]
    try:
        await asyncio.wait_for(kubelet.ready.wait(), 60)
        yield kubelet
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HoursLater(SystemClock):
    """The same clock after a break, so that rewritten objects differ from untouched ones."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=3)


class Workload:
    """Claims and pods in one namespace; the test binds and reserves them."""

    def __init__(self, client: Client, namespace: str, node_name: str) -> None:
        self.client = client
        self.node_name = node_name
        self.namespace = namespace

    def key(self, name: str) -> ObjectKey:
        return ObjectKey(self.namespace, name)

    async def claim(self, name: str, *, driver: str = DRIVER, owner: Pod | None = None) -> ResourceClaim:
        """A claim allocated to a device of the driver on the node."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace}
        if owner:
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "Pod", "name": owner.metadata.name, "uid": owner.metadata.uid}
            ]
        await self.client.create(CLAIMS, {"metadata": metadata, "spec": {"devices": {"requests": [request]}}})
        result = {"request": "gpu", "driver": driver, "pool": self.node_name, "device": name}
        return await self.client.patch(
            CLAIMS, self.key(name), {"status": {"allocation": {"devices": {"results": [result]}}}}, subresource="status"
        )

    async def pod(self, name: str, *claims: str, reserve: bool = True, **metadata: Any) -> Pod:
        """A pod bound to the node that uses claims by name. They are reserved for it unless told otherwise."""
        spec = {
            "nodeName": self.node_name,
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        pod = await self.create(name, spec, **metadata)
        if reserve:
            await self.reserve(pod, claims)
        return pod

    async def pod_with_template(self, name: str, entry: str, **metadata: Any) -> Pod:
        spec = {
            "nodeName": self.node_name,
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": entry, "resourceClaimTemplateName": "template"}],
        }
        return await self.create(name, spec, **metadata)

    async def create(self, name: str, spec: dict[str, Any], **metadata: Any) -> Pod:
        """Create a pod from this manifest."""
        manifest = {"metadata": {"name": name, "namespace": self.namespace, **metadata}, "spec": spec}
        return await self.client.create(PODS, manifest)

    async def bind(self, name: str) -> None:
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        target = {"kind": "Node", "name": self.node_name}
        await self.client.create_subresource(PODS, self.key(name), "binding", {**binding, "target": target})

    async def reserve(self, pod: Pod, claims: Iterable[str]) -> None:
        for claim in claims:
            current = await self.client.get(CLAIMS, self.key(claim))
            consumers = [
                {"resource": known.resource, "name": known.name, "uid": known.uid}
                for known in current.status.reserved_for
            ]
            consumers.append({"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid})
            await self.client.patch(
                CLAIMS, self.key(claim), {"status": {"reservedFor": consumers}}, subresource="status"
            )

    async def delete(self, name: str, *, grace_period_s: int | None = None) -> None:
        await self.client.delete(PODS, self.key(name), grace_period_s=grace_period_s)


@pytest.fixture
def workload(client: Client, namespace: str, node_name: str) -> Workload:
    return Workload(client, namespace, node_name)
