"""Idle claims in the way, on a real API server: advice on them, and their release. The test refuses the pods."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from draco.controller.app import Operator
from draco.controller.mig.release import RELEASED_REASON, ROOM_REASON
from draco.controller.settings import OperatorSettings
from draco.kube.connect.client import Client
from draco.resources.api.draco import InstanceUse
from draco.resources.kinds import CLAIMS, EVENTS, MIG_POLICIES
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_mig_instance
from tests.component.controller.repair_lab import Lab, as_json
from tests.component.controller.replicas import Died, an_operator, settings_for_test, until

pytestmark = pytest.mark.usefixtures("crds")


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
    async with an_operator(served, quick()):

        async def both() -> dict[str, str] | None:
            said = await lab.said()
            return said if said.keys() == {"idle", "large"} else None

        said = await until(both, what="the advice")
        kept = f"To let Draco release it, set spec.repair.idleClaims: Release in MigPolicy {lab.policy.name}."
        assert said["large"] == (
            f"Would be allocated on node {lab.node} without an idle claim: claim {idle} holds gpu-0-mig-1g10gb-19-0 of "
            f"{lab.node}, and no pod uses it. If it is deleted and created again, it finds another place. {kept}"
        )
        assert said["idle"] == (
            f"Holds gpu-0-mig-1g10gb-19-0 of {lab.node}, and no pod uses it. Without it, claim {lab.namespace}/large of pod "
            f"{lab.namespace}/train would be allocated. Delete it and create it again: there is another place for it. {kept}"
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
            queue = operator.reconcilers["mig-repair"].queue
            return bool((await lab.of_policy()).status.message) and not (queue.depth or queue.longest_running_s)

        await until(stands)
        assert await lab.said() == {}
        await lab.client.patch(MIG_POLICIES, lab.policy, {"spec": {"repair": {"maxMoves": 1}}})

        async def advised() -> bool:
            return len(await lab.said()) == 2

        await until(advised, what="the advice")


RELEASE = {"repair": {"idleClaims": "Release"}}


def quick() -> OperatorSettings:
    """Settings with which a claim counts as idle soon."""
    return settings_for_test(idle_grace_s=0.2)


def released(operator: Operator, lab: Lab) -> float:
    """How many claims this replica has released."""
    return operator.metrics.registry.get_sample_value("draco_claims_released_total", {"policy": lab.policy.name}) or 0.0


async def test_an_idle_claim_is_released_where_its_policy_says_so(served: ControlPlane, lab: Lab) -> None:
    await lab.make(**RELEASE)
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    finalizers = ["resource.kubernetes.io/delete-protection"]
    await lab.client.patch(CLAIMS, idle, {"metadata": {"finalizers": finalizers, "annotations": {"for": "later"}}})
    device = {"driver": "gpu.nvidia.com", "pool": lab.node, "device": "gpu-0-mig-1g10gb-19-0", "conditions": []}
    await lab.client.patch(CLAIMS, idle, {"status": {"devices": [device]}}, subresource="status")
    before = await lab.client.get(CLAIMS, idle)
    assert before.status.devices
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    async with an_operator(served, quick()) as (operator, _):

        async def gone() -> bool:
            return await lab.allocated(idle) == [False]

        await until(gone, what="the release")

        async def told() -> dict[str, str]:
            return await lab.said(RELEASED_REASON) | await lab.said(ROOM_REASON)

        async def both() -> dict[str, str] | None:
            said = await told()
            return said if len(said) == 2 else None

        assert await until(both, what="the Events") == {
            "idle": (
                f"Released for pod {lab.namespace}/train, as MigPolicy {lab.policy.name} permits: it held "
                f"gpu-0-mig-1g10gb-19-0 of {lab.node}, and no pod used it. It is allocated again when a pod uses it."
            ),
            "large": (
                f"Idle claim {idle} was released, as MigPolicy {lab.policy.name} permits: pod {lab.namespace}/train fits on "
                f"node {lab.node} now."
            ),
        }

        async def passed_on() -> bool:
            said = f"Idle claim {idle} was released for pod {lab.namespace}/train."
            return said in (await lab.of_policy()).status.message and not await lab.said()

        await until(passed_on, what="the policy's word, and the end of the advice")
        assert released(operator, lab) == 1
    after = await lab.client.get(CLAIMS, idle)
    assert (after.status.allocation, after.status.devices) == (None, [])
    assert after.spec == before.spec
    for name in ("uid", "annotations", "finalizers", "labels", "owner_references"):
        assert getattr(after.metadata, name) == getattr(before.metadata, name)


async def test_both_claims_of_a_plan_are_released(served: ControlPlane, lab: Lab) -> None:
    await lab.make(**RELEASE)
    idle = [await lab.claim(f"idle-{start}", "1g.10gb", f"0:1g.10gb@{start}") for start in (0, 2)]
    other = await lab.claim("other", "1g.10gb", "0:1g.10gb@6")
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    async with an_operator(served, quick()):

        async def gone() -> bool:
            return await lab.allocated(*idle) == [False, False]

        await until(gone, what="the release")
    assert await lab.allocated(other) == [True]


async def test_a_claim_that_is_reserved_at_the_last_moment_stays_theirs(served: ControlPlane, lab: Lab) -> None:
    await lab.make(**RELEASE)
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    tried = 0

    async def reserve_first(method: str, path: str) -> None:
        nonlocal tried
        if method == "PATCH" and path.endswith("/resourceclaims/idle/status"):
            tried += 1
            await lab.reserve(idle)

    async with an_operator(served, quick(), before_requests=reserve_first) as (operator, _):

        async def quiet() -> bool:
            return tried > 0 and not await lab.said()

        await until(quiet, what="the attempt, and the end of the advice")
        assert released(operator, lab) == 0
    claim = await lab.client.get(CLAIMS, idle)
    assert claim.status.allocation is not None
    assert [each.name for each in claim.status.reserved_for] == ["theirs"]
    assert tried == 1


async def test_a_claim_is_not_released_before_its_node_has_given_it_up(served: ControlPlane, lab: Lab) -> None:
    await lab.make(**RELEASE)
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    await lab.report(a_mig_instance("1g.10gb@0", use=InstanceUse.CLAIM, claim=str(idle)))
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    async with an_operator(served, quick()):

        async def held_back() -> bool:
            return f"because it is still prepared on node {lab.node}." in (await lab.said()).get("idle", "")

        await until(held_back, what="the reason")
        assert await lab.allocated(idle) == [True]
        await lab.report()

        async def gone() -> bool:
            return await lab.allocated(idle) == [False]

        await until(gone, what="the release")


async def test_two_that_lead_at_once_release_a_claim_once(served: ControlPlane, lab: Lab) -> None:
    """As if one had lost its lease without knowing it yet: here each has its own lease."""
    await lab.make(**RELEASE)
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")
    tried = asyncio.Semaphore(0)
    both = asyncio.Event()

    async def together(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/resourceclaims/idle/status"):
            tried.release()
            if tried._value == 2:
                both.set()
            async with asyncio.timeout(60):
                await both.wait()

    async with (
        an_operator(served, quick(), before_requests=together) as (one, _),
        an_operator(served, quick(), before_requests=together) as (other, _),
    ):

        async def told() -> bool:
            return released(one, lab) + released(other, lab) > 0 and await lab.allocated(idle) == [False]

        await until(told, what="the release")

        async def at_rest() -> bool:
            return not any(each.reconcilers["mig-repair"].queue.longest_running_s for each in (one, other))

        await until(at_rest)
        assert sorted([released(one, lab), released(other, lab)]) == [0, 1]


async def test_what_one_that_died_left_of_a_plan_is_released_by_the_next(served: ControlPlane, lab: Lab) -> None:
    await lab.make(**RELEASE)
    idle = [await lab.claim(f"idle-{start}", "1g.10gb", f"0:1g.10gb@{start}") for start in (0, 2)]
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")

    async def die_between(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/resourceclaims/idle-2/status"):
            raise Died("between two writes")

    async with an_operator(served, quick(), before_requests=die_between) as (_, task):

        async def dead() -> bool:
            return task.done()

        await until(dead, what="the end")
    assert await lab.allocated(*idle) == [False, True]
    async with an_operator(served, quick()):

        async def gone() -> bool:
            return await lab.allocated(*idle) == [False, False]

        await until(gone, what="the release of the other")


async def test_a_claim_that_comes_back_to_the_same_place_is_let_be(served: ControlPlane, lab: Lab) -> None:
    await lab.make(**RELEASE)
    idle = await lab.claim("idle", "1g.10gb", "0:1g.10gb@0")
    first = (await lab.client.get(CLAIMS, idle)).status
    await lab.claim("large", "4g.40gb")
    await lab.refused_pod("large")

    async def gone() -> bool:
        return await lab.allocated(idle) == [False] and bool(await lab.said(RELEASED_REASON))

    async def let_be() -> bool:
        return "because it was released less than 10 min ago." in (await lab.said()).get("idle", "")

    async with an_operator(served, quick()):
        await until(gone, what="the release")
        await lab.client.patch(CLAIMS, idle, {"status": as_json(first)}, subresource="status")
        await until(let_be, what="the reason")
    async with an_operator(served, quick()):  # the next one knows it, too
        for event in await lab.client.list(EVENTS, namespace=lab.namespace, field_selector="reason=ClaimMovable"):
            await lab.client.delete(EVENTS, event.metadata.key)
        await until(let_be, what="the reason, by another")
    assert await lab.allocated(idle) == [True]
