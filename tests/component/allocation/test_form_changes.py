"""A GPU is published in another form only when an operator has seen that no claim holds it: with real agents and operators."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device
from draco.resources.kinds import CLAIMS, SHARING_POLICIES, SLICES
from draco.resources.names import NVIDIA_DRIVER
from draco.sharing.clearance import NOTICE_S
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, settings_for_test, until
from tests.component.simulator.test_nodes import make_claim, running

NODE, POLICY = "sim-1", ObjectKey("", "by-memory")


@pytest.fixture
async def policy(cluster: Client) -> AsyncIterator[None]:
    """Deletes the policy that `share` makes."""
    yield
    await cluster.delete(SHARING_POLICIES, POLICY)


async def share(client: Client) -> None:
    spec = {"mode": "Memory", "step": "1Gi", "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": NODE}}}
    await client.create(SHARING_POLICIES, {"metadata": {"name": POLICY.name}, "spec": spec})


async def gpu(client: Client) -> Device:
    slices = await client.list(SLICES, field_selector=f"spec.nodeName={NODE}")
    return next(one for each in slices for one in each.spec.devices if one.name == "gpu-0")


async def is_going(client: Client) -> bool:
    return "Withdrawn" in {each.value for each in (await gpu(client)).taints}


async def is_shared(client: Client) -> bool:
    return bool((await gpu(client)).allow_multiple_allocations)


async def allocate(client: Client, namespace: str, name: str) -> None:
    """As a scheduler does that has not seen the taint yet."""
    claim = await make_claim(client, namespace, name)
    result = {"request": "gpu", "driver": NVIDIA_DRIVER, "pool": NODE, "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    await client.patch(CLAIMS, claim.metadata.key, {"status": status}, subresource="status")


async def test_a_gpu_that_is_allocated_while_no_operator_lives_keeps_its_form(
    control_plane: ControlPlane, cluster: Client, policy: None, namespace: str, folder: Path
) -> None:
    """The operator ends after it has asked for shares; the claim is allocated before the taint has been there for long."""
    async with running(cluster, folder):
        async with an_operator(control_plane, settings_for_test()):
            await share(cluster)
            await until(lambda: is_going(cluster), what="the taint")
        await allocate(cluster, namespace, "late")
        await asyncio.sleep(2 * NOTICE_S)  # for an agent that would not wait for the operator
        assert (await is_going(cluster), await is_shared(cluster)) == (True, False)
        async with an_operator(control_plane, settings_for_test()):

            async def says_for_whom() -> bool:
                message = (await cluster.get(SHARING_POLICIES, POLICY)).status.message
                return f"waits for claim {namespace}/late" in message

            await until(says_for_whom, what="that the policy waits for the claim")
            assert not await is_shared(cluster)
            await cluster.delete(CLAIMS, ObjectKey(namespace, "late"))
            await until(lambda: is_shared(cluster), within_s=30, what="the shared GPU")
            assert not (await gpu(cluster)).taints


async def test_a_free_gpu_whose_change_an_operator_has_left_half_done_is_shared_by_the_next(
    control_plane: ControlPlane, cluster: Client, policy: None, namespace: str, folder: Path
) -> None:
    async with running(cluster, folder):
        async with an_operator(control_plane, settings_for_test()):
            await share(cluster)
            await until(lambda: is_going(cluster), what="the taint")
        async with an_operator(control_plane, settings_for_test()):
            await until(lambda: is_shared(cluster), within_s=30, what="the shared GPU")
