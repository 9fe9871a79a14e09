"""Questions about the fleet, answered by processes that may be killed.

Owns how many questions are answered at once and with which budgets, what becomes of one that exceeds its budget or kills its
process, and the replacement of a fleet process that has ended.

A question first has a short budget, in one of a few places. What needs more is asked again with a long one, in one place only, so
that a costly question keeps no other waiting for longer than a short budget; what looks costly by its length begins there. What
exceeds the long one too is remembered as too costly for as long as the claims and their classes stay as they are, and costs
nothing any more. A question whose process dies is asked once more, and then remembered for a while.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec
import structlog
from cachetools import LRUCache

from draco.controller.workers.fair_queue import FairQueue, QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import (
    Answer,
    AskQuestion,
    Changes,
    Failed,
    OutOfMemory,
    Outward,
    OverBudget,
    Question,
    Reply,
    SkippedObject,
    claims_of,
    pods_of,
)
from draco.controller.workers.process import FleetProcessHandle, ProcessEnded, WorkerProcess
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.retry import Backoff

log = structlog.get_logger(__name__)

_CHANGES_AT_ONCE: Final = 64
_LONG_CHARACTERS: Final = 2000
"""Selectors of so many characters together may well be costly; what people write has a few hundred."""
_REMEMBERED: Final = 4096
_FAILED_FOR_S: Final = 300.0
_TWICE: Final = 2
_LATE_S: Final = 5.0
"""How much later than a child's deadline the fleet process itself counts as hung."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many questions are answered at once, and what one may take on up to `devices` devices; on more, so much more."""

    places: int = 2
    """Questions with a short budget that are answered at once; beside them one review, and one question with a long budget."""
    short_cpu_s: float = 0.15
    short_wall_s: float = 5.0
    long_cpu_s: float = 2.0
    long_wall_s: float = 15.0
    devices: int = 50_000


class Answered(msgspec.Struct, frozen=True):
    """What came of a question, about the cluster as of `version`, and the CPU time that it took."""

    answer: Answer
    version: int
    cpu_s: float


class WorkerPool(Protocol):
    """Who answers questions: `Workers`."""

    @property
    def long_cpu_s(self) -> float:
        """What a question may take at most."""
        ...

    def may_ask(self, namespace: str) -> bool:
        """Whether the namespace has some of its budget left."""
        ...

    async def ask(self, question: Question, namespace: str, urgency: QueuePriority) -> Answered:
        """The answer by the cluster as it is now or later. OverBudget, OutOfMemory and Failed are answers too."""
        ...

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        """The answer, if it comes in time."""
        ...


class WorkerCounts(msgspec.Struct):
    """What happened so far, for metrics."""

    answered: int = 0
    too_costly: int = 0
    remembered: int = 0
    failed: int = 0
    cpu_s: float = 0.0
    killed: int = 0
    restarts: int = 0


class _Pending:
    """A question that somebody waits for."""

    def __init__(self, question: Question, namespace: str, urgency: QueuePriority, version: int, key: bytes) -> None:
        self.question = question
        self.namespace = namespace
        self.urgency = urgency
        self.version = version
        self.key = key
        self.is_long = False
        self.failures = 0
        self.cpu_s = 0.0
        self.asked_s = 0.0
        self.scale = 1.0
        self.future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()


class Workers:
    """Questions about the fleet that `followed` follows. They are answered while `run` runs."""

    def __init__(
        self,
        followed: FollowedFleet,
        *,
        clock: Clock,
        settings: WorkerSettings | None = None,
        start: Callable[[], Awaitable[WorkerProcess]] = FleetProcessHandle.start,
    ) -> None:
        self._followed = followed
        self._clock = clock
        self._settings = settings or WorkerSettings()
        self._start = start
        self._short: FairQueue[_Pending] = FairQueue()
        self._long: FairQueue[_Pending] = FairQueue()
        self._running: dict[int, _Pending] = {}
        self._number = 0
        self._costly: LRUCache[bytes, tuple[Answer, float]] = LRUCache(_REMEMBERED)
        self._wake = asyncio.Event()
        self.counts = WorkerCounts()
        followed.when_unsaid.add(self._wake.set)

    @property
    def waiting(self) -> int:
        """How many questions wait for their turn."""
        return len(self._short) + len(self._long)

    @property
    def long_cpu_s(self) -> float:
        """What a question may take at most."""
        return self._settings.long_cpu_s * self._scale

    @property
    def _scale(self) -> float:
        return max(1.0, self._followed.devices / self._settings.devices)

    def may_ask(self, namespace: str) -> bool:
        """Whether the namespace has some of its budget left."""
        return self._short.may_ask(namespace, self._clock.monotonic())

    async def ask(self, question: Question, namespace: str, urgency: QueuePriority) -> Answered:
        """The answer by the cluster as it is now or later. OverBudget, OutOfMemory and Failed are answers too."""
        key = self._key(question)
        known = self._costly.get(key)
        if known is not None and self._clock.monotonic() < known[1]:
            self.counts.remembered += 1
            return Answered(known[0], self._followed.version, 0.0)
        pending = _Pending(question, namespace, urgency, self._followed.version, key)
        pending.is_long = urgency is not QueuePriority.REVIEW and _length(question) > _LONG_CHARACTERS
        self._queue_of(pending).put(pending, namespace, urgency)
        self._wake.set()
        try:
            return await pending.future
        finally:
            self._short.discard(pending, namespace, urgency)
            self._long.discard(pending, namespace, urgency)

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        """The answer, if it comes in time."""
        asking = asyncio.create_task(self.ask(question, namespace, urgency))
        waiting = asyncio.create_task(self._clock.sleep(within_s))
        try:
            await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)

    async def run(self) -> None:
        """Keep a fleet process at work until cancelled."""
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
        self._followed.say_all_again()
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

    async def _hear(self, process: WorkerProcess) -> None:
        async for messages in process.replies():
            for message in messages:
                self._take(message)

    def _take(self, message: Outward) -> None:
        if isinstance(message, SkippedObject):
            self._followed.left_out(message)
            return
        pending = self._running.pop(message.number, None)
        if pending is not None:
            self._finish(pending, message)
        self._wake.set()

    async def _speak(self, process: WorkerProcess) -> None:
        await process.send(self._followed.next_changes(_CHANGES_AT_ONCE))  # the version at least
        while True:
            self._wake.clear()
            messages: list[Changes | AskQuestion] = []
            if self._followed.is_unsaid:
                messages.append(self._followed.next_changes(_CHANGES_AT_ONCE))
            if not self._followed.is_unsaid:  # each question is about all that was known when it was asked
                messages += self._next_questions()
            for message in messages:
                await process.send(message)
            if not messages:
                await wait_for(self._wake, self._clock, self._patience_s())
                self._check_lateness()

    def _patience_s(self) -> float | None:
        now_s = self._clock.monotonic()
        waits = [each.asked_s + self._wall_s(each) + _LATE_S - now_s for each in self._running.values()]
        if self._places_left(is_long=False) > 0 and (due_s := self._short.due_in_s(now_s)) is not None:
            waits.append(due_s)
        if self._places_left(is_long=True) > 0 and (due_s := self._long.due_in_s(now_s)) is not None:
            waits.append(due_s)
        return max(0.0, min(waits)) if waits else None

    def _check_lateness(self) -> None:
        now_s = self._clock.monotonic()
        for each in self._running.values():
            if now_s >= each.asked_s + self._wall_s(each) + _LATE_S:
                raise ProcessEnded("the process that holds the fleet does not answer")

    def _next_questions(self) -> list[AskQuestion]:
        """The questions whose turn it is."""
        questions = []
        while (pending := self._next()) is not None:
            if (
                pending.future.done() and not pending.is_long
            ):  # of the others it is to be known whether they are too costly
                queue = self._queue_of(pending)
                queue.finished(pending.namespace, pending.urgency, 0.0, self._clock.monotonic())
                continue
            questions.append(self._ask(pending))
        return questions

    def _next(self) -> _Pending | None:
        now_s = self._clock.monotonic()
        short = self._places_left(is_long=False)
        found = None
        if short > 0:
            found = self._short.take(now_s)
        elif short == 0:
            found = self._short.take(now_s, least_urgent=QueuePriority.REVIEW)
        if found is None and self._places_left(is_long=True) > 0:
            found = self._long.take(now_s)
        return found

    def _places_left(self, *, is_long: bool) -> int:
        taken = sum(each.is_long is is_long for each in self._running.values())
        return (1 if is_long else self._settings.places) - taken

    def _ask(self, pending: _Pending) -> AskQuestion:
        now_s = self._clock.monotonic()
        self._number += 1
        self._running[self._number] = pending
        pending.asked_s = now_s
        pending.scale = self._scale
        self._queue_of(pending).hold(pending.namespace, self._cpu_s(pending), now_s)
        cpu_s, wall_s = self._cpu_s(pending), self._wall_s(pending)
        return AskQuestion(self._number, pending.question, pending.version, cpu_s, wall_s, pending.is_long)

    def _queue_of(self, pending: _Pending) -> FairQueue[_Pending]:
        return self._long if pending.is_long else self._short

    def _cpu_s(self, pending: _Pending) -> float:
        return pending.scale * (self._settings.long_cpu_s if pending.is_long else self._settings.short_cpu_s)

    def _wall_s(self, pending: _Pending) -> float:
        return pending.scale * (self._settings.long_wall_s if pending.is_long else self._settings.short_wall_s)

    def _finish(self, pending: _Pending, reply: Reply) -> None:
        """It has been answered, or will be asked once more."""
        now_s = self._clock.monotonic()
        queue = self._queue_of(pending)
        queue.hold(pending.namespace, -self._cpu_s(pending), now_s)
        # A process that was killed does not say what it took.
        took_s = self._cpu_s(pending) if isinstance(reply.answer, Failed) else reply.cpu_s
        queue.finished(pending.namespace, pending.urgency, took_s, now_s)
        pending.cpu_s += took_s
        self.counts.cpu_s += took_s
        match reply.answer:
            case OverBudget() if not pending.is_long:
                pending.is_long = True
                self._long.put(pending, pending.namespace, pending.urgency)
                return
            case OverBudget() | OutOfMemory():
                self.counts.too_costly += 1
                self._costly[pending.key] = (reply.answer, float("inf"))
            case Failed(why):
                pending.failures += 1
                self.counts.killed += 1
                log.warning("workers.question_failed", namespace=pending.namespace, error=why, times=pending.failures)
                if pending.failures < _TWICE:
                    queue.put(pending, pending.namespace, pending.urgency)
                    return
                self.counts.failed += 1
                self._costly[pending.key] = (reply.answer, now_s + _FAILED_FOR_S)
            case _:
                self.counts.answered += 1
        if not pending.future.done():
            pending.future.set_result(Answered(reply.answer, reply.version, pending.cpu_s))

    def _ask_again(self, why: str) -> None:
        """What was being answered when the fleet process ended may be what ended it."""
        running, self._running = self._running, {}
        for pending in running.values():
            self._finish(pending, Reply(0, Failed(why), 0, 0.0))

    def _key(self, question: Question) -> bytes:
        """What the cost of a question depends on, but for the fleet: the same for all pods of one Deployment."""
        claims = claims_of(question)
        names = {
            asked.device_class_name
            for claim in claims
            for request in claim.spec.devices.requests
            for asked in (request.exactly, *request.first_available)
            if asked is not None
        }
        classes = [self._followed.class_spec(name) for name in sorted(names)]
        of_pods = [(pod.spec.node_selector, pod.spec.affinity, pod.spec.tolerations) for pod in pods_of(question)]
        kind = type(question).__name__
        whole = msgspec.msgpack.encode((kind, [claim.spec for claim in claims], classes, of_pods))
        return hashlib.blake2b(whole, digest_size=16).digest()


def _length(question: Question) -> int:
    """The characters of all selectors that the question's claims bring along."""
    return sum(
        len(selector.cel.expression)
        for claim in claims_of(question)
        for request in claim.spec.devices.requests
        for asked in (request.exactly, *request.first_available)
        if asked is not None
        for selector in asked.selectors
        if selector.cel is not None
    )
