"""Nodes that only publish their GPUs with the taints that the operator wants, as agents do.

For tests of thousands of allocations, where simulated nodes would use most of the machine. Pods are bound to them and never run.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES, NODES, SLICES
from draco.resources.names import ALLOCATED_BY_OPERATOR, ATTRIBUTE_ALLOCATOR, NVIDIA_DRIVER, TAINT_OPERATOR_ALLOCATED

_HEARTBEAT_S = 10.0


@asynccontextmanager
async def publishing(client: Client, names: Sequence[str], gpus: int) -> AsyncIterator[None]:
    """The nodes, with published GPUs. Their slices are deleted afterwards; the Nodes stay."""
    changed: asyncio.Queue[GpuNode] = asyncio.Queue()

    def look(change: Change[GpuNode]) -> None:
        if change.after is not None and change.differs(lambda node: node.spec.operator_allocated):
            changed.put_nowait(change.after)

    async def follow() -> None:
        while True:
            node = await changed.get()
            await _publish(client, node.metadata.name, gpus, set(node.spec.operator_allocated))

    for name in names:
        await _create(client, name, gpus)
    informer: Informer[GpuNode] = Informer(client, GPU_NODES, clock=SystemClock())
    informer.subscribe(look)
    tasks = [asyncio.create_task(each) for each in (informer.run(), follow(), _live(client, names))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in names:
            await client.delete(SLICES, ObjectKey("", name))
            await client.delete(GPU_NODES, ObjectKey("", name))


def _uuid(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


async def _create(client: Client, name: str, gpus: int) -> None:
    await client.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    await _beat(client, name)
    await client.create(GPU_NODES, {"metadata": {"name": name}})
    seen = [{"device": f"gpu-{each}", "uuid": _uuid(name, each), "mig": {"capable": True}} for each in range(gpus)]
    status = {"status": {"driver": NVIDIA_DRIVER, "gpus": seen}}
    await client.patch(GPU_NODES, ObjectKey("", name), status, subresource="status")
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NVIDIA_DRIVER, "nodeName": name, "pool": pool, "devices": _devices(name, gpus, set())}
    await client.create(SLICES, {"metadata": {"name": name}, "spec": spec})


async def _publish(client: Client, name: str, gpus: int, kept: set[str]) -> None:
    slice_ = await client.get(SLICES, ObjectKey("", name))
    pool = {"generation": slice_.spec.pool.generation + 1}
    change = {"spec": {"pool": pool, "devices": _devices(name, gpus, kept)}}
    await client.patch(SLICES, ObjectKey("", name), change)


def _devices(name: str, gpus: int, kept: set[str]) -> list[dict[str, Any]]:
    devices = []
    for each in range(gpus):
        uuid = _uuid(name, each)
        device: dict[str, Any] = {"name": f"gpu-{each}"}
        device["attributes"] = {"type": {"string": "gpu"}, "uuid": {"string": uuid}}
        if uuid in kept:
            device["attributes"][ATTRIBUTE_ALLOCATOR] = {"string": ALLOCATED_BY_OPERATOR}
            device["taints"] = [{"key": TAINT_OPERATOR_ALLOCATED, "effect": "NoSchedule"}]
        devices.append(device)
    return devices


async def _live(client: Client, names: Sequence[str]) -> None:
    """Keep the nodes ready: otherwise kube-controller-manager marks them unreachable."""
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        for name in names:
            await _beat(client, name)


async def _beat(client: Client, name: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Published",
        "message": "It does nothing.",
        "lastHeartbeatTime": now,
    }
    resources = {"cpu": "192", "memory": "2Ti", "pods": "1000"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    await client.patch(NODES, ObjectKey("", name), {"status": status}, subresource="status")
