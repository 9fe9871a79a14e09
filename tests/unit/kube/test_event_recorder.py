"""How much API server time and memory Events take, which come first, and what happens to them at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from draco.kube.connect.client import Client
from draco.kube.errors import NamespaceTerminating
from draco.kube.events.events import EventLimits, EventRecorder
from draco.kube.events.shares import EventReason, EventType
from draco.resources.api.core import Event, ObjectReference
from draco.resources.api.meta import ObjectKey
from tests.doubles.clock import ManualClock


def recorded(recorder: EventRecorder, number: int) -> None:
    for each in range(number):
        pod = ObjectReference(api_version="v1", kind="Pod", name=f"pod-{each}", namespace="default", uid=f"{each}")
        recorder.record(pod, EventReason("Allocated", "Allocating"), "Draco allocated gpu-0.")


class Server:
    """Takes this many seconds for each Event."""

    def __init__(self, clock: ManualClock, takes_s: float) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self.began_s: list[float] = []

    async def apply(self, *_: Any, **__: Any) -> None:
        self.began_s.append(self._clock.monotonic())
        self._clock.pass_without_a_turn(self._takes_s)


@pytest.mark.parametrize(("takes_s", "apart_s"), [(0.01, 0.03), (0.04, 0.12), (20.0, 20.1)])
async def test_after_each_event_there_is_a_pause_as_long_as_the_server_is_busy(takes_s: float, apart_s: float) -> None:
    clock = ManualClock()
    server = Server(clock, takes_s)
    recorder = EventRecorder(cast("Client", server), controller="draco.dev/test", instance="one", clock=clock)
    recorded(recorder, 3)
    posting = asyncio.create_task(recorder.run())
    for _ in range(6):
        await clock.advance(clock.next_wake_s or 0.0)
    posting.cancel()
    apart = [later - earlier for earlier, later in zip(server.began_s, server.began_s[1:], strict=False)]
    assert apart == pytest.approx([apart_s, apart_s])


class SlowServer:
    """Answers only once `answers` is set."""

    def __init__(self) -> None:
        self.is_asked, self.answers = asyncio.Event(), asyncio.Event()
        self.asked: list[str] = []

    async def apply(self, _: Any, key: ObjectKey, *__: Any, **___: Any) -> None:
        self.asked.append(key.name.partition(".")[0])
        self.is_asked.set()
        await self.answers.wait()


async def test_an_event_that_is_on_its_way_at_the_end_is_posted_once_more() -> None:
    server = SlowServer()
    recorder = EventRecorder(cast("Client", server), controller="draco.dev/test", instance="one", clock=ManualClock())
    recorded(recorder, 3)
    posting = asyncio.create_task(recorder.run())
    await server.is_asked.wait()
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)
    server.answers.set()
    await recorder.flush(10)
    assert server.asked[0] == "pod-0"
    assert sorted(server.asked[1:]) == ["pod-0", "pod-1", "pod-2"]


class Refusing:
    """Refuses the Event of one pod, whose namespace is being deleted."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self.posted: list[str] = []

    async def apply(self, _: Any, key: ObjectKey, *__: Any, **___: Any) -> None:
        name = key.name.partition(".")[0]
        if name == self._pod:
            raise NamespaceTerminating(403, "Forbidden", "the namespace is being terminated")
        self.posted.append(name)


@pytest.mark.parametrize("refused", ["pod-0", "pod-1", "pod-2"])
async def test_an_event_that_is_refused_at_the_end_keeps_no_other_from_being_posted(refused: str) -> None:
    server = Refusing(refused)
    recorder = EventRecorder(cast("Client", server), controller="draco.dev/test", instance="one", clock=ManualClock())
    recorded(recorder, 3)
    await recorder.flush(10)
    assert sorted([*server.posted, refused]) == ["pod-0", "pod-1", "pod-2"]


def a_pod(number: int, namespace: str) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", name=f"pod-{number}", namespace=namespace, uid=f"{number}")


NODE = ObjectReference(api_version="v1", kind="Node", name="node-1", uid="node-1")


class Noting:
    """A server that records the Events it gets."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def apply(self, _: Any, __: ObjectKey, event: Event, **___: Any) -> None:
        self.events.append(event)

    def said(self, namespace: str) -> list[str]:
        return [
            each.message for each in self.events if each.involved_object and each.involved_object.namespace == namespace
        ]


class Lab:
    """A recorder whose server takes no time."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock()
        self.server = Noting()
        self.dropped: list[str] = []
        self.recorder = EventRecorder(
            cast("Client", self.server),
            controller="draco.dev/test",
            instance="one",
            clock=self.clock,
            limits=EventLimits(**limits),
            dropped=self.dropped.append,
        )

    def record(self, about: ObjectReference, note: str, *, type: EventType = "Normal") -> None:  # noqa: A002 - the field's name
        self.recorder.record(about, EventReason("R", "A", type), note)

    @asynccontextmanager
    async def posting(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.recorder.run())
        await self.clock.advance(0)
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def post(self) -> None:
        for _ in range(300):
            await self.clock.advance(0)


@pytest.mark.parametrize("type_", ["Normal", "Warning"])
async def test_what_one_tenant_causes_silences_neither_nodes_nor_other_tenants(type_: EventType) -> None:
    lab = Lab()
    with capture_logs() as logs:
        for number in range(10_000):
            lab.record(a_pod(number, "loud"), "noise", type=type_)
        lab.record(NODE, "lost", type="Warning")
        lab.record(a_pod(1, "quiet"), "allocated")
    async with lab.posting():
        await lab.post()
        said = [each.message for each in lab.server.events[:3]]
        assert said[0] == "lost"
        assert "allocated" in said, "each namespace has its turn"
    assert lab.dropped == ["full"] * 9_000
    assert [each["namespace"] for each in logs] == ["loud"], "it is said once in a while"


async def test_a_warning_takes_the_place_of_what_is_normal_and_the_other_way_round_it_does_not() -> None:
    lab = Lab(series_in_namespace=3)
    for number in range(2):
        lab.record(a_pod(number, "team"), f"normal {number}")
    async with lab.posting():
        await lab.post()
        lab.record(a_pod(2, "team"), "normal 2")
        lab.record(a_pod(3, "team"), "warning 3", type="Warning")
        assert lab.dropped == [], "what is posted gives way first, and is not lost"
        lab.record(a_pod(4, "team"), "warning 4", type="Warning")
        assert lab.dropped == []
        lab.record(a_pod(5, "team"), "warning 5", type="Warning")
        assert lab.dropped == ["full"], "then what is not"
        lab.record(a_pod(6, "team"), "warning 6", type="Warning")
        lab.record(a_pod(7, "team"), "normal 7")
        assert lab.dropped == ["full"] * 3
        await lab.post()
    assert lab.server.said("team")[2:] == ["warning 3", "warning 4", "warning 5"]


async def test_warnings_are_posted_before_what_is_normal() -> None:
    lab = Lab()
    for number in range(5):
        lab.record(a_pod(number, "team"), f"normal {number}")
    lab.record(a_pod(9, "team"), "warning", type="Warning")
    async with lab.posting():
        await lab.post()
    assert lab.server.said("team") == ["warning", *(f"normal {number}" for number in range(5))]


async def test_many_namespaces_together_have_a_bound_and_the_largest_gives_way() -> None:
    lab = Lab(series=10, series_in_namespace=8)
    for number in range(8):
        lab.record(a_pod(number, "large"), "large")
    for number in range(6):
        lab.record(a_pod(number, f"small-{number}"), "small")
    lab.record(NODE, "lost", type="Warning")
    async with lab.posting():
        await lab.post()
    assert len(lab.server.said("large")) == 4
    assert sum(len(lab.server.said(f"small-{number}")) for number in range(6)) == 6
    assert lab.server.said("") == ["lost"], "nodes have places of their own"
    assert lab.dropped == ["full"] * 4


async def test_a_day_of_events_leaves_nothing_when_it_is_over() -> None:
    lab = Lab(series_in_namespace=50)
    async with lab.posting():
        for hour in range(24):
            for number in range(100):
                lab.record(a_pod(1000 * hour + number, f"team-{number % 7}"), "noise")
            await lab.clock.advance(3600)
        recorder = lab.recorder
        assert (len(recorder._shares), recorder._shares.waiting, recorder._budgets) == (0, 0, {})
        assert not recorder._shares._shares
    assert len(lab.server.events) == 2400
