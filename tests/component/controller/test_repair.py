"""Advice on idle claims, on a real API server. The pods here are refused by hand, as no scheduler runs."""

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from draco.cluster.controlplane import ControlPlane
from draco.controller.repair import EVENT_REASON
from draco.kube.client import Client
from draco.kube.errors import NotFound
from draco.resources.claims import ResourceClaim
from draco.resources.draco import GpuMig, MigPolicy
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, EVENTS, GPU_NODES, MIG_POLICIES, NODES, PODS, SLICES, Kind
from draco.resources.meta import ObjectKey
from tests.builders import a_mig_node
from tests.component.controller.replicas import an_operator, until
from tests.mig_claims import H100, MIG_CLASS, a_mig_claim, a_mig_pool

pytestmark = pytest.mark.usefixtures("crds")

SERVICE_ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


class Lab:
    """A node with one H100 in parts, an idle claim on one of them, and a pod that waits for more."""

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
        seen = a_mig_node(self.node, gpus=[GpuMig(capable=True, enabled=True)], board=H100)
        await client.patch(GPU_NODES, ObjectKey("", self.node), {"status": as_json(seen.status)}, subresource="status")
        spec = {"mode": "Dynamic", "nodeSelector": {"matchLabels": {"lab": self.node}}, **policy}
        await client.create(MIG_POLICIES, {"metadata": {"name": self.policy.name}, "spec": spec})
        await client.apply(SERVICE_ACCOUNTS, ObjectKey(self.namespace, "default"), {}, manager="tests")

    async def claim(self, name: str, profile: str, on: str = "") -> ObjectKey:
        claim: ResourceClaim = a_mig_claim(name, profile, on, node=self.node, namespace=self.namespace)
        key = claim.metadata.key
        await self.client.create(
            CLAIMS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": as_json(claim.spec)}
        )
        if on:
            await self.client.patch(CLAIMS, key, {"status": as_json(claim.status)}, subresource="status")
        return key

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

    async def said(self) -> dict[str, str]:
        """What is said of each claim."""
        events = await self.client.list(EVENTS, namespace=self.namespace, field_selector=f"reason={EVENT_REASON}")
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


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[Lab]:
    made = Lab(client, namespace)
    yield made
    await made.clean()


async def test_idle_claims_in_the_way_are_named_until_one_is_gone(served: ControlPlane, lab: Lab) -> None:
    await lab.make()
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    async with an_operator(served):

        async def both() -> dict[str, str] | None:
            said = await lab.said()
            return said if said.keys() == {"idle", "large"} else None

        said = await until(both, what="the advice")
        assert said["large"] == (
            f"Would be allocated on node {lab.node} without an idle claim: claim {idle} holds gpu-0-mig-1g10gb-19-0 of "
            f"{lab.node} for no pod. If it is deleted and made anew, it finds another place."
        )
        assert said["idle"] == (
            f"Holds gpu-0-mig-1g10gb-19-0 of {lab.node}, and no pod uses it. Without it, claim {lab.namespace}/large of pod "
            f"{lab.namespace}/train would be allocated. Delete it and make it anew: there is another place for it."
        )

        async def passed_on() -> bool:
            return (
                f"Claim {lab.namespace}/large would fit without idle claim {idle}."
                in (await lab.of_policy()).status.message
            )

        await until(passed_on, what="the policy's word")
        claim = await lab.client.get(CLAIMS, idle)
        assert claim.status.allocation is not None
        assert claim.metadata.deletion_timestamp is None
        await lab.client.delete(CLAIMS, idle)

        async def nothing() -> bool:
            message = (await lab.of_policy()).status.message
            return not await lab.said() and "idle" not in message

        await until(nothing, what="the withdrawal")


async def test_advice_that_another_leader_left_is_taken_back(served: ControlPlane, lab: Lab) -> None:
    await lab.make()
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")

    async def advised() -> bool:
        return len(await lab.said()) == 2

    async with an_operator(served):
        await until(advised, what="the advice")
    await lab.client.delete(CLAIMS, idle)
    async with an_operator(served):

        async def nothing() -> bool:
            return not await lab.said()

        await until(nothing, what="the withdrawal")


async def test_a_policy_without_moves_advises_nothing(served: ControlPlane, lab: Lab) -> None:
    await lab.make(repair={"maxMoves": 0})
    await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    async with an_operator(served) as (operator, _):

        async def stands() -> bool:
            queue = operator.repairs.queue
            return bool((await lab.of_policy()).status.message) and not (queue.depth or queue.running)

        await until(stands)
        assert await lab.said() == {}
        await lab.client.patch(MIG_POLICIES, lab.policy, {"spec": {"repair": {"maxMoves": 1}}})

        async def advised() -> bool:
            return len(await lab.said()) == 2

        await until(advised, what="the advice")
