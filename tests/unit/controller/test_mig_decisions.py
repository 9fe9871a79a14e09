"""Decisions of nodes are remembered until something that they rest on is another."""

from datetime import UTC, datetime
from random import Random
from typing import Any, cast

import msgspec

from draco.controller.metrics import Metrics
from draco.controller.mig_decisions import MigDecisions, register_mig
from draco.controller.view import ClusterView
from draco.kube.client import Client
from draco.kube.informer import Informer
from draco.resources.draco import MigReset, ResetPermit, ResetWindow
from draco.resources.meta import LabelSelector
from draco.simulator.planner_boards import BOARDS
from tests.builders import a_gpu_uuid, a_mig_node, a_mig_policy, a_node, a_slice
from tests.doubles.clock import ManualClock

H100 = BOARDS["H100-80GB"]


class World:
    """A view without an API server, and the decisions made from it."""

    def __init__(self, now: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)) -> None:
        self.clock = ManualClock(now)
        self.view = ClusterView(cast("Client", None), None, clock=self.clock, random=Random(1))
        self.decisions = MigDecisions(self.view, clock=self.clock)

    def put(self, *objects: Any) -> None:
        """As if the watch had told of them."""
        for item in objects:
            informers: dict[str, Informer[Any]] = {
                "GpuNode": self.view.gpu_nodes,
                "Node": self.view.nodes,
                "ResourceSlice": self.view.slices,
                "MigPolicy": self.view.mig_policies,
            }
            informer = informers[type(item).__name__]
            for change in informer.store.put(item):
                for subscriber in informer._subscribers:
                    subscriber(change)


def a_world(**policy: Any) -> World:
    world = World()
    world.put(a_mig_node(board=H100), a_node(), a_mig_policy(**policy))
    return world


def test_nothing_is_decided_of_a_node_without_gpunode() -> None:
    world = World()
    world.put(a_node(), a_mig_policy())
    assert world.decisions.of("node-0") is None
    assert world.decisions.all() == []


async def test_a_decision_is_made_once_for_the_same_objects() -> None:
    world = a_world()
    first = world.decisions.of("node-0")
    await world.clock.advance(3600)
    world.put(a_mig_policy())  # the same again, as after a change of its status
    assert world.decisions.of("node-0") is first
    assert world.decisions.all() == [first]


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
    window = ResetWindow(start="13:00", duration="1h")
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
    assert world.decisions.seconds_to_next_window() == 23 * 3600


def test_without_windows_no_time_is_waited_for() -> None:
    assert a_world().decisions.seconds_to_next_window() is None


def test_the_gpus_of_each_policy_are_counted_by_how_they_stand() -> None:
    world = a_world(exclude=[a_gpu_uuid("node-0", 1)])
    metrics = Metrics()
    register_mig(metrics, world.decisions)

    def counted(standing: str) -> float | None:
        return metrics.registry.get_sample_value("draco_mig_policy_gpus", {"policy": "policy", "standing": standing})

    assert [counted(standing) for standing in ("applied", "changing", "failed")] == [0, 1, 0]
