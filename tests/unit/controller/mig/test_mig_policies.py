"""How often policies are reconciled, which costs more the larger the fleet is."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from draco.controller.loop_watch import TURN_S
from draco.controller.mig.policies import MigPolicyReconciler
from draco.controller.mig.repair import RepairReconciler
from draco.kube.connect.client import Client
from draco.kube.listeners import Listeners
from draco.resources.api.draco import MigPolicy, MigPolicyStatus
from tests.builders import a_mig_node, a_mig_policy, a_node
from tests.doubles.clock import WorkClock
from tests.doubles.views import ClockedView
from tests.unit.controller.mig.test_mig_decisions import H100, World

NODES = 40


class Accepting:
    """An API server that accepts every status; nobody watches it."""

    async def apply(self, *_: Any, **__: Any) -> MigPolicy:
        return a_mig_policy()


class Silent:
    """Gives no advice."""

    def __init__(self) -> None:
        self.on_advice = Listeners[[]]()

    def advice(self, _policy: str) -> str:
        return ""


def a_reconciler(clock: WorkClock, policies: int = 1) -> tuple[MigPolicyReconciler, str]:
    """The reconciler of a fleet of forty nodes, and the UID of a policy whose status is current."""
    world = World()
    for number in range(NODES):
        name = f"node-{number}"
        world.put(a_mig_node(name, board=H100), a_node(name))
    for number in range(policies):
        policy = a_mig_policy(f"policy-{number}")
        world.put(msgspec.structs.replace(policy, status=MigPolicyStatus(observed_generation=1)))
    view, adviser = ClockedView(world.view, clock), cast("RepairReconciler", Silent())
    reconciler = MigPolicyReconciler(cast("Client", Accepting()), view, world.decisions, adviser=adviser)
    return reconciler, a_mig_policy("policy-0").metadata.uid


async def rest_s(clock: WorkClock, policies: int = 1) -> float:
    """How many seconds a policy rests after a look."""
    reconciler, uid = a_reconciler(clock, policies)
    await reconciler.reconcile(uid)
    clock.each_s = 0
    rest = await reconciler.reconcile(uid)
    assert rest is not None
    return rest


@pytest.mark.parametrize("policies", [3, 6])
async def test_counting_for_all_policies_takes_a_thirtieth_of_the_time_however_many_there_are(policies: int) -> None:
    a_node_s = TURN_S / 10
    assert await rest_s(WorkClock(a_node_s), policies) == pytest.approx(30 * NODES * a_node_s * policies, rel=0.2)


async def test_a_small_fleet_is_looked_at_at_the_usual_pace() -> None:
    assert await rest_s(WorkClock(TURN_S / 1000)) == pytest.approx(0.5)


async def test_people_wait_no_longer_for_a_status_than_ten_seconds() -> None:
    assert await rest_s(WorkClock(TURN_S), policies=30) == pytest.approx(10)


class Stalling(WorkClock):
    """A machine that stalls for a second in the middle of every look."""

    def monotonic(self) -> float:
        before = int(self._elapsed * 1000)
        if before < 5 <= int((self._elapsed + self.each_s) * 1000):
            self.stall(1)
        return super().monotonic()


async def test_a_machine_that_stood_still_for_a_second_makes_nobody_wait_for_longer() -> None:
    assert await rest_s(Stalling(TURN_S / 20), policies=2) <= 30 * 2 * (NODES / 20 + 1) * TURN_S


async def test_others_have_their_turn_while_a_large_fleet_is_counted() -> None:
    reconciler, uid = a_reconciler(WorkClock(TURN_S))
    look = asyncio.create_task(reconciler.reconcile(uid))
    turns = 0
    while not look.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= NODES / 2
