"""Pods take over reserved devices while operators die after each write, while two believe that they lead, and at the end.

All GPUs are in use, and an older claim of another tenant waits for one: it gets none while the reservation lasts.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_RESERVATIONS, PODS
from draco.resources.names import DeviceKey
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.allocation.published import publishing
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.allocation.test_reservations import make_templated_pod, reserve, until_reserved
from tests.component.controller.replicas import an_operator, two_leaders, until
from tests.component.gangs.lab import make_template
from tests.component.simulator.test_nodes import make_pod

GPUS = 3


class Takeovers:
    """A reservation that has devices, `first` those of its first claim, and an older claim that waits."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.key = ObjectKey(namespace, "train")
        self.first: set[DeviceKey] = set()

    async def prepare(self) -> None:
        """Fill all GPUs: the reservation has two, another claim one."""
        await make_template(self.client, self.namespace, "one-gpu", gpus=1)
        await reserve(self.client, self.namespace, "train", count=2)
        await until_reserved(self.client, self.key, 2)
        await make_claim(self.client, self.namespace, "other")
        await until_allocated(self.client, self.namespace, "other")
        await make_claim(self.client, self.namespace, "older")
        self.first = set((await self.claims())["train-0"].devices_held)

    async def claims(self) -> dict[str, ResourceClaim]:
        return {each.metadata.name: each for each in await self.client.list(CLAIMS, namespace=self.namespace)}

    async def bound(self, pod: str) -> bool:
        return bool((await self.client.get(PODS, ObjectKey(self.namespace, pod))).spec.node_name)

    async def of_pod(self) -> ResourceClaim | None:
        """The pod's claim, once it has devices."""
        found = [each for name, each in (await self.claims()).items() if name.startswith("pod-gpu-")]
        return found[0] if found and found[0].status.allocation else None

    async def is_taken_over(self) -> bool:
        """Whether the pod has the reservation's devices and the reservation reports it."""
        status = (await self.client.get(DEVICE_RESERVATIONS, self.key)).status
        claim = await self.of_pod()
        return claim is not None and status.reserved == 2 and not any(each.allocation for each in status.takeovers)

    async def clear(self) -> None:
        await self.client.delete(DEVICE_RESERVATIONS, self.key)
        for pod in await self.client.list(PODS, namespace=self.namespace):
            await self.client.delete(PODS, pod.metadata.key, grace_period_s=0)
        for name in ("other", "older"):
            await self.client.delete(CLAIMS, ObjectKey(self.namespace, name))

        async def gone() -> bool:
            return not await self.claims()

        await until(gone, what="the end of all claims")


@pytest.fixture
async def lab(guarded: Guarded, handed_over: Client, namespace: str) -> AsyncIterator[Takeovers]:
    async with no_device_in_two_claims(handed_over), publishing(handed_over, ["sim-1"], GPUS):
        found = Takeovers(handed_over, namespace)
        async with an_operator(guarded, ALLOCATING):
            await found.prepare()
        yield found
        await found.clear()


async def test_pods_take_over_by_label_and_by_name_though_the_operator_dies_after_each_write(
    guarded: Guarded, lab: Takeovers
) -> None:
    await make_templated_pod(lab.client, lab.namespace, "pod", "train")
    await make_pod(lab.client, lab.namespace, "named", "train-1")

    async def done() -> bool:
        status = (await lab.client.get(DEVICE_RESERVATIONS, lab.key)).status
        return await lab.is_taken_over() and await lab.bound("pod") and await lab.bound("named") and status.in_use == 2

    lives = 0
    all_done = asyncio.create_task(until(done, within_s=180, what="both take-overs"))
    while not all_done.done():
        async with an_operator(
            guarded, ALLOCATING, dies_after_writes=1, dies_of_writes_to=f"/namespaces/{lab.namespace}/"
        ) as (_, task):
            await asyncio.wait([task, all_done], return_when=asyncio.FIRST_COMPLETED)
        lives += 1
    await all_done
    # The record, the deletion, the finalizer, the allocation, and reservedFor; two pods' writes may be under way concurrently.
    assert lives >= 3
    claims = await lab.claims()
    its_own = await lab.of_pod()
    assert its_own is not None
    assert set(its_own.devices_held) == lab.first
    assert set(claims) == {"train-1", "other", "older", its_own.metadata.name}
    assert claims["older"].status.allocation is None


async def test_two_operators_that_both_believe_to_lead_give_a_reserved_device_to_one_pod(
    guarded: Guarded, lab: Takeovers
) -> None:
    async with two_leaders(guarded, ALLOCATING):
        await asyncio.gather(
            make_templated_pod(lab.client, lab.namespace, "pod", "train"),
            make_pod(lab.client, lab.namespace, "named", "train-1"),
        )

        async def done() -> bool:
            return await lab.is_taken_over() and await lab.bound("pod") and await lab.bound("named")

        await until(done, what="both take-overs")
        its_own = await lab.of_pod()
        assert its_own is not None
        assert set(its_own.devices_held) == lab.first
        claims = await lab.claims()
        assert set(claims) == {"train-1", "other", "older", its_own.metadata.name}
        assert claims["older"].status.allocation is None


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_reservation_that_ends_during_a_take_over_leaves_the_pod_to_wait_like_any_other(
    guarded: Guarded, lab: Takeovers, writes: int
) -> None:
    """The operator died after it recorded the take-over, or after it deleted the reserved claim."""
    await make_templated_pod(lab.client, lab.namespace, "pod", "train")
    written = f"/namespaces/{lab.namespace}/"
    async with an_operator(guarded, ALLOCATING, dies_after_writes=writes, dies_of_writes_to=written) as (_, task):
        await asyncio.wait([task])
    (takeover,) = (await lab.client.get(DEVICE_RESERVATIONS, lab.key)).status.takeovers
    assert takeover.allocation is not None
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
    await lab.client.patch(DEVICE_RESERVATIONS, lab.key, {"spec": {"expiresAt": past}})
    async with an_operator(guarded, ALLOCATING):

        async def both() -> bool:
            older = (await lab.claims())["older"]
            return older.status.allocation is not None and await lab.bound("pod")

        async def over() -> bool:
            status = (await lab.client.get(DEVICE_RESERVATIONS, lab.key)).status
            return not status.takeovers and "It ended at" in status.message

        await until(both, what="devices for the pod and for the older claim")
        await until(over, what="the end of the reservation")
        assert not {"train-0", "train-1"} & set(await lab.claims())
