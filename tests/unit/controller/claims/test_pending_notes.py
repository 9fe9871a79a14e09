"""What a pod is told as time passes. Other notes, and their removal, are tested on a real API server."""

from typing import Any, cast

import msgspec
import pytest

from draco.controller.claims.pending_claims import PendingClaims, PendingSubject
from draco.controller.view import ClusterView
from draco.controller.workers.messages import PendingAnswer
from draco.explanation.model import PendingReason
from draco.kube.connect.client import Client
from draco.kube.events.notes import Notes
from draco.resources.api.core import ObjectReference
from draco.resources.api.meta import ObjectKey
from draco.resources.names import SCHEDULING_GATE
from tests.builders import a_claim, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell

AFTER_S = 10.0
POD = PendingSubject("Pod", ObjectKey("default", "one"))


class World:
    """A pod behind Draco's gate, its claim, and the notes about the pod."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)
        self.pending = PendingClaims(
            self.view, cast("Notes", self), pending_after_s=AFTER_S, minor=None, workers=cast("Any", None)
        )
        self.pending._explanations = cast("Any", self)
        self.pending._adopted.set()
        self.explained = PendingReason.IN_USE
        self.said: list[str] = []
        self.forgotten: list[ObjectKey] = []
        self.pod = a_pod("one", gates=[SCHEDULING_GATE], claims=["one"], creation_timestamp=self.clock.now())
        tell(self.view, a_claim("one"), self.pod)

    def of(self, *_: object) -> PendingAnswer:
        return PendingAnswer(str(self.explained), self.explained)

    def forget(self, key: ObjectKey) -> None:
        self.forgotten.append(key)

    def allocate(self) -> None:
        claim = a_claim("one", on=["node-0/gpu-0"])
        assert claim.status.allocation is not None
        allocation = msgspec.structs.replace(claim.status.allocation, allocation_timestamp=self.clock.now())
        tell(
            self.view,
            msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation)),
        )

    async def say(self, _: ObjectReference, text: str, *, type: str) -> float:  # noqa: A002 - the field's name
        self.said = [text]
        return 60.0

    async def withdraw(self, _: ObjectReference) -> None:
        self.said = []


async def test_dracos_gate_is_spoken_of_only_when_it_stays_though_the_pod_has_its_devices() -> None:
    """Usually the gate goes a moment later, and an Event on each pod of a gang would delay that."""
    world = World()
    await world.clock.advance(AFTER_S)
    await world.pending.reconcile(POD)
    assert world.said == ["InUse"]
    world.allocate()
    world.explained = PendingReason.GATED
    await world.clock.advance(1.0)
    assert await world.pending.reconcile(POD) == AFTER_S - 1.0
    assert not world.said
    await world.clock.advance(AFTER_S - 1.0)
    await world.pending.reconcile(POD)
    assert world.said == ["SchedulingGated"]


CLAIM = PendingSubject("ResourceClaim", ObjectKey("default", "one"))


@pytest.mark.parametrize("subject", [POD, CLAIM])
async def test_that_nothing_is_lacking_is_said_once_it_lasts_and_what_was_said_stays_until_then(
    subject: PendingSubject,
) -> None:
    world = World()
    await world.clock.advance(AFTER_S)
    await world.pending.reconcile(subject)
    for _ in range(3):
        world.explained = PendingReason.FITS
        assert await world.pending.reconcile(subject) == AFTER_S
        await world.clock.advance(AFTER_S - 1.0)
        assert await world.pending.reconcile(subject) == pytest.approx(1.0)
        assert world.said == ["InUse"]
        world.explained = PendingReason.IN_USE
        await world.pending.reconcile(subject)
    world.explained = PendingReason.FITS
    await world.pending.reconcile(subject)
    await world.clock.advance(AFTER_S)
    await world.pending.reconcile(subject)
    assert world.said == ["Fits"]
    world.explained = PendingReason.IN_USE
    await world.pending.reconcile(subject)
    assert world.said == ["InUse"], "what is in the way is said at once"


async def test_of_a_pod_that_is_gone_nothing_is_kept() -> None:
    world = World()
    await world.clock.advance(AFTER_S)
    world.explained = PendingReason.FITS
    await world.pending.reconcile(POD)
    forget(world.view, world.pod)
    await world.pending.reconcile(POD)
    assert (world.pending._fit_since_s, world.forgotten) == ({}, [POD.key])
