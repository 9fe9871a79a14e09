"""Writes that the API server refuses at first are retried soon: a new API server knows no roles yet, and refuses everything."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from draco.controller.allocation.writing.holds import HOLD_AFTER_S, ScaleDownHolds
from draco.controller.evictions import PodEvictions
from draco.controller.maintenance.nodes import NodeConditionReconciler
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import Forbidden
from draco.kube.events.notes import Notes
from draco.kube.events.shares import EventReason
from draco.maintenance.isolating.node_conditions import REASON, TYPES
from draco.resources.api.core import NodeStatus, ObjectReference
from draco.resources.api.meta import Condition
from tests.builders import a_claim, a_device_class, a_node, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import tell

MESSAGE = 'User "draco" cannot create resource "pods/eviction"'
NODE = "node-0"


class Server:
    """Refuses every write while `refuses` is set; writes that wait at the `gate` are refused together."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.refuses = True
        self.gate: asyncio.Barrier | None = None
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)

    async def write(self, *_: Any, **__: Any) -> None:
        if self.gate:
            await self.gate.wait()
        if self.refuses:
            raise Forbidden(403, "Forbidden", MESSAGE)

    apply = patch = create_subresource = write

    @property
    def client(self) -> Client:
        return cast("Client", self)


Again = Callable[[], Awaitable[float | None]]


async def a_note(server: Server) -> Again:
    notes = Notes(server.client, controller="draco", instance="one", clock=server.clock, reason=EventReason("R", "A"))
    about = ObjectReference(api_version="v1", kind="Pod", name="pod", namespace="default", uid="uid")

    async def again() -> float | None:
        wait_s = await notes.say(about, "waits")
        return wait_s if server.refuses else None

    return again


async def a_hold(server: Server) -> Again:
    ours = a_device_class("ours")
    meta = msgspec.structs.replace(ours.metadata, labels={"draco.dev/allocator": "operator"})
    holds = ScaleDownHolds(server.client, server.view)
    ours = msgspec.structs.replace(ours, metadata=meta)
    tell(server.view, ours, a_claim(device_class="ours", on=[f"{NODE}/gpu-0"]), a_node(NODE))
    assert await holds.reconcile(NODE) == HOLD_AFTER_S
    await server.clock.advance(HOLD_AFTER_S)
    return lambda: holds.reconcile(NODE)


async def a_condition(server: Server) -> Again:
    nodes = NodeConditionReconciler(server.client, server.view)
    said = Condition(type=TYPES[0], status="True", reason=REASON)
    tell(server.view, msgspec.structs.replace(a_node(NODE), status=NodeStatus(conditions=[said])))
    return lambda: nodes.reconcile(NODE)


async def an_eviction(server: Server) -> Again:
    evictions = PodEvictions(server.client, clock=server.clock)

    async def again() -> float | None:
        asked = [await evictions.evict(a_pod("a")), await evictions.evict(a_pod("b"))]
        assert {each.outcome for each in asked} == {"forbidden" if server.refuses else "accepted"}
        return evictions._forbidden.left_s(None) or None

    return again


@pytest.mark.parametrize("what", [a_hold, a_condition])
async def test_what_several_workers_are_refused_at_once_makes_the_pause_no_longer(
    what: Callable[[Server], Awaitable[Again]],
) -> None:
    server = Server()
    again = await what(server)
    for expected_s in (5.0, 10.0, 20.0):
        server.gate = asyncio.Barrier(4)
        assert await asyncio.gather(*(again() for _ in range(4))) == [expected_s] * 4
        await server.clock.advance(expected_s)


@pytest.mark.parametrize("what", [a_note, a_hold, a_condition, an_eviction])
async def test_it_is_tried_again_after_5_s_then_ever_more_rarely_and_soon_again_once_it_worked(
    what: Callable[[Server], Awaitable[Again]],
) -> None:
    server = Server()
    again = await what(server)
    for expected_s in (5.0, 10.0, 20.0):
        assert await again() == expected_s
        await server.clock.advance(expected_s)
    server.refuses = False
    assert await again() is None
    server.refuses = True
    if what is a_note:
        await server.clock.advance(1200.0)  # past the lifetime of the note
    assert await again() == 5.0
