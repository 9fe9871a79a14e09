"""A node with one divided GPU, an idle claim on a partition, and a pod that waits for more, on a real API server.

The test refuses pods, because no scheduler runs.
"""

import uuid
from contextlib import suppress
from typing import Any

import msgspec

from draco.controller.mig.repair import EVENT_REASON
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuMig, InstanceStatus, MigPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, EVENTS, GPU_NODES, MIG_POLICIES, NODES, PODS, SLICES, Kind
from tests.builders import a_mig_node
from tests.mig_claims import H100, MIG_CLASS, a_mig_claim, a_mig_pool

SERVICE_ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


class Lab:
    """A node with one divided H100, an idle claim on a partition, and a pod that waits for more."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.node = f"node-{uuid.uuid4().hex[:8]}"
        self.policy = ObjectKey("", f"policy-{self.node}")

    async def make(self, **policy: Any) -> None:
        client = self.client
        await client.create(NODES, {"metadata": {"name": self.node, "labels": {"lab": self.node}}})
        await client.apply(DEVICE_CLASSES, MIG_CLASS.metadata.key, {"spec": as_json(MIG_CLASS.spec)}, manager="tests")
        for item in a_mig_pool(self.node, 1):
            await client.create(SLICES, {"metadata": {"name": item.metadata.name}, "spec": as_json(item.spec)})
        await client.create(GPU_NODES, {"metadata": {"name": self.node}})
        await self.report()
        spec = {"mode": "Dynamic", "nodeSelector": {"matchLabels": {"lab": self.node}}, **policy}
        await client.create(MIG_POLICIES, {"metadata": {"name": self.policy.name}, "spec": spec})
        await client.apply(SERVICE_ACCOUNTS, ObjectKey(self.namespace, "default"), {}, manager="tests")

    async def report(self, *instances: InstanceStatus) -> None:
        """Report these instances as the agent would."""
        mig = GpuMig(capable=True, enabled=True, instances=list(instances))
        seen = a_mig_node(self.node, gpus=[mig], board=H100)
        await self.client.patch(
            GPU_NODES, ObjectKey("", self.node), {"status": as_json(seen.status)}, subresource="status"
        )

    async def claim(self, name: str, profile: str, on: str = "") -> ObjectKey:
        claim: ResourceClaim = a_mig_claim(name, profile, on, node=self.node, namespace=self.namespace)
        key = claim.metadata.key
        await self.client.create(
            CLAIMS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": as_json(claim.spec)}
        )
        if on:
            await self.client.patch(CLAIMS, key, {"status": as_json(claim.status)}, subresource="status")
        return key

    async def reserve(self, claim: ObjectKey) -> None:
        """Reserve a claim for a pod that is about to use it."""
        consumer = [{"resource": "pods", "name": "theirs", "uid": str(uuid.uuid4())}]
        await self.client.patch(CLAIMS, claim, {"status": {"reservedFor": consumer}}, subresource="status")

    async def allocated(self, *claims: ObjectKey) -> list[bool]:
        """Whether the claims are allocated."""
        return [(await self.client.get(CLAIMS, claim)).status.allocation is not None for claim in claims]

    async def refused_pod(self, claim: str) -> None:
        key = ObjectKey(self.namespace, "train")
        spec = {
            "nodeSelector": {"lab": self.node},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        }
        await self.client.create(PODS, {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": spec})
        refused = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}]
        await self.client.patch(PODS, key, {"status": {"conditions": refused}}, subresource="status")

    async def said(self, reason: EventReason = EVENT_REASON) -> dict[str, str]:
        """Notes of the Events on each claim."""
        events = await self.client.list(EVENTS, namespace=self.namespace, field_selector=f"reason={reason.name}")
        return {event.involved_object.name: event.message for event in events if event.involved_object}

    async def of_policy(self) -> MigPolicy:
        return await self.client.get(MIG_POLICIES, self.policy)

    async def clean(self) -> None:
        for item in a_mig_pool(self.node, 1):
            with suppress(NotFound):
                await self.client.delete(SLICES, item.metadata.key)
        for kind, key in (
            (MIG_POLICIES, self.policy),
            (GPU_NODES, ObjectKey("", self.node)),
            (NODES, ObjectKey("", self.node)),
            (DEVICE_CLASSES, MIG_CLASS.metadata.key),
        ):
            with suppress(NotFound):
                await self.client.delete(kind, key)
