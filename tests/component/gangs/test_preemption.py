"""Groups of a higher priority get room as a whole, and groups of a lower priority are evicted as a whole."""

import asyncio
from pathlib import Path

from draco.kube.connect.client import Client
from tests.component.allocation import preempting
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.allocation.preempting import events_of, of_priority, permit, staying
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import make_member, make_template
from tests.component.gangs.test_groups_by_label import sized
from tests.component.simulator.test_nodes import running, until_gone, until_running

priorities = preempting.priorities
LOW, HIGH = map(of_priority, ("low", "high"))
TWO = sized(2)


def of_group(name: str) -> dict[str, str]:
    return {"kueue.x-k8s.io/pod-group-name": name}


async def test_a_group_leaves_as_a_whole_and_whom_nobody_needs_to_leave_stays(
    guarded: Guarded, all_dracos: Client, priorities: None, namespace: str, folder: Path
) -> None:
    await permit(all_dracos)
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        for name in ("low-a", "low-b"):
            await make_member(
                all_dracos, namespace, name, template="eight", labels=of_group("low"), annotations=TWO, **LOW
            )
        await make_member(all_dracos, namespace, "single", template="eight", **LOW)
        await until_running(all_dracos, namespace, "low-a", "low-b", "single")
        for name in ("high-a", "high-b"):
            await make_member(
                all_dracos, namespace, name, template="eight", labels=of_group("high"), annotations=TWO, **HIGH
            )
        await until_running(all_dracos, namespace, "high-a", "high-b")
        await until_gone(all_dracos, namespace, "low-a", "low-b")
        assert await staying(all_dracos, namespace) == {"high-a", "high-b", "single"}
        notes = await events_of(all_dracos, namespace, "Preempted")
        assert {*notes} == {"low-a", "low-b"}
        assert notes["low-a"].startswith("Evicted, because 2 pods of priority 100 get devices that it holds")


async def test_no_more_pods_leave_than_have_to_though_the_operator_dies_after_each_eviction(
    guarded: Guarded, all_dracos: Client, priorities: None, namespace: str, folder: Path
) -> None:
    await permit(all_dracos)
    low, high = ("low-a", "low-b", "low-c"), ("high-a", "high-b")
    async with running(all_dracos, folder):
        async with an_operator(guarded, ALLOCATING):
            await make_template(all_dracos, namespace, "eight", gpus=8)
            for name in low:
                await make_member(all_dracos, namespace, name, template="eight", terminationGracePeriodSeconds=5, **LOW)
            await until_running(all_dracos, namespace, *low)
        for name in high:
            await make_member(
                all_dracos, namespace, name, template="eight", labels=of_group("high"), annotations=TWO, **HIGH
            )
        lives = 0
        run = asyncio.create_task(until_running(all_dracos, namespace, *high))
        while not run.done():
            async with an_operator(guarded, ALLOCATING, dies_after_writes=1, dies_of_writes_to="/eviction") as (
                _,
                task,
            ):
                await asyncio.wait([task, run], return_when=asyncio.FIRST_COMPLETED)
            lives += 1
        await run
        assert lives == 3
        left = await staying(all_dracos, namespace)
        assert len(left & {*low}) == 1
        assert {*high} <= left


async def test_nobody_leaves_for_a_group_that_would_not_fit_all_the_same(
    guarded: Guarded, all_dracos: Client, priorities: None, namespace: str, folder: Path
) -> None:
    await permit(all_dracos)
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        await make_member(all_dracos, namespace, "low", template="eight", **LOW)
        await make_member(all_dracos, namespace, "equal", template="eight", **HIGH)
        await until_running(all_dracos, namespace, "low", "equal")
        for name in ("high-a", "high-b", "high-c"):
            await make_member(
                all_dracos, namespace, name, template="eight", labels=of_group("high"), annotations=sized(3), **HIGH
            )

        async def told() -> bool:
            return "1 of 3 gets some" in str(await events_of(all_dracos, namespace, "GroupWaiting"))

        await until(told, what="why the group waits")
        assert {"low", "equal"} <= await staying(all_dracos, namespace)
