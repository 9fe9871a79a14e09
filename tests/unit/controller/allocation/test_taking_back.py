"""Releasing what claims hold: what a refusal means for the claim and for others, and releases that are of no use to anyone."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import pytest

from draco.controller.allocation.reclaiming.returns import AllocationReturns
from draco.controller.deallocation_writes import REMEDY, Deallocations
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerError, Unreachable
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim, ResourceClaimStatus
from draco.resources.api.core import ObjectReference
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import Kind
from tests.builders import a_claim
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import forget, tell

A, B = (a_claim(name, on=[f"node-0/gpu-{name}"]) for name in "ab")
REFUSALS = [Forbidden(403, "Forbidden", "no\nright."), Invalid(422, "Invalid", "no right")]
CHANGES = [NotFound(404, "NotFound", "gone"), Conflict(409, "Conflict", "changed")]
OUTAGES = [ServerError(500, "InternalError", "broken"), Unreachable("cut")]


class World:
    """Two claims, and an API server with the given answers; its changes do not show on the watch."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.answers: list[ApiError] = []
        self.when_asked: Callable[[], None] = lambda: None
        self.writes: list[tuple[str, Mapping[str, Any]]] = []
        self.events: list[str] = []
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)
        tell(self.view, A, B)
        self.takebacks = Deallocations(cast("Client", self), self.view)
        self.returns = AllocationReturns(cast("Client", self), self.view, cast("EventRecorder", self))

    async def patch(self, _: Kind[Any], key: ObjectKey, body: Mapping[str, Any], *, subresource: str) -> None:
        assert subresource == "status"
        self.writes.append((key.name, body))
        self.when_asked()
        if self.answers:
            raise self.answers.pop(0)

    def record(self, regarding: ObjectReference, reason: EventReason, note: str) -> None:
        self.events.append(f"{reason.name} {regarding.name}: {note}")

    @property
    def tried(self) -> list[str]:
        return [name for name, _ in self.writes]


@pytest.fixture
def world() -> World:
    return World()


def freed(claim: ResourceClaim) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=ResourceClaimStatus())


@pytest.mark.parametrize("what", ["allocation", "reservedFor"])
async def test_only_the_very_claim_that_was_seen_loses_what_is_to_go(world: World, what: Any) -> None:
    assert await world.takebacks.take_back(A, what)
    seen = {"uid": A.metadata.uid, "resourceVersion": A.metadata.resource_version}
    assert world.writes == [("a", {"metadata": seen, "status": {what: None}})]


@pytest.mark.parametrize("error", REFUSALS, ids=str)
async def test_a_claim_that_is_refused_is_left_alone_longer_each_time_and_no_other(
    world: World, error: ApiError
) -> None:
    world.answers = [error, error]
    assert not await world.takebacks.take_back(A)
    assert (world.takebacks.left_s(A), world.takebacks.left_s(B), world.takebacks.next_s(world.clock.monotonic())) == (
        5,
        0,
        5,
    )
    said = f"The API server does not let Draco release claim default/a: {REMEDY} (no right)."
    assert (world.takebacks.refusal(A), world.takebacks.refusal(B)) == (said, "")
    await world.clock.advance(5)
    assert not await world.takebacks.take_back(A)
    assert world.takebacks.left_s(A) == 10
    assert await world.takebacks.take_back(A)
    assert (world.takebacks.left_s(A), world.takebacks.refusal(A)) == (0, "")


@pytest.mark.parametrize("error", CHANGES, ids=str)
async def test_a_claim_that_has_changed_is_not_left_alone(world: World, error: ApiError) -> None:
    world.answers = [error]
    assert not await world.takebacks.take_back(A)
    assert (world.takebacks.left_s(A), world.takebacks.refusal(A)) == (0, "")


@pytest.mark.parametrize("error", OUTAGES, ids=str)
async def test_what_may_have_been_made_is_for_the_caller_to_find_out(world: World, error: ApiError) -> None:
    world.answers = [error]
    with pytest.raises(type(error)):
        await world.takebacks.take_back(A)
    assert world.takebacks.left_s(A) == 0


@pytest.mark.parametrize("gone", [False, True])
async def test_what_was_refused_is_forgotten_with_the_claim_and_with_its_allocation(world: World, gone: bool) -> None:
    world.answers = REFUSALS[:1]
    await world.takebacks.take_back(A)
    if gone:
        world.view.claims._publish(world.view.claims.store.remove(A.metadata.key))
    else:
        tell(world.view, freed(A))
    assert (world.takebacks.left_s(A), world.takebacks.refusal(A)) == (0, "")


async def test_what_is_given_back_is_on_its_way_until_the_watch_tells_of_it(world: World) -> None:
    await world.returns.give_back(A, "nobody uses it.")
    assert world.events == ["AllocationGivenBack a: Draco took back gpu-a of node-0: nobody uses it."]
    world.returns.settle()
    assert A.metadata.key in world.returns
    meta = msgspec.structs.replace(A.metadata, resource_version="2")
    tell(world.view, msgspec.structs.replace(freed(A), metadata=meta))
    world.returns.settle()
    assert A.metadata.key not in world.returns


@pytest.mark.parametrize("error", REFUSALS, ids=str)
async def test_a_claim_that_may_not_be_given_back_is_tried_ever_more_rarely_and_is_not_on_its_way(
    world: World, error: ApiError
) -> None:
    world.answers = [error] * 1000
    for _ in range(3600):
        await world.returns.give_back(A, "nobody uses it.")
        assert A.metadata.key not in world.returns
        await world.clock.advance(1)
    assert 12 <= len(world.tried) <= 22
    assert 0 < world.returns.next_s(world.clock.monotonic()) <= 300
    await world.returns.give_back(B, "nobody uses it.")
    assert (world.tried[-1], world.events) == ("b", [])


@pytest.mark.parametrize("error", CHANGES, ids=str)
async def test_a_claim_that_had_changed_when_it_was_given_back_is_looked_at_again_though_nothing_wakes_anybody(
    world: World, error: ApiError
) -> None:
    world.answers = [error]
    await world.returns.give_back(A, "nobody uses it.")
    assert (A.metadata.key in world.returns, world.returns.next_s(world.clock.monotonic())) == (False, 1)
    await world.clock.advance(1)
    assert world.returns.next_s(world.clock.monotonic()) == float("inf")
    await world.returns.give_back(A, "nobody uses it.")
    assert len(world.events) == 1


@pytest.mark.parametrize("error", OUTAGES, ids=str)
async def test_what_was_not_answered_is_on_its_way_for_ten_seconds(world: World, error: ApiError) -> None:
    world.answers = [error]
    await world.returns.give_back(A, "nobody uses it.")
    world.returns.settle()
    assert (A.metadata.key in world.returns, world.returns.next_s(world.clock.monotonic()), world.events) == (
        True,
        10,
        [],
    )
    await world.clock.advance(10)
    world.returns.settle()
    assert (A.metadata.key in world.returns, world.returns.next_s(world.clock.monotonic())) == (False, float("inf"))


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_of_a_claim_that_is_deleted_while_it_is_refused_nothing_is_kept(world: World, refusal: ApiError) -> None:
    world.answers = [refusal]
    world.when_asked = lambda: forget(world.view, A)
    assert not await world.takebacks.take_back(A)
    assert world.takebacks._refused.by_key == {}
