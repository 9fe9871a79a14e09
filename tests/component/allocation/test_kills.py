"""The operator dies after each single write while GPUs are handed over, claims allocated, and GPUs handed back.

It dies before the answer arrives, so it never learns that the write was made. The next one finishes the work: no device is given
to two claims, and nothing is left over. Deaths are placed by writes, not by time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES, MIG_POLICIES, PODS, SLICES
from draco.resources.names import SCHEDULING_GATE
from tests.component.allocation.lab import ALLOCATING, Guarded, end_lease, make_claim
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.controller.replicas import MortalConnection, an_operator, until
from tests.component.simulator.test_nodes import running
from tests.side_by_side import REPORTS

POLICY = ObjectKey("", "draco")
NODE = "sim-1"
WITHIN_S = 120.0
AT_LEAST_TO_DRACO = 9
"""The node's spec, the register, two for each of three claims, and the gate of the pod."""
AT_LEAST_BACK = 2
"""The register, and the node's spec."""


class Lab:
    """One node whose GPUs are handed over to Draco and back, and claims for them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def policy_says(self, allocator: str) -> None:
        await self.client.patch(MIG_POLICIES, POLICY, {"spec": {"allocator": allocator}})

    async def is_dracos(self) -> bool:
        """Whether all GPUs of the node are published as Draco's."""
        return await self._tainted() == {True}

    async def is_nobodys(self) -> bool:
        """Whether nothing of a hand-over is left."""
        wanted = await self.client.get(GPU_NODES, ObjectKey("", NODE))
        return await self._tainted() == {False} and not wanted.spec.operator_allocated

    async def _tainted(self) -> set[bool]:
        slices = await self.client.list(SLICES, field_selector=f"spec.nodeName={NODE}")
        return {bool(device.taints) for each in slices for device in each.spec.devices}

    async def make_claims(self) -> None:
        """Create two claims of a pod behind Draco's gate, and one without a pod."""
        for name in ("one", "two", "alone"):
            await make_claim(self.client, self.namespace, name)
        names = ("one", "two")
        spec = {
            "containers": [
                {"name": "main", "image": "none", "resources": {"claims": [{"name": each} for each in names]}}
            ],
            "resourceClaims": [{"name": each, "resourceClaimName": each} for each in names],
            "schedulingGates": [{"name": SCHEDULING_GATE}],
            "terminationGracePeriodSeconds": 1,
        }
        await self.client.create(PODS, {"metadata": {"name": "pod", "namespace": self.namespace}, "spec": spec})

    async def is_allocated(self) -> bool:
        """Whether all claims are allocated and the pod runs with its own."""
        claims = await self.client.list(CLAIMS, namespace=self.namespace)
        pods = await self.client.list(PODS, namespace=self.namespace)
        return all(each.status.allocation for each in claims) and all(each.status.phase == "Running" for each in pods)

    async def clear(self) -> None:
        """Delete pods and claims, which fails if a finalizer is left."""
        for pod in await self.client.list(PODS, namespace=self.namespace):
            await self.client.delete(PODS, pod.metadata.key, grace_period_s=0)
        for claim in await self.client.list(CLAIMS, namespace=self.namespace):
            with contextlib.suppress(NotFound):
                await self.client.delete(CLAIMS, claim.metadata.key)

        async def all_gone() -> bool:
            return not await self.client.list(CLAIMS, namespace=self.namespace)

        await until(all_gone, within_s=WITHIN_S, what="the end of all claims")


async def killed_after_each_write(
    guarded: Guarded,
    lab: Lab,
    *,
    begin: Callable[[], Awaitable[None]],
    done: Callable[[], Awaitable[bool]],
    undo: Callable[[], Awaitable[None]],
) -> int:
    """Kill an operator after each write in turn until the work is done by the next. Returns the number of writes."""
    for writes in count(1):
        await begin()
        async with an_operator(guarded, ALLOCATING, dies_after_writes=writes) as (operator, task):
            connection = operator._client.connection

            async def ended(task: "asyncio.Task[None]" = task) -> bool:
                return task.done() or await done()

            await until(ended, within_s=WITHIN_S, what=f"an end after {writes} writes")
            # It counts as dead before its task has ended, which may be after its last write took effect.
            died = isinstance(connection, MortalConnection) and connection.dead
        await end_lease(lab.client)
        async with an_operator(guarded, ALLOCATING):
            await until(done, within_s=WITHIN_S, what=f"what an operator left that died after {writes} writes")
            await undo()
        if not died:
            return writes - 1
    raise AssertionError


@pytest.fixture
async def lab(guarded: Guarded, handed_over: Client, namespace: str, folder: Path) -> AsyncIterator[Lab]:
    """A lab with nodes and an observer, which at the end has seen no device in two claims."""
    async with no_device_in_two_claims(handed_over), running(handed_over, folder):
        yield Lab(handed_over, namespace)


async def test_an_operator_that_dies_while_gpus_come_to_draco_leaves_them_whole_to_one(
    guarded: Guarded, lab: Lab
) -> None:
    async def begin() -> None:
        await lab.policy_says("Operator")
        await lab.make_claims()

    async def done() -> bool:
        return await lab.is_dracos() and await lab.is_allocated()

    async def undo() -> None:
        await lab.clear()
        await lab.policy_says("Scheduler")
        await until(lab.is_nobodys, within_s=WITHIN_S, what="the way back")

    await lab.policy_says("Scheduler")
    writes = await killed_after_each_write(guarded, lab, begin=begin, done=done, undo=undo)
    assert writes >= AT_LEAST_TO_DRACO
    REPORTS.append(
        f"kills: an operator died after each of {writes} writes that hand GPUs over and allocate, nothing was lost"
    )


async def test_an_operator_that_dies_while_gpus_go_back_leaves_nothing_behind(guarded: Guarded, lab: Lab) -> None:
    """A claim keeps its GPUs throughout."""

    async def begin() -> None:
        await lab.policy_says("Scheduler")

    async def undo() -> None:
        assert await lab.is_allocated()
        await lab.policy_says("Operator")
        await until(lab.is_dracos, within_s=WITHIN_S, what="the next way over")

    async with an_operator(guarded, ALLOCATING):
        await lab.make_claims()
        await until(lab.is_allocated, within_s=WITHIN_S, what="the allocations")
    writes = await killed_after_each_write(guarded, lab, begin=begin, done=lab.is_nobodys, undo=undo)
    assert writes >= AT_LEAST_BACK
    await lab.clear()
    REPORTS.append(
        f"kills: an operator died after each of {writes} writes that hand GPUs back, nothing was left behind"
    )
