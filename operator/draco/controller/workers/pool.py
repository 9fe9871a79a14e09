"""Answers questions about the fleet in processes that may be killed.

Owns how many questions run in parallel and with which budgets, the handling of those that exceed a budget or kill their process,
and the restart of a fleet process that has ended.

A question starts with a short budget in one of a few places. If more questions wait than there are places, equally urgent ones
form a row behind it, because the round trip may take longer than the answer. A question over the short budget is asked again with
a long budget, in a single place, and the rest of its row is requeued; so a costly question delays others by two short budgets at
most. Questions that look costly by their length start there. One over the long budget is remembered as too costly while the
claims and their classes are unchanged. A question whose process dies is asked once more, and then remembered for a while.

The queue holds functions that read questions, not questions: objects are read when their turn comes, so a long queue holds none.
A question that nobody waits for leaves the queue, and each namespace has limited room in it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec
import structlog

from draco.controller.workers.fair_queue import MOST_WAITING, FairQueue, QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import (
    AskQuestions,
    Failed,
    Inward,
    NotReached,
    OutOfMemory,
    Outward,
    OverBudget,
    Question,
    Reply,
    SkippedObject,
)
from draco.controller.workers.past_costs import Experience, looks_costly
from draco.controller.workers.places import IN_A_ROW, Answered, PendingQuestion, Places, ReadQuestion
from draco.controller.workers.process import FleetProcessHandle, ProcessEnded
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.retry import Backoff

log = structlog.get_logger(__name__)

_CHANGES_AT_ONCE: Final = 64
_NO_ROOM: Final = Failed(f"{MOST_WAITING} questions of its namespace are waiting already")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel questions, and budgets per question for up to `devices` devices; larger fleets get proportionally more."""

    places: int = 2
    """Parallel questions with a short budget; one review and one long question run beside them."""
    short_cpu_s: float = 0.15
    short_wall_s: float = 5.0
    long_cpu_s: float = 2.0
    long_wall_s: float = 15.0
    devices: int = 50_000


class WorkerCounts(msgspec.Struct):
    """Totals for metrics."""

    answered: int = 0
    too_costly: int = 0
    remembered: int = 0
    failed: int = 0
    refused: int = 0
    """Questions refused because their namespace had no room in the queue."""
    cpu_s: float = 0.0
    killed: int = 0
    restarts: int = 0


class Workers:
    """Answers questions about the fleet that `followed` follows, while `run` runs."""

    def __init__(
        self,
        followed: FollowedFleet,
        *,
        clock: Clock,
        settings: WorkerSettings | None = None,
        start: Callable[[], Awaitable[FleetProcessHandle]] = FleetProcessHandle.start,
    ) -> None:
        self._followed = followed
        self._clock = clock
        self._settings = settings or WorkerSettings()
        self._start = start
        self._short: FairQueue[PendingQuestion] = FairQueue()
        self._long: FairQueue[PendingQuestion] = FairQueue()
        self._places = Places(self._settings.places)
        self._experience = Experience(followed, clock=clock)
        self._wake = asyncio.Event()
        self.counts = WorkerCounts()
        followed.when_unsaid.add(self._wake.set)

    @property
    def waiting(self) -> int:
        """Number of queued questions."""
        return len(self._short) + len(self._long)

    @property
    def long_cpu_s(self) -> float:
        """Maximum CPU time of a question."""
        return self._settings.long_cpu_s * self._scale

    @property
    def _scale(self) -> float:
        return max(1.0, self._followed.devices / self._settings.devices)

    def may_ask(self, namespace: str) -> bool:
        """Whether the namespace has budget left."""
        return self._short.may_ask(namespace, self._clock.monotonic())

    async def ask(self, read: ReadQuestion, namespace: str, urgency: QueuePriority) -> Answered | None:
        """Answer, or NoAnswer, as of now or later. `read` is called now and at the question's turn: None if nobody asks then."""
        question = read()
        if question is None:
            return None
        key = self._experience.key(question)
        if (refused := self._experience.refusal(key)) is not None:
            self.counts.remembered += 1
            return Answered(refused, self._followed.version, 0.0)
        is_long = self._experience.needed_long(key)
        is_long |= urgency is not QueuePriority.REVIEW and looks_costly(question)
        del question  # it may be large: only the caller keeps it
        pending = PendingQuestion(read, namespace, urgency, key, is_long=is_long)
        if not self._queue_of(pending).put(pending, namespace, urgency):
            self.counts.refused += 1
            return Answered(_NO_ROOM, self._followed.version, 0.0)
        self._wake.set()
        try:
            return await pending.future
        finally:
            self._short.discard(pending, namespace, urgency)
            self._long.discard(pending, namespace, urgency)

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        """The answer, or None if it takes longer than `within_s`."""
        asking = asyncio.create_task(self.ask(lambda: question, namespace, urgency))
        waiting = asyncio.create_task(self._clock.sleep(within_s))
        try:
            await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)

    async def run(self) -> None:
        """Keep a fleet process running until cancelled."""
        backoff = Backoff(self._clock, base_s=0.2, cap_s=30.0)
        while True:
            began_s = self._clock.monotonic()
            try:
                await self._run_one()
            except (ProcessEnded, OSError) as error:
                if self._clock.monotonic() - began_s > 60.0:
                    backoff.reset()
                pause_s = backoff.next()
                self.counts.restarts += 1
                log.warning("workers.ended", error=str(error), again_in_s=round(pause_s, 2))
                self._ask_again(str(error))
                await self._clock.sleep(pause_s)

    async def _run_one(self) -> None:
        self._followed.resync()
        process = await self._start()
        tasks = [asyncio.create_task(self._hear(process)), asyncio.create_task(self._speak(process))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise ProcessEnded("the process that holds the fleet has ended")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await process.end()

    async def _hear(self, process: FleetProcessHandle) -> None:
        async for messages in process.replies():
            for message in messages:
                self._take(message)

    def _take(self, message: Outward) -> None:
        if isinstance(message, SkippedObject):
            self._followed.left_out(message)
            return
        pending = self._places.end(message.number, self._clock.monotonic())
        if pending is not None:
            self._finish(pending, message)
        self._wake.set()

    async def _speak(self, process: FleetProcessHandle) -> None:
        await process.send(self._followed.next_changes(_CHANGES_AT_ONCE))  # at least the version
        while True:
            self._wake.clear()
            messages: list[Inward] = []
            if self._followed.is_dirty:
                messages.append(self._followed.next_changes(_CHANGES_AT_ONCE))
            if not self._followed.is_dirty:  # questions are about everything known when they were asked
                messages += self._next_rows()
            for message in messages:
                await process.send(message)
            if not messages:
                await wait_for(self._wake, self._clock, self._patience_s())
                self._check_lateness()

    def _patience_s(self) -> float | None:
        now_s = self._clock.monotonic()
        waits = [] if self._places.late_at_s is None else [self._places.late_at_s - now_s]
        for queue, is_long in ((self._short, False), (self._long, True)):
            if self._places.left(is_long=is_long) > 0 and (due_s := queue.due_in_s(now_s)) is not None:
                waits.append(due_s)
        return max(0.0, min(waits)) if waits else None

    def _check_lateness(self) -> None:
        if (late_at_s := self._places.late_at_s) is not None and self._clock.monotonic() >= late_at_s:
            raise ProcessEnded("the process that holds the fleet does not answer")

    def _next_rows(self) -> list[AskQuestions]:
        rows = []
        while (first := self._next()) is not None:
            row = [(each, question) for each in self._row(first) if (question := self._read(each)) is not None]
            if row:
                rows.append(self._ask(row))
        return rows

    def _row(self, first: PendingQuestion) -> Iterator[PendingQuestion]:
        self._hold(first)
        yield first
        if first.is_long:
            return
        places = 1 if first.urgency is QueuePriority.AGAIN else max(1, self._places.left(is_long=False))
        share = (self._short.as_urgent(first.urgency) + 1) // places
        for _ in range(min(share, IN_A_ROW) - 1):
            pending = self._short.take_behind(first.urgency, self._clock.monotonic())
            if pending is None:
                return
            self._hold(pending)
            yield pending

    def _read(self, pending: PendingQuestion) -> Question | None:
        """Read the current question; None if nobody waits for it any more. Tells the asker."""
        question = None
        try:
            question = None if pending.future.done() else pending.read()
        except Exception as error:  # noqa: BLE001 - the asker gets it; the others are still answered
            if not pending.future.done():
                pending.future.set_exception(error)
        if pending.future.done():
            question = None  # reading may show that nobody asks
        elif question is None:
            pending.future.set_result(None)
        if question is None:
            self._end_hold(pending, 0.0)
        return question

    def _next(self) -> PendingQuestion | None:
        now_s = self._clock.monotonic()
        short = self._places.left(is_long=False)
        found = None
        if short > 0:
            found = self._short.take(now_s)
        elif short == 0:
            found = self._short.take(now_s, least_urgent=QueuePriority.REVIEW)
        if found is None and self._places.left(is_long=True) > 0:
            found = self._long.take(now_s)
        return found

    def _ask(self, row: Sequence[tuple[PendingQuestion, Question]]) -> AskQuestions:
        first, _ = row[0]
        cpu_s, wall_s = self._cpu_s(first), self._wall_s(first)
        numbers = self._places.give([pending for pending, _ in row], wall_s, self._clock.monotonic())
        numbered = [(number, question) for number, (_, question) in zip(numbers, row, strict=True)]
        return AskQuestions(numbered, self._followed.version, cpu_s, wall_s, first.is_long)

    def _hold(self, pending: PendingQuestion) -> None:
        pending.scale = self._scale
        self._queue_of(pending).hold(pending.namespace, self._cpu_s(pending), self._clock.monotonic())

    def _end_hold(self, pending: PendingQuestion, took_s: float) -> None:
        now_s = self._clock.monotonic()
        queue = self._queue_of(pending)
        queue.hold(pending.namespace, -self._cpu_s(pending), now_s)
        queue.finished(pending.namespace, pending.urgency, took_s, now_s)

    def _queue_of(self, pending: PendingQuestion) -> FairQueue[PendingQuestion]:
        return self._long if pending.is_long else self._short

    def _cpu_s(self, pending: PendingQuestion) -> float:
        return pending.scale * (self._settings.long_cpu_s if pending.is_long else self._settings.short_cpu_s)

    def _wall_s(self, pending: PendingQuestion) -> float:
        return pending.scale * (self._settings.long_wall_s if pending.is_long else self._settings.short_wall_s)

    def _finish(self, pending: PendingQuestion, reply: Reply) -> None:
        """Deliver the answer, or ask again if somebody still waits."""
        # A killed process does not report its cost.
        took_s = self._cpu_s(pending) if isinstance(reply.answer, Failed) else reply.cpu_s
        self._end_hold(pending, took_s)
        pending.cpu_s += took_s
        self.counts.cpu_s += took_s
        match reply.answer:
            case NotReached():
                if not pending.future.done():
                    self._queue_of(pending).put_back(pending, pending.namespace, pending.urgency)
                return
            case OverBudget() if not pending.is_long:
                pending.is_long = True
                self._experience.needs_long(pending.key)
                self._put_again(pending)
                return
            case OverBudget() | OutOfMemory() as costly:
                self.counts.too_costly += 1
                self._experience.too_costly(pending.key, costly)
            case Failed(why) as failed:
                times = self._experience.failed(pending.key, failed)
                self.counts.killed += 1
                log.warning("workers.question_failed", namespace=pending.namespace, error=why, times=times)
                if self._experience.refusal(pending.key) is None:
                    self._put_again(pending)
                    return
                self.counts.failed += 1
            case _:
                self.counts.answered += 1
                self._experience.answered(pending.key)
        if not pending.future.done():
            pending.future.set_result(Answered(reply.answer, reply.version, pending.cpu_s))

    def _put_again(self, pending: PendingQuestion) -> None:
        if pending.future.done():
            return
        if not self._queue_of(pending).put(pending, pending.namespace, pending.urgency):
            self.counts.refused += 1
            pending.future.set_result(Answered(_NO_ROOM, self._followed.version, pending.cpu_s))

    def _ask_again(self, why: str) -> None:
        """Requeue after the fleet process ended; the started questions may have caused it."""
        begun, others = self._places.end_all()
        for pending in begun:
            self._finish(pending, Reply(0, Failed(why), 0, 0.0))
        for pending in reversed(others):  # each is put before what waits
            self._finish(pending, Reply(0, NotReached(), 0, 0.0))
