"""Decisions about nodes are remembered until one of their inputs changes."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from draco.controller.health.decisions import HealthDecisions
from draco.controller.loop_watch import TURN_S
from draco.controller.metrics import OperatorMetrics
from draco.controller.mig.decisions import MigDecisions, register_mig
from draco.controller.view import ClusterView
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.watch.collection import Collection
from draco.kube.watch.store import Change
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import MigPolicy, MigReset, ResetPermit
from draco.resources.api.meta import LabelSelector, ObjectKey, TimeWindow
from tests.builders import a_gpu_uuid, a_mig_node, a_mig_policy, a_node, a_slice
from tests.doubles.clock import ManualClock, WorkClock
from tests.doubles.views import ClockedView
from tests.unit.controller.watching import tell

H100 = BOARDS["H100-80GB"]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class World:
    """A view of an API server without news, and the decisions made from it."""

    def __init__(self, now: datetime = NOON, *, work_clock: Clock | None = None) -> None:
        self.clock = ManualClock(now)
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)
        view = ClockedView(self.view, work_clock or self.clock)
        self.decisions, self.health = MigDecisions(view), HealthDecisions(view)

    async def get(self, _: Any, key: ObjectKey) -> MigPolicy:
        """The API server's answer: the policy as the watch reported it."""
        policy = self.view.mig_policies.store.get(key)
        assert policy is not None
        return policy

    def put(self, *objects: Any) -> None:
        """As if the watch had reported them."""
        tell(self.view, *objects)

    def delete(self, *nodes: str) -> None:
        """As if the watch had reported that the GpuNodes of these nodes are gone."""
        for name in nodes:
            _tell(self.view.gpu_nodes, self.view.gpu_nodes.store.remove(ObjectKey("", name)))


def _tell(informer: Collection[Any], changes: Iterable[Change[Any]]) -> None:
    for change in changes:
        for subscriber in informer._subscribers:
            subscriber(change)


def a_fleet(nodes: int, *policies: MigPolicy) -> World:
    """This many nodes with two GPUs; deciding about each takes one turn of the event loop."""
    world = World(work_clock=WorkClock(each_s=TURN_S))
    for number in range(nodes):
        name = f"node-{number}"
        world.put(a_mig_node(name, board=H100), a_node(name))
    world.put(*(policies or [a_mig_policy()]))
    return world


def counted(world: World, policy: str = "policy") -> list[float | None]:
    """The policy's GPUs in the metrics: applied, changing, failed."""
    metrics = OperatorMetrics()
    register_mig(metrics, world.decisions)
    return [
        metrics.registry.get_sample_value("draco_mig_policy_gpus", {"policy": policy, "standing": standing})
        for standing in ("applied", "changing", "failed")
    ]


def a_world(**policy: Any) -> World:
    world = World()
    world.put(a_mig_node(board=H100), a_node(), a_mig_policy(**policy))
    return world


async def test_nothing_is_decided_of_a_node_without_gpunode() -> None:
    world = World()
    world.put(a_node(), a_mig_policy())
    assert world.decisions.of("node-0") is None
    assert await world.decisions.all() == []


async def test_a_decision_is_made_once_for_the_same_objects() -> None:
    world = a_world()
    first = world.decisions.of("node-0")
    await world.clock.advance(3600)
    world.put(a_mig_policy())  # unchanged, as after a change of its status
    assert world.decisions.of("node-0") is first
    assert await world.decisions.all() == [first]


def test_a_new_label_a_new_slice_and_a_new_policy_are_taken_into_account() -> None:
    world = a_world(node_selector=LabelSelector(match_labels={"pool": "mig"}))
    decided = [world.decisions.of("node-0")]
    node = a_node()
    world.put(msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels={"pool": "mig"})))
    decided.append(world.decisions.of("node-0"))
    world.put(a_slice("node-0", ["gpu-0"]))
    decided.append(world.decisions.of("node-0"))
    world.put(a_mig_policy(exclude=[a_gpu_uuid("node-0", 0)]))
    decided.append(world.decisions.of("node-0"))
    assert len({id(each) for each in decided}) == 4
    assert [len(each.wanted) for each in decided if each] == [0, 2, 2, 1]


async def test_a_window_opens_and_closes_by_the_clock() -> None:
    window = TimeWindow(start="13:00", duration="1h")
    world = a_world(reset=MigReset(permit=ResetPermit.IN_WINDOWS, windows=[window]))

    def permitted() -> set[bool]:
        decision = world.decisions.of("node-0")
        assert decision is not None
        return {each.reset_permitted for each in decision.wanted}

    assert permitted() == {False}
    assert world.decisions.seconds_to_next_window() == 3600
    await world.clock.advance(3600)
    assert permitted() == {True}
    assert world.decisions.seconds_to_next_window() == 3600
    await world.clock.advance(3600)
    assert permitted() == {False}
    assert world.decisions.seconds_to_next_window() == 3600  # clocks may be set: checked again until the window opens


@pytest.mark.parametrize("ahead", [timedelta(minutes=70), timedelta(days=400, minutes=70)])
def test_a_window_that_was_open_by_a_clock_that_was_ahead_permits_nothing_once_that_is_put_right(
    ahead: timedelta,
) -> None:
    window = TimeWindow(start="13:00", duration="1h")
    world = a_world(reset=MigReset(permit=ResetPermit.IN_WINDOWS, windows=[window]))
    seen = []
    for step in (ahead, -ahead, timedelta(minutes=70)):
        world.clock.put_right(step)
        decision = world.decisions.of("node-0")
        assert decision is not None
        seen.append({each.reset_permitted for each in decision.wanted})
    assert seen == [{True}, {False}, {True}]
    assert world.decisions.seconds_to_next_window() == 3000


def test_without_windows_no_time_is_waited_for() -> None:
    assert a_world().decisions.seconds_to_next_window() is None


async def test_a_large_fleet_is_decided_bit_by_bit() -> None:
    world = a_fleet(20)
    pass_ = asyncio.create_task(world.decisions.all())
    turns = 0
    while not pass_.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10
    assert [each.node for each in pass_.result()] == sorted(f"node-{number}" for number in range(20))


async def test_all_that_is_decided_in_one_go_rests_on_the_same_policies() -> None:
    world = a_fleet(20, a_mig_policy("young"))

    async def owners(in_between: MigPolicy | None = None) -> set[str]:
        pass_ = asyncio.create_task(world.decisions.all())
        await asyncio.sleep(0)
        assert not pass_.done()
        if in_between:
            world.put(in_between)
        return {gpu.policy for each in await pass_ for gpu in each.gpus}

    assert await owners(in_between=a_mig_policy("old", created=NOON - timedelta(days=365))) == {"young"}
    assert await owners() == {"old"}


async def test_a_node_that_goes_while_others_are_decided_is_forgotten() -> None:
    world = a_fleet(20)
    pass_ = asyncio.create_task(world.decisions.all())
    await asyncio.sleep(0)
    world.delete("node-0", "node-9")  # the first and the last by name
    assert "node-9" not in {each.node for each in await pass_}
    assert counted(world) == [0, 36, 0]
    assert len(await world.decisions.all()) == 18


async def test_a_scrape_tells_what_was_decided_last() -> None:
    world = a_world(exclude=[a_gpu_uuid("node-0", 1)])
    assert counted(world) == [None, None, None]  # as on a standby replica
    await world.decisions.all()
    assert counted(world) == [0, 1, 0]
    world.put(a_mig_policy())
    assert counted(world) == [0, 1, 0]
    world.decisions.of("node-0")
    assert counted(world) == [0, 2, 0]
    world.delete("node-0")
    assert counted(world) == [0, 0, 0]


async def test_a_policy_that_is_gone_is_not_counted() -> None:
    world = a_world()
    await world.decisions.all()
    informer = world.view.mig_policies
    _tell(informer, informer.store.remove(ObjectKey("", "policy")))
    assert counted(world) == [None, None, None]
