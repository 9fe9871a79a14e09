"""How questions are sent to a process that may not answer: budgets, what is remembered, and what is asked again."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.controller.view import ClusterView
from draco.controller.workers.fair_queue import MOST_WAITING, QueuePriority
from draco.controller.workers.messages import (
    Answer,
    AskQuestions,
    Changes,
    CheckClaim,
    ClaimProblems,
    ExplainPending,
    Failed,
    NotReached,
    OutOfMemory,
    Outward,
    OverBudget,
    PendingAnswer,
    Question,
    Reply,
)
from draco.controller.workers.places import Answered, ReadQuestion
from draco.controller.workers.pool import Workers, WorkerSettings
from draco.controller.workers.process import FleetProcessHandle, ProcessEnded
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from tests.builders import a_claim, a_device_class, a_node, a_pod
from tests.doubles.clock import ManualClock

GOOD = PendingAnswer("it is so", "InUse")
SETTINGS = WorkerSettings(places=2, short_cpu_s=0.5, long_cpu_s=2.0, short_wall_s=5.0, long_wall_s=15.0)


class Ask(NamedTuple):
    """A question that was sent, and the batch that it was sent in."""

    number: int
    question: Question
    row: AskQuestions


class Scripted:
    """A process that answers when the test says so."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.changes = 0
        self.version = -1
        self.ended = False
        self._replies: asyncio.Queue[Outward | None] = asyncio.Queue()

    async def send(self, message: Changes | AskQuestions) -> None:
        if self.ended:
            raise ProcessEnded("it reads no more")
        if isinstance(message, AskQuestions):
            self.asks += [Ask(number, question, message) for number, question in message.questions]
        else:
            self.changes += len(message.changes)
            self.version = message.version

    async def replies(self) -> AsyncIterator[list[Outward]]:
        while (reply := await self._replies.get()) is not None:
            yield [reply]

    async def end(self) -> None:
        self.ended = True

    def answer(self, answer: Answer | NotReached, cpu_s: float = 0.01) -> Ask:
        """Answer the oldest question."""
        ask = self.asks.pop(0)
        self._replies.put_nowait(Reply(ask.number, answer, self.version, cpu_s))
        return ask

    def die(self) -> None:
        self._replies.put_nowait(None)


class Lab:
    """Workers with scripted processes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.view = ClusterView(Client(Connection("http://127.0.0.1:1")), None, clock=self.clock)
        self.processes: list[Scripted] = []
        self.workers = Workers(self.view.followed, clock=self.clock, settings=SETTINGS, start=self.start)
        self.asked: list[asyncio.Task[Answered | None]] = []

    async def start(self) -> FleetProcessHandle:
        self.processes.append(Scripted())
        return cast("FleetProcessHandle", self.processes[-1])

    @property
    def process(self) -> Scripted:
        return self.processes[-1]

    async def ask(
        self, name: str = "claim", *, namespace: str = "default", urgency: QueuePriority = QueuePriority.FIRST
    ) -> "asyncio.Task[Answered | None]":
        question = ExplainPending(a_pod(namespace=namespace), [a_claim(name, device_class=name)], "", 36)
        task = asyncio.create_task(self.workers.ask(lambda: question, namespace, urgency))
        self.asked.append(task)
        await self.clock.advance(0)
        return task

    def names(self) -> list[str]:
        """The claims of the questions that are being answered."""
        return [
            ask.question.claims[0].metadata.name
            for ask in self.process.asks
            if isinstance(ask.question, ExplainPending)
        ]


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    made = Lab()
    async with running(made):
        yield made


@asynccontextmanager
async def running(lab: Lab) -> AsyncIterator[None]:
    task = asyncio.create_task(lab.workers.run())
    await lab.clock.advance(0)
    try:
        yield
        assert not task.done()
    finally:
        for each in (task, *lab.asked):
            each.cancel()
        await asyncio.gather(task, *lab.asked, return_exceptions=True)


async def answer_to(asked: "asyncio.Task[Answered | None]") -> Answer:
    answered = await asked
    assert answered is not None
    return answered.answer


def put(lab: Lab, number: int) -> None:
    informer = lab.view.nodes
    informer._publish(informer.store.put(a_node(f"node-{number}")))


async def test_a_question_is_answered_about_everything_that_was_known_when_it_was_asked(lab: Lab) -> None:
    for number in range(1000):
        put(lab, number)
    asked = await lab.ask()
    assert (lab.process.changes, lab.process.asks[0].row.version) == (1000, 1000)
    lab.process.answer(GOOD)
    assert await asked == Answered(GOOD, 1000, 0.01)


async def test_no_more_is_asked_at_once_than_there_are_places_and_one_review_beside(lab: Lab) -> None:
    for name in "abc":
        await lab.ask(name, namespace=name)
    assert lab.names() == ["a", "b"]
    await lab.ask("review", urgency=QueuePriority.REVIEW)
    assert lab.names() == ["a", "b", "review"]
    await lab.ask("another-review", urgency=QueuePriority.REVIEW)
    assert lab.names() == ["a", "b", "review"]
    assert lab.workers.waiting == 2


async def a_row(lab: Lab, *names: str) -> "list[asyncio.Task[Answered | None]]":
    """Ask them in one batch: both places were taken, and one became free first."""
    before = [await lab.ask(f"before-{number}", namespace="before") for number in range(2)]
    tasks = [await lab.ask(name) for name in names]
    for each in before:
        lab.process.answer(GOOD)
        await lab.clock.advance(0)
        assert each.done()
    assert rows(lab) == [[*names]]
    return tasks


def rows(lab: Lab) -> list[list[str]]:
    """The claims of the questions that are being answered, by batch."""
    found: dict[int, list[str]] = {}
    for name, ask in zip(lab.names(), lab.process.asks, strict=True):
        found.setdefault(id(ask.row), []).append(name)
    return list(found.values())


async def test_questions_that_are_as_urgent_stand_in_a_row_and_no_more_than_their_share_of_the_places(lab: Lab) -> None:
    async def asked(urgency: QueuePriority, many: int) -> None:
        for number in range(many):
            await lab.ask(f"{urgency.name}-{number}", urgency=urgency, namespace=f"n-{number}")

    for number in range(2):
        await lab.ask(f"before-{number}")
    await asked(QueuePriority.FIRST, 40)
    await asked(QueuePriority.AGAIN, 20)
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert [len(row) for row in rows(lab)] == [1, 16], "one place is free"
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert [len(row) for row in rows(lab)] == [16, 16]
    assert all(name.startswith("FIRST") for name in lab.names())
    for _ in range(16):
        lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert [len(row) for row in rows(lab)] == [16, 8]
    for _ in range(16):
        lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert [len(row) for row in rows(lab)] == [8, 16]
    for _ in range(8):
        lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert [len(row) for row in rows(lab)] == [16], "what is answered again has one place"


@pytest.mark.parametrize(
    ("urgency", "as_rows"),
    [
        (QueuePriority.SEARCH, [["a"], ["b"]]),
        (QueuePriority.FIRST, [["a"], ["b"]]),
        (QueuePriority.AGAIN, [["a", "b"]]),
    ],
)
async def test_two_that_come_together_have_a_place_each_but_for_what_has_only_one(
    lab: Lab, urgency: QueuePriority, as_rows: list[list[str]]
) -> None:
    for name in "ab":
        question = about(name)
        lab.asked.append(asyncio.create_task(lab.workers.ask(lambda each=question: each, name, urgency)))
    await lab.clock.advance(0)
    assert rows(lab) == as_rows


async def test_what_is_not_reached_is_asked_again_before_what_waits(lab: Lab) -> None:
    tasks = await a_row(lab, "a", "b", "c")
    await lab.ask("later")  # in the other place
    lab.process.answer(GOOD, cpu_s=0.6)
    for _ in range(2):
        lab.process.answer(NotReached(), cpu_s=0.0)
    await lab.clock.advance(0)
    assert [task.done() for task in tasks] == [True, False, False]
    assert (rows(lab), lab.workers.waiting) == ([["later"], ["c", "b"]], 0)
    for _ in range(3):
        lab.process.answer(GOOD)
    assert await asyncio.gather(*tasks[1:]) == [Answered(GOOD, 0, 0.01)] * 2, "nothing is held against it"


async def test_what_is_not_reached_and_not_waited_for_any_more_is_let_go(lab: Lab) -> None:
    tasks = await a_row(lab, "a", "b")
    tasks[1].cancel()
    await lab.clock.advance(0)
    lab.process.answer(GOOD)
    lab.process.answer(NotReached())
    await lab.clock.advance(0)
    assert (lab.names(), lab.workers.waiting) == ([], 0)


async def test_of_a_row_whose_process_ends_only_what_had_been_begun_may_be_what_ended_it(lab: Lab) -> None:
    tasks = await a_row(lab, "a", "b", "c")
    lab.process.answer(GOOD)
    await tasks[0]
    with capture_logs() as logs:
        for _ in range(2):
            lab.process.die()
            await lab.clock.advance(2)
    failed = [said["times"] for said in logs if said["event"] == "workers.question_failed"]
    assert sorted(failed) == [1, 1, 2], "the second time each of the two had a place of its own"
    assert isinstance(await answer_to(tasks[1]), Failed)
    assert (lab.names(), tasks[2].done()) == (["c"], False)


async def test_each_question_of_a_row_has_its_own_time(lab: Lab) -> None:
    tasks = await a_row(lab, "a", "b", "c")
    for _ in range(2):
        await lab.clock.advance(SETTINGS.short_wall_s + 2)
        lab.process.answer(GOOD)
        await lab.clock.advance(0)
    assert (len(lab.processes), [task.done() for task in tasks]) == (1, [True, True, False])
    with capture_logs():
        await lab.clock.advance(SETTINGS.short_wall_s + 7)
    assert len(lab.processes) == 2


async def test_a_costly_question_is_asked_again_with_more_and_keeps_no_other_waiting(lab: Lab) -> None:
    asked = [await lab.ask(f"costly-{number}", namespace="hostile") for number in range(4)]
    for _ in range(2):
        assert lab.process.asks[0].row.cpu_s == SETTINGS.short_cpu_s
        lab.process.answer(OverBudget(None, 8), cpu_s=0.5)
    await lab.clock.advance(0)
    budgets = {name: ask.row.cpu_s for name, ask in zip(lab.names(), lab.process.asks, strict=True)}
    assert budgets == {"costly-0": 2.0, "costly-2": 0.5, "costly-3": 0.5}, "only one has a long budget"
    lab.process.asks.sort(key=lambda ask: ask.row.cpu_s)
    for _ in range(2):
        lab.process.answer(OverBudget(None, 8), cpu_s=0.5)
    await lab.ask("honest", namespace="honest")
    assert lab.names() == ["costly-0", "honest"]
    assert not any(each.done() for each in asked)


async def test_a_question_of_much_text_waits_where_the_costly_ones_do(lab: Lab) -> None:
    claim: ResourceClaim = a_claim("long", device_class="any")
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    selectors = [DeviceSelector(cel=CelSelector(expression=f"device.driver != '{'x' * 600}'"))] * 4
    exactly = msgspec.structs.replace(request.exactly, selectors=selectors)
    devices = msgspec.structs.replace(claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)])
    long = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
    lab.asked.append(
        asyncio.create_task(
            lab.workers.ask(lambda: ExplainPending(a_pod(), [long], "", 36), "default", QueuePriority.FIRST)
        )
    )
    await lab.ask("short")
    assert {name: ask.row.is_last for name, ask in zip(lab.names(), lab.process.asks, strict=True)} == {
        "short": False,
        "long": True,
    }


async def test_what_is_too_costly_is_remembered_until_the_claim_or_its_class_changes(lab: Lab) -> None:
    asked = await lab.ask("claim")
    for cpu_s in (0.5, 2.0):
        lab.process.answer(OverBudget(None, 8), cpu_s=cpu_s)
        await lab.clock.advance(0)
    assert (await asked) == Answered(OverBudget(None, 8), 0, 2.5)
    put(lab, 1)
    again = await lab.ask("claim")
    assert (await again) == Answered(OverBudget(None, 8), 1, 0.0), "whatever else changes"
    other = await lab.ask("claim", namespace="elsewhere")
    assert other.done(), "the same question of others costs the same"
    assert lab.process.asks == []
    await lab.ask("another")
    assert len(lab.process.asks) == 1
    classes = lab.view.classes
    classes._publish(classes.store.put(a_device_class("claim")))
    await lab.ask("claim")
    assert len(lab.process.asks) == 2


async def test_on_very_many_devices_a_question_may_take_longer(lab: Lab) -> None:
    lab.view.followed.devices = 2 * SETTINGS.devices
    await lab.ask()
    (ask,) = lab.process.asks
    assert (ask.row.cpu_s, ask.row.wall_s, lab.workers.long_cpu_s) == (1.0, 10.0, 4.0)


async def test_what_takes_too_much_memory_is_not_asked_again(lab: Lab) -> None:
    asked = await lab.ask()
    lab.process.answer(OutOfMemory())
    assert (await answer_to(asked)) == OutOfMemory()
    assert (await answer_to(await lab.ask())) == OutOfMemory()
    assert lab.process.asks == []


async def test_a_question_that_kills_its_process_is_asked_once_more_and_then_not_for_a_while(lab: Lab) -> None:
    with capture_logs() as logs:
        asked = await lab.ask()
        lab.process.answer(Failed("killed"))
        await lab.clock.advance(0)
        assert len(lab.process.asks) == 1
        lab.process.answer(Failed("killed"))
        assert (await answer_to(asked)) == Failed("killed")
    assert [said["event"] for said in logs] == ["workers.question_failed"] * 2
    assert (await lab.ask()).done()
    await lab.clock.advance(301)
    await lab.ask()
    assert len(lab.process.asks) == 1


async def test_a_process_that_ends_is_replaced_after_a_pause_and_told_everything(lab: Lab) -> None:
    put(lab, 1)
    asked = await lab.ask()
    with capture_logs() as logs:
        lab.process.die()
        await lab.clock.advance(0)
        assert (len(lab.processes), lab.process.ended) == (1, True)
        await lab.clock.advance(1)
    assert [said["event"] for said in logs] == ["workers.ended", "workers.question_failed"]
    assert (len(lab.processes), lab.process.changes, lab.workers.counts.restarts) == (2, 1, 1)
    assert lab.names() == ["claim"]
    lab.process.answer(GOOD)
    assert (await answer_to(asked)) == GOOD


async def test_a_question_during_which_the_process_ends_twice_is_not_asked_a_third_time(lab: Lab) -> None:
    asked = await lab.ask()
    with capture_logs():
        for _ in range(2):
            lab.process.die()
            await lab.clock.advance(2)
    assert isinstance(await answer_to(asked), Failed)
    assert (len(lab.processes), lab.process.asks) == (3, [])


async def test_a_process_that_dies_again_and_again_is_replaced_ever_more_rarely(lab: Lab) -> None:
    with capture_logs():
        for _ in range(120):
            if not lab.process.ended:
                lab.process.die()
            await lab.clock.advance(1)
    assert 5 <= len(lab.processes) <= 25


async def test_a_process_that_does_not_answer_long_after_the_deadline_is_replaced(lab: Lab) -> None:
    await lab.ask()
    with capture_logs():
        await lab.clock.advance(SETTINGS.short_wall_s + 4)
        assert len(lab.processes) == 1
        await lab.clock.advance(3)
    assert len(lab.processes) == 2
    assert lab.processes[0].ended


async def test_who_does_not_wait_any_longer_has_no_place_taken(lab: Lab) -> None:
    tasks = [await lab.ask(name, namespace=name) for name in "abc"]
    tasks[2].cancel()
    await lab.clock.advance(0)
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert lab.names() == ["b"]
    assert lab.workers.waiting == 0


async def test_an_answer_that_comes_too_late_is_not_waited_for(lab: Lab) -> None:
    claim: ResourceClaim = a_claim()
    task = asyncio.create_task(lab.workers.ask_within(CheckClaim(claim), "default", QueuePriority.REVIEW, 1.5))
    await lab.clock.advance(1.4)
    assert not task.done()
    await lab.clock.advance(0.2)
    assert await task is None
    lab.process.answer(ClaimProblems([]))
    await lab.clock.advance(0)
    in_time = asyncio.create_task(lab.workers.ask_within(CheckClaim(claim), "default", QueuePriority.REVIEW, 1.5))
    await lab.clock.advance(0)
    lab.process.answer(ClaimProblems([]))
    assert (await in_time) == Answered(ClaimProblems([]), 0, 0.01)


async def asking(lab: Lab, read: ReadQuestion, namespace: str = "default") -> "asyncio.Task[Answered | None]":
    task = asyncio.create_task(lab.workers.ask(read, namespace, QueuePriority.FIRST))
    lab.asked.append(task)
    await lab.clock.advance(0)
    return task


class Name(str):
    """A name whose release from memory can be observed, and with it that of the object that holds it."""

    __slots__ = ("__weakref__",)


def about(name: str) -> ExplainPending:
    return ExplainPending(a_pod(), [a_claim(name, device_class=str(name))], "", 36)


async def test_what_waits_for_its_turn_holds_nothing_of_what_it_is_about(lab: Lab) -> None:
    for name in "ab":
        await lab.ask(name)
    kept: list[weakref.ref[Name]] = []

    def read() -> ExplainPending:
        name = Name("waiting")
        kept.append(weakref.ref(name))
        return about(name)

    await asking(lab, read)
    gc.collect()
    assert (lab.workers.waiting, [each() for each in kept]) == (1, [None])
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert lab.names() == ["b", "waiting"]


async def test_what_is_asked_is_read_when_its_turn_comes(lab: Lab) -> None:
    for name in "ab":
        await lab.ask(name)
    current = [about("before")]
    asked = await asking(lab, lambda: current[0])
    put(lab, 1)
    current[0] = about("now")
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert (lab.names(), lab.process.asks[-1].row.version) == (["b", "now"], 1)
    assert not asked.done()


async def test_what_is_gone_when_its_turn_comes_is_not_asked(lab: Lab) -> None:
    for name in "ab":
        await lab.ask(name)
    current: list[ExplainPending | None] = [about("gone")]
    asked = await asking(lab, lambda: current[0])
    current[0] = None
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert (await asked, lab.names(), lab.workers.waiting) == (None, ["b"], 0)
    assert await (await asking(lab, lambda: None)) is None, "nor where it was gone before"


@pytest.mark.parametrize("read_by_then", [None, about("gone"), ZeroDivisionError()])
async def test_who_finds_by_reading_that_nobody_asks_may_leave(
    lab: Lab, read_by_then: ExplainPending | Exception | None
) -> None:
    for name in "ab":
        await lab.ask(name)
    asked: list[asyncio.Task[Answered | None]] = []

    def read() -> ExplainPending | None:
        if not asked:
            return about("waiting")
        asked[0].cancel()
        if isinstance(read_by_then, Exception):
            raise read_by_then
        return read_by_then

    asked.append(await asking(lab, read))
    other = await lab.ask("other")
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    assert (lab.names(), lab.workers.waiting, asked[0].cancelled()) == (["b", "other"], 0, True)
    assert not other.done()


async def test_a_question_that_cannot_be_read_keeps_no_other_from_being_answered(lab: Lab) -> None:
    for name in "ab":
        await lab.ask(name)
    questions = [about("bad")]
    asked = await asking(lab, questions.pop)
    other = await lab.ask("other")
    lab.process.answer(GOOD)
    await lab.clock.advance(0)
    with pytest.raises(IndexError):
        await asked
    assert lab.names() == ["b", "other"]
    assert not other.done()


async def test_what_nobody_waits_for_is_not_kept_until_there_is_time_but_known_to_be_costly(lab: Lab) -> None:
    for _ in range(2):
        await lab.ask("costly")
    for task in lab.asked:
        task.cancel()
    await lab.clock.advance(0)
    for _ in range(2):
        lab.process.answer(OverBudget(None, 8), cpu_s=0.5)
    await lab.clock.advance(0)
    assert (lab.workers.waiting, lab.process.asks) == (0, [])
    await lab.ask("costly")
    assert [ask.row.is_last for ask in lab.process.asks] == [True], "it begins where costly ones are asked"


async def test_what_killed_its_process_while_nobody_waited_is_asked_once_more_and_no_third_time(lab: Lab) -> None:
    with capture_logs():
        for _ in range(2):
            task = await lab.ask()
            task.cancel()
            await lab.clock.advance(0)
            lab.process.answer(Failed("killed"))
            await lab.clock.advance(0)
    assert lab.process.asks == []
    assert (await (await lab.ask())) == Answered(Failed("killed"), 0, 0.0)


async def test_a_namespace_that_asks_without_end_is_refused_and_no_other_is(lab: Lab) -> None:
    asked = [await lab.ask(f"claim-{number}", namespace="loud") for number in range(MOST_WAITING + 5)]
    refused = [each for each in asked if each.done()]
    assert len(refused) == 3, "two have their turn"
    assert isinstance(await answer_to(refused[0]), Failed)
    assert (lab.workers.counts.refused, lab.workers.waiting) == (3, MOST_WAITING)
    await lab.ask("other", namespace="quiet")
    assert lab.workers.waiting == MOST_WAITING + 1
