"""Reports why a reservation's claims have no devices yet, in the explainer's words.

Owns when to ask: about one claim of a reservation, after it has waited for a moment and then periodically, at the lowest priority
and on its namespace's budget. Workers answer, because selectors are evaluated; nobody waits for the answer, and listeners are
called when it arrives. Each namespace has one open question, so that one without budget does not block others.
"""

import asyncio
from typing import Final

import msgspec

from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import ExplainPending, Failed, OutOfMemory, OverBudget, PendingAnswer, refusal
from draco.controller.workers.pool import Workers
from draco.explanation.model import PendingReason
from draco.kube.clock import Clock
from draco.kube.listeners import Listeners
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta

_AFTER_S: Final = 1.0
_EVERY_S: Final = 20.0
_WITHIN_S: Final = 10.0
_AT_ONCE: Final = 4


class _Waiting(msgspec.Struct):
    since_s: float
    asked_s: float = float("-inf")
    text: str = ""


class WaitingReasons:
    """Reasons by reservation. Questions are asked while `run` runs."""

    def __init__(self, workers: Workers, *, clock: Clock, minor: int | None) -> None:
        self._workers = workers
        self._clock = clock
        self._minor = minor
        self._waiting: dict[ObjectKey, _Waiting] = {}
        self._questions: dict[ObjectKey, ResourceClaim] = {}
        """Questions not asked yet, oldest first."""
        self._asking: set[str] = set()
        """Namespaces with an open question."""
        self._work = asyncio.Event()
        self.when_known = Listeners[[ObjectKey]]()
        """Called with a reservation whose reason changes."""

    next_s = _AFTER_S
    """Interval of questions while something waits."""

    def forget(self, key: ObjectKey) -> None:
        """Forget a reservation that no longer waits."""
        self._waiting.pop(key, None)
        self._questions.pop(key, None)

    def of(self, key: ObjectKey, claim: ResourceClaim) -> str:
        """Why the reservation's claim waits; "" if not known yet."""
        now_s = self._clock.monotonic()
        waiting = self._waiting.setdefault(key, _Waiting(now_s))
        if now_s - waiting.since_s >= _AFTER_S and now_s - waiting.asked_s >= _EVERY_S:
            waiting.asked_s = now_s
            self._questions[key] = claim
            self._work.set()
        return waiting.text

    async def run(self) -> None:
        """Ask, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._ask())

    async def _ask(self) -> None:
        while True:
            key = next((each for each in self._questions if each.namespace not in self._asking), None)
            if key is None:
                self._work.clear()
                await self._work.wait()
                continue
            self._asking.add(key.namespace)
            text = await self._answer(self._questions.pop(key))
            self._asking.discard(key.namespace)
            self._work.set()
            self._heard(key, text)

    def _heard(self, key: ObjectKey, text: str) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None and text and text != waiting.text:
            waiting.text = text
            self.when_known.tell(key)

    async def _answer(self, claim: ResourceClaim) -> str:
        meta = ObjectMeta(name=claim.metadata.name, namespace=claim.metadata.namespace)
        question = ExplainPending(Pod(metadata=meta), [claim], "", self._minor)
        answered = await self._workers.ask_within(question, meta.namespace, QueuePriority.AGAIN, _WITHIN_S)
        match answered.answer if answered else None:
            case PendingAnswer(reason=PendingReason.FITS):
                together = "one of them would fit, but all are to get devices together"
                return f"{together}: see the Event GroupWaiting of claim {meta.name}."
            case PendingAnswer(text=text):
                return text
            case OverBudget() | OutOfMemory() | Failed() as cause:
                return refusal(cause, [claim], self._workers.long_cpu_s)
            case _:
                return ""
