"""Instances created ahead of claims, on a real API server, with a stand-in for the nodes' agents."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import pytest

from draco.controller.app import Operator
from draco.controller.mig.warm_ahead import KEY, WarmAheadReconciler
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, NODES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_mig_policies import ON
from tests.component.controller.test_mig_promises import PromiseLab
from tests.doubles.views import ClockedView

pytestmark = pytest.mark.usefixtures("crds")

SMALL = "1g.10gb"
AHEAD = {"window": "1m", "leadTimeSeconds": 30, "limits": [{"profile": SMALL, "count": 2}]}
"""One idle instance for every two taken in the last minute."""
WINDOW_S = 60
LIMIT = 2


class LateClock(SystemClock):
    """The system's clock, ahead by a settable time."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class WarmLab(PromiseLab):
    """A lab with a clock for measured demand."""

    clock: LateClock

    async def ready_node(self) -> str:
        node = await self.node(ON, ON)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await self.client.patch(NODES, ObjectKey("", node), ready, subresource="status")
        return node

    def measure(self, operator: Operator) -> None:
        """Let this operator measure demand by the lab's clock."""
        self.clock = LateClock()
        reconciler = cast("WarmAheadReconciler", operator.reconcilers["mig-warm"]._reconciler)
        reconciler._view = ClockedView(operator.view, self.clock)

    async def kept(self, operator: Operator, node: str, count: int) -> None:
        """Wait until this many instances are wanted on the node."""

        async def settled() -> bool:
            operator.reconcilers["mig-warm"].wake(KEY)
            gpus = (await self.gpu_node(node)).spec.gpus
            warm = [each for gpu in gpus for each in gpu.warm]
            assert {each.profile for each in warm} <= {SMALL}
            found = sum(each.count for each in warm)
            assert found <= LIMIT
            return found == count

        await until(settled, what=f"{count} on {node}")

    async def take(self, operator: Operator, node: str, *devices: str) -> list[ObjectKey]:
        claims = [await self.claim(node, device) for device in devices]
        await self.seen(operator, *claims)
        return claims


def small(start: int, gpu: int = 0) -> str:
    return f"gpu-{gpu}-mig-1g10gb-19-{start}"


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[WarmLab]:
    made = WarmLab(client, namespace)
    yield made
    for claim in await client.list(CLAIMS, namespace=namespace):
        with suppress(NotFound):
            await client.delete(CLAIMS, claim.metadata.key)
    await made.clean()


async def test_instances_come_ahead_of_claims_up_to_the_limit_and_go_when_demand_ends(
    served: ControlPlane, lab: WarmLab
) -> None:
    node = await lab.ready_node()
    async with an_operator(served) as (operator, _):
        lab.measure(operator)
        key = await lab.policy("p", warmAhead=AHEAD)
        await lab.wanted(node, gpu0="p", gpu1="p")
        await lab.says(key, "Wants 0 idle 1g.10gb ready (at most 2) as claims take 0 a minute.")
        claims = await lab.take(operator, node, "gpu-1-mig-3g40gb-9-0", "gpu-1-mig-3g40gb-9-4")
        claims += await lab.take(operator, node, small(6), small(5))
        await lab.kept(operator, node, 1)
        await lab.says(key, "Wants 1 idle 1g.10gb ready (at most 2) as claims take 2 a minute.")
        claims += await lab.take(operator, node, *(small(start) for start in range(5)))
        await lab.says(
            key, "Wants 2 idle 1g.10gb ready (at most 2) as claims take 7 a minute, but there is room for 0."
        )
        for claim in claims:
            await lab.client.delete(CLAIMS, claim)
        await lab.kept(operator, node, 2)
        generation = await lab.generation(node)
        lab.clock.ahead_s += WINDOW_S / 2
        await lab.kept(operator, node, 2)
        assert await lab.generation(node) == generation
        lab.clock.ahead_s += 2 * WINDOW_S
        await lab.kept(operator, node, 0)


async def test_an_operator_that_starts_anew_keeps_what_stands(served: ControlPlane, lab: WarmLab) -> None:
    node = await lab.ready_node()
    async with an_operator(served) as (operator, _):
        lab.measure(operator)
        await lab.policy("p", warmAhead=AHEAD)
        await lab.wanted(node, gpu0="p", gpu1="p")
        await lab.says(ObjectKey("", lab.policies[0]), "Wants 0 idle")
        claims = await lab.take(operator, node, *(small(start) for start in range(4)))
        await lab.kept(operator, node, 2)
    generation = await lab.generation(node)
    for claim in claims:
        await lab.client.delete(CLAIMS, claim)
    async with an_operator(served) as (operator, _):
        lab.measure(operator)

        async def measured() -> bool:
            queue = operator.reconcilers["gpu-nodes"].queue
            return bool(operator.reconcilers.decisions.ahead.said) and not (queue.depth or queue.longest_running_s)

        await until(measured)
        await lab.kept(operator, node, 2)
        assert await lab.generation(node) == generation
        lab.clock.ahead_s += 2 * WINDOW_S
        await lab.kept(operator, node, 0)


async def test_a_cordon_sends_them_elsewhere(served: ControlPlane, lab: WarmLab) -> None:
    tainted, free = await lab.ready_node(), await lab.ready_node()
    async with an_operator(served) as (operator, _):
        lab.measure(operator)
        key = await lab.policy("p", warmAhead=AHEAD)
        await lab.wanted(tainted, gpu0="p", gpu1="p")
        await lab.says(key, "Wants 0 idle")
        await lab.client.patch(NODES, ObjectKey("", free), {"spec": {"unschedulable": True}})
        await lab.take(operator, tainted, *(small(start) for start in (6, 5, 4, 3)))
        await lab.kept(operator, tainted, 2)
        await lab.client.patch(NODES, ObjectKey("", free), {"spec": {"unschedulable": False}})
        await lab.client.patch(NODES, ObjectKey("", tainted), {"spec": {"unschedulable": True}})
        await lab.kept(operator, free, 2)
        await lab.kept(operator, tainted, 0)
