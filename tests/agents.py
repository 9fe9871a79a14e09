"""A node with simulated GPUs for tests of the agent: folders, Node object, claims, and kubelet's side of the sockets."""

import asyncio
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio

from draco.agent.app import run_agent
from draco.agent.plugin import wire
from draco.agent.plugin.api import dra_v1_pb2, health_v1_pb2, registration_pb2
from draco.agent.settings import AgentSettings
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Event, Node
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import CLAIMS, EVENTS, NODES, SLICES
from draco.resources.names import NVIDIA_DRIVER
from draco_local.simulator.gpus import procfs, state, sysfs
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import SimulatedSmi
from tests.doubles.faultproxy import FaultProxy

CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


def growing_pauses() -> Iterator[float]:
    """Growing seconds between polls of the API server: a poll can cost as much as a step of the awaited work."""
    pause_s = 0.02
    while True:
        yield pause_s
        pause_s = min(1.2 * pause_s, 0.1)


async def eventually(check: Callable[[], Awaitable[Any] | Any], *, within_s: float = 60.0) -> Any:
    """The first truthy result of `check`, which may raise NotFound until then. Fails if there is none in time."""
    deadline = time.monotonic() + within_s
    for pause_s in growing_pauses():
        with suppress(NotFound):
            answer = check()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(pause_s)
    raise AssertionError(f"not within {within_s:g} s: {check}")


class SimulatedNode:
    """One node's folders and objects. `running()` runs the real agent on it."""

    def __init__(self, client: Client, *, gpus: int = 2, board: str = "H100-80GB", name: str = "") -> None:
        self.client = client
        self.name = name or f"node-{uuid.uuid4().hex[:8]}"
        self.folder = Path(tempfile.mkdtemp(prefix="dra-"))
        self.gpus = self.folder / "gpus.json"
        self.cdi = self.folder / "cdi"
        state.create(self.gpus, board=board, gpus=gpus, node_name=self.name)
        self.rebuild_sysfs()
        procfs.build(self.gpus, state.load(self.gpus))
        (self.folder / "cgroup").mkdir()
        (self.folder / "cgroup" / "cgroup.controllers").touch()
        self.library = SimulatedNvml(self.gpus)
        self.smi = SimulatedSmi(SimulatedNvml(self.gpus))
        self.namespace = "default"

    @property
    def registration_socket(self) -> Path:
        return self.folder / "plugins_registry" / f"{NVIDIA_DRIVER}-reg.sock"

    @property
    def service_socket(self) -> Path:
        return self.folder / "plugins" / NVIDIA_DRIVER / "dra.sock"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "agent" / "checkpoint.json"

    def settings(self, **changes: Any) -> AgentSettings:
        defaults: dict[str, Any] = {
            "node_name": self.name,
            "kubelet_dir": self.folder,
            "cdi_dir": self.cdi,
            "state_dir": self.folder / "agent",
            "sysfs_root": self.folder / "sys",
            "proc_root": procfs.tree(self.gpus),
            "own_cgroup": self.folder / "cgroup",
            "rescan_s": 0.2,
            "nvml_retry_s": 0.1,
            "event_wait_s": 0.1,
        }
        return AgentSettings(**{**defaults, **changes})

    def rebuild_sysfs(self) -> None:
        """Rebuild sysfs to match the current devices and drivers."""
        sysfs.build(self.folder / "sys", state.load(self.gpus))

    async def create(self) -> Node:
        return await self.client.create(NODES, Node(metadata=ObjectMeta(name=self.name)))

    async def delete(self) -> None:
        for one in await self.slices():
            with suppress(NotFound):  # a garbage collector may have deleted them with their node
                await self.client.delete(SLICES, one.metadata.key)
        with suppress(NotFound):
            await self.client.delete(NODES, ObjectKey("", self.name))
        shutil.rmtree(self.folder, ignore_errors=True)

    @asynccontextmanager
    async def running(self, *, files: Any = None, **changes: Any) -> AsyncIterator["asyncio.Task[None]"]:
        """Run the agent within the block. It serves kubelet's sockets and has published when the block begins."""
        task = asyncio.create_task(
            run_agent(self.settings(**changes), client=self.client, library=self.library, smi=self.smi, files=files)
        )
        try:
            await eventually(lambda: task.done() or self.answers())
            if task.done():
                task.result()
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @asynccontextmanager
    async def running_through(self, proxy: FaultProxy, **changes: Any) -> AsyncIterator[None]:
        """Like `running`, with a fault proxy between agent and API server."""
        direct = self.client
        async with Client(Connection(proxy.url)) as through:
            self.client = through
            async with self.running(**changes):
                self.client = direct
                yield

    async def run(self, **changes: Any) -> None:
        """Run the agent in the test's own task, for agents that end on their own."""
        running = run_agent(self.settings(**changes), client=self.client, library=self.library, smi=self.smi)
        await asyncio.wait_for(running, 60)

    async def slices(self) -> list[ResourceSlice]:
        found = await self.client.list(SLICES, field_selector=f"spec.nodeName={self.name}")
        return sorted(found, key=lambda one: one.metadata.name)

    async def published(self, gpus: int) -> list[ResourceSlice]:
        """The slices, once they have this many devices."""

        async def look() -> list[ResourceSlice]:
            found = await self.slices()
            return found if found and sum(len(one.spec.devices) for one in found) == gpus else []

        found: list[ResourceSlice] = await eventually(look)
        return found

    async def claim(self, *devices: str, admin: bool = False, name: str = "") -> ResourceClaim:
        """A claim allocated to devices of this node."""
        name = name or f"claim-{uuid.uuid4().hex[:8]}"
        exactly: dict[str, Any] = {"deviceClassName": NVIDIA_DRIVER, "count": max(1, len(devices))}
        exactly |= {"allocationMode": "ExactCount"}
        if admin:
            exactly["adminAccess"] = True
        made = await self.client.create(
            CLAIMS,
            {
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            },
        )
        return await self.allocate(made, *devices, admin=admin) if devices else made

    async def allocate(
        self, claim: ResourceClaim, *devices: str, admin: bool = False, config: Any = None
    ) -> ResourceClaim:
        """The claim, allocated to these devices with the parameters `config` of its own."""
        results = [
            {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": self.name, "device": one}
            | ({"adminAccess": True} if admin else {})
            for one in devices
        ]
        said = {"source": "FromClaim", "opaque": {"driver": NVIDIA_DRIVER, "parameters": config}}
        given = {"results": results} | ({"config": [said]} if config else {})
        allocation = {"allocation": {"devices": given} if devices else None}
        return await self.client.patch(CLAIMS, claim.metadata.key, {"status": allocation}, subresource="status")

    async def reserve(self, claim: ResourceClaim, *pods: str) -> ResourceClaim:
        """The claim, reserved for pods of these names."""
        consumers = [{"resource": "pods", "name": pod, "uid": str(uuid.uuid4())} for pod in pods]
        return await self.client.patch(
            CLAIMS, claim.metadata.key, {"status": {"reservedFor": consumers}}, subresource="status"
        )

    async def prepare(self, *claims: ResourceClaim) -> Any:
        """Kubelet's call to prepare; the answers by UID."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_references(claims))
        return (await self.call(wire.DRA_V1, "NodePrepareResources", request)).claims

    async def unprepare(self, *claims: ResourceClaim) -> Any:
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_references(claims))
        return (await self.call(wire.DRA_V1, "NodeUnprepareResources", request)).claims

    async def call(self, service: Any, method: str, request: Any) -> Any:
        async with channel(self.service_socket) as connected:
            return await wire.unary(connected, service, method)(request, timeout=45)

    async def register(self, error: str = "") -> Any:
        """Kubelet's registration handshake; returns the plugin's info."""
        async with channel(self.registration_socket) as connected:
            info = await wire.unary(connected, wire.REGISTRATION, "GetInfo")(registration_pb2.InfoRequest(), timeout=30)
            verdict = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
            await wire.unary(connected, wire.REGISTRATION, "NotifyRegistrationStatus")(verdict, timeout=30)
            return info

    async def answers(self) -> bool:
        """Whether a plugin answers on the registration socket."""
        if not self.registration_socket.exists():
            return False
        async with channel(self.registration_socket) as connected:
            with suppress(grpc.aio.AioRpcError):
                info = registration_pb2.InfoRequest()
                return bool((await wire.unary(connected, wire.REGISTRATION, "GetInfo")(info, timeout=10)).name)
        return False

    @asynccontextmanager
    async def health(self, service: str = "v1.DRAResourceHealth") -> AsyncIterator[Any]:
        """The stream of health, to be read with `await call.read()`."""
        async with channel(self.service_socket) as connected:
            watch = connected.unary_stream(
                f"/{service}/NodeWatchResources",
                request_serializer=health_v1_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
            )
            call = watch(health_v1_pb2.NodeWatchResourcesRequest())
            yield call
            call.cancel()

    async def events(self, reason: str) -> list[Event]:
        """Events about this node."""
        found = await self.client.list(EVENTS, namespace="default")
        return [
            one
            for one in found
            if one.involved_object and one.involved_object.name == self.name and one.reason == reason
        ]

    def specs(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir()) if self.cdi.exists() else []


def channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)


def _references(claims: Iterable[ResourceClaim]) -> list[Any]:
    return [
        dra_v1_pb2.Claim(namespace=claim.metadata.namespace, name=claim.metadata.name, uid=claim.metadata.uid)
        for claim in claims
    ]
