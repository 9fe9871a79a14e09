"""Claims whose policy changes before their pods start, on a real API server, with a stand-in for the nodes' agents."""

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from draco.controller.app import Operator
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.draco import PromisedDevice
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES, MIG_POLICIES
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_claim, a_gpu_uuid
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_mig_policies import HALVES, ON, Lab, as_json

pytestmark = pytest.mark.usefixtures("crds")

SMALL = "gpu-0-mig-1g10gb-19-2"


class PromiseLab(Lab):
    """A lab with claims."""

    def __init__(self, client: Client, namespace: str) -> None:
        super().__init__(client)
        self.namespace = namespace

    async def claim(self, node: str, device: str = SMALL) -> ObjectKey:
        """A claim that is allocated and not reserved."""
        claim = a_claim(f"soon-{uuid.uuid4().hex[:8]}", namespace=self.namespace, on=[f"{node}/{device}"])
        key = claim.metadata.key
        await self.client.create(
            CLAIMS, {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": as_json(claim.spec)}
        )
        await self.client.patch(CLAIMS, key, {"status": as_json(claim.status)}, subresource="status")
        return key

    async def seen(self, operator: Operator, *claims: ObjectKey) -> None:
        """Wait until the operator knows of the allocations."""

        async def known() -> bool:
            found = [operator.view.claims.store.get(claim) for claim in claims]
            return all(claim is not None and claim.devices_held for claim in found)

        await until(known, what="the operator sees the claims")

    async def promised(self, node: str, *claims: ObjectKey) -> list[PromisedDevice]:
        """The node's promises, once they are to the expected claims."""

        async def settled() -> tuple[list[PromisedDevice]] | None:
            found = (await self.gpu_node(node)).spec.promised
            return (found,) if [each.claim for each in found] == [str(claim) for claim in claims] else None

        (found,) = await until(settled, what=f"{node} promises to {claims}")
        return found

    async def generation(self, node: str) -> int:
        """The generation of the node's spec."""
        return (await self.gpu_node(node)).metadata.generation


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[PromiseLab]:
    made = PromiseLab(client, namespace)
    yield made
    for claim in await client.list(CLAIMS, namespace=namespace):
        with suppress(NotFound):
            await client.delete(CLAIMS, claim.metadata.key)
    await made.clean()


async def test_a_policy_that_goes_leaves_the_places_of_claims_in_the_same_write(
    served: ControlPlane, lab: PromiseLab
) -> None:
    node = await lab.node(ON, ON)
    async with an_operator(served) as (operator, _):
        policy = await lab.policy("p")
        await lab.wanted(node, gpu0="p", gpu1="p")
        before = await lab.generation(node)
        claim = await lab.claim(node)
        await lab.seen(operator, claim)
        await lab.client.delete(MIG_POLICIES, policy)
        assert await lab.promised(node, claim) == [
            PromisedDevice(device=SMALL, uuid=a_gpu_uuid(node, 0), claim=str(claim))
        ]
        assert await lab.wanted(node) == []
        # The allocation was not recorded while the device was offered anyway, and this was one write.
        assert await lab.generation(node) == before + 1
        await lab.client.delete(CLAIMS, claim)
        await lab.promised(node)


async def test_a_change_keeps_what_the_policy_offered_before_and_its_return_ends_that(
    served: ControlPlane, lab: PromiseLab
) -> None:
    node = await lab.node(ON, ON)
    async with an_operator(served) as (operator, _):
        policy = await lab.policy("p")
        await lab.wanted(node, gpu0="p", gpu1="p")
        claims = [await lab.claim(node), await lab.claim(node, "gpu-1")]
        await lab.seen(operator, *claims)
        before = await lab.generation(node)
        static = {"mode": "Static", "layouts": [HALVES], "layout": "halves"}
        await lab.client.patch(MIG_POLICIES, policy, {"spec": static})
        found = await lab.promised(node, *claims)
        assert [each.device for each in found] == [SMALL, "gpu-1"]
        assert {each.mode for each in await lab.wanted(node, gpu0="p", gpu1="p")} == {"Static"}
        assert await lab.generation(node) == before + 1
        await lab.client.patch(MIG_POLICIES, policy, {"spec": {"mode": "Dynamic", "layouts": None, "layout": None}})
        await lab.promised(node)
        assert {each.mode for each in await lab.wanted(node, gpu0="p", gpu1="p")} == {"Dynamic"}


async def test_an_operator_that_starts_anew_finds_what_was_allocated_before_it_was_withdrawn(
    served: ControlPlane, lab: PromiseLab
) -> None:
    """The device is no longer published, and the allocation was not recorded."""
    node = await lab.node(ON, ON)
    claim = await lab.claim(node)
    async with an_operator(served):
        await lab.promised(node, claim)
    await lab.client.delete(CLAIMS, claim)
    async with an_operator(served):
        await lab.promised(node)


async def test_what_others_promise_does_not_stay(served: ControlPlane, lab: PromiseLab) -> None:
    node = await lab.node(ON, ON)
    by_hand = [{"device": "gpu-1", "uuid": a_gpu_uuid(node, 1), "claim": "default/nobody"}]
    async with an_operator(served):
        claim = await lab.claim(node)
        await lab.promised(node, claim)
        await lab.client.patch(GPU_NODES, ObjectKey("", node), {"spec": {"promised": by_hand}})
        await lab.promised(node, claim)
        await lab.client.delete(CLAIMS, claim)
        await lab.promised(node)
