"""Why the claims of reservations wait: how often workers are asked, and that no namespace's questions block the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import PendingAnswer, Question, claims_of
from draco.controller.workers.places import Answered
from draco.controller.workers.pool import Workers
from draco.explanation.model import PendingReason
from draco.resources.api.meta import ObjectKey
from tests.builders import a_claim
from tests.doubles.clock import ManualClock


class Lab:
    """Workers that never answer questions of the namespaces in `poor` in time."""

    def __init__(self, *poor: str) -> None:
        self.clock = ManualClock()
        self.poor = poor
        self.asked: list[str] = []
        self.reasons = WaitingReasons(cast("Workers", self), clock=self.clock, minor=None)

    async def ask_within(
        self, question: Question, namespace: str, _: QueuePriority, within_s: float
    ) -> Answered | None:
        self.asked += [str(each.metadata.key) for each in claims_of(question)]
        if namespace in self.poor:
            await self.clock.sleep(within_s)
            return None
        return Answered(PendingAnswer("No GPU is free.", PendingReason.IN_USE), 1, 0.0)

    def look(self, namespace: str, reservations: int) -> list[str]:
        """What each pass over these reservations does; returns the reason of each."""
        keys = [ObjectKey(namespace, f"reserved-{number}") for number in range(reservations)]
        return [self.reasons.of(key, a_claim(f"{key.name}-0", namespace=namespace)) for key in keys]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reasons.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_namespace_whose_questions_are_not_answered_keeps_no_other_waiting() -> None:
    lab = Lab("hog")
    async with lab.running():
        lab.look("hog", 100)
        lab.look("tenant", 1)
        await lab.clock.advance(1.0)
        lab.look("hog", 100)
        lab.look("tenant", 1)
        await lab.clock.advance(0.0)
        assert lab.look("tenant", 1) == ["No GPU is free."]


async def test_each_reservation_has_one_question_at_most_and_comes_to_its_turn() -> None:
    lab = Lab("hog")
    async with lab.running():
        for _ in range(1000):
            lab.look("hog", 100)
            await lab.clock.advance(1.0)
        assert len(lab.reasons._questions) <= 100
        assert len(set(lab.asked)) >= 99


async def test_of_a_reservation_that_waits_no_more_no_question_is_kept() -> None:
    """Otherwise its claim, with its selectors, would stay until the earlier questions are answered."""
    lab = Lab()
    lab.look("tenant", 3)
    await lab.clock.advance(1.0)
    lab.look("tenant", 3)
    assert len(lab.reasons._questions) == 3
    for number in range(3):
        lab.reasons.forget(ObjectKey("tenant", f"reserved-{number}"))
    assert not lab.reasons._questions
