"""Draco allocates shares of GPUs, on a whole control plane with simulated nodes; the tests check the history of claims."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from draco.controller.app import Operator
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_RESERVATIONS, SHARING_POLICIES, SLICES
from tests.commitments import overcommitted
from tests.component.allocation import preempting
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, events_of, make_claim, until_allocated
from tests.component.allocation.preempting import of_priority, permit, staying
from tests.component.allocation.test_limits import a_limit
from tests.component.allocation.test_reservations import make_templated_pod, until_reserved
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import make_member
from tests.component.gangs.test_groups_by_label import KUEUE, sized
from tests.component.simulator.test_nodes import running, until_running

priorities = preempting.priorities
LOW, HIGH = map(of_priority, ("low", "high"))
POLICY = ObjectKey("", "by-memory")
SIZE = 79
"""Whole Gi of a simulated GPU."""


class History:
    """Follows every version of every claim, and what they hold together."""

    def __init__(self, client: Client) -> None:
        self.informer: Informer[ResourceClaim] = Informer(client, CLAIMS, clock=SystemClock())
        self.informer.subscribe(self._look)
        self._held: dict[str, list[dict[str, Any]]] = {}
        self.wrong: list[str] = []

    def _look(self, change: Change[ResourceClaim]) -> None:
        results = change.after.results if change.after else []
        self._held[str(change.key)] = msgspec.to_builtins(results)
        self.wrong += overcommitted(self._held, {"memory": f"{SIZE + 1}Gi"})


class Lab(NamedTuple):
    """The GPU that the tests' claims ask for, and the operator."""

    client: Client
    namespace: str
    uuid: str
    operator: Operator

    @property
    def another(self) -> dict[str, Any]:
        return {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].uuid != '{self.uuid}'"}}

    def request(self, memory: str = "", name: str = "gpu") -> dict[str, Any]:
        expression = f"device.attributes['gpu.nvidia.com'].uuid == '{self.uuid}' && device.allowMultipleAllocations"
        exactly: dict[str, Any] = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": expression}}]}
        if memory:
            exactly["capacity"] = {"requests": {"memory": memory}}
        return {"name": name, "exactly": exactly}

    async def ask(self, name: str, *memory: str) -> None:
        """Create a claim with a request for each amount; for the default if there is none."""
        requests = [self.request(each, f"gpu-{number}") for number, each in enumerate(memory or ("",))]
        meta = {"name": name, "namespace": self.namespace}
        await self.client.create(CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": requests}}})

    async def template(self, name: str, memory: str) -> None:
        spec = {"spec": {"devices": {"requests": [self.request(memory)]}}}
        meta = {"name": name, "namespace": self.namespace}
        await self.client.create(CLAIM_TEMPLATES, {"metadata": meta, "spec": spec})

    async def has(self, name: str) -> list[str]:
        """What the claim consumes, once it is allocated."""
        claim = await until_allocated(self.client, self.namespace, name)
        assert all(each.share_id for each in claim.results)
        return [each.consumed_capacity["memory"] for each in claim.results]

    async def waits(self, name: str) -> bool:
        return (await self.client.get(CLAIMS, ObjectKey(self.namespace, name))).status.allocation is None

    async def settled(self) -> None:
        """Return when everything that waits has been decided: a claim for a GPU of its own, made later, has it."""
        await make_claim(self.client, self.namespace, "probe", selectors=[self.another])
        await until_allocated(self.client, self.namespace, "probe")
        await self.end("probe")

    async def end(self, *names: str) -> None:
        for name in names:
            await self.client.delete(CLAIMS, ObjectKey(self.namespace, name))

    @property
    def late(self) -> float | None:
        """How many decisions nothing had woken."""
        return self.operator.metrics.registry.get_sample_value("draco_allocation_late_decisions_total")


@pytest.fixture
async def shared(handed_over: Client) -> AsyncIterator[None]:
    """All GPUs of the node are shared by memory; a claim that asks for no amount gets 10Gi."""
    spec = {
        "mode": "Memory",
        "step": "1Gi",
        "default": "10Gi",
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "sim-1"}},
    }
    await handed_over.create(SHARING_POLICIES, {"metadata": {"name": POLICY.name}, "spec": spec})
    yield
    await handed_over.delete(SHARING_POLICIES, POLICY)


@asynccontextmanager
async def a_lab(guarded: Guarded, client: Client, namespace: str, folder: Path) -> AsyncIterator[Lab]:
    """Simulated nodes, an operator and a GPU that is published for several claims. At the end no moment was over-committed."""
    async with running(client, folder), an_operator(guarded, ALLOCATING) as (operator, _):
        history = History(client)
        following = asyncio.create_task(history.informer.run())
        await history.informer.synced.wait()

        async def a_shared_gpu() -> str | None:
            slices = await client.list(SLICES, field_selector="spec.nodeName=sim-1")
            devices = [one for each in slices for one in each.spec.devices if one.allow_multiple_allocations]
            found = next((one.attributes["uuid"].string for one in devices if one.name == "gpu-0"), None)
            return found if found is not None and len(devices) == 8 else None

        try:
            uuid = await until(a_shared_gpu, within_s=60, what="the shared GPUs")
            yield Lab(client, namespace, uuid, operator)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        assert history.wrong == []


async def test_who_waits_for_a_share_or_the_whole_gpu_gets_it_as_soon_as_enough_shares_have_ended(
    guarded: Guarded, handed_over: Client, shared: None, namespace: str, folder: Path
) -> None:
    async with a_lab(guarded, handed_over, namespace, folder) as lab:
        await lab.ask("first", "40Gi")
        await lab.ask("default")
        await lab.ask("two", "10Gi", "9Gi")
        assert [await lab.has(name) for name in ("first", "default", "two")] == [["40Gi"], ["10Gi"], ["10Gi", "9Gi"]]
        await lab.ask("third", "20Gi")
        await lab.settled()
        assert await lab.waits("third")
        await lab.end("default")
        assert await lab.has("third") == ["20Gi"]
        await lab.ask("whole", f"{SIZE}Gi")
        await lab.end("first", "two")
        await lab.settled()
        assert await lab.waits("whole")
        await lab.end("third")
        assert await lab.has("whole") == [f"{SIZE}Gi"]
        await lab.ask("small", "1Gi")
        await lab.settled()
        assert await lab.waits("small")
        await lab.end("whole")
        assert await lab.has("small") == ["1Gi"]
        assert lab.late == 0


async def test_no_more_shares_leave_than_a_pod_of_a_higher_priority_needs(
    guarded: Guarded, handed_over: Client, shared: None, priorities: None, namespace: str, folder: Path
) -> None:
    await permit(handed_over)
    async with a_lab(guarded, handed_over, namespace, folder) as lab:
        await lab.template("low", "19Gi")
        await lab.template("high", "40Gi")
        names = [f"low-{number}" for number in range(4)]
        for name in names:
            await make_member(handed_over, namespace, name, template="low", **LOW)
        await until_running(handed_over, namespace, *names)
        await make_member(handed_over, namespace, "high", template="high", **HIGH)
        await until_running(handed_over, namespace, "high")
        left = await staying(handed_over, namespace)
        assert (len(left), "high" in left) == (3, True)  # 3Gi were free, and two shares of 19Gi have left


async def test_a_gang_gets_its_shares_together_once_there_is_room_for_all(
    guarded: Guarded, handed_over: Client, shared: None, namespace: str, folder: Path
) -> None:
    async with a_lab(guarded, handed_over, namespace, folder) as lab:
        await lab.ask("other", "30Gi")
        await lab.has("other")
        await lab.template("twenty", "20Gi")
        pods = [f"train-{number}" for number in range(3)]
        for name in pods:
            await make_member(handed_over, namespace, name, template="twenty", labels=KUEUE, annotations=sized(3))
        await lab.ask("small", "5Gi")
        await lab.has("small")
        claims = await handed_over.list(CLAIMS, namespace=namespace)
        assert [each.metadata.name for each in claims if each.status.allocation] == ["other", "small"]
        await lab.end("other")
        await until_running(handed_over, namespace, *pods)


async def test_a_namespace_gets_shares_up_to_its_limit(
    guarded: Guarded, handed_over: Client, shared: None, namespace: str, folder: Path
) -> None:
    async with (
        a_lab(guarded, handed_over, namespace, folder) as lab,
        a_limit(handed_over, namespace, {"memory": "25Gi"}),
    ):
        for name in ("one", "two"):
            await lab.ask(name, "10Gi")
            await lab.has(name)
        await lab.ask("three", "10Gi")
        assert "has 20Gi of 25Gi of GPU memory" in await limited(lab, "three")
        await lab.ask("four", "5Gi")
        assert await lab.has("four") == ["5Gi"]
        await lab.end("one")
        assert await lab.has("three") == ["10Gi"]


async def limited(lab: Lab, name: str) -> str:
    async def look() -> list[str]:
        return await events_of(lab.client, lab.namespace, name, "DeviceLimitReached")

    return (await until(look, what="the limit"))[0]


async def test_a_pod_takes_a_reserved_share_over_beside_another_share_of_the_gpu(
    guarded: Guarded, handed_over: Client, shared: None, namespace: str, folder: Path
) -> None:
    async with a_lab(guarded, handed_over, namespace, folder) as lab:
        await lab.ask("other", "30Gi")
        await lab.has("other")
        await lab.template("one-gpu", "40Gi")
        spec = {"count": 1, "template": {"spec": {"devices": {"requests": [lab.request("40Gi")]}}}}
        key = ObjectKey(namespace, "evening")
        await handed_over.create(
            DEVICE_RESERVATIONS, {"metadata": {"name": key.name, "namespace": namespace}, "spec": spec}
        )
        await until_reserved(handed_over, key, 1)
        (reserved,) = (await until_allocated(handed_over, namespace, "evening-0")).results
        await lab.ask("older", "20Gi")
        await lab.settled()
        await make_templated_pod(handed_over, namespace, "pod", "evening")
        await until_running(handed_over, namespace, "pod")
        claims = {each.metadata.name: each for each in await handed_over.list(CLAIMS, namespace=namespace)}
        assert "evening-0" not in claims
        (its_own,) = [each for name, each in claims.items() if name.startswith("pod-")]
        assert [each.share_id for each in its_own.results] == [reserved.share_id]
        assert await lab.waits("older")
