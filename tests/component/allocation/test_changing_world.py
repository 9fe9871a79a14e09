"""Claims, slices and writers that change while the allocator decides: allocations are complete, and no device is given twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count

import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, EVENTS, PODS, SLICES
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.allocation.published import publishing
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import make_pod

FOREIGN = "example.com/somebody-elses"
STORM = 12


class Lab:
    """A node with GPUs, and the history of a namespace's allocations."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.had: dict[str, list[list[str]]] = {}
        """By claim: its allocations in order, with [] for each deallocation."""

    def key(self, name: str) -> ObjectKey:
        return ObjectKey(self.namespace, name)

    def look(self, change: Change[ResourceClaim]) -> None:
        if change.key.namespace == self.namespace and change.after is not None:
            now = [each.device for each in change.after.results]
            turns = self.had.setdefault(change.key.name, [[]])
            if turns[-1] != now:
                turns.append(now)

    def is_allocation(self, method: str, path: str, name: str) -> bool:
        return method == "PATCH" and path.endswith(f"/{self.namespace}/resourceclaims/{name}/status")

    async def events(self, reason: str) -> list[str]:
        found = await self.client.list(EVENTS, namespace=self.namespace)
        return [each.message for each in found if each.reason == reason]

    async def until_gone(self, name: str) -> None:
        async def look() -> bool:
            return name not in {each.metadata.name for each in await self.client.list(CLAIMS, namespace=self.namespace)}

        await until(look, what=f"the end of {name}")

    async def drop(self, device: str) -> None:
        """Publish the pool as a new generation, without this device."""
        (found,) = await self.client.list(SLICES, field_selector="spec.nodeName=sim-1")
        rest = [each for each in found.spec.devices if each.name != device]
        assert len(rest) == len(found.spec.devices) - 1
        pool = {"generation": found.spec.pool.generation + 1}
        await self.client.patch(SLICES, found.metadata.key, {"spec": {"pool": pool, "devices": rest}})


@pytest.fixture
async def lab(guarded: Guarded, handed_over: Client, namespace: str) -> AsyncIterator[Lab]:
    found = Lab(handed_over, namespace)
    informer: Informer[ResourceClaim] = Informer(handed_over, CLAIMS, clock=SystemClock())
    informer.subscribe(found.look)
    watching = asyncio.create_task(informer.run())
    try:
        async with no_device_in_two_claims(handed_over), publishing(handed_over, ["sim-1"], 2):
            yield found
            for pod in await handed_over.list(PODS, namespace=namespace):
                with contextlib.suppress(NotFound):
                    await handed_over.delete(PODS, pod.metadata.key, grace_period_s=0)
            for claim in await handed_over.list(CLAIMS, namespace=namespace):
                with contextlib.suppress(NotFound):
                    await handed_over.delete(CLAIMS, claim.metadata.key)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("is_used", [True, False], ids=["a pod uses it", "no pod uses it"])
async def test_devices_of_a_claim_that_a_foreign_finalizer_keeps_go_to_nobody_until_they_are_deallocated(
    guarded: Guarded, lab: Lab, *, is_used: bool
) -> None:
    """It is not allocated again, though it stays."""
    async with an_operator(guarded, ALLOCATING):
        for name in ("kept", "beside"):
            await make_claim(lab.client, lab.namespace, name)
            await until_allocated(lab.client, lab.namespace, name)
        if is_used:
            await make_pod(lab.client, lab.namespace, "pod", "kept")

            async def used() -> bool:
                return bool((await lab.client.get(CLAIMS, lab.key("kept"))).status.reserved_for)

            await until(used, what="the pod's reservation")
        found = await lab.client.get(CLAIMS, lab.key("kept"))
        finalizers = {"metadata": {"finalizers": [*found.metadata.finalizers, FOREIGN]}}
        await lab.client.patch(CLAIMS, lab.key("kept"), finalizers)
        await lab.client.delete(CLAIMS, lab.key("kept"))
        await make_claim(lab.client, lab.namespace, "next")
        if is_used:
            await make_pod(lab.client, lab.namespace, "next", "next", schedulerName="nobody")

            async def told() -> list[str]:
                return await lab.events("ClaimPending")

            await until(told, what="why the next waits")
            assert not (await lab.client.get(CLAIMS, lab.key("next"))).status.allocation
            await lab.client.delete(PODS, lab.key("pod"), grace_period_s=0)
        await until_allocated(lab.client, lab.namespace, "next")
        await lab.client.delete(CLAIMS, lab.key("beside"))
        await lab.until_gone("beside")
        await make_claim(lab.client, lab.namespace, "after")
        await until_allocated(lab.client, lab.namespace, "after")
        kept = await lab.client.get(CLAIMS, lab.key("kept"))
        assert (kept.status.allocation, kept.metadata.finalizers) == (None, [FOREIGN])
        assert [bool(each) for each in lab.had["kept"]] == [False, True, False]
        await lab.client.patch(CLAIMS, lab.key("kept"), {"metadata": {"finalizers": None}})
        await lab.until_gone("kept")


@pytest.mark.parametrize("with_pod", [True, False], ids=["with a pod", "without a pod"])
async def test_a_claim_whose_device_leaves_between_decision_and_write_gets_another(
    guarded: Guarded, lab: Lab, *, with_pod: bool
) -> None:
    """An earlier claim shows which device it would get."""
    would: list[str] = []

    async def leaving(method: str, path: str) -> None:
        if lab.is_allocation(method, path, "claim") and would:
            await lab.drop(would.pop())

    async with an_operator(guarded, ALLOCATING, before_requests=leaving):
        await make_claim(lab.client, lab.namespace, "before")
        (device,) = [each.device for each in (await until_allocated(lab.client, lab.namespace, "before")).results]
        await lab.client.delete(CLAIMS, lab.key("before"))
        await lab.until_gone("before")
        would.append(device)
        if with_pod:
            await make_pod(lab.client, lab.namespace, "pod", "claim", schedulerName="nobody")
        await make_claim(lab.client, lab.namespace, "claim")

        async def another() -> bool:
            found = await lab.client.get(CLAIMS, lab.key("claim"))
            return [each.device for each in found.results] not in ([], [device])

        async def said() -> bool:
            return any(f"{device} of sim-1 left its pool" in each for each in await lab.events("AllocationGivenBack"))

        await until(another, what="another device")
        await until(said, what="the Event")
        assert await lab.events("AllocationTakenBack") == []
    assert lab.had["claim"][:3] == [[], [device], []]
    assert len(lab.had["claim"]) == 4


async def test_a_device_that_left_while_no_operator_looked_is_not_kept_for_its_claim(
    guarded: Guarded, lab: Lab
) -> None:
    async with an_operator(guarded, ALLOCATING):
        await make_claim(lab.client, lab.namespace, "claim")
        (device,) = [each.device for each in (await until_allocated(lab.client, lab.namespace, "claim")).results]
    await lab.drop(device)
    async with an_operator(guarded, ALLOCATING):

        async def another() -> bool:
            found = await lab.client.get(CLAIMS, lab.key("claim"))
            return [each.device for each in found.results] not in ([], [device])

        await until(another, what="another device")


async def test_a_pool_that_is_not_published_completely_takes_nothing_from_anybody(guarded: Guarded, lab: Lab) -> None:
    """A new generation arrives slice by slice. The other claim shows that the operator has seen it."""
    async with an_operator(guarded, ALLOCATING):
        for name in ("one", "two"):
            await make_claim(lab.client, lab.namespace, name)
            await until_allocated(lab.client, lab.namespace, name)
        (found,) = await lab.client.list(SLICES, field_selector="spec.nodeName=sim-1")
        pool = {"generation": found.spec.pool.generation + 1, "resourceSliceCount": 2}
        await lab.client.patch(SLICES, found.metadata.key, {"spec": {"pool": pool, "devices": found.spec.devices[:1]}})
        gone = found.spec.devices[1].name
        await lab.client.delete(CLAIMS, lab.key("one"))
        await lab.until_gone("one")
        await make_claim(lab.client, lab.namespace, "three")
        await make_pod(lab.client, lab.namespace, "three", "three", schedulerName="nobody")

        async def told() -> list[str]:
            return await lab.events("ClaimPending")

        await until(told, what="why the third waits")
        assert lab.had["two"] in ([[], [gone]], [[], [found.spec.devices[0].name]])
        assert await lab.events("AllocationGivenBack") == []


async def test_a_claim_that_somebody_writes_before_each_of_dracos_writes_is_tried_anew_and_allocated_in_the_end_and_once(
    guarded: Guarded, lab: Lab
) -> None:
    """Each refused write must be forgotten before the next: the watch delivers no claims until the storm is over."""
    storm, over = count(1), asyncio.Event()
    begun = False

    async def writing(method: str, path: str) -> None:
        nonlocal begun
        if method != "PATCH" or f"/{lab.namespace}/resourceclaims/claim" not in path:
            return
        if (number := next(storm)) <= STORM:
            begun = True
            noted = {"metadata": {"annotations": {"example.com/count": str(number)}}}
            await lab.client.patch(CLAIMS, lab.key("claim"), noted)
        else:
            over.set()

    async def silent(path: str) -> None:
        if begun and path.endswith("/resourceclaims"):
            await over.wait()

    async with an_operator(guarded, ALLOCATING, before_requests=writing, before_news=silent):
        await make_claim(lab.client, lab.namespace, "claim")

        async def tried() -> bool:
            return over.is_set()

        await until(tried, what="another try after each refusal")
        await until_allocated(lab.client, lab.namespace, "claim")

        async def told() -> list[str]:
            return await lab.events("Allocated")

        assert len(await until(told, what="the Event")) == 1
        await make_claim(lab.client, lab.namespace, "next")
        await until_allocated(lab.client, lab.namespace, "next")
    assert [bool(each) for each in lab.had["claim"]] == [False, True]
