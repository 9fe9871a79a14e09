"""Pods of claims that nobody uses are warned and evicted, on a real API server, which enforces PodDisruptionBudgets."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from draco.controller.limits.unused_claims import EVICTED_REASON, NOTICE_REASON, REFUSED_REASON
from draco.kube.connect.client import Client
from draco.kube.errors import Invalid, NotFound
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_LIMITS, EVENTS, GPU_NODES, GPU_USAGES, NAMESPACES, PODS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_draining import DrainLab

pytestmark = pytest.mark.usefixtures("crds")


class UnusedLab(DrainLab):
    """Pods that hold GPUs; tests act as the node's agent, too."""

    async def limit(self, *, after: str = "5m", notice: str = "0m") -> ObjectKey:
        key = ObjectKey("", self.namespace)
        await self.client.patch(NAMESPACES, key, {"metadata": {"labels": {"tenant": self.namespace}}})
        spec = {
            "namespaceSelector": {"matchLabels": {"tenant": self.namespace}},
            "unused": {"evictAfter": after, "notice": notice},
        }
        await self.client.create(DEVICE_LIMITS, {"metadata": {"name": key.name}, "spec": spec})
        return key

    async def runs(self, name: str, claim: str, **metadata: Any) -> None:
        """A pod that started long ago."""
        await self.pod(name, claim, **metadata)
        started = {"status": {"startTime": _written(minutes=600)}}
        await self.client.patch(PODS, ObjectKey(self.namespace, name), started, subresource="status")

    async def report(self, *unused: tuple[str, str], minutes: float = 60, ago: float = 0) -> None:
        """The agent's report that claims have not used devices for so long."""
        found = []
        for claim, device in unused:
            held = await self.client.get(CLAIMS, ObjectKey(self.namespace, claim))
            one = {"uuid": f"GPU-{device}", "namespace": self.namespace, "claim": claim}
            found.append({**one, "claimUID": held.metadata.uid, "since": _written(minutes=minutes)})
        devices = [{"uuid": f"GPU-gpu-{number}", "device": f"gpu-{number}"} for number in range(8)]
        status = {"time": _written(minutes=ago), "devices": devices, "unused": found}
        key = ObjectKey("", self.pool)
        with suppress(NotFound):
            await self.client.patch(GPU_USAGES, key, {"status": status}, subresource="status")
            return
        await self.client.create(GPU_NODES, {"metadata": {"name": self.pool}, "spec": {}})
        await self.client.patch(GPU_NODES, key, {"status": {"driver": self.driver}}, subresource="status")
        await self.client.create(GPU_USAGES, {"metadata": {"name": self.pool}})
        await self.client.patch(GPU_USAGES, key, {"status": status}, subresource="status")

    async def said(self, reason: str) -> dict[str, str]:
        """The notes of Events by the names of their objects."""
        return {
            each.involved_object.name: each.message
            for each in await self.client.list(EVENTS, namespace=self.namespace)
            if each.involved_object and each.reason == reason
        }

    async def until_said(self, reason: str, *names: str) -> dict[str, str]:
        async def look() -> dict[str, str]:
            found = await self.said(reason)
            return found if found.keys() == {*names} else {}

        return await until(look, what=f"{reason} of {names}")

    async def clean(self) -> None:
        await super().clean()
        for kind, name in ((DEVICE_LIMITS, self.namespace), (GPU_NODES, self.pool), (GPU_USAGES, self.pool)):
            with suppress(NotFound):
                await self.client.delete(kind, ObjectKey("", name))


def _written(*, minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="seconds")


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[UnusedLab]:
    made = UnusedLab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


async def test_pods_of_claims_that_nobody_uses_are_evicted_and_others_stay(
    served: ControlPlane, lab: UnusedLab
) -> None:
    for number, name in enumerate(("idle", "busy", "kept", "half")):
        devices = [f"gpu-{number}"] if name != "half" else ["gpu-3", "gpu-4"]
        await lab.hold(name, *devices)
        annotations = {"draco.dev/evict-unused": "false"} if name == "kept" else {}
        await lab.runs(f"{name}-0", name, annotations=annotations)
    await lab.runs("idle-1", "idle")
    await lab.report(("idle", "gpu-0"), ("kept", "gpu-2"), ("half", "gpu-3"))
    async with an_operator(served):
        await lab.limit()
        await lab.gone("idle-0", "idle-1")
        told = await lab.until_said(EVICTED_REASON.name, "idle-0", "idle-1")
        assert told["idle-0"].startswith(f"Evicted, because no program has used gpu-0 of {lab.pool} since ")
        warned = await lab.until_said(NOTICE_REASON.name, "idle", "idle-0", "idle-1")
        assert f"(DeviceLimit {lab.namespace}) unless a program uses it before" in warned["idle"]
    assert [await lab.exists(f"{name}-0") for name in ("busy", "kept", "half")] == [True] * 3


async def test_pods_are_warned_and_stay_until_the_notice_says(served: ControlPlane, lab: UnusedLab) -> None:
    await lab.hold("idle", "gpu-0")
    await lab.runs("idle-0", "idle")
    await lab.report(("idle", "gpu-0"))
    async with an_operator(served) as (operator, _):
        await lab.limit(notice="1h")
        await lab.until_said(NOTICE_REASON.name, "idle", "idle-0")
        await until_idle(operator)
    assert await lab.exists("idle-0")


async def until_idle(operator: Any) -> None:
    async def look() -> bool:
        queue = operator.reconcilers["unused-claims"].queue
        return not queue.longest_running_s

    await until(look, what="the reconciler to have done its work")


async def test_a_report_that_is_old_says_nothing(served: ControlPlane, lab: UnusedLab) -> None:
    for number, name in enumerate(("idle", "other")):
        await lab.hold(name, f"gpu-{number}")
        await lab.runs(f"{name}-0", name)
    await lab.report(("idle", "gpu-0"), ago=7)
    reads: list[str] = []

    async def count(method: str, path: str) -> None:
        if "/gpuusages/" in path:
            reads.append(method)

    async with an_operator(served, before_requests=count) as (operator, _):
        await lab.limit()

        async def has_read() -> bool:
            return bool(reads)

        await until(has_read, what="a read report")
        await until_idle(operator)
        assert await lab.said(NOTICE_REASON.name) == {}
        assert await lab.exists("idle-0")


async def test_a_budget_is_heeded_and_the_refusal_told(served: ControlPlane, lab: UnusedLab) -> None:
    await lab.hold("idle", "gpu-0")
    await lab.runs("web", "idle")
    budget = await lab.budget("keep", "web", allows=0, healthy=2, wants=2)
    await lab.report(("idle", "gpu-0"))
    async with an_operator(served):
        await lab.limit()
        told = await lab.until_said(REFUSED_REASON.name, "idle")
        assert told["idle"].startswith(f"Pod web is not evicted, though no program uses gpu-0 of {lab.pool}: ")
        assert budget.name in told["idle"] or "disruption budget" in told["idle"]
    assert await lab.exists("web")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "limits nothing; give limits or unused"),
        ({"unused": {"evictAfter": "4m"}}, "is less than five minutes"),
        ({"unused": {"evictAfter": "0h"}}, "is less than five minutes"),
        ({"unused": {"evictAfter": "4 hours"}}, "evictAfter"),
        ({"unused": {"evictAfter": "4h", "notice": "-5m"}}, "notice"),
    ],
)
async def test_terms_that_make_no_sense_are_refused(
    client: Client, namespace: str, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        await client.create(DEVICE_LIMITS, {"metadata": {"name": namespace}, "spec": spec})


async def test_a_limit_of_unused_time_alone_says_what_it_does(served: ControlPlane, lab: UnusedLab) -> None:
    async with an_operator(served):
        key = await lab.limit(after="4h")

        async def look() -> DeviceLimit | None:
            found = await lab.client.get(DEVICE_LIMITS, key)
            return found if found.status.message else None

        found = await until(look, what="the status")
    assert (
        found.status.message
        == "1 namespace, without a limit on amounts. Pods are evicted if what they hold is unused for 4h."
    )
