"""Nodes with agents, and an operator, all with tokens of pods of the chart's accounts; and an administrator's client."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from draco.agent.settings import AgentSettings
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.errors import Invalid, NotFound
from draco.kube.events.events import EventRecorder
from draco.options import MetricsSettings
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, CRON_JOBS, EVENTS, NODES, PODS, SLICES, Kind
from draco.resources.names import NodeName
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.pki import Authority
from draco_local.simulator.kubelet.podfeed import PodFeed
from draco_local.simulator.nodes import SimulatedNode, SimulatedNodes
from tests.component.chart.rendering import NAMESPACE
from tests.component.chart.stolen import a_result
from tests.component.chart.stolen import an_allocation as allocated
from tests.component.controller.replicas import until
from tests.doubles.token import FixedToken
from tests.requests import call

NODE_NAMES = [NodeName("sim-0"), NodeName("sim-1")]
TENANT = "tenant"
JOB_SPACE = "draco-jobs"
"""Where the chart has Jobs of maintenance run."""
RAW_PODS: Kind[Any] = Kind("", "v1", "pods", "Pod", True, dict)


def token(plane: ControlPlane, account: str, node: str) -> str:
    """The token that kubelet would give a pod of this account on this node."""
    name = f"{account}-on-{node}"
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    spec = {"serviceAccountName": account, "nodeName": node, "containers": [{"name": "main", "image": "none"}]}
    uid = call(plane, "POST", pods, {"metadata": {"name": name}, "spec": spec})["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    found: str = call(plane, "POST", path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}})["status"][
        "token"
    ]
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


class ScrapedNode(SimulatedNode):
    """A node whose agent serves metrics over TLS on a free port."""

    metrics_port = 0

    def agent_settings(self) -> AgentSettings:
        return msgspec.structs.replace(
            super().agent_settings(),
            metrics=MetricsSettings(host="127.0.0.1", port=self.metrics_port, certificates=self.root.parent),
            lease_duration_s=4,
        )


class Cluster:
    """Two simulated nodes whose agents have the chart's account, and an administrator's client."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path) -> None:
        self.plane, self.client, self.folder = plane, client, folder
        self._tokens: dict[str, str] = {}
        self.metrics_ports = _free_ports(1 + len(NODE_NAMES))
        """Ports of the operator and of the agents."""
        issued = Authority.create("metrics").issue("metrics", hosts=["127.0.0.1"])
        self.certificates.mkdir(parents=True, exist_ok=True)
        (self.certificates / "tls.crt").write_bytes(issued.certificate)
        (self.certificates / "tls.key").write_bytes(issued.key)

    @property
    def certificates(self) -> Path:
        """The certificates of the metrics endpoints."""
        return self.folder / "n"

    def connection(self, account: str, node: str) -> Connection:
        tls = ssl.create_default_context(cafile=str(self.plane.pki / "ca.crt"))
        if node not in self._tokens:
            self._tokens[node] = token(self.plane, account, node)
        return Connection(self.plane.server, tls=tls, credentials=FixedToken(self._tokens[node]))

    @asynccontextmanager
    async def nodes(self) -> AsyncIterator[None]:
        """Run the nodes within the block. The next time they start from the same files."""
        shape = SimulatedNodes(root=self.folder / "n", gpus=1, prefix="sim", count=len(NODE_NAMES), namespace=NAMESPACE)
        clock = SystemClock()
        events = EventRecorder(self.client, controller="kubelet", instance="nodes", clock=clock)
        feed = PodFeed(self.client, events=events, clock=clock)
        starting = asyncio.Semaphore(8)
        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(events.run()), asyncio.create_task(feed.run())]
            for name, port in zip(NODE_NAMES, self.metrics_ports[1:], strict=True):
                await self.client.apply(NODES, ObjectKey("", name), {"metadata": {"name": name}}, manager="tests")
                agent = await stack.enter_async_context(Client(self.connection("draco-agent", name)))
                node = ScrapedNode(name, shape, self.client, feed=feed, clock=clock, agent_client=agent)
                node.metrics_port = port
                stack.callback(node.leave)
                tasks.append(asyncio.create_task(node.run(starting)))
            try:
                await until(self.published, what="the nodes' GPUs")
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def published(self) -> bool:
        """Whether each node has a slice with devices."""
        slices = [each for each in await self.client.list(SLICES) if each.spec.devices]
        return {each.spec.node_name for each in slices} >= set(NODE_NAMES)

    def kubeconfig(self) -> Path:
        """The operator's kubeconfig, with the token of a pod of its account."""
        path = self.folder / "operator.kubeconfig"
        authority = str(self.plane.pki / "ca.crt")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.plane.server, "certificate-authority": authority}}],
            "users": [{"name": "u", "user": {"token": token(self.plane, "draco-operator", NODE_NAMES[0])}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    async def claim(
        self, name: str, *, count: int = 1, profile: str = "", device_class: str = "gpu.nvidia.com"
    ) -> None:
        exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
        if profile:
            cel = {"expression": f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'}
            exactly |= {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": cel}]}
        request = {"name": "gpu", "exactly": exactly}
        body = {"metadata": {"name": name, "namespace": TENANT}, "spec": {"devices": {"requests": [request]}}}

        async def accepted() -> bool:
            try:
                await self.client.create(CLAIMS, body)
            except Invalid as error:
                if "not yet synced" not in str(error):
                    raise
                return False
            return True

        # Just after the chart's installation the API server has not read the parameters of its admission policies.
        await until(accepted, what=f"claim {name} past the admission policies")

    async def pod(self, name: str, claim: str, *, node: str = "") -> None:
        spec = {
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "terminationGracePeriodSeconds": 0,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        }
        await self.client.create(PODS, {"metadata": {"name": name, "namespace": TENANT}, "spec": spec})

    async def template(self, name: str, *, run_s: float) -> None:
        """A CronJob as template of maintenance Jobs, whose pods run for the given seconds."""
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
        job = {"template": {"metadata": {"annotations": {"draco.dev/run-seconds": str(run_s)}}, "spec": pod}}
        spec = {"schedule": "0 0 31 2 *", "suspend": True, "jobTemplate": {"spec": job}}
        await self.client.apply(CRON_JOBS, ObjectKey(JOB_SPACE, name), {"spec": spec}, manager="tests")

    async def running(self, pod: str) -> bool:
        found = await self.client.get(RAW_PODS, ObjectKey(TENANT, pod))
        return bool(found["status"].get("phase") == "Running")

    async def gone(self, kind: Kind[Any], key: ObjectKey) -> None:
        """Delete an object and wait until it is gone."""
        with suppress(NotFound):
            await self.client.delete(kind, key, grace_period_s=0)

        async def is_gone() -> bool:
            with suppress(NotFound):
                await self.client.get(kind, key)
                return False
            return True

        await until(is_gone, what=f"{key} is gone")

    async def said_of(self, name: str, reason: str = "") -> list[str]:
        events = await self.client.list(EVENTS)
        return [
            each.message
            for each in events
            if each.involved_object and each.involved_object.name == name and (not reason or each.reason == reason)
        ]


def an_allocation(node: str, device: str = "gpu-0") -> dict[str, Any]:
    return allocated(node, [a_result(node, device)])
