"""PodGroups whose pods ask for Draco's GPUs: all of a gang's claims are allocated or none, and kube-scheduler binds the gang."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draco.controller.allocation.asking import releases
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS, PODS
from draco.resources.names import SCHEDULING_GATE
from draco_local.simulator.kubelet.pods import ANNOTATION_RUN_SECONDS
from tests.component.allocation.lab import ALLOCATING, Guarded, events_of, make_claim
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import allocated_claims, make_gang, make_member, make_pod_group, make_template
from tests.component.simulator.test_nodes import running, until_running

GATES = [{"name": SCHEDULING_GATE}]
WITHOUT_CLAIMS: dict[str, Any] = {"containers": [{"name": "main", "image": "none"}], "resourceClaims": []}


async def test_a_gang_of_two_whole_nodes_runs_at_once(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        await make_pod_group(all_dracos, namespace, "train", least=2)
        for name in ("a", "b"):
            await make_member(all_dracos, namespace, name, template="eight", pod_group="train")
        await until_running(all_dracos, namespace, "a", "b")
        nodes = {(await all_dracos.get(PODS, ObjectKey(namespace, name))).spec.node_name for name in ("a", "b")}
        assert len(nodes) == 2


async def test_a_gang_that_never_fits_gets_nothing_and_says_what_is_missing(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        await make_gang(all_dracos, namespace, "huge", pods=4, template="eight")

        async def said() -> str | None:
            events = await all_dracos.list(EVENTS, namespace=namespace)
            notes = [each.message for each in events if each.reason == "GroupWaiting" and "even if" in each.message]
            return next((each for each in notes if "3 of 4" in each), None)  # once all three nodes are handed over

        await until(said, what="the Event that says how many of the four ever get devices")
        assert await allocated_claims(all_dracos, namespace) == []


async def test_of_two_gangs_that_compete_one_runs_and_the_other_holds_nothing_until_it_can(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        gangs = {gang: [f"{gang}-{number}" for number in range(2)] for gang in ("one", "two")}
        for gang in gangs:
            await make_pod_group(all_dracos, namespace, gang, least=2)
        for names in zip(*gangs.values(), strict=True):  # by turns
            for gang, name in zip(gangs, names, strict=True):
                await make_member(all_dracos, namespace, name, template="eight", pod_group=gang)

        async def started() -> str | None:
            pods = {each.metadata.name: each for each in await all_dracos.list(PODS, namespace=namespace)}
            return next(
                (gang for gang, names in gangs.items() if all(pods[name].status.phase == "Running" for name in names)),
                None,
            )

        first = await until(started, what="the first gang")
        (second,) = gangs.keys() - {first}
        assert len(await allocated_claims(all_dracos, namespace)) == 2
        for name in gangs[first]:
            await all_dracos.delete(PODS, ObjectKey(namespace, name))
        await until_running(all_dracos, namespace, *gangs[second])


async def test_what_a_gang_leaves_goes_to_the_gang_that_waited_longest_though_younger_pods_would_fit_sooner(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under load kube-controller-manager takes seconds, and successive deletions may, too.
    monkeypatch.setattr(releases, "_STILL_S", 5.0)
    monkeypatch.setattr(releases, "_LONGEST_S", 60.0)
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        before = await make_gang(all_dracos, namespace, "before", pods=3, template="eight")
        await until_running(all_dracos, namespace, *before)
        old = await make_gang(all_dracos, namespace, "old", pods=3, template="eight")
        await until(partial(events_of, all_dracos, namespace, old[-1]), what="an Event of the gang that waits")
        for name in ("young-0", "young-1"):
            await make_member(all_dracos, namespace, name, template="eight")
        await until(partial(events_of, all_dracos, namespace, "young-1"), what="an Event of the younger pod")
        for name in before:
            await all_dracos.delete(PODS, ObjectKey(namespace, name))
        await until_running(all_dracos, namespace, *old)


async def test_a_gang_behind_dracos_gates_waits_unseen_by_the_scheduler_and_runs_as_soon_as_it_can(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        one, two = [
            await make_gang(all_dracos, namespace, gang, pods=2, template="eight", schedulingGates=GATES)
            for gang in ("one", "two")
        ]
        await until_running(all_dracos, namespace, *one)
        assert len(await allocated_claims(all_dracos, namespace)) == 2
        for name in two:
            pod = await all_dracos.get(PODS, ObjectKey(namespace, name))
            assert {each.reason for each in pod.status.conditions} == {"SchedulingGated"}
        for name in one:
            await all_dracos.delete(PODS, ObjectKey(namespace, name))
        await until_running(all_dracos, namespace, *two)


async def test_the_scheduler_is_not_shown_a_part_of_a_gang_whose_other_pods_wait_for_gpus(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """Not even a pod without claims: kube-scheduler would try the gang because of it in vain."""
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "eight", gpus=8)
        before = await make_gang(all_dracos, namespace, "before", pods=3, template="eight")
        await until_running(all_dracos, namespace, *before)
        await make_pod_group(all_dracos, namespace, "train", least=2)
        await make_member(
            all_dracos, namespace, "launcher", template="", pod_group="train", schedulingGates=GATES, **WITHOUT_CLAIMS
        )
        await make_member(all_dracos, namespace, "worker", template="eight", pod_group="train", schedulingGates=GATES)

        async def said() -> bool:
            notes = await events_of(all_dracos, namespace, "worker")
            return any("in use" in each for each in notes)

        await until(said, what="the Event that says what the worker waits for")
        launcher = await all_dracos.get(PODS, ObjectKey(namespace, "launcher"))
        assert [each.name for each in launcher.spec.scheduling_gates] == [SCHEDULING_GATE]
        await all_dracos.delete(PODS, ObjectKey(namespace, before[0]))
        await until_running(all_dracos, namespace, "launcher", "worker")


async def test_a_pod_that_has_its_gpu_is_told_that_its_gate_stays_until_the_others_have_theirs(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """It shares its claim with a running pod: a group that cannot start keeps no unused devices."""
    shared = [{"name": "gpu", "resourceClaimName": "shared"}]
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_claim(all_dracos, namespace, "shared")
        await make_member(all_dracos, namespace, "before", template="", resourceClaims=shared)
        await until_running(all_dracos, namespace, "before")
        await make_template(all_dracos, namespace, "one", gpus=1)
        await make_pod_group(all_dracos, namespace, "train", least=2)
        await make_member(
            all_dracos, namespace, "a", template="", pod_group="train", schedulingGates=GATES, resourceClaims=shared
        )

        async def said() -> bool:
            notes = await events_of(all_dracos, namespace, "a")
            return any(f"as many pods of PodGroup {namespace}/train as start together" in each for each in notes)

        await until(said, what="the Event that says what the gate waits for")
        await make_member(all_dracos, namespace, "b", template="one", pod_group="train", schedulingGates=GATES)
        await until_running(all_dracos, namespace, "a", "b")


async def test_a_pod_that_comes_after_the_others_have_succeeded_holds_nothing_until_there_are_enough_again(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    """kube-scheduler does not count ended pods of a PodGroup, so it would not bind this one."""
    ends = {ANNOTATION_RUN_SECONDS: "0"}
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        await make_template(all_dracos, namespace, "one", gpus=1)
        await make_pod_group(all_dracos, namespace, "train", least=2)
        for name in ("a", "b"):
            await make_member(all_dracos, namespace, name, template="one", pod_group="train", annotations=ends)

        async def ended() -> bool:
            pods = await all_dracos.list(PODS, namespace=namespace)
            return [each.status.phase for each in pods] == ["Succeeded", "Succeeded"]

        await until(ended, what="the end of the first two")
        await make_member(all_dracos, namespace, "c", template="one", pod_group="train")

        async def said() -> bool:
            events = await all_dracos.list(EVENTS, namespace=namespace)
            return any(f"PodGroup {namespace}/train waits for 1 more pod" in each.message for each in events)

        await until(said, what="the Event that says how many pods are missing")
        assert await allocated_claims(all_dracos, namespace) == []
        await make_member(all_dracos, namespace, "d", template="one", pod_group="train")
        await until_running(all_dracos, namespace, "c", "d")
