"""How much of an API server's time Events take, and what becomes of them at the end."""

import asyncio
from typing import Any, cast

import pytest

from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.api.core import ObjectReference
from draco.resources.api.meta import ObjectKey
from tests.doubles.clock import ManualClock


def recorded(recorder: EventRecorder, number: int) -> None:
    for each in range(number):
        pod = ObjectReference(api_version="v1", kind="Pod", name=f"pod-{each}", namespace="default", uid=f"{each}")
        recorder.record(pod, type="Normal", reason="Allocated", action="Allocating", note="Draco allocated gpu-0.")


class Server:
    """Each Event takes it so long."""

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
    """It does not answer before `answers` is set."""

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
