"""Members of a group that come, go or lose their claims during its allocation: no part of it keeps devices alone.

No pod runs here: the tests look at what the group holds before kube-scheduler binds any pod.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from draco.controller.allocation.writing import writes
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiStatus, from_status
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.allocation.published import publishing
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.gangs.test_groups_by_label import KUEUE, said, sized

NOBODYS: dict[str, Any] = {"schedulerName": "nobody"}
FOREIGN = "example.com/somebody-elses"


class Lab:
    """A node with GPUs, and members that request one each."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def members(self, *names: str, size: int) -> None:
        for name in names:
            await make_member(
                self.client, self.namespace, name, template="one", labels=KUEUE, annotations=sized(size), **NOBODYS
            )

    async def claims(self, number: int) -> dict[str, ResourceClaim]:
        """All claims by pod, once there are this many."""

        async def look() -> dict[str, ResourceClaim] | None:
            found = {each.metadata.name[0]: each for each in await self.client.list(CLAIMS, namespace=self.namespace)}
            return found if len(found) == number else None

        return await until(look, what=f"{number} claims")

    async def held_by(self) -> set[str]:
        """The pods whose claims are allocated."""
        return {each.metadata.name[0] for each in await allocated_claims(self.client, self.namespace)}

    async def until_held_by(self, *names: str) -> None:
        async def look() -> bool:
            return await self.held_by() == {*names}

        await until(look, what=f"devices for {names} and nobody else")

    async def until_said(self, reason: str, text: str) -> None:
        async def look() -> bool:
            return await said(self.client, self.namespace, reason, text)

        await until(look, what=f"{reason}: {text}")

    def before_the_second_allocation(
        self, act: Callable[[str], Awaitable[None]]
    ) -> Callable[[str, str], Awaitable[None]]:
        """Run something once one member has its devices, with the pod that is about to get some."""
        writes: list[str] = []

        async def before(method: str, path: str) -> None:
            name = path.removesuffix("/status").rpartition("/")[2]
            if method != "PATCH" or f"/{self.namespace}/resourceclaims/" not in path or not path.endswith("/status"):
                return
            writes.append(name)
            if len(writes) != 2:
                return

            async def first() -> bool:
                return bool(await self.held_by())

            await until(first, what="the first allocation")
            await act(name)

        return before


@pytest.fixture
async def lab(guarded: Guarded, all_dracos: Client, namespace: str) -> AsyncIterator[Lab]:
    async with no_device_in_two_claims(all_dracos), publishing(all_dracos, ["sim-1"], 2):
        await make_template(all_dracos, namespace, "one", gpus=1)
        yield Lab(all_dracos, namespace)
        for pod in await all_dracos.list(PODS, namespace=namespace):
            await all_dracos.delete(PODS, pod.metadata.key, grace_period_s=0)


async def test_what_one_member_got_before_another_was_deleted_is_given_back_until_the_group_is_whole(
    guarded: Guarded, lab: Lab
) -> None:
    gone: list[str] = []

    async def delete_pod(claim: str) -> None:
        gone.append(claim[0])
        await lab.client.delete(PODS, ObjectKey(lab.namespace, claim[0]), grace_period_s=0)
        await lab.claims(1)

    await lab.members("a", "b", size=2)
    await lab.claims(2)
    async with an_operator(guarded, ALLOCATING, before_requests=lab.before_the_second_allocation(delete_pod)):
        await lab.until_said("AllocationGivenBack", "Kueue pod group")
        await lab.until_held_by()
        await lab.until_said("GroupWaiting", "waits for 1 more pod: 2 start together")
        assert await lab.held_by() == set()
        await lab.members(*gone, size=2)
        await lab.until_held_by("a", "b")


async def test_while_the_api_server_refuses_what_one_member_gets_the_others_hold_nothing(
    guarded: Guarded, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "_REFUSED_LONGEST_S", 0.5)
    refused = "a"

    async def refusing(method: str, path: str) -> None:
        is_status = method == "PATCH" and path.endswith("/status")
        if refused and is_status and f"/{lab.namespace}/resourceclaims/{refused}-" in path:
            raise from_status(ApiStatus(code=403, reason="Forbidden", message="a policy for this namespace"))

    await lab.members("a", "b", size=2)
    await lab.claims(2)
    async with an_operator(guarded, ALLOCATING, before_requests=refusing) as (operator, _):
        await lab.until_said("AllocationGivenBack", "Kueue pod group")
        await lab.until_held_by()
        assert f"claim {lab.namespace}/a-" in "\n".join(operator.report.troubles())
        refused = ""
        await lab.until_held_by("a", "b")


async def test_a_half_that_an_operator_left_is_given_back_by_the_next_though_nothing_waits(
    guarded: Guarded, lab: Lab
) -> None:
    await lab.members("a", "b", size=2)
    allocation = f"/resourceclaims/{(await lab.claims(2))['a'].metadata.name}/status"
    async with an_operator(guarded, ALLOCATING, dies_after_writes=1, dies_of_writes_to=allocation) as (_, task):
        await asyncio.wait([task])
    held = await lab.held_by()
    assert held
    rest = min({"a", "b"} - held, default="b")  # both writes may have been under way
    await lab.client.delete(PODS, ObjectKey(lab.namespace, rest), grace_period_s=0)
    await lab.claims(1)
    async with an_operator(guarded, ALLOCATING):
        await lab.until_held_by()
        await lab.until_said("AllocationGivenBack", "Kueue pod group")


async def test_a_claim_that_is_deleted_before_it_gets_its_devices_is_said_to_be_missing_and_the_others_hold_nothing(
    guarded: Guarded, lab: Lab
) -> None:
    """Kubernetes creates no second claim for a pod, so somebody has to delete the pod."""
    gone: list[str] = []

    async def delete_claim(claim: str) -> None:
        gone.append(claim)
        await lab.client.delete(CLAIMS, ObjectKey(lab.namespace, claim))

    await lab.members("a", "b", size=2)
    await lab.claims(2)
    async with an_operator(guarded, ALLOCATING, before_requests=lab.before_the_second_allocation(delete_claim)):
        await lab.until_said("AllocationGivenBack", "Kueue pod group")
        await lab.until_held_by()
        pod = gone[0][0]
        await lab.until_said(
            "GroupWaiting", f"claim {gone[0]} of pod {pod} does not exist: create it, or delete the pod"
        )
        await lab.client.delete(PODS, ObjectKey(lab.namespace, pod), grace_period_s=0)
        await lab.members(pod, size=2)
        await lab.until_held_by("a", "b")


async def test_a_member_that_comes_midway_and_finds_no_place_takes_nothing_from_those_that_suffice(
    guarded: Guarded, lab: Lab
) -> None:
    returns: list[ObjectKey] = []

    def look(change: Change[ResourceClaim]) -> None:
        if change.before is not None and change.after is not None and not change.after.status.allocation:
            returns.extend([change.key] if change.before.status.allocation else [])

    async def add(_: str) -> None:
        await lab.members("c", size=2)
        await lab.claims(3)

    informer: Informer[ResourceClaim] = Informer(lab.client, CLAIMS, clock=SystemClock())
    informer.subscribe(look)
    watching = asyncio.create_task(informer.run())
    await lab.members("a", "b", size=2)
    await lab.claims(2)
    try:
        async with an_operator(guarded, ALLOCATING, before_requests=lab.before_the_second_allocation(add)):
            await lab.until_said("GroupWaiting", "needs devices for 1 pod")
            assert await lab.held_by() == {"a", "b"}
            await lab.client.delete(PODS, ObjectKey(lab.namespace, "a"), grace_period_s=0)
            await lab.until_held_by("b", "c")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert not [each for each in returns if each.name.startswith("b")]


async def test_a_member_whose_claim_is_kept_by_a_foreign_finalizer_keeps_the_others_without_devices(
    guarded: Guarded, lab: Lab
) -> None:
    await lab.members("a", "b", size=2)
    key = (await lab.claims(2))["a"].metadata.key
    await lab.client.patch(CLAIMS, key, {"metadata": {"finalizers": [FOREIGN]}})
    await lab.client.delete(CLAIMS, key)
    async with an_operator(guarded, ALLOCATING):
        await lab.until_said("GroupWaiting", f"claim {key.name} of pod a is being deleted")
        await lab.until_said("GroupWaiting", FOREIGN)
        assert await lab.held_by() == set()
        await lab.client.patch(CLAIMS, key, {"metadata": {"finalizers": None}})
        await lab.client.delete(PODS, ObjectKey(lab.namespace, "a"), grace_period_s=0)
        await lab.members("a", size=2)
        await lab.until_held_by("a", "b")
