"""Events on a real API server: one object per thing that happens, and a recorder that survives everything."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.events.events import EventLimits, EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.core import Event, ObjectReference
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS
from tests.component.kube.support import eventually
from tests.doubles.clock import ManualClock
from tests.doubles.faultproxy import FaultProxy, answer, drop, writes


def a_recorder(
    client: Client,
    *,
    clock: Clock | None = None,
    limits: EventLimits | None = None,
    dropped: Callable[[str], None] = lambda _: None,
) -> EventRecorder:
    return EventRecorder(
        client,
        controller="draco.dev/test",
        instance="test-1",
        clock=clock or SystemClock(),
        limits=limits,
        dropped=dropped,
    )


@pytest.fixture
def regarding(namespace: str) -> ObjectReference:
    return ObjectReference(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", name="claim", namespace=namespace, uid="uid-1"
    )


@asynccontextmanager
async def posting(recorder: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def events_in(client: Client, namespace: str, *, count: int, note: str) -> list[Event]:
    """Wait for `count` Events, one of them with this note."""
    found: list[Event] = []
    for _ in range(500):
        found = await client.list(EVENTS, namespace=namespace)
        if len(found) == count and any(event.message == note for event in found):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not {count} Events with {note!r} but {[event.message for event in found]}")


async def test_an_event_says_what_happened_to_what(client: Client, regarding: ObjectReference, namespace: str) -> None:
    recorder = a_recorder(client)
    async with posting(recorder):
        recorder.record(regarding, EventReason("Unallocatable", "Explain", "Warning"), "No GPU is free.")
        [event] = await events_in(client, namespace, count=1, note="No GPU is free.")
    assert event.involved_object == regarding
    assert (event.type, event.reason, event.action) == ("Warning", "Unallocatable", "Explain")
    assert event.reporting_component == "draco.dev/test"
    assert event.reporting_instance == "test-1"
    assert event.series is None


async def test_what_others_wrote_forges_no_line_of_an_event(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    recorder = a_recorder(client)
    async with posting(recorder):
        note = "Held by train\x1b[2J\nNormal  all is well"
        recorder.record(regarding, EventReason("InUse", "Destroy", "Warning"), note)
        await events_in(client, namespace, count=1, note="Held by train\\u001b[2J Normal  all is well")


async def test_what_happens_again_updates_its_event_with_the_new_note_and_the_count(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    recorder = a_recorder(client)
    async with posting(recorder):
        recorder.record(regarding, EventReason("Unallocatable", "Explain", "Warning"), "3 GPUs are short.")
        [first] = await events_in(client, namespace, count=1, note="3 GPUs are short.")
        recorder.record(regarding, EventReason("Unallocatable", "Explain", "Warning"), "2 GPUs are short.")
        [second] = await events_in(client, namespace, count=1, note="2 GPUs are short.")
        recorder.record(regarding, EventReason("Unallocatable", "Explain", "Warning"), "1 GPU is short.")
        [third] = await events_in(client, namespace, count=1, note="1 GPU is short.")
    assert first.metadata.uid == second.metadata.uid == third.metadata.uid
    assert second.series is not None
    assert second.series.count == 2
    assert third.series is not None
    assert third.series.count == 3
    assert third.series.last_observed_time >= second.series.last_observed_time


async def test_another_reason_is_another_event(client: Client, regarding: ObjectReference, namespace: str) -> None:
    recorder = a_recorder(client)
    async with posting(recorder):
        recorder.record(regarding, EventReason("Unallocatable", "Explain", "Warning"), "a")
        recorder.record(regarding, EventReason("Allocatable", "Explain"), "b")
        await events_in(client, namespace, count=2, note="b")


async def test_an_event_about_a_cluster_scoped_object_is_in_the_default_namespace(client: Client) -> None:
    node = ObjectReference(api_version="v1", kind="Node", name=f"node-{Random().getrandbits(40):x}")
    recorder = a_recorder(client)
    async with posting(recorder):
        recorder.record(node, EventReason("DriverInUse", "Start", "Warning"), "another plugin is there")
        for _ in range(500):
            found = [event for event in await client.list(EVENTS, namespace="default") if event.involved_object == node]
            if found:
                break
            await asyncio.sleep(0.02)
    assert [event.message for event in found] == ["another plugin is there"]


async def test_a_flood_about_one_object_is_merged_and_its_last_word_is_kept(
    client: Client, through: Client, proxy: FaultProxy, regarding: ObjectReference, namespace: str
) -> None:
    clock = ManualClock()
    recorder = a_recorder(through, clock=clock, limits=EventLimits(burst=3, refill_s=60))
    async with posting(recorder):
        for number in range(100):
            recorder.record(regarding, EventReason("Flapping", "Watch"), f"note {number}")
            await asyncio.sleep(0.002)
        await eventually(lambda: len(proxy.seen) >= 3, "the burst is posted")
        assert len(proxy.seen) == 3
        await clock.advance(59)
        assert len(proxy.seen) == 3
        await clock.advance(2)
        [event] = await events_in(client, namespace, count=1, note="note 99")
    assert len(proxy.seen) == 4
    assert event.series is not None
    assert event.series.count == 100


async def test_a_flood_about_one_object_does_not_hold_up_another(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    other = ObjectReference(api_version="v1", kind="Pod", name="other", namespace=namespace, uid="uid-2")
    recorder = a_recorder(client, clock=ManualClock(), limits=EventLimits(burst=1, refill_s=1000))
    async with posting(recorder):
        for number in range(5):
            recorder.record(regarding, EventReason(f"Reason{number}", "Watch"), "flood")
        recorder.record(other, EventReason("Calm", "Watch"), "calm")
        await events_in(client, namespace, count=2, note="calm")


async def test_nothing_is_lost_while_the_server_does_not_answer(
    client: Client, through: Client, proxy: FaultProxy, regarding: ObjectReference, namespace: str
) -> None:
    proxy.fault(writes, answer(500, "InternalError"), times=1)
    proxy.fault(writes, drop, times=1)
    dropped: list[str] = []
    recorder = a_recorder(through, dropped=dropped.append)
    async with posting(recorder):
        recorder.record(regarding, EventReason("R", "A"), "once")
        recorder.record(regarding, EventReason("R", "A"), "twice")
        [event] = await events_in(client, namespace, count=1, note="twice")
    assert event.series is not None
    assert event.series.count == 2
    assert dropped == []


async def test_an_event_whose_answer_was_lost_is_not_made_twice(
    client: Client, through: Client, proxy: FaultProxy, regarding: ObjectReference, namespace: str
) -> None:
    proxy.fault(writes, proxy.lose_the_answer)
    recorder = a_recorder(through)
    async with posting(recorder):
        recorder.record(regarding, EventReason("R", "A"), "first")
        await eventually(lambda: len(proxy.seen) >= 2, "it is tried again")
        recorder.record(regarding, EventReason("R", "A"), "second")
        await events_in(client, namespace, count=1, note="second")


async def test_an_event_that_the_server_refuses_is_dropped_and_the_next_is_posted(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    dropped: list[str] = []
    recorder = a_recorder(client, dropped=dropped.append)
    async with posting(recorder):
        recorder.record(regarding, EventReason("R" * 200, "A"), "the reason is too long")
        recorder.record(regarding, EventReason("Fine", "A"), "fine")
        await events_in(client, namespace, count=1, note="fine")
        assert dropped == ["refused"]


async def test_an_event_that_expired_is_made_anew_when_it_happens_again(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    recorder = a_recorder(client)
    async with posting(recorder):
        recorder.record(regarding, EventReason("R", "A"), "first")
        [first] = await events_in(client, namespace, count=1, note="first")
        await client.delete(EVENTS, ObjectKey(namespace, first.metadata.name))
        recorder.record(regarding, EventReason("R", "A"), "second")
        [second] = await events_in(client, namespace, count=1, note="second")
    assert second.metadata.uid != first.metadata.uid


async def test_what_happens_after_a_long_silence_is_a_new_event(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    clock = ManualClock()
    recorder = a_recorder(client, clock=clock, limits=EventLimits(series_s=900))
    async with posting(recorder):
        recorder.record(regarding, EventReason("R", "A"), "first")
        await events_in(client, namespace, count=1, note="first")
        await clock.advance(901)
        recorder.record(regarding, EventReason("R", "A"), "second")
        await events_in(client, namespace, count=2, note="second")


async def test_recording_is_bounded_and_never_waits(through: Client, proxy: FaultProxy, namespace: str) -> None:
    await proxy.refuse()
    dropped: list[str] = []
    recorder = a_recorder(through, limits=EventLimits(series_in_namespace=50), dropped=dropped.append)
    async with posting(recorder):
        for number in range(80):
            pod = ObjectReference(api_version="v1", kind="Pod", name=f"pod-{number}", namespace=namespace)
            recorder.record(pod, EventReason("R", "A"), "n")
    assert dropped == ["full"] * 30


async def test_a_note_that_is_too_long_is_cut(client: Client, regarding: ObjectReference, namespace: str) -> None:
    recorder = a_recorder(client)
    async with posting(recorder):
        recorder.record(regarding, EventReason("R", "A"), "é" * 2000)
        for _ in range(500):
            found = await client.list(EVENTS, namespace=namespace)
            if found:
                break
            await asyncio.sleep(0.02)
    assert found[0].message.startswith("éé")
    assert found[0].message.endswith("…")
    assert len(found[0].message.encode()) <= 1024


async def test_what_waits_is_posted_at_the_end(client: Client, regarding: ObjectReference, namespace: str) -> None:
    recorder = a_recorder(client)
    recorder.record(regarding, EventReason("R", "A"), "last words")
    await recorder.flush(10)
    await events_in(client, namespace, count=1, note="last words")


async def test_the_end_is_not_held_up_by_a_server_that_does_not_answer(
    through: Client, proxy: FaultProxy, regarding: ObjectReference
) -> None:
    recorder = a_recorder(through)
    recorder.record(regarding, EventReason("R", "A"), "last words")
    async with proxy.unplugged(), asyncio.timeout(5):
        await recorder.flush(0.2)
