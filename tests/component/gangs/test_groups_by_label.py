"""Groups by label, on a control plane without gangs; and parts of groups that lose their devices again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from draco.allocation.ownership.claims import nodes_of
from draco.controller.allocation.writing.writes import FINALIZER
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_LIMITS, EVENTS, JOBS, NODES, PODS
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.simulator.test_nodes import running, until_running

KUEUE = {"kueue.x-k8s.io/pod-group-name": "train"}


def sized(size: int, topology: str = "") -> dict[str, str]:
    return {
        "kueue.x-k8s.io/pod-group-total-count": str(size),
        **({"draco.dev/topology": topology} if topology else {}),
    }


async def said(client: Client, namespace: str, reason: str, text: str) -> bool:
    events = await client.list(EVENTS, namespace=namespace)
    return any(each.reason == reason and text in each.message for each in events)


async def test_nothing_is_allocated_before_all_members_are_there_and_unlike_pods_start_together(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        await make_template(all_dracos, namespace, "one", gpus=1)
        await make_member(all_dracos, namespace, "a", template="eight", labels=KUEUE, annotations=sized(2))

        async def told() -> bool:
            return await said(all_dracos, namespace, "GroupWaiting", "waits for 1 more pod: 2 start together")

        await until(told, what="the Event")
        assert await allocated_claims(all_dracos, namespace) == []
        await make_member(all_dracos, namespace, "b", template="one", labels=KUEUE, annotations=sized(2))
        await until_running(all_dracos, namespace, "a", "b")


async def test_a_member_behind_a_gate_holds_the_others_back_and_nothing_is_held_for_them(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "one", gpus=1)
        gate: dict[str, Any] = {"schedulingGates": [{"name": "example.com/admission"}]}
        await make_member(all_dracos, namespace, "a", template="one", labels=KUEUE, annotations=sized(2))
        await make_member(all_dracos, namespace, "b", template="one", labels=KUEUE, annotations=sized(2), **gate)

        async def told() -> bool:
            return await said(all_dracos, namespace, "GroupWaiting", "pod b has a scheduling gate")

        await until(told, what="the Event")
        assert await allocated_claims(all_dracos, namespace) == []
        await all_dracos.patch(PODS, ObjectKey(namespace, "b"), {"spec": {"schedulingGates": None}})
        await until_running(all_dracos, namespace, "a", "b")


async def test_members_that_were_all_behind_gates_start_as_soon_as_the_gates_are_gone(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """As Kueue admits them: only the gates change, and the operator has to wake for that."""
    gate: dict[str, Any] = {"schedulingGates": [{"name": "example.com/admission"}]}
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_claim(all_dracos, namespace, "before")
        await until_allocated(all_dracos, namespace, "before")  # the GPUs are handed over
        await make_template(all_dracos, namespace, "one", gpus=1)
        for name in ("a", "b"):
            await make_member(all_dracos, namespace, name, template="one", labels=KUEUE, annotations=sized(2), **gate)

        async def made() -> bool:
            return len(await all_dracos.list(CLAIMS, namespace=namespace)) == 3

        await until(made, what="the claims of both")
        for name in ("a", "b"):
            await all_dracos.patch(PODS, ObjectKey(namespace, name), {"spec": {"schedulingGates": None}})
        await until_running(all_dracos, namespace, "a", "b")


async def test_what_a_part_of_a_group_has_is_given_back_if_the_rest_finds_no_place_and_all_start_elsewhere(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """An operator died after one of two allocations, and the node is cordoned. No scheduler looks at the pods."""
    nobodys: dict[str, Any] = {"schedulerName": "nobody"}
    pair = sized(2, "sameNode")
    async with running(all_dracos, folder):
        async with an_operator(guarded, ALLOCATING):
            await make_claim(all_dracos, namespace, "first")
            await until_allocated(all_dracos, namespace, "first")
        await make_template(all_dracos, namespace, "one", gpus=1)
        for name in ("a", "b"):
            await make_member(all_dracos, namespace, name, template="one", labels=KUEUE, annotations=pair, **nobodys)

        async def made() -> list[ResourceClaim] | None:
            claims = await all_dracos.list(CLAIMS, namespace=namespace)
            return claims if len(claims) == 3 else None

        claims = {each.metadata.name: each for each in await until(made, what="the claims")}
        (of_a,) = [claim for name, claim in claims.items() if name.startswith("a-")]
        await allocate_on(guarded, of_a, "sim-0")
        await all_dracos.patch(NODES, ObjectKey("", "sim-0"), {"spec": {"unschedulable": True}})
        async with an_operator(guarded, ALLOCATING):

            async def together() -> set[str] | None:
                found = [
                    each for each in await allocated_claims(all_dracos, namespace) if each.metadata.name != "first"
                ]
                nodes = {node for each in found for node in nodes_of(each)}
                return nodes if len(found) == 2 and "sim-0" not in nodes else None

            async def told() -> bool:
                return await said(all_dracos, namespace, "AllocationGivenBack", "Kueue pod group")

            assert len(await until(together, what="both on another node")) == 1
            await until(told, what="the Event of what was given back")


async def test_what_a_part_of_a_group_has_is_given_back_if_a_limit_forbids_the_rest(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """An operator died after one of two allocations, and the limit was lowered. No scheduler looks at the pods."""
    nobodys: dict[str, Any] = {"schedulerName": "nobody"}
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    limit = {"namespaceSelector": only_here, "limits": {"devices": 1}}
    async with running(all_dracos, folder):
        await make_template(all_dracos, namespace, "one", gpus=1)
        for name in ("a", "b"):
            await make_member(
                all_dracos, namespace, name, template="one", labels=KUEUE, annotations=sized(2), **nobodys
            )

        async def made() -> list[ResourceClaim] | None:
            claims = await all_dracos.list(CLAIMS, namespace=namespace)
            return claims if len(claims) == 2 else None

        of_a = min(await until(made, what="the claims"), key=lambda each: each.metadata.name)
        await allocate_on(guarded, of_a, "sim-0")
        await all_dracos.create(DEVICE_LIMITS, {"metadata": {"name": namespace}, "spec": limit})
        try:
            async with an_operator(guarded, ALLOCATING):

                async def given_back() -> bool:
                    return not await allocated_claims(all_dracos, namespace)

                async def told() -> bool:
                    return await said(all_dracos, namespace, "AllocationGivenBack", "Kueue pod group")

                await until(given_back, what="the allocation of a")
                await until(told, what="the Event")
        finally:
            await all_dracos.delete(DEVICE_LIMITS, ObjectKey("", namespace))


async def allocate_on(guarded: Guarded, claim: ResourceClaim, node: str) -> None:
    """Write the allocation as Draco writes it."""
    key = claim.metadata.key
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-7"}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [only]}}
    async with await connect(guarded.kubeconfig) as connection:
        draco = Client(connection)
        if FINALIZER not in claim.metadata.finalizers:
            await draco.patch(CLAIMS, key, {"metadata": {"finalizers": [FINALIZER]}})
        await draco.patch(CLAIMS, key, {"status": {"allocation": allocation}}, subresource="status")


async def test_a_group_starts_as_a_whole_though_the_operator_dies_after_each_write(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    members = ("a", "b", "c")
    async with running(all_dracos, folder):
        async with an_operator(guarded, ALLOCATING):
            await make_claim(all_dracos, namespace, "first")
            await until_allocated(all_dracos, namespace, "first")
        await make_template(all_dracos, namespace, "two", gpus=2)
        for name in members:
            annotations = sized(len(members), "sameNode")
            await make_member(all_dracos, namespace, name, template="two", labels=KUEUE, annotations=annotations)

        async def whole() -> bool:
            return len(await allocated_claims(all_dracos, namespace)) == 1 + len(members)

        lives = 0
        whole_now = asyncio.create_task(until(whole, within_s=300, what="the whole group"))
        while not whole_now.done():
            async with an_operator(guarded, ALLOCATING, dies_after_writes=1) as (_, task):
                await asyncio.wait([task, whole_now], return_when=asyncio.FIRST_COMPLETED)
            lives += 1
        await whole_now
        assert lives >= len(members), "each of them wrote one allocation at most"
        await until_running(all_dracos, namespace, *members)
        claims = await allocated_claims(all_dracos, namespace)
        devices = [each.key for claim in claims for each in claim.results]
        assert len(devices) == len(set(devices)) == 1 + 2 * len(members)
        nodes = {node for each in claims if each.metadata.name != "first" for node in nodes_of(each)}
        assert len(nodes) == 1


@pytest.mark.parametrize("spare", [{}, {"spare": 0}], ids=["", "with a Job that has no pods"])
async def test_a_job_set_starts_once_all_pods_of_its_jobs_have_devices(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path, spare: dict[str, int]
) -> None:
    jobs = {"leader": 1, "workers": 2, **spare}
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/global-replicas": str(len(jobs))}
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        for name, parallelism in jobs.items():
            pod = {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "eight"}],
            }
            spec = {
                "parallelism": parallelism,
                "completions": max(1, parallelism),
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }
            meta = {"name": name, "namespace": namespace, "labels": labels}
            await all_dracos.create(JOBS, {"metadata": meta, "spec": spec})

        async def started() -> bool:
            pods = await all_dracos.list(PODS, namespace=namespace)
            return len([each for each in pods if each.status.phase == "Running"]) == 3

        await until(started, what="all three pods")


async def test_a_job_set_that_waits_for_a_pod_starts_without_it_once_its_job_is_made_smaller(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """No controller creates the Job's pods, so one is missing; and only the Job changes."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "set",
        "jobset.sigs.k8s.io/global-replicas": "1",
        "batch.kubernetes.io/job-name": "workers",
    }
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    spec = {"parallelism": 3, "managedBy": "example.com/nobody", "template": {"spec": pod}}
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "one", gpus=1)
        meta = {"name": "workers", "namespace": namespace, "labels": labels}
        job = await all_dracos.create(JOBS, {"metadata": meta, "spec": spec})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "workers", "uid": job.metadata.uid}
        for name in ("a", "b"):
            await make_member(all_dracos, namespace, name, template="one", labels=labels, owners=[owner])

        async def told() -> bool:
            return await said(all_dracos, namespace, "GroupWaiting", "waits for 1 more pod: 3 start together")

        await until(told, what="the Event")
        assert await allocated_claims(all_dracos, namespace) == []
        await all_dracos.patch(JOBS, job.metadata.key, {"spec": {"parallelism": 2}})
        await until_running(all_dracos, namespace, "a", "b")
