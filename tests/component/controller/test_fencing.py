"""Lost agents on a real API server: which GPUs are fenced, and when."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest

from draco.agent.app import run_agent
from draco.controller.settings import OperatorSettings
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.maintenance.taint_rules import fence_for, fence_name, isolates_as
from draco.resources.api.core import Lease
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import EVENTS, GPU_NODES, LEASES, NODES, SLICES, TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER, PoolKey, agent_lease_name
from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.accidents import faults
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.agents import SimulatedNode
from tests.builders import a_slice
from tests.component.controller.replicas import an_operator, settings_for_test, until

pytestmark = pytest.mark.usefixtures("crds")

LEASE_S = 4
"""Four renewals, one per second: an API server busy with other tests may take more than half a second."""
LATE_S = 4.0
"""How long after the lease's expiry a fence may come on a machine busy with tests; `benchmarks` measures it alone."""
RULES = next(kind for kind in TAINT_RULES if kind.version == "v1beta2")


class FencedNodes:
    """Nodes whose agents can be ended and started, and the operator that fences them."""

    def __init__(self, client: Client, namespace: str, count: int, prefix: str = "") -> None:
        self.client, self.namespace = client, namespace
        names = [f"{prefix}{number}" if prefix else "" for number in range(count)]
        self.nodes = [SimulatedNode(client, gpus=1, name=name) for name in names]
        self._agents: dict[str, asyncio.Task[None]] = {}

    def start(self, node: SimulatedNode, *, client: Client | None = None, **settings: object) -> None:
        settings = {"namespace": self.namespace, "lease_duration_s": LEASE_S, **settings}
        self._agents[node.name] = asyncio.create_task(
            run_agent(
                node.settings(**settings),
                client=client or self.client,
                library=SimulatedNvml(node.gpus),
                clock=SystemClock(),
            )
        )

    async def kill(self, *nodes: SimulatedNode) -> None:
        for node in nodes:
            self._agents[node.name].cancel()
        for node in nodes:
            with suppress(asyncio.CancelledError):
                await self._agents.pop(node.name)

    async def lease(self, node: SimulatedNode) -> Lease:
        return await self.client.get(LEASES, self.lease_key(node))

    def lease_key(self, node: SimulatedNode) -> ObjectKey:
        return ObjectKey(self.namespace, agent_lease_name(node.name))

    async def renewing(self, node: SimulatedNode) -> bool:
        with suppress(NotFound):
            return bool((await self.lease(node)).spec.renew_time)
        return False

    async def reported(self, node: SimulatedNode) -> bool:
        with suppress(NotFound):
            return (await self.client.get(GPU_NODES, ObjectKey("", node.name))).metadata.uid != ""
        return False

    async def fence(self, node: SimulatedNode) -> DeviceTaintRule | None:
        with suppress(NotFound):
            return await self.client.get(RULES, ObjectKey("", fence_name(PoolKey(NVIDIA_DRIVER, node.name))))
        return None

    async def is_open(self, node: SimulatedNode) -> bool:
        return await self.fence(node) is None

    async def never_fenced(self, *nodes: SimulatedNode, for_s: float) -> None:
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            assert [node.name for node in nodes if await self.fence(node)] == []
            await asyncio.sleep(0.05)


@asynccontextmanager
async def some_nodes(client: Client, namespace: str, count: int, prefix: str = "") -> AsyncIterator[FencedNodes]:
    made = FencedNodes(client, namespace, count, prefix)
    try:
        for node in made.nodes:
            await node.create()
            made.start(node)
        for node in made.nodes:
            await until(lambda node=node: made.renewing(node), what=f"a lease of {node.name}")
            await until(lambda node=node: made.reported(node), what=f"the GpuNode of {node.name}")
        yield made
    finally:
        await made.kill(*(node for node in made.nodes if node.name in made._agents))
        for node in made.nodes:
            with suppress(NotFound):
                await client.delete(RULES, ObjectKey("", fence_name(PoolKey(NVIDIA_DRIVER, node.name))))
            with suppress(NotFound):
                await client.delete(GPU_NODES, ObjectKey("", node.name))
            await node.delete()


@pytest.fixture
async def nodes(client: Client, namespace: str) -> AsyncIterator[FencedNodes]:
    async with some_nodes(client, namespace, 4) as made:
        yield made


@pytest.fixture
def settings(namespace: str) -> OperatorSettings:
    return settings_for_test(namespace=namespace)


def soon(look: Callable[[], Awaitable[object]], what: str) -> Awaitable[object]:
    return until(look, within_s=LEASE_S + LATE_S, what=what)


async def leads(operator: object) -> bool:
    return bool(operator.election.leading)  # type: ignore[attr-defined]


async def test_the_pool_of_a_lost_agent_is_fenced_in_time_and_open_again_when_it_is_back(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    lost, *others = nodes.nodes
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.never_fenced(*nodes.nodes, for_s=LEASE_S)
        await nodes.kill(lost)
        await soon(lambda: nodes.fence(lost), "the fence")
        rule = await nodes.fence(lost)
        gpu_node = await nodes.client.get(GPU_NODES, ObjectKey("", lost.name))
        assert rule is not None
        assert isolates_as(rule, fence_for(gpu_node, PoolKey(NVIDIA_DRIVER, lost.name)))
        await nodes.never_fenced(*others, for_s=LEASE_S)
        nodes.start(lost)
        await until(lambda: nodes.is_open(lost), within_s=30, what="the lift")
        await nodes.never_fenced(*nodes.nodes, for_s=2 * LEASE_S)

        async def said() -> set[str]:
            events = await nodes.client.list(EVENTS)
            found = {each.reason for each in events if each.involved_object and each.involved_object.name == lost.name}
            return found if found >= {"AgentLost", "AgentBack"} else set()

        await until(said, what="the Events")


async def test_a_mass_outage_fences_nothing_and_is_a_trouble(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(*nodes.nodes[:3])
        await nodes.never_fenced(*nodes.nodes, for_s=2 * LEASE_S)
        assert any("3 of 4 agents do not renew" in said for said in operator.report.troubles())
        metrics = {each.name: each.samples[0].value for each in operator.metrics.registry.collect() if each.samples}
        assert metrics["draco_fencing_suspended"] == 1
        assert metrics["draco_agents_stale"] == 3
        nodes.start(nodes.nodes[0])  # the network is back, and two agents are not
        for node in nodes.nodes[1:3]:
            await until(lambda node=node: nodes.fence(node), within_s=30, what="a fence")
        assert operator.report.troubles() == []


# Two fences with their Events, or their removal: a second operator does whatever is missing.
@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("back", [False, True])
async def test_an_operator_that_dies_between_two_fences_leaves_none_undone(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings, writes: int, back: bool
) -> None:
    lost, well = nodes.nodes[:2], nodes.nodes[2:]

    async def fenced() -> bool:
        return all([await nodes.fence(node) for node in lost])

    async def are_open() -> bool:
        return not any([await nodes.fence(node) for node in lost])

    if back:
        async with an_operator(served, settings) as (operator, _):
            await until(lambda: leads(operator))
            await nodes.kill(*lost)
            await until(fenced, within_s=60, what="both fences")
    async with an_operator(served, settings, dies_after_writes=writes) as (_, operating):
        for node in lost if back else ():
            nodes.start(node)
        if not back:
            await nodes.kill(*lost)
        await asyncio.wait({operating}, timeout=60)
        assert operating.done(), f"there are less than {writes} writes on the way"
    async with an_operator(served, settings) as (operator, _):
        await until(are_open if back else fenced, within_s=30, what="what the first one left out")
        await nodes.never_fenced(*well, for_s=LEASE_S)


async def test_fences_stay_through_a_mass_outage(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    first, *rest = nodes.nodes
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(first)
        await soon(lambda: nodes.fence(first), "the fence")
        for node in rest:  # the fence of one that renewed late is lifted
            await until(lambda node=node: nodes.is_open(node), what=f"that {node.name} is open")
        await nodes.kill(*rest)
        await nodes.never_fenced(*rest, for_s=2 * LEASE_S)
        assert await nodes.fence(first)


async def test_an_operator_that_starts_lifts_nothing_and_fences_nobody_before_it_has_watched_a_whole_lease(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    lost, silent, *_ = nodes.nodes
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(lost)
        await soon(lambda: nodes.fence(lost), "the fence")
    await nodes.kill(silent)
    await asyncio.sleep(LEASE_S)
    following = settings_for_test(namespace=settings.namespace)
    started = time.monotonic()
    async with an_operator(served, following) as (operator, _):
        await until(lambda: leads(operator))
        await soon(lambda: nodes.fence(silent), "the fence")
        assert time.monotonic() - started > LEASE_S - 0.5
        assert await nodes.fence(lost)


async def test_two_operators_write_one_fence(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    lost = nodes.nodes[0]
    both = settings_for_test(namespace=settings.namespace)
    async with an_operator(served, settings) as (one, _), an_operator(served, both) as (two, _):
        # Two leaders, as for a moment after one was suspended and resumed.
        await until(lambda: leads(one))
        await until(lambda: leads(two))
        await nodes.kill(lost)
        await soon(lambda: nodes.fence(lost), "the fence")
        await asyncio.sleep(0.5)
        before = await nodes.fence(lost)
        await asyncio.sleep(LEASE_S)
        assert await nodes.fence(lost) == before, "they write over each other"
        nodes.start(lost)
        await until(lambda: nodes.is_open(lost), within_s=30, what="the lift")
        await nodes.never_fenced(*nodes.nodes, for_s=LEASE_S)
        assert [
            each.name
            for operator in (one, two)
            for each in operator.reconcilers.all
            if "agents" in each.queue._backoffs
        ] == []


async def test_a_fence_that_somebody_deletes_or_edits_is_written_again(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    lost = nodes.nodes[0]
    key = ObjectKey("", fence_name(PoolKey(NVIDIA_DRIVER, lost.name)))
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(lost)
        await soon(lambda: nodes.fence(lost), "the fence")
        before = await nodes.fence(lost)
        assert before is not None
        await nodes.client.delete(RULES, key)
        await soon(lambda: nodes.fence(lost), "another fence")
        gpu_node = await nodes.client.get(GPU_NODES, ObjectKey("", lost.name))
        await nodes.client.patch(RULES, key, {"spec": {"taint": {"effect": "NoExecute"}}})

        async def as_it_was() -> bool:
            rule = await nodes.fence(lost)
            return rule is not None and isolates_as(rule, fence_for(gpu_node, PoolKey(NVIDIA_DRIVER, lost.name)))

        await until(as_it_was, within_s=5, what="the repair")


async def test_a_node_whose_agent_is_lost_and_whose_slices_are_gone_is_ready_to_nobody(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    """As after an agent's removal: kubelet deletes its slices after a while, so there is nothing to fence."""
    lost, alive, *_ = nodes.nodes

    async def ready(node: SimulatedNode) -> tuple[str, str]:
        found = await nodes.client.get(GPU_NODES, ObjectKey("", node.name))
        condition = find_condition(found.status.conditions, "Ready")
        return (condition.status, condition.reason) if condition else ("", "")

    async def is_lost() -> bool:
        return await ready(lost) == ("Unknown", "AgentLost")

    async def is_ready() -> bool:
        return await ready(lost) == before

    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        before = await ready(lost)
        await nodes.kill(lost)
        # Without a kubelet no agent is registered and ready, so the test writes that.
        said = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}]}}
        await nodes.client.apply(GPU_NODES, ObjectKey("", lost.name), said, manager="somebody", subresource="status")
        for one in await lost.slices():
            await nodes.client.delete(SLICES, one.metadata.key)
        await until(is_lost, within_s=30, what="that the node is called ready no more")
        assert await nodes.fence(lost) is None
        assert (await ready(alive))[1] != "AgentLost"
        nodes.start(lost)
        await until(is_ready, within_s=30, what="the agent's own report")
        wrong = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "AgentLost"}]}}
        await nodes.client.apply(GPU_NODES, ObjectKey("", lost.name), wrong, manager="somebody", subresource="status")
        await until(is_ready, within_s=30, what="the report of an agent that was taken for lost")


async def test_nodes_with_the_longest_names_that_differ_at_the_end_are_fenced_one_by_one(
    served: ControlPlane, client: Client, namespace: str, settings: OperatorSettings
) -> None:
    domain = "a-rather-long-subdomain-of-the-company.eu-central-1.compute.internal."
    prefix = f"{namespace}.{4 * domain}"[:252].rstrip(".-").ljust(252, "x")
    async with some_nodes(client, namespace, 2, prefix) as nodes, an_operator(served, settings) as (operator, _):
        lost, alive = nodes.nodes
        assert len(lost.name) == 253
        await until(lambda: leads(operator))
        await nodes.kill(lost)
        await soon(lambda: nodes.fence(lost), "the fence")
        await nodes.never_fenced(alive, for_s=LEASE_S)

        async def said() -> bool:
            about = [each for each in await client.list(EVENTS) if each.reason == "AgentLost" and each.involved_object]
            return lost.name in {each.involved_object.name for each in about if each.involved_object}

        await until(said, what="the Event about a node with a long name")
        lost.checkpoint.write_bytes(b"not a record")
        nodes.start(lost)
        await until(lambda: nodes.is_open(lost), within_s=30, what="the lift")
        await until(lambda: lost.events("CheckpointDamaged"), what="what the agent says of its node")


async def test_a_dead_agent_is_fenced_though_somebody_deletes_its_lease(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    lost, alive, *_ = nodes.nodes
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(lost)
        await nodes.client.delete(LEASES, nodes.lease_key(lost))
        await nodes.client.delete(LEASES, nodes.lease_key(alive))
        await soon(lambda: nodes.fence(lost), "the fence")
        await until(lambda: nodes.renewing(alive), what="the lease made again")
        await nodes.never_fenced(alive, for_s=LEASE_S)


async def test_the_clocks_of_agents_may_be_wrong_by_minutes(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late, *_ = nodes.nodes

    class WrongClock(SystemClock):
        off = timedelta(minutes=-10)

        def now(self) -> datetime:
            return datetime.now(UTC) + self.off

    await nodes.kill(early, late)
    for node, minutes in ((early, -10), (late, 10)):
        clock = WrongClock()
        clock.off = timedelta(minutes=minutes)
        with monkeypatch.context() as patch:
            patch.setattr("tests.component.controller.test_fencing.SystemClock", lambda clock=clock: clock)
            nodes.start(node)
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.never_fenced(*nodes.nodes, for_s=2 * LEASE_S)
        await nodes.kill(late)
        await soon(lambda: nodes.fence(late), "the fence")


async def test_a_node_that_is_gone_takes_its_fence_along(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    lost = nodes.nodes[0]
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(lost)
        await soon(lambda: nodes.fence(lost), "the fence")
        await nodes.client.delete(NODES, ObjectKey("", lost.name))
        await until(lambda: nodes.is_open(lost), within_s=5, what="the lift")


async def test_a_node_that_another_driver_of_that_name_has_now_is_open_once_its_gpunode_is_deleted(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    given, *others = nodes.nodes
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        await nodes.kill(given)
        for each in await nodes.client.list(SLICES):
            if each.spec.pool.name == given.name:
                await nodes.client.delete(SLICES, each.metadata.key)
        theirs = a_slice(given.name, name=f"{given.name}-theirs")
        await nodes.client.create(SLICES, theirs)
        await until(lambda: nodes.fence(given), what="the fence")
        await nodes.client.delete(GPU_NODES, ObjectKey("", given.name))
        await until(lambda: nodes.is_open(given), within_s=5, what="the lift")
        await nodes.never_fenced(given, *others, for_s=2 * LEASE_S)
        await nodes.client.delete(SLICES, theirs.metadata.key)


async def test_an_agent_that_does_not_read_its_gpus_is_fenced_until_it_does(
    served: ControlPlane, nodes: FencedNodes, settings: OperatorSettings
) -> None:
    hung = nodes.nodes[0]
    async with an_operator(served, settings) as (operator, _):
        await until(lambda: leads(operator))
        faults.break_driver(hung.gpus)
        await until(lambda: nodes.fence(hung), within_s=30, what="the fence")
        faults.reload_driver(hung.gpus)
        await until(lambda: nodes.is_open(hung), within_s=30, what="the lift")
