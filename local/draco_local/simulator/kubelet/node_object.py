"""The Node object of a simulated node and the Lease that keeps it Ready.

Owns registration, the heartbeat, and removing the slices that a starting kubelet removes. Knows nothing of pods or plugins.
"""

import asyncio
from typing import Any

import msgspec
import structlog

from draco import __version__
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, NotFound
from draco.resources.api.meta import ObjectKey, micro_time
from draco.resources.kinds import LEASES, NODES, SLICES
from draco.resources.names import LABEL_SIMULATED
from draco_local.simulator.kubelet.pods import node_ip

log = structlog.get_logger(__name__)

FIELD_MANAGER = "kubelet"
_LONGEST_LABEL = 63


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the node says it has. Quantities as Kubernetes writes them."""

    cpu: str = "64"
    memory: str = "512Gi"
    pods: str = "250"
    kubelet_version: str = "v1.36.3+draco-simulated"
    labels: dict[str, str] = {}


class NodeObject:
    """One Node and its Lease, kept as kubelet keeps them. Without a `kubelet_port` the Node names none."""

    def __init__(
        self,
        name: str,
        client: Client,
        *,
        shape: NodeShape,
        clock: Clock,
        lease_s: int = 40,
        renew_s: float = 10.0,
        kubelet_port: int = 0,
    ) -> None:
        self.name = name
        self._client = client
        self._shape = shape
        self._clock = clock
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._kubelet_port = kubelet_port
        self._uid = ""

    async def register(self) -> None:
        """Make the Node and its Lease what they should be, whether or not they exist."""
        key = ObjectKey("", self.name)
        labels = {
            "kubernetes.io/hostname": self.name[:_LONGEST_LABEL].rstrip("-."),
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            LABEL_SIMULATED: "true",
            **self._shape.labels,
        }
        node = await self._client.apply(NODES, key, {"metadata": {"labels": labels}}, manager=FIELD_MANAGER)
        self._uid = node.metadata.uid
        await self._client.apply(NODES, key, self._status(), manager=FIELD_MANAGER, subresource="status")
        lease = {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}]
            },
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": self._lease_s,
                "renewTime": micro_time(self._clock.now()),
            },
        }
        await self._client.apply(LEASES, self._lease_key, lease, manager=FIELD_MANAGER)
        log.info("node.registered", node=self.name)

    async def run(self) -> None:
        """Renew the Lease until cancelled, and register again when someone deleted it (or the Node, which takes it along)."""
        while True:
            # Spread over the period: hundreds of nodes that started together must not send heartbeats together.
            await self._clock.sleep(self._renew_s * (0.8 + 0.4 * self._clock.jitter()))
            try:
                await self._client.patch(
                    LEASES, self._lease_key, {"spec": {"renewTime": micro_time(self._clock.now())}}
                )
            except NotFound:
                await self._register_again()
            except ApiError as error:
                log.warning("node.heartbeat_missed", node=self.name, error=str(error))

    async def remove_slices(self, driver: str = "") -> None:
        """Delete the slices of this node (of one driver, or of all), as kubelet does for drivers it does not hear from."""
        selector = f"spec.nodeName={self.name}" + (f",spec.driver={driver}" if driver else "")
        slices = await self._client.list(SLICES, field_selector=selector)
        results = await asyncio.gather(
            *(self._client.delete(SLICES, item.metadata.key, uid=item.metadata.uid) for item in slices),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, NotFound):
                raise result
        if slices:
            log.info("node.slices_removed", node=self.name, driver=driver or None, slices=len(slices))

    @property
    def _lease_key(self) -> ObjectKey:
        return ObjectKey("kube-node-lease", self.name)

    async def _register_again(self) -> None:
        try:
            await self.register()
        except ApiError as error:
            log.warning("node.heartbeat_missed", node=self.name, error=str(error))

    def _status(self) -> dict[str, Any]:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        amounts = {"cpu": self._shape.cpu, "memory": self._shape.memory, "pods": self._shape.pods}
        conditions = [
            ("Ready", "True", "KubeletReady", "the simulated kubelet runs"),
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "simulated"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "simulated"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "simulated"),
        ]
        return {
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "addresses": [
                    {"type": "InternalIP", "address": node_ip(self.name)},
                    {"type": "Hostname", "address": self.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet_port}} if self._kubelet_port else {},
                "conditions": [
                    {
                        "type": name,
                        "status": status,
                        "reason": reason,
                        "message": message,
                        "lastHeartbeatTime": now,
                        "lastTransitionTime": now,
                    }
                    for name, status, reason, message in conditions
                ],
                "nodeInfo": {
                    "machineID": "",
                    "systemUUID": "",
                    "bootID": "",
                    "kernelVersion": "simulated",
                    "osImage": "simulated by Draco",
                    "containerRuntimeVersion": f"draco://{__version__}",
                    "kubeletVersion": self._shape.kubelet_version,
                    "kubeProxyVersion": "",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                },
            }
        }
