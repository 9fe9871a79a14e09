"""How often policies are looked at, which costs the more the larger the fleet is."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from draco.controller.mig_policies import MigPolicyReconciler
from draco.kube.client import Client
from draco.kube.clock import Clock
from draco.resources.draco import MigPolicy
from tests.builders import a_mig_node, a_mig_policy, a_node
from tests.unit.controller.test_mig_decisions import H100, World

A_LOOK_S = 0.25


class SlowClock:
    """Every other reading is the end of a look."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.readings = 0

    def monotonic(self) -> float:
        self.now_s += A_LOOK_S * (self.readings % 2)
        self.readings += 1
        return self.now_s

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)


class Accepting:
    """An API server that takes every status; nobody watches it."""

    async def apply(self, *_: Any, **__: Any) -> MigPolicy:
        return a_mig_policy()


class Silent:
    """Advises nothing."""

    def advice(self, _policy: str) -> str:
        return ""

    def when_told(self, _call: Any) -> None:
        return


@pytest.mark.parametrize("count", [1, 10])
async def test_looking_at_all_policies_takes_a_twentieth_of_the_time_however_many_there_are(count: int) -> None:
    world = World()
    policies = [a_mig_policy(f"policy-{number}") for number in range(count)]
    world.put(a_mig_node(board=H100), a_node(), *policies)
    reconciler = MigPolicyReconciler(
        cast("Client", Accepting()),
        world.view,
        world.decisions,
        clock=cast("Clock", SlowClock()),
        adviser=Silent(),
    )
    uid = policies[0].metadata.uid
    await reconciler.reconcile(uid)
    assert reconciler._due_s[uid] == pytest.approx(20 * A_LOOK_S * count)
