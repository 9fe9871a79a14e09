"""Advice on idle claims: which pods are looked at, and when what was said is taken back."""

from random import Random
from typing import Any, cast

import msgspec
import pytest

from draco.controller import repair
from draco.controller.mig_decisions import MigDecisions
from draco.controller.repair import RepairReconciler
from draco.controller.view import ClusterView
from draco.kube.client import Client
from draco.kube.informer import Informer
from draco.kube.notes import Notes
from draco.resources.core import PodCondition, PodStatus
from draco.resources.draco import GpuMig, MigRepair
from draco.resources.events import ObjectReference
from tests.builders import a_mig_node, a_mig_policy, a_node, a_pod
from tests.doubles.clock import ManualClock
from tests.mig_claims import H100, MIG_CLASS, a_mig_claim, a_mig_pool

REFUSED = PodStatus(conditions=[PodCondition(type="PodScheduled", status="False", reason="Unschedulable")])


class Said:
    """Notes that are only remembered."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def adopt(self) -> list[ObjectReference]:
        return []

    async def say(self, regarding: ObjectReference, note: str) -> float:
        self.texts[regarding.name] = note
        return 1200.0

    async def withdraw(self, regarding: ObjectReference) -> None:
        self.texts.pop(regarding.name, None)


class World:
    """A node with two H100s in parts, seen without an API server."""

    def __init__(self, max_moves: int = 2) -> None:
        self.clock = ManualClock()
        self.said = Said()
        self.view = ClusterView(cast("Client", None), None, clock=self.clock, random=Random(1))
        decisions = MigDecisions(self.view, clock=self.clock)
        self.reconciler = RepairReconciler(
            self.view, decisions, cast("Notes", self.said), clock=self.clock, random=Random(1)
        )
        on = GpuMig(capable=True, enabled=True)
        policy = a_mig_policy(repair=MigRepair(max_moves=max_moves))
        self.put(a_node(), MIG_CLASS, *a_mig_pool("node-0", 2), a_mig_node(gpus=[on, on], board=H100), policy)

    def put(self, *objects: Any) -> None:
        """As if the watch had told of them."""
        informers: dict[str, Informer[Any]] = {
            "GpuNode": self.view.gpu_nodes,
            "Node": self.view.nodes,
            "ResourceSlice": self.view.slices,
            "MigPolicy": self.view.mig_policies,
            "DeviceClass": self.view.classes,
            "ResourceClaim": self.view.claims,
            "Pod": self.view.pods,
        }
        for item in objects:
            informer = informers[type(item).__name__]
            for change in informer.store.put(item):
                for subscriber in informer._subscribers:
                    subscriber(change)

    def wait_for(self, name: str, profile: str) -> None:
        """A pod that was refused, and its claim."""
        self.put(a_mig_claim(name, profile), a_pod(f"pod-{name}", claims=[name], status=REFUSED))

    async def look(self) -> float | None:
        await self.clock.advance(3600)
        return await self.reconciler.reconcile("idle-claims")


async def test_nothing_is_looked_at_without_idle_claims() -> None:
    world = World()
    world.wait_for("large", "7g.80gb")
    assert await world.look() is None
    assert world.said.texts == {}


async def test_what_was_said_is_taken_back_when_the_pod_is_scheduled() -> None:
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    world.wait_for("large", "7g.80gb")
    await world.look()
    assert world.said.texts.keys() == {"idle", "large"}
    assert world.reconciler.advice("policy") == "Claim default/large would fit without idle claim default/idle."
    told: list[bool] = []
    world.reconciler.when_told(lambda: told.append(True))
    world.put(a_pod("pod-large", claims=["large"], node="node-0"))
    assert await world.look() is None
    assert (world.said.texts, world.reconciler.advice("policy"), told) == ({}, "", [True])


async def test_a_claim_that_is_used_again_is_no_longer_advised_on() -> None:
    world = World()
    used = a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True)
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), used)
    world.wait_for("large", "7g.80gb")
    await world.look()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", used=True))
    await world.look()
    assert world.said.texts == {}


async def test_a_policy_that_permits_no_moves_is_not_advised() -> None:
    world = World(max_moves=0)
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("other", "1g.10gb", "1:1g.10gb@0", used=True))
    world.wait_for("large", "7g.80gb")
    await world.look()
    assert world.said.texts == {}


async def test_pods_that_were_not_looked_at_come_first_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "_SEARCHES", 4)
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    for name in ("a", "b", "c"):
        world.wait_for(name, "7g.80gb")
    again_s = await world.look()
    assert again_s is not None
    assert world.said.texts.keys() == {"idle", "a"}
    await world.look()
    assert world.said.texts.keys() == {"idle", "a", "b"}
    await world.look()
    assert world.said.texts.keys() == {"idle", "a", "b", "c"}


async def test_a_pod_behind_scheduling_gates_moves_nobody() -> None:
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    (refused,) = REFUSED.conditions
    gated = PodStatus(conditions=[msgspec.structs.replace(refused, reason="SchedulingGated")])
    world.put(a_mig_claim("large", "7g.80gb"), a_pod("train", claims=["large"], status=gated))
    await world.look()
    assert world.said.texts == {}
