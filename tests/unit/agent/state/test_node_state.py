"""State is updated before listeners are woken, and every fact and kind of change wakes a listener."""

import asyncio
import threading
from pathlib import Path
from typing import get_type_hints

import msgspec

from draco.agent.app import Agent
from draco.agent.files import Files
from draco.agent.hardware.monitor import HardwareView
from draco.agent.hardware.nvml import Nvml
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.settings import AgentSettings
from draco.agent.state import changes
from draco.agent.state.changes import ClaimSettled, LeaseRenewed, NodeChange
from draco.agent.state.facts import NewFacts, NodeFacts, WantedNode
from draco.agent.state.node import SETTLE_S, NodeState
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.resources.names import ClaimUid
from tests.doubles.clock import ManualClock

VIEW = HardwareView(fault="The driver is gone.")


def test_a_change_of_anything_that_decides_what_is_offered_is_told() -> None:
    """Wishes for partitions and allocated devices wake each GPU's own work instead."""
    by_gpu = {"gpus", "promised"}
    of_the_node = {"forgotten", "as_published", "generation"}
    for field in set(WantedNode.__struct_fields__) - by_gpu - of_the_node:
        changed = msgspec.structs.replace(WantedNode(), **{field: ["changed"]})
        assert changed.policies != WantedNode().policies, field


def test_whoever_is_woken_sees_the_new_facts_in_the_order_of_the_list() -> None:
    state, seen = NodeState(ManualClock()), list[tuple[str, str]]()
    state.on_fact("view", lambda facts: seen.append(("first", facts.view.fault)))
    state.on_fact(
        "view", lambda _: seen.append(("second", state.facts.view.fault)), lambda _: seen.append(("third", ""))
    )
    state.on(LeaseRenewed, lambda _: seen.append(("lease", "")))
    state.learn(view=VIEW)
    assert seen == [("first", VIEW.fault), ("second", VIEW.fault), ("third", "")]


def test_facts_learned_together_wake_a_subscriber_once_and_again_if_they_are_the_same() -> None:
    state, seen = NodeState(ManualClock()), list[NodeFacts]()
    state.on_fact("published", seen.append)
    state.on_fact("problem", seen.append)
    state.learn(published=None, problem="refused")
    assert seen == [NodeFacts(problem="refused")]
    state.learn(published=None, problem="refused")
    assert len(seen) == 2


def test_every_fact_can_be_learned() -> None:
    assert get_type_hints(NewFacts) == get_type_hints(NodeFacts)


async def test_what_a_thread_learns_is_told_in_the_event_loop() -> None:
    state, told = NodeState(ManualClock()), asyncio.Event()
    state.begin()
    state.on_fact("divisions", lambda _: told.set())
    thread = threading.Thread(target=lambda: state.learn_from_thread(divisions={}))
    thread.start()
    thread.join()
    assert not told.is_set(), "nothing happens in the thread"
    await asyncio.wait_for(told.wait(), 10)


async def test_a_claim_that_changes_twice_in_a_moment_is_told_once_as_it_settled() -> None:
    clock, told = ManualClock(), list[tuple[float, PreparationState]]()
    state = NodeState(clock)
    state.begin()
    state.on(ClaimSettled, lambda change: told.append((clock.monotonic(), change.claim.state)))
    running = asyncio.create_task(state.run())
    prepared = PreparedClaim(uid=ClaimUid("1"), namespace="n", name="c", state=PreparationState.PREPARED, devices=[])
    state.claim_changed(prepared)
    await clock.advance(SETTLE_S / 2)
    state.claim_changed(msgspec.structs.replace(prepared, state=PreparationState.RELEASING))
    await clock.advance(SETTLE_S)
    assert told == [(SETTLE_S, PreparationState.RELEASING)]
    state.claim_changed(prepared)
    await clock.advance(SETTLE_S)
    assert told[1:] == [(2.5 * SETTLE_S, PreparationState.PREPARED)]
    running.cancel()


async def test_every_fact_and_kind_of_change_wakes_somebody(tmp_path: Path) -> None:
    async with Client(Connection("http://127.0.0.1:1")) as client:
        settings = AgentSettings(node_name="node-0", state_dir=tmp_path)
        agent = Agent(settings, client, Nvml(object()), clock=ManualClock(), files=Files())
    kinds = {
        each
        for each in vars(changes).values()
        if isinstance(each, type) and issubclass(each, NodeChange) and each is not NodeChange
    }
    assert len(kinds) > 5
    assert agent.parts.state._wakes.keys() == kinds | set(NodeFacts.__struct_fields__)
