"""Notes on a real API server: one Event per object, kept up to date, found by the next process, and withdrawn."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import Unreachable
from draco.kube.events.notes import Notes
from draco.kube.events.shares import EventReason
from draco.resources.api.core import Event, ObjectReference
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS, Kind
from tests.component.kube.support import CONFIG_MAPS
from tests.doubles.clock import ManualClock
from tests.doubles.faultproxy import FaultProxy, writes

NAMESPACES: Kind[Any] = Kind("", "v1", "namespaces", "Namespace", False, dict)


@pytest.fixture
def regarding(namespace: str) -> ObjectReference:
    return ObjectReference(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", name="claim", namespace=namespace, uid=namespace
    )


def some_notes(client: Client, clock: Clock | None = None) -> Notes:
    return Notes(
        client,
        controller="draco.dev/test",
        instance="test-1",
        clock=clock or SystemClock(),
        reason=EventReason("Test", "Testing", "Warning"),
    )


async def texts(client: Client, namespace: str) -> list[str]:
    return [event.message for event in await client.list(EVENTS, namespace=namespace)]


async def times(client: Client, namespace: str) -> int:
    (event,) = await client.list(EVENTS, namespace=namespace)
    return event.series.count if event.series else 1


async def test_a_text_that_changes_is_written_at_once_into_the_same_event(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    notes = some_notes(client)
    for number in range(3):
        await notes.say(regarding, f"{number} are missing")
        assert await texts(client, namespace) == [f"{number} are missing"]
    assert await times(client, namespace) == 3
    await notes.say(regarding, "2 are missing")
    assert await times(client, namespace) == 3, "it is said already"


async def test_a_text_that_changes_all_the_time_is_written_at_times_and_the_last_one_in_the_end(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    clock = ManualClock()
    notes = some_notes(client, clock)
    for second in range(600):
        again_s = await notes.say(regarding, f"it is second {second}")
        await clock.advance(1)
    assert await times(client, namespace) == 22, "three at once, then two a minute"
    assert await texts(client, namespace) != ["it is second 599"]
    await clock.advance(again_s)
    await notes.say(regarding, "it is second 599")
    assert await texts(client, namespace) == ["it is second 599"]
    await notes.withdraw(regarding)
    assert await texts(client, namespace) == []


async def test_a_note_whose_answer_was_lost_is_withdrawn_all_the_same(
    client: Client, through: Client, proxy: FaultProxy, regarding: ObjectReference, namespace: str
) -> None:
    notes = some_notes(through)
    proxy.fault(writes, proxy.lose_the_answer)
    with pytest.raises(Unreachable):
        await notes.say(regarding, "it waits")
    assert await texts(client, namespace) == ["it waits"]
    await notes.withdraw(regarding)
    assert await texts(client, namespace) == []


async def test_a_text_that_was_so_before_one_whose_answer_was_lost_is_written_again(
    client: Client, through: Client, proxy: FaultProxy, regarding: ObjectReference, namespace: str
) -> None:
    notes = some_notes(through)
    await notes.say(regarding, "it waits for one")
    proxy.fault(writes, proxy.lose_the_answer)
    with pytest.raises(Unreachable):
        await notes.say(regarding, "it waits for two")
    assert await texts(client, namespace) == ["it waits for two"]
    await notes.say(regarding, "it waits for one")
    assert await texts(client, namespace) == ["it waits for one"]


async def test_what_is_so_again_after_a_withdrawal_whose_answer_was_lost_is_written_again(
    client: Client, through: Client, proxy: FaultProxy, regarding: ObjectReference, namespace: str
) -> None:
    notes = some_notes(through)
    await notes.say(regarding, "it waits")
    proxy.fault(writes, proxy.lose_the_answer, times=2)  # idempotent requests are retried at once
    with pytest.raises(Unreachable):
        await notes.withdraw(regarding)
    assert await texts(client, namespace) == []
    await notes.say(regarding, "it waits")
    assert await texts(client, namespace) == ["it waits"]


async def test_a_note_that_stays_is_written_again_before_the_server_forgets_it(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    clock = ManualClock()
    notes = some_notes(client, clock)
    again_s = await notes.say(regarding, "it waits")
    assert again_s == 1200
    await client.delete(EVENTS, (await client.list(EVENTS, namespace=namespace))[0].metadata.key)
    await clock.advance(again_s)
    await notes.say(regarding, "it waits")
    assert await texts(client, namespace) == ["it waits"]


async def test_the_next_process_finds_what_was_said_and_goes_on_with_it(
    client: Client, regarding: ObjectReference, namespace: str
) -> None:
    before, other = some_notes(client), Event(type="Warning", reason="Test", message="not ours")
    await before.say(regarding, "it waits")
    await before.say(regarding, "it waits for two")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "namespace": namespace, "uid": "any"}
    foreign = {"metadata": {"name": "foreign", "namespace": namespace}, "involvedObject": reference}
    await client.create(EVENTS, {**foreign, "type": other.type, "reason": other.reason, "message": other.message})
    notes = some_notes(client)
    assert [each for each in await notes.adopt() if each.namespace == namespace] == [regarding]
    await notes.say(regarding, "it waits for one")
    (event,) = [each for each in await client.list(EVENTS, namespace=namespace) if each.metadata.name != "foreign"]
    assert (event.message, event.series and event.series.count) == ("it waits for one", 3)
    await notes.withdraw(regarding)
    assert await texts(client, namespace) == ["not ours"]


async def test_an_event_that_the_server_refuses_is_said_in_the_log_and_does_not_fail_the_caller(client: Client) -> None:
    notes = some_notes(client, ManualClock())
    nowhere = ObjectReference(api_version="v1", kind="Pod", name="any", namespace="no-such-namespace", uid="some-uid")
    with capture_logs() as logs:
        assert await notes.say(nowhere, "anything") == 5.0
        assert await notes.say(nowhere, "anything else") == 5.0
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("events.refused", "warning")
    await notes.withdraw(nowhere)


async def test_nobody_is_alarmed_by_a_namespace_that_takes_no_events_any_more(client: Client, namespace: str) -> None:
    keeps = {"metadata": {"name": "kept", "namespace": namespace, "finalizers": ["draco.example.com/kept"]}}
    await client.create(CONFIG_MAPS, keeps)
    await client.delete(NAMESPACES, ObjectKey("", namespace))
    pod = ObjectReference(api_version="v1", kind="Pod", name="any", namespace=namespace, uid="some-uid")
    with capture_logs() as logs:
        assert await some_notes(client, ManualClock()).say(pod, "anything") == 5.0
    await client.patch(CONFIG_MAPS, ObjectKey(namespace, "kept"), {"metadata": {"finalizers": None}})
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("events.refused", "debug")
