"""A running group that loses a pod: the rest keeps its GPUs, or is evicted and restarted as a whole if the MigPolicy says so."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.controller.allocation.preempting import losses
from draco.kube.connect.client import Client
from draco.kube.errors import ApiStatus, from_status
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, EVENTS, MIG_POLICIES, POD_DISRUPTION_BUDGETS, PODS, Kind
from tests.component.allocation.lab import ALLOCATING, Guarded, end_lease, make_claim, until_allocated
from tests.component.allocation.preempting import events_of, staying
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_maintenance_jobs import RAW_JOBS
from tests.component.gangs.lab import allocated_claims, make_member, make_pod_group, make_template
from tests.component.gangs.test_groups_by_label import sized
from tests.component.simulator.test_nodes import running, until_gone, until_running

GROUP = "train"
TWO = sized(2)
SAID = "has been short of 1 pod for 0 min (MigPolicy spec.gangs.onPartialLoss)"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "AFTER_S", 0.5)
    monkeypatch.setattr(losses, "_AGAIN_S", 0.5)


async def release(client: Client) -> None:
    await client.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"gangs": {"onPartialLoss": "Release"}}})


async def member(client: Client, namespace: str, name: str, source: str) -> None:
    if source == "PodGroup":
        await make_member(client, namespace, name, template="four", pod_group=GROUP)
        return
    await make_member(
        client, namespace, name, template="four", labels={"kueue.x-k8s.io/pod-group-name": GROUP}, annotations=TWO
    )


async def lose_one(client: Client, namespace: str, source: str) -> None:
    """Two members run on all eight GPUs. One goes, a claim takes one of its GPUs, and its replacement finds no place."""
    await make_template(client, namespace, "four", gpus=4)
    if source == "PodGroup":
        await make_pod_group(client, namespace, GROUP, least=2)
    for name in ("a", "b"):
        await member(client, namespace, name, source)
    await until_running(client, namespace, "a", "b")
    await make_claim(client, namespace, "other")
    await client.delete(PODS, ObjectKey(namespace, "b"))
    await until_gone(client, namespace, "b")
    await until_allocated(client, namespace, "other")
    await member(client, namespace, "c", source)

    async def told() -> bool:
        return "c" in await events_of(client, namespace, "ClaimPending")

    await until(told, what="why the next member waits")


async def held(client: Client, namespace: str) -> int:
    return sum(len(each.devices_held) for each in await allocated_claims(client, namespace))


async def until_only_the_other_holds(client: Client, namespace: str) -> None:
    """Until the group's claims are gone too: Kubernetes deletes them after their pods."""

    async def only_the_other() -> bool:
        return await held(client, namespace) == 1

    await until(only_the_other, what="the release of all that the group had")


@pytest.mark.parametrize("source", ["PodGroup", "labels"])
async def test_the_rest_leaves_once_the_policy_says_so_and_the_group_starts_again_as_a_whole(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path, source: str
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING) as (operator, _):
        await lose_one(handed_over, namespace, source)
        assert await staying(handed_over, namespace) == {"a", "c"}
        await release(handed_over)
        await until_gone(handed_over, namespace, "a")

        await until_only_the_other_holds(handed_over, namespace)

        async def said() -> dict[str, str]:
            return await events_of(handed_over, namespace, losses.RELEASED_REASON.name)

        notes = await until(said, what="the Event")
        assert SAID in notes["a"]
        value = operator.metrics.registry.get_sample_value
        assert value("draco_partial_loss_evictions_total", {"outcome": "evicted"}) == 1
        await member(handed_over, namespace, "d", source)
        await handed_over.delete(CLAIMS, ObjectKey(namespace, "other"))
        await until_running(handed_over, namespace, "c", "d")
        assert await staying(handed_over, namespace) == {"c", "d"}


POD = {
    "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}],
    "terminationGracePeriodSeconds": 1,
}
REPLICA_SETS: Kind[Any] = Kind("apps", "v1", "replicasets", "ReplicaSet", True, dict)


def a_replica_set(*, pod_group: str = "") -> dict[str, Any]:
    """A ReplicaSet whose four pods start together with two GPUs each. It replaces missing pods at once."""
    labels = {"group": GROUP} if pod_group else {"kueue.x-k8s.io/pod-group-name": GROUP}
    pod = {**POD, "schedulingGroup": {"podGroupName": pod_group}} if pod_group else POD
    template = {"metadata": {"labels": labels, "annotations": sized(4)}, "spec": pod}
    return {"replicas": 4, "selector": {"matchLabels": labels}, "template": template}


def a_job() -> dict[str, Any]:
    """The same pods as the only Job of a JobSet."""
    labels = {"jobset.sigs.k8s.io/jobset-name": GROUP, "jobset.sigs.k8s.io/global-replicas": "1"}
    template = {"metadata": {"labels": labels}, "spec": {**POD, "restartPolicy": "Never"}}
    return {"parallelism": 4, "completions": 4, "backoffLimit": 100, "template": template}


class Training:
    """Four running pods that lose one, whose GPU a claim takes."""

    def __init__(self, client: Client, namespace: str, kind: Kind[Any], spec: dict[str, Any]) -> None:
        self.client, self.namespace, self.kind, self.spec = client, namespace, kind, spec
        self.first: set[str] = set()

    async def _running(self) -> set[str]:
        pods = await self.client.list(PODS, namespace=self.namespace)
        return {each.metadata.uid for each in pods if each.status.phase == "Running" and not each.is_over}

    async def lose_one(self) -> None:
        await make_template(self.client, self.namespace, "two", gpus=2)
        meta = {"name": GROUP, "namespace": self.namespace}
        await self.client.create(self.kind, {"metadata": meta, "spec": self.spec})

        async def started() -> bool:
            self.first = await self._running()
            return len(self.first) == 4

        await until(started, what="the start of the group")
        await make_claim(self.client, self.namespace, "other")
        await self._scale(3)  # its replacement would be allocated before the claim
        await until_allocated(self.client, self.namespace, "other")
        await self._scale(4)

        async def waits() -> bool:
            pods = await self.client.list(PODS, namespace=self.namespace)
            return any(each.waits for each in pods)

        await until(waits, what="the next pod")

    async def _scale(self, number: int) -> None:
        field = "replicas" if "replicas" in self.spec else "parallelism"
        await self.client.patch(self.kind, ObjectKey(self.namespace, GROUP), {"spec": {field: number}})

    async def orphan(self) -> None:
        """From now on nothing replaces its pods."""
        key = ObjectKey(self.namespace, GROUP)
        await self.client.delete(self.kind, key, propagation="Orphan")

        async def gone() -> bool:
            return not await self.client.list(self.kind, namespace=self.namespace)

        await until(gone, what="the end of what makes the pods")

    async def rest(self) -> set[str]:
        """Names of the first four pods that stay."""
        pods = await self.client.list(PODS, namespace=self.namespace)
        return {each.metadata.name for each in pods if each.metadata.uid in self.first and not each.is_over}

    async def left(self) -> bool:
        """Whether all of the first four are gone."""
        pods = await self.client.list(PODS, namespace=self.namespace)
        return not self.first & {each.metadata.uid for each in pods}

    async def started_again(self) -> bool:
        return len(await self._running()) == 4


@pytest.mark.parametrize(
    ("least", "guards", "why"),
    [(1, {"app": "guarded"}, "can never be met"), (2, {"group": GROUP}, "allows 1 at a time")],
    ids=["one of them", "all but one"],
)
async def test_a_budget_that_keeps_some_keeps_all_and_is_named_until_it_is_gone(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    folder: Path,
    least: int,
    guards: dict[str, str],
    why: str,
) -> None:
    training = Training(handed_over, namespace, REPLICA_SETS, a_replica_set(pod_group=GROUP))
    await make_pod_group(handed_over, namespace, GROUP, least=4)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING) as (operator, _):
        await training.lose_one()
        last = max(await training.rest())
        await handed_over.patch(PODS, ObjectKey(namespace, last), {"metadata": {"labels": {"app": "guarded"}}})
        spec = {"minAvailable": least, "selector": {"matchLabels": guards}}
        budget = ObjectKey(namespace, "budget")
        await handed_over.create(
            POD_DISRUPTION_BUDGETS, {"metadata": {"name": budget.name, "namespace": namespace}, "spec": spec}
        )

        async def counted() -> bool:
            return (await handed_over.get(POD_DISRUPTION_BUDGETS, budget)).status.expected_pods > 0

        await until(counted, what="the budget's status")
        await release(handed_over)

        async def said() -> bool:
            note = (await events_of(handed_over, namespace, losses.KEPT_REASON.name)).get(GROUP, "")
            return f"PodDisruptionBudget {budget} {why}" in note

        await until(said, what="why the rest stays")
        value = operator.metrics.registry.get_sample_value
        assert value("draco_partial_loss_evictions_total", {"outcome": "refused"})
        assert len(await training.rest()) == 3
        await handed_over.delete(POD_DISRUPTION_BUDGETS, budget)
        await until(training.left, what="the release of the rest")
        events = await handed_over.list(EVENTS, namespace=namespace)
        assert len([each for each in events if each.reason == losses.KEPT_REASON.name]) == 1


async def test_the_rest_leaves_though_the_operator_dies_after_each_eviction_and_a_second_replica_goes_on(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    training = Training(handed_over, namespace, REPLICA_SETS, a_replica_set())
    async with running(handed_over, folder):
        async with an_operator(guarded, ALLOCATING):
            await training.lose_one()
        await release(handed_over)
        standby = msgspec.structs.replace(ALLOCATING, identity="standby")
        async with an_operator(guarded, ALLOCATING, dies_after_writes=1, dies_of_writes_to="/eviction") as (_, first):
            await asyncio.wait([first])
            assert not await training.left()
            await end_lease(handed_over)
            async with an_operator(guarded, standby, dies_after_writes=1, dies_of_writes_to="/eviction") as (_, second):
                await asyncio.wait([second])
        await end_lease(handed_over)
        async with an_operator(guarded, ALLOCATING):
            await until(training.left, what="the release of the rest")
            await until_only_the_other_holds(handed_over, namespace)
            await handed_over.delete(CLAIMS, ObjectKey(namespace, "other"))
            await until(training.started_again, what="the start of the whole group")


async def test_what_is_refused_midway_is_said_and_goes_on_though_nobody_makes_the_others_again(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """An admission policy refuses the second eviction, which the dry run did not show."""
    asked = count(1)

    async def refusing(method: str, path: str) -> None:
        # Three dry runs, then evictions one by one.
        if method == "POST" and path.endswith("/eviction") and next(asked) == 5:
            raise from_status(ApiStatus(code=403, reason="Forbidden", message="admission webhook says: not now"))

    training = Training(handed_over, namespace, REPLICA_SETS, a_replica_set())
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING, before_requests=refusing):
        await training.lose_one()
        await training.orphan()
        await release(handed_over)

        async def said() -> str:
            return "".join((await events_of(handed_over, namespace, losses.KEPT_REASON.name)).values())

        assert "admission webhook says: not now." in await until(said, what="why the rest stays")
        await until(training.left, what="the release of the rest")

        async def told() -> bool:
            return len(await events_of(handed_over, namespace, losses.RELEASED_REASON.name)) == 3

        await until(told, what="the Events of all that left")


async def test_an_operator_that_knows_nothing_of_a_job_set_yet_releases_it(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    training = Training(handed_over, namespace, RAW_JOBS, a_job())
    async with running(handed_over, folder):
        async with an_operator(guarded, ALLOCATING):
            await training.lose_one()
        await release(handed_over)
        async with an_operator(guarded, ALLOCATING):
            await until(training.left, what="the release of the rest")


async def test_one_that_succeeded_and_was_deleted_is_no_loss(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """Another group that lost a pod at the same time is released first."""
    await release(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_template(handed_over, namespace, "two", gpus=2)
        done = {"kueue.x-k8s.io/pod-group-name": "done"}
        for name in ("works", "ends"):
            await make_member(handed_over, namespace, name, template="two", labels=done, annotations=TWO)
        labels = {"kueue.x-k8s.io/pod-group-name": GROUP}
        for name in ("a", "b"):
            await make_member(handed_over, namespace, name, template="two", labels=labels, annotations=TWO)
        await until_running(handed_over, namespace, "works", "ends", "a", "b")
        await handed_over.patch(
            PODS, ObjectKey(namespace, "ends"), {"status": {"phase": "Succeeded"}}, subresource="status"
        )
        await make_template(handed_over, namespace, "eight", gpus=8)
        for name in ("ends", "b"):
            await handed_over.delete(PODS, ObjectKey(namespace, name))
        await until_gone(handed_over, namespace, "ends", "b")
        await make_member(handed_over, namespace, "c", template="eight", labels=labels, annotations=TWO)
        await until_gone(handed_over, namespace, "a")
        assert "works" in await staying(handed_over, namespace)
        assert {*await events_of(handed_over, namespace, losses.RELEASED_REASON.name)} == {"a"}
