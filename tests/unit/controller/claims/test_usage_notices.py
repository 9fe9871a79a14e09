"""Unused devices and exceeded shares are reported to the claim and its pods: once each, when the agent reports them."""

from datetime import timedelta
from typing import cast

import msgspec
import pytest

from draco.controller.claims.usage_notices import UsageNoticeReconciler
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.api.claims import AllocatedDeviceStatus
from draco.resources.api.meta import Condition, ObjectKey
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import CONDITION_MEMORY_EXCEEDED, CONDITION_UNUSED, NVIDIA_DRIVER
from tests.builders import MOMENT, a_claim, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.health.test_fault_notices import Recorded
from tests.unit.controller.watching import forget, tell

CLAIM = a_claim("train", on=["node-0/gpu-0", "node-0/gpu-1"], reserved_for=["train"])
KEY = CLAIM.metadata.key
EVERYBODY = ["ResourceClaim train", "Pod train"]
SENTENCE = "No program has used it since 2026-01-01 00:00 UTC."


class World:
    """A claim with two GPUs, and its pod."""

    def __init__(self) -> None:
        self.clock = ManualClock(MOMENT)
        self.view = ClusterView(cast("Client", None), TAINT_RULES[1], clock=self.clock)
        self.events = Recorded()
        tell(self.view, CLAIM, a_pod("train", claims=["train"], node="node-0"))
        self.restart()

    def restart(self) -> None:
        self.notices = UsageNoticeReconciler(self.view, cast("EventRecorder", self.events))

    async def look(self, *unused: str, ago_s: float = 1) -> list[str]:
        """Who gets Events when the agent says that these devices are unused since so long ago."""
        began = self.clock.now() - timedelta(seconds=ago_s)
        said = Condition(type=CONDITION_UNUSED, status="True", message=SENTENCE, last_transition_time=began)
        devices = [
            AllocatedDeviceStatus(driver=NVIDIA_DRIVER, pool="node-0", device=name, conditions=[said])
            for name in unused
        ]
        status = msgspec.structs.replace(CLAIM.status, devices=devices)
        tell(self.view, msgspec.structs.replace(CLAIM, status=status))
        await self.notices.reconcile(KEY)
        return self.events.taken()


async def test_the_claim_and_its_pod_are_told_once() -> None:
    world = World()
    assert await world.look() == []
    assert await world.look("gpu-0") == EVERYBODY
    await world.notices.reconcile(KEY)
    assert world.events.taken() == []


async def test_each_device_and_each_pause_is_told() -> None:
    world = World()
    await world.look("gpu-0", ago_s=2)
    world.clock.pass_without_a_turn(30)
    assert await world.look("gpu-0", "gpu-1") == EVERYBODY
    assert await world.look() == []
    world.clock.pass_without_a_turn(30)
    assert await world.look("gpu-1") == EVERYBODY


@pytest.mark.parametrize(
    ("condition", "reason", "fix"),
    [
        (CONDITION_UNUSED, "GpuUnused", "End the pod if it does not need the GPU: it keeps it from others."),
        (
            CONDITION_MEMORY_EXCEEDED,
            "GpuMemoryExceeded",
            "Ask for as much as it needs: others that share the GPU may lack it.",
        ),
    ],
)
async def test_the_note_says_what_where_and_what_to_do(condition: str, reason: str, fix: str) -> None:
    world = World()
    said = Condition(type=condition, status="True", message=SENTENCE, last_transition_time=world.clock.now())
    device = AllocatedDeviceStatus(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0", conditions=[said])
    status = msgspec.structs.replace(CLAIM.status, devices=[device])
    tell(world.view, msgspec.structs.replace(CLAIM, status=status))
    await world.notices.reconcile(KEY)
    assert world.events.said[0] == ("ResourceClaim train", reason, f"gpu-0 of node-0: {SENTENCE} {fix}")


async def test_what_began_under_another_leader_is_not_told_again() -> None:
    world = World()
    assert await world.look("gpu-0", ago_s=61) == []
    world.restart()
    assert await world.look("gpu-0", ago_s=61) == []


async def test_a_claim_that_is_gone_is_forgotten() -> None:
    world = World()
    await world.look("gpu-0")
    forget(world.view, CLAIM)
    await world.notices.reconcile(KEY)
    assert world.notices.all_keys() == []
    assert await world.look("gpu-0", ago_s=2) == EVERYBODY
    assert world.notices.all_keys() == [ObjectKey("default", "train")]
