"""Draco allocates no more to namespaces than DeviceLimits permit, on a whole control plane with simulated nodes.

The tests check the API server's history of claims: at no version do a limit's namespaces hold more.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draco.cli.explain.command import command as explain_command
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import Invalid
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_LIMITS, MIG_POLICIES, NAMESPACES, PODS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import ALLOCATING, Guarded, events_of, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import make_pod, running


class HeldThroughout:
    """Follows every version of every claim: the most devices that a namespace ever held, and how many it holds now."""

    def __init__(self, client: Client) -> None:
        self.informer: Informer[ResourceClaim] = Informer(client, CLAIMS, clock=SystemClock())
        self.informer.subscribe(self._look)
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_together = 0

    def _look(self, change: Change[ResourceClaim]) -> None:
        namespace = change.key.namespace
        self.now[namespace] += (len(change.after.results) if change.after else 0) - (
            len(change.before.results) if change.before else 0
        )
        self.most[namespace] = max(self.most[namespace], self.now[namespace])
        self.most_together = max(self.most_together, self.now.total())


@asynccontextmanager
async def following(client: Client) -> AsyncIterator[HeldThroughout]:
    held = HeldThroughout(client)
    task = asyncio.create_task(held.informer.run())
    await held.informer.synced.wait()
    try:
        yield held
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def other(handed_over: Client, namespace: str) -> AsyncIterator[str]:
    """Another namespace of the same tenant; `namespace` gets its label, too."""
    name = f"{namespace}-2"
    await handed_over.create(NAMESPACES, {"metadata": {"name": name, "labels": {"tenant": namespace}}})
    await handed_over.patch(NAMESPACES, ObjectKey("", namespace), {"metadata": {"labels": {"tenant": namespace}}})
    yield name
    for claim in await handed_over.list(CLAIMS, namespace=name):
        await handed_over.delete(CLAIMS, claim.metadata.key)
    await handed_over.delete(NAMESPACES, ObjectKey("", name))


@asynccontextmanager
async def a_limit(
    client: Client, namespace: str, limits: Mapping[str, object], **spec: object
) -> AsyncIterator[ObjectKey]:
    """A DeviceLimit for the namespace's tenant; labels the namespace."""
    await client.patch(NAMESPACES, ObjectKey("", namespace), {"metadata": {"labels": {"tenant": namespace}}})
    selector = {"matchLabels": {"tenant": namespace}}
    body = {
        "metadata": {"name": namespace},
        "spec": {"namespaceSelector": selector, "limits": dict(limits), **spec},
    }
    await client.create(DEVICE_LIMITS, body)
    try:
        yield ObjectKey("", namespace)
    finally:
        await client.delete(DEVICE_LIMITS, ObjectKey("", namespace))


async def until_said(client: Client, key: ObjectKey, *words: str) -> DeviceLimit:
    async def look() -> DeviceLimit | None:
        limit = await client.get(DEVICE_LIMITS, key)
        return limit if all(word in limit.status.message for word in words) else None

    return await until(look, what=f"a status of {key} with {words}")


async def allocated(client: Client, *namespaces: str) -> list[ResourceClaim]:
    claims = [each for name in namespaces for each in await client.list(CLAIMS, namespace=name)]
    return [each for each in claims if each.status.allocation]


async def test_two_namespaces_in_a_race_for_a_limit_never_hold_more_and_a_refused_claim_goes_ahead_later(
    guarded: Guarded, handed_over: Client, namespace: str, other: str, folder: Path
) -> None:
    async with (
        running(handed_over, folder),
        a_limit(handed_over, namespace, {"devices": 3}, per="Selection") as limit,
        following(handed_over) as held,
        an_operator(guarded, ALLOCATING) as (operator, _),
    ):
        places = [(where, f"claim-{number}") for number in range(10) for where in (namespace, other)]
        await asyncio.gather(*(make_claim(handed_over, where, name) for where, name in places))
        await until_said(handed_over, limit, "3 of 3 devices", "17 claims wait because of it")
        for left in (16, 15, 14, 13):  # one is deleted, and another is allocated
            first = (await allocated(handed_over, namespace, other))[0]
            await handed_over.delete(CLAIMS, first.metadata.key)
            await until_said(handed_over, limit, "3 of 3 devices", f"{left} claims wait because of it")
        assert held.now[namespace] + held.now[other] == 3
        assert held.most_together == 3
        waiting = [each for each in await handed_over.list(CLAIMS, namespace=other) if each.status.allocation is None]
        (said,) = await events_of(handed_over, other, waiting[0].metadata.name, "DeviceLimitReached")
        assert said == (
            f"The namespaces of DeviceLimit {namespace} have 3 of 3 devices; this claim takes 1 more. Ask for fewer devices, or "
            "free something."
        )
        exported = operator.metrics.registry.get_sample_value
        assert exported("draco_device_limit_used_ratio", {"limit": namespace}) == 1
        assert exported("draco_device_limit_waiting_claims", {"limit": namespace}) == 13


async def test_partitions_count_with_their_memory_and_a_claim_of_another_namespace_is_not_held_up(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"mode": "Dynamic"}})

    def of(profile: str) -> list[dict[str, Any]]:
        return [{"cel": {"expression": f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'}}]

    async with (
        running(handed_over, folder),
        a_limit(handed_over, namespace, {"memory": "40Gi", "gpuShare": "0.5"}) as limit,
        an_operator(guarded, ALLOCATING),
    ):
        for number, profile in enumerate(("1g.10gb", "3g.40gb", "1g.10gb", "2g.20gb")):
            await make_claim(handed_over, namespace, f"c-{number}", device_class="mig.draco.dev", selectors=of(profile))
        await make_claim(handed_over, "default", "elsewhere", device_class="mig.draco.dev", selectors=of("3g.40gb"))
        try:
            for name in ("c-0", "c-2", "c-3"):
                await until_allocated(handed_over, namespace, name)
            await until_allocated(handed_over, "default", "elsewhere")
            said = await until_said(handed_over, limit, "0.5 of 0.5 GPUs", "1 claim waits because of it")
            assert said.status.used is not None
            assert (said.status.used.devices, said.status.used.memory_slices) == (None, None)
            assert said.status.used.gpu_share == "0.5"
            (event,) = await events_of(handed_over, namespace, "c-1", "DeviceLimitReached")
            assert "of 40Gi of GPU memory" in event

            await handed_over.delete(CLAIMS, ObjectKey(namespace, "c-0"))
            await handed_over.delete(CLAIMS, ObjectKey(namespace, "c-3"))
            await handed_over.delete(CLAIMS, ObjectKey(namespace, "c-2"))
            await until_allocated(handed_over, namespace, "c-1")
        finally:
            await handed_over.delete(CLAIMS, ObjectKey("default", "elsewhere"))


async def test_a_limit_that_is_lowered_takes_nothing_away_and_one_that_is_raised_or_gone_lets_claims_go_ahead(
    control_plane: ControlPlane, guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with (
        running(handed_over, folder),
        an_operator(guarded, ALLOCATING),
        a_limit(handed_over, namespace, {"devices": 2}) as limit,
    ):
        for number in range(2):
            await make_claim(handed_over, namespace, f"claim-{number}")
            await until_allocated(handed_over, namespace, f"claim-{number}")
        await handed_over.patch(DEVICE_LIMITS, limit, {"spec": {"limits": {"devices": 1}}})
        lowered = await until_said(handed_over, limit, "more than is permitted: 2 of 1 devices", "Claims keep")
        (condition,) = lowered.status.conditions
        assert (condition.status, condition.reason) == ("False", "Exceeded")
        await make_claim(handed_over, namespace, "late")
        await make_pod(handed_over, namespace, "late-pod", "late")

        async def explained() -> bool:
            said = await events_of(handed_over, namespace, "late-pod", "ClaimPending")
            return any(each.startswith(f"Namespace {namespace} has 2 of 1 devices") for each in said)

        await until(explained, what="the limit as the pod's cause")
        arguments = ["--kubeconfig", str(control_plane.kubeconfig), "-n", namespace, "pod", "late-pod"]

        async def printed() -> bool:
            shown = await asyncio.to_thread(CliRunner().invoke, explain_command, arguments)
            return (
                f"Namespace {namespace} has 2 of 1 devices (DeviceLimit {namespace}); this claim takes 1"
                in shown.stdout
            )

        await until(printed, what="the limit in `draco explain`")
        assert len(await allocated(handed_over, namespace)) == 2
        await handed_over.patch(DEVICE_LIMITS, limit, {"spec": {"limits": {"devices": 3}}})
        await until_allocated(handed_over, namespace, "late")
        await make_claim(handed_over, namespace, "last")
        await until_said(handed_over, limit, "3 of 3 devices", "1 claim waits")
        await handed_over.patch(NAMESPACES, ObjectKey("", namespace), {"metadata": {"labels": {"tenant": "another"}}})
        await until_allocated(handed_over, namespace, "last")
        gone = await until_said(handed_over, limit, "No namespace has the labels of spec.namespaceSelector")
        assert gone.status.conditions[0].status == "Unknown"
        await handed_over.delete(PODS, ObjectKey(namespace, "late-pod"), grace_period_s=0)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "sets no amount; give devices, memory, memorySlices or gpuShare"),
        ({"memory": "much"}, "is not an amount of memory; write a quantity such as 80Gi"),
        ({"memory": "-1Gi"}, "is not an amount of memory; write a quantity such as 80Gi"),
        ({"gpuShare": "half"}, 'is not a number of GPUs; write a number in quotes such as "2.5"'),
        ({"devices": -1}, "should be greater than or equal to 0"),
    ],
)
async def test_a_limit_that_means_nothing_is_refused_in_a_sentence(
    cluster: Client, limits: Mapping[str, object], said: str
) -> None:
    with pytest.raises(Invalid, match=said):
        await cluster.create(DEVICE_LIMITS, {"metadata": {"name": "bad"}, "spec": {"limits": dict(limits)}})
