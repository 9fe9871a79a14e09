"""What is remembered of pods that were asked to leave."""

from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from draco.controller.evictions import NOT_PERMITTED, PodEvictions
from draco.controller.maintenance.draining import PodDrains
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, DisruptionRefused, Forbidden, NotFound, Unreachable
from draco.kube.events.events import EventRecorder
from draco.maintenance.draining.drain import plan_drain
from draco.maintenance.progress import DrainPlan
from draco.resources.api.core import Pod, PodDisruptionBudgetStatus, PodStatus
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintenanceDrain, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from tests.builders import MOMENT, a_budget, a_claim, a_device_key, a_maintenance, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import collection_of, tell

GPU = a_device_key("node-0/gpu-0")


class Server:
    """An API server that accepts every eviction unless `refuses` is set, and returns the request unchanged."""

    def __init__(self, request: DeviceMaintenance) -> None:
        self.request = request
        self.refuses: ApiError | None = None
        self.evicted = 0

    async def get(self, _: Any, __: ObjectKey) -> DeviceMaintenance:
        return self.request

    async def create_subresource(self, *_: Any, dry_run: bool) -> None:
        assert not dry_run
        if self.refuses:
            raise self.refuses
        self.evicted += 1

    def record(self, *_: Any, **__: Any) -> None:
        """Record an Event."""


def a_request() -> DeviceMaintenance:
    made = a_maintenance(phase=MaintenancePhase.DRAINING, devices=["node-0/gpu-0"], pool="node-0", device="gpu-0")
    spec = msgspec.structs.replace(made.spec, drain=MaintenanceDrain(policy=DrainPolicy.EVICT))
    return msgspec.structs.replace(
        made, spec=spec, status=msgspec.structs.replace(made.status, isolated_at=MOMENT, draining_at=MOMENT)
    )


class World:
    """A request whose device a pod holds."""

    def __init__(self) -> None:
        self.request = a_request()
        self.server, self.clock = Server(self.request), ManualClock(MOMENT)
        client = cast("Client", self.server)
        self.view = ClusterView(client, None, clock=self.clock)
        self.drains = PodDrains(
            self.view,
            cast("EventRecorder", self.server),
            evictions=PodEvictions(client, clock=self.clock),
            count=Counter("evicted", "Evicted.", ["outcome"], registry=CollectorRegistry()),
        )
        self.woken: list[str] = []
        self.drains.subscribe(self.woken.append)
        self.claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["pod"])
        self.pod: Pod = a_pod("pod", node="node-0", claims=["claim"], status=PodStatus(phase="Running"))
        tell(self.view, self.request, self.claim, self.pod)

    def plan(self) -> DrainPlan:
        read = self.drains.read(self.request, [GPU], [self.claim], [], now=self.clock.now(), paused="")
        assert read is not None
        self.drains.concerns(self.request, read.pods)
        plan = plan_drain(self.request, read)
        assert plan is not None
        return plan

    async def carry_out(self) -> float | None:
        """Returns in how many seconds to look again."""
        return await self.drains.carry_out(self.request, self.plan())


async def test_nothing_is_remembered_of_a_pod_that_is_gone() -> None:
    """While an operator runs, a fleet's pods are evicted by the thousand."""
    world = World()
    await world.carry_out()
    assert len(world.drains._asked) == 1

    pods = collection_of(world.view, "Pod")
    for change in pods.store.remove(world.pod.metadata.key):
        for subscriber in pods._subscribers:
            subscriber(change)
    assert len(world.drains._asked) == 0


async def test_a_drain_whose_right_was_missing_asks_again_by_itself_and_says_the_same_until_it_works() -> None:
    """Otherwise each change of the phase and back would cost two writes and two Events."""
    world = World()
    world.server.refuses = Forbidden(403, "Forbidden", 'User "draco" cannot create resource "pods/eviction"')
    await world.carry_out()
    said = world.plan()
    assert (said.begun, said.message) == (True, NOT_PERMITTED)
    for pause_s in (5.0, 10.0, 20.0):
        assert await world.carry_out() == pause_s
        await world.clock.advance(pause_s)
        assert world.plan() == said
        await world.carry_out()
        assert world.plan() == said
    world.server.refuses = None
    await world.clock.advance(40.0)
    await world.carry_out()
    assert (world.server.evicted, world.plan().message) == (1, "1 pod is leaving: default/pod.")


@pytest.mark.parametrize(
    "answer",
    [
        Conflict(409, "Conflict", "another"),
        NotFound(404, "NotFound", "gone"),
        DisruptionRefused(429, "TooManyRequests", "a budget is in the way."),
        Forbidden(403, "Forbidden", "a webhook guards it"),
    ],
)
async def test_whatever_the_api_server_answers_who_has_the_right_shows_that_it_is_there(answer: ApiError) -> None:
    world = World()
    world.server.refuses = Forbidden(403, "Forbidden", 'User "draco" cannot create resource "pods/eviction"')
    await world.carry_out()
    await world.clock.advance(5.0)
    world.server.refuses = answer
    await world.carry_out()
    await world.clock.advance(3600.0)
    assert NOT_PERMITTED not in world.plan().message


async def test_an_api_server_that_does_not_answer_shows_nothing_of_the_right() -> None:
    world = World()
    world.server.refuses = Forbidden(403, "Forbidden", 'User "draco" cannot create resource "pods/eviction"')
    await world.carry_out()
    await world.clock.advance(5.0)
    world.server.refuses = Unreachable("no answer")
    await world.carry_out()
    await world.clock.advance(3600.0)
    assert NOT_PERMITTED in world.plan().message


async def test_a_budget_that_allows_evictions_again_ends_the_backoff_and_its_other_changes_do_not_wake() -> None:
    world = World()
    world.server.refuses = DisruptionRefused(429, "TooManyRequests", "a budget is in the way.")
    tell(world.view, a_budget(allows=0))
    for pause_s in (0, 5, 10, 20):
        await world.clock.advance(pause_s)
        await world.carry_out()
    await world.clock.advance(6)
    assert world.plan().evict == ()
    world.woken.clear()
    stricter = a_budget(allows=0)
    tell(world.view, msgspec.structs.replace(stricter, status=PodDisruptionBudgetStatus(desired_healthy=2)))
    assert world.woken == []
    tell(world.view, a_budget(allows=1))
    assert world.woken == [world.request.metadata.uid]
    world.server.refuses = None
    await world.carry_out()
    assert world.server.evicted == 1
    world.woken.clear()
    tell(world.view, a_budget(allows=0))
    assert world.woken == [], "no eviction is refused"
