"""Pods of a higher priority get devices of pods of a lower priority, if the MigPolicy permits it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draco.cli.explain.command import command as explain_command
from draco.controller.allocation.preempting import preemption
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, MIG_POLICIES, POD_DISRUPTION_BUDGETS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation import preempting
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.allocation.preempting import events_of, of_priority, permit, staying
from tests.component.allocation.test_limits import a_limit
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_member, make_template
from tests.component.simulator.test_nodes import make_pod, running, until_gone, until_running

priorities = preempting.priorities
LOW, MIDDLE, HIGH, POLITE = map(of_priority, ("low", "middle", "high", "polite"))


async def explained_pod(plane: ControlPlane, namespace: str, pod: str) -> str:
    """What `draco explain pod` prints."""
    arguments = ["--kubeconfig", str(plane.kubeconfig), "-n", namespace, "pod", pod]
    return (await asyncio.to_thread(CliRunner().invoke, explain_command, arguments)).stdout


async def test_once_the_policy_permits_it_a_pod_gets_the_gpus_of_one_of_a_lower_priority(
    control_plane: ControlPlane, guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_template(handed_over, namespace, "four", gpus=4)
        await make_member(handed_over, namespace, "low", template="four", **LOW)
        await make_member(handed_over, namespace, "middle", template="four", **MIDDLE)
        await until_running(handed_over, namespace, "low", "middle")
        await make_member(handed_over, namespace, "polite", template="four", **POLITE)
        await make_member(handed_over, namespace, "high", template="four", **HIGH)

        async def explained() -> bool:
            return {"polite", "high"} <= {*await events_of(handed_over, namespace, "ClaimPending")}

        await until(explained, what="why both wait")
        assert await staying(handed_over, namespace) == {"low", "middle", "polite", "high"}
        said_before = await explained_pod(control_plane, namespace, "high")
        assert "2 pods of lower priority have devices, but no MigPolicy permits it" in said_before
        await permit(handed_over)
        await until_running(handed_over, namespace, "high")
        await until_gone(handed_over, namespace, "low")
        assert "its preemptionPolicy is Never" in await explained_pod(control_plane, namespace, "polite")
        assert await staying(handed_over, namespace) == {"middle", "polite", "high"}

        async def told() -> dict[str, str] | None:
            return await events_of(handed_over, namespace, "Preempted")

        assert await until(told, what="the Event") == {
            "low": "Evicted, because 1 pod of priority 100 gets devices that it holds; its own priority is 10."
        }
        said = await events_of(handed_over, namespace, "Preempting")
        assert said["high"].startswith("Draco evicted 1 pod of lower priority to make room: gpu-")
        assert len(await allocated_claims(handed_over, namespace)) == 2


async def test_what_becomes_free_is_kept_for_the_pod_that_others_left_for(
    guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """One of the two evicted pods ends slowly, and an older claim without a pod would take the other's devices."""
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        for gpus, template in ((4, "four"), (8, "eight")):
            await make_template(handed_over, namespace, template, gpus=gpus)
        await make_member(handed_over, namespace, "quick", template="four", **LOW)
        slow: dict[str, Any] = {"terminationGracePeriodSeconds": 8}
        await make_member(handed_over, namespace, "slow", template="four", **LOW, **slow)
        await until_running(handed_over, namespace, "quick", "slow")
        await make_claim(handed_over, namespace, "older")
        await make_member(handed_over, namespace, "high", template="eight", **HIGH)
        await until_gone(handed_over, namespace, "quick", "slow")
        await until_running(handed_over, namespace, "high")

        async def told() -> bool:
            return {*await events_of(handed_over, namespace, "Preempted")} == {"quick", "slow"}

        await until(told, what="the Events of both")
        assert "older" not in await events_of(handed_over, namespace, "Allocated")
        assert [each.metadata.name[:4] for each in await allocated_claims(handed_over, namespace)] == ["high"]


async def test_a_budget_that_allows_nothing_keeps_all_of_them_and_once_it_is_gone_they_leave(
    control_plane: ControlPlane, guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """Two pods would have to be evicted, and the budget covers one."""
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING) as (operator, _):
        for gpus, template in ((4, "four"), (8, "eight")):
            await make_template(handed_over, namespace, template, gpus=gpus)
        await make_member(handed_over, namespace, "free", template="four", **LOW)
        await make_member(handed_over, namespace, "guarded", template="four", labels={"app": "guarded"}, **LOW)
        await until_running(handed_over, namespace, "free", "guarded")
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
        budget = {"metadata": {"name": "budget", "namespace": namespace}, "spec": spec}
        await handed_over.create(POD_DISRUPTION_BUDGETS, budget)
        await make_member(handed_over, namespace, "high", template="eight", **HIGH)

        async def explained() -> bool:
            return "high" in await events_of(handed_over, namespace, "ClaimPending")

        await until(explained, what="why it waits")
        assert await staying(handed_over, namespace) == {"free", "guarded", "high"}
        shown = await explained_pod(control_plane, namespace, "high")
        assert f"Draco may evict pods of a priority below 100: {namespace}/free" in shown
        assert f"PodDisruptionBudget {namespace}/budget allows no eviction of {namespace}/guarded" in shown
        await handed_over.delete(POD_DISRUPTION_BUDGETS, ObjectKey(namespace, "budget"))
        await until_running(handed_over, namespace, "high")
        assert await staying(handed_over, namespace) == {"high"}
        assert (
            operator.metrics.registry.get_sample_value("draco_preemption_evictions_total", {"outcome": "evicted"}) == 2
        )


async def test_a_claim_by_name_that_a_pod_lost_waits_without_taking_the_gpus_back(
    guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """Its claim is older and is allocated as soon as possible. A claim that no pod uses cannot be preempted."""
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_template(handed_over, namespace, "seven", gpus=7)
        for name in ("used", "idle"):
            await make_claim(handed_over, namespace, name)
            await until_allocated(handed_over, namespace, name)
        await make_pod(handed_over, namespace, "low", "used", **LOW)
        await until_running(handed_over, namespace, "low")
        await make_member(handed_over, namespace, "high", template="seven", **HIGH)
        await until_running(handed_over, namespace, "high")
        names = {each.metadata.name for each in await allocated_claims(handed_over, namespace)}
        assert {"used", "idle"} & names == {"idle"}


async def test_a_partition_gets_room_by_another_on_the_same_gpus(
    guarded: Guarded, handed_over: Client, priorities: None, namespace: str, folder: Path
) -> None:
    """All eight GPUs are one partition each; one pod must leave for a smaller partition."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"mode": "Dynamic"}})
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        for name, profile, count in (("whole", "7g.80gb", 8), ("small", "1g.10gb", 1)):
            selector = {"cel": {"expression": f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'}}
            await make_template(
                handed_over, namespace, name, gpus=count, device_class="mig.draco.dev", selectors=[selector]
            )
        await make_member(handed_over, namespace, "low", template="whole", **LOW)
        await until_running(handed_over, namespace, "low")
        await make_member(handed_over, namespace, "high", template="small", **HIGH)
        await until_running(handed_over, namespace, "high")
        await until_gone(handed_over, namespace, "low")


async def test_a_group_for_which_nobody_may_leave_any_more_keeps_nobody_waiting(
    guarded: Guarded,
    handed_over: Client,
    priorities: None,
    namespace: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When it is planned again, a limit forbids it any devices. Other tenants are next in line."""
    monkeypatch.setattr(preemption, "_FIRST_S", 0.1)
    monkeypatch.setattr(preemption, "_LONGEST_S", 0.1)
    await permit(handed_over)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        for gpus, template in ((6, "six"), (8, "eight")):
            await make_template(handed_over, namespace, template, gpus=gpus)
        await make_member(handed_over, namespace, "guarded", template="six", **LOW)
        await until_running(handed_over, namespace, "guarded")
        budget = {"metadata": {"name": "budget", "namespace": namespace}, "spec": {"minAvailable": 1, "selector": {}}}
        await handed_over.create(POD_DISRUPTION_BUDGETS, budget)
        await make_member(handed_over, namespace, "high", template="eight", **HIGH)

        async def explained() -> bool:
            return "high" in await events_of(handed_over, namespace, "ClaimPending")

        await until(explained, what="why it waits")
        async with a_limit(handed_over, namespace, {"devices": 6}):

            async def limited() -> bool:
                return bool(await events_of(handed_over, namespace, "DeviceLimitReached"))

            await until(limited, what="that the limit is in its way")
            try:
                for name in ("one", "two"):
                    await make_claim(handed_over, "default", name)
                    await until_allocated(handed_over, "default", name)
            finally:
                for claim in await handed_over.list(CLAIMS, namespace="default"):
                    await handed_over.delete(CLAIMS, claim.metadata.key)
