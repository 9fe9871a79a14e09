"""Explanations of waiting pods, kept as fresh as the budget allows.

Owns when to ask for an explanation again; worker processes make it, and share their time between namespaces. Nothing here waits
for an answer: callers get what is known, and are woken when it changes. The limits:

- All changes within `_COLLECT_S` count as one.
- Because of changes elsewhere, a pod is explained at most once in `_AT_MOST_EVERY_S`; the stalest of each namespace comes first.
  This takes at most half of one processor, however many pods wait and however much changes.
- Pods that ask the same question, such as those of one Job or Deployment, share one explanation.
- Explanations are not made faster than their results are written: `backlog` says how many writes are pending.
- Of a pod only its name and a digest of its question are kept; it is read when its question's turn comes. `forget` removes both,
  and takes the question out of the workers' queue if nobody else asks it.
- Per namespace, at most `_ASKED_AT_ONCE` first questions and `IN_A_ROW` repeated ones are with the workers.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import structlog

from draco.allocation.ownership.gangs import gang_of
from draco.controller.claims.pod_questions import asked_by, question_of, scheduler_says
from draco.controller.workers import messages
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.places import IN_A_ROW, Answered, ReadQuestion
from draco.controller.workers.pool import Workers
from draco.kube.clock import Clock
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey

log = structlog.get_logger(__name__)

_COLLECT_S = 0.1
_AT_MOST_EVERY_S = 0.5
_LONGEST_BACKLOG = 8
_BACKLOG_PAUSE_S = 0.05
_ASKED_AT_ONCE = 64


class _Topic(msgspec.Struct, eq=False):
    """A question and all pods that ask it. `explanation` is None before the first answer."""

    key: bytes
    namespace: str
    pods: dict[ObjectKey, None] = msgspec.field(default_factory=dict)
    explanation: messages.PendingAnswer | None = None
    version: int = -1
    at_s: float = 0.0
    of_all: bytes = b""
    """The shared question from which this one was split."""
    asking: "asyncio.Task[Answered | None] | None" = None


class _Division(msgspec.Struct, eq=False):
    """A question whose answer names the asking pod or group: each asks separately, in these topics."""

    is_by_pod: bool
    topics: set[bytes] = msgspec.field(default_factory=set)


class _Namespace(msgspec.Struct, eq=False):
    """The answered questions of one namespace, stalest first, and the event that wakes its refresher."""

    topics: OrderedDict[bytes, _Topic] = msgspec.field(default_factory=OrderedDict)
    asked: set[bytes] = msgspec.field(default_factory=set)
    """Those that are with the workers again."""
    wake: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


PodWithClaims = tuple[Pod, Sequence[ResourceClaim]]


class Explanations:
    """One explanation per waiting pod, for kube-scheduler 1.`minor` (None: unknown)."""

    def __init__(self, followed: FollowedFleet, workers: Workers, *, clock: Clock, minor: int | None = None) -> None:
        self._followed = followed
        self._workers = workers
        self._clock = clock
        self._minor = minor
        self._topics: dict[bytes, _Topic] = {}
        self._topic_of: dict[ObjectKey, _Topic] = {}
        self._answered: dict[str, _Namespace] = {}
        self._divided: dict[bytes, _Division] = {}
        self._new: dict[str, OrderedDict[bytes, _Topic]] = {}  # by namespace, oldest first
        self._asked: Counter[str] = Counter()  # first questions with the workers
        self._unkept: set[str] = set()  # namespaces with answers that no task refreshes yet
        self._work = asyncio.Event()
        followed.listeners.add(self._on_change)

    def of(self, pod: Pod, claims: Sequence[ResourceClaim]) -> messages.PendingAnswer | None:
        """The explanation of exactly this question; if there is none, ask for it, and call `changed` with the answer."""
        key = pod.metadata.key
        question = question_of(pod, claims)
        division = self._divided.get(question)
        own = _own(question, division, pod)
        topic = self._topics.get(own)
        if topic is None:
            topic = self._topics[own] = _Topic(own, key.namespace)
            if division is not None:
                topic.of_all = question
                division.topics.add(own)
            self._new.setdefault(key.namespace, OrderedDict())[own] = topic
            self._work.set()
        if self._topic_of.get(key) is not topic:
            self.forget(key)
            topic.pods[key] = None
            self._topic_of[key] = topic
        return topic.explanation

    def forget(self, key: ObjectKey) -> None:
        """Forget the pod of that name: it no longer waits."""
        topic = self._topic_of.pop(key, None)
        if topic is not None:
            topic.pods.pop(key, None)
            if not topic.pods:
                self._drop(topic)

    async def keep_fresh(
        self,
        waiting: Callable[[ObjectKey], PodWithClaims | None],
        changed: Callable[[Pod], None],
        backlog: Callable[[], int],
    ) -> None:
        """Answer new questions and refresh outdated answers, forever. `waiting` reads a pod; `changed` gets each changed one."""
        asker = _Asker(waiting, changed, backlog)
        async with asyncio.TaskGroup() as group:
            while True:
                for topic in self._next_first():
                    group.create_task(self._explain_first(topic, asker))
                while self._unkept:
                    group.create_task(self._keep_namespace(self._unkept.pop(), asker, group))
                await self._work.wait()
                self._work.clear()

    def _next_first(self) -> Iterator[_Topic]:
        """The new questions to ask now."""
        for namespace in list(self._new):
            topics = self._new[namespace]
            while topics and self._asked[namespace] < _ASKED_AT_ONCE:
                self._asked[namespace] += 1
                yield topics.popitem(last=False)[1]
            if not topics:
                del self._new[namespace]

    async def _explain_first(self, topic: _Topic, asker: "_Asker") -> None:
        try:
            if await self._explain(topic, asker, QueuePriority.FIRST):
                self._tell(topic, asker)
        except Exception:
            # A failing question must not stop the others.
            log.exception("explaining.failed", pod=str(next(iter(topic.pods), "")))
            self._drop(topic)
        finally:
            self._asked[topic.namespace] -= 1
            if not self._asked[topic.namespace]:
                del self._asked[topic.namespace]
            self._work.set()

    async def _keep_namespace(self, namespace: str, asker: "_Asker", group: asyncio.TaskGroup) -> None:
        """Refresh the answers of a namespace, a few at a time, until none of its pods asks anything."""
        answered = self._answered[namespace]
        while answered.topics or answered.asked:
            answered.wake.clear()
            oldest = self._oldest(answered)
            if oldest is None:
                await answered.wake.wait()
                if answered.topics:
                    await self._clock.sleep(_COLLECT_S)
            elif len(answered.asked) >= IN_A_ROW:
                await answered.wake.wait()
            elif asker.backlog() > _LONGEST_BACKLOG:
                await self._clock.sleep(_BACKLOG_PAUSE_S)
            elif (early_s := oldest.at_s + _AT_MOST_EVERY_S - self._clock.monotonic()) > 0:
                await self._clock.sleep(early_s)
            else:
                answered.asked.add(oldest.key)
                group.create_task(self._explain_again(oldest, asker, answered))
        del self._answered[namespace]

    def _oldest(self, answered: _Namespace) -> _Topic | None:
        """The stalest outdated question that is not with the workers."""
        version = self._followed.version
        topics = answered.topics.values()
        return next((each for each in topics if each.version < version and each.key not in answered.asked), None)

    async def _explain_again(self, topic: _Topic, asker: "_Asker", answered: _Namespace) -> None:
        before = topic.explanation
        try:
            if await self._explain(topic, asker, QueuePriority.AGAIN) and topic.explanation != before:
                self._tell(topic, asker)
        except Exception:
            log.exception("explaining.failed", pod=str(next(iter(topic.pods), "")))
            self._tell(topic, asker)  # its reconcile asks again
            self._drop(topic)
        finally:
            answered.asked.discard(topic.key)
            answered.wake.set()

    def _still_asked(self, topic: _Topic, asker: "_Asker") -> PodWithClaims | None:
        """A pod that still asks this; pods that do not are removed."""
        for key in list(topic.pods):
            if (waiting := self._asks(key, topic, asker)) is not None:
                return waiting
            self.forget(key)
        return None

    def _asks(self, key: ObjectKey, topic: _Topic, asker: "_Asker") -> PodWithClaims | None:
        """The pod of that name, if it asks this."""
        waiting = asker.waiting(key)
        if waiting is None:
            return None
        question = question_of(*waiting)
        asks = {question, asked_by(question, key), asked_by(question, gang_of(waiting[0]))}
        return waiting if topic.key in asks else None

    async def _explain(self, topic: _Topic, asker: "_Asker", urgency: QueuePriority) -> bool:
        """Have the question answered. Return whether it was and somebody still asks it."""
        whose: ObjectKey | None = None

        def read() -> messages.Question | None:
            nonlocal whose
            if (waiting := self._still_asked(topic, asker)) is None:
                return None
            pod, claims = waiting
            whose = pod.metadata.key
            return messages.ExplainPending(pod, list(claims), scheduler_says(pod), self._minor)

        while self._topics.get(topic.key) is topic:
            answered = await self._ask(topic, read, urgency)
            if answered is None or whose is None:
                self._drop(topic)
                return False
            # An answer may name its pod: if that pod is gone, it does not serve the others.
            if (waiting := self._asks(whose, topic, asker)) is not None and whose in topic.pods:
                self._answer(topic, answered, waiting)
                return True
        return False

    async def _ask(self, topic: _Topic, read: ReadQuestion, urgency: QueuePriority) -> Answered | None:
        """Ask the workers; None if the topic is dropped meanwhile."""
        asking = topic.asking = asyncio.create_task(self._workers.ask(read, topic.namespace, urgency))
        try:
            await asyncio.wait([asking])
        finally:
            topic.asking = None
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        return None if asking.cancelled() else asking.result()

    def _answer(self, topic: _Topic, answered: Answered, waiting: PodWithClaims) -> None:
        pod, claims = waiting
        topic.explanation = self._explanation_of(answered, claims)
        topic.version = answered.version
        topic.at_s = self._clock.monotonic()
        known = self._answered.get(topic.namespace)
        if known is None:
            known = self._answered[topic.namespace] = _Namespace()
            self._unkept.add(topic.namespace)
            self._work.set()
        self._put(topic, known)
        if topic.key != question_of(pod, claims):
            return
        if topic.explanation.names_subject or topic.explanation.names_group:
            self._divide(topic, pod, is_by_pod=topic.explanation.names_subject)

    def _put(self, topic: _Topic, answered: _Namespace) -> None:
        """Put the topic last in the refresh order, though things may have changed since it was asked."""
        answered.topics[topic.key] = topic
        answered.topics.move_to_end(topic.key)
        answered.wake.set()

    def _divide(self, topic: _Topic, pod: Pod, *, is_by_pod: bool) -> None:
        """The answer holds for that pod or its group only: the others must ask separately."""
        key = pod.metadata.key
        division = self._divided[topic.key] = _Division(is_by_pod)
        own = _Topic(
            _own(topic.key, division, pod), topic.namespace, {key: None}, topic.explanation, topic.version, topic.at_s
        )
        own.of_all = topic.key
        division.topics.add(own.key)
        self._topics[own.key] = own
        self._put(own, self._answered[own.namespace])
        self._drop(topic)  # its pods stay listed, to be told: the others then ask for themselves
        self._topic_of[key] = own

    def _tell(self, topic: _Topic, asker: "_Asker") -> None:
        for key in list(topic.pods):
            waiting = asker.waiting(key)
            if waiting is not None:
                asker.changed(waiting[0])

    def _drop(self, topic: _Topic) -> None:
        """Remove a topic that nobody asks any more."""
        if topic.asking is not None:
            topic.asking.cancel()
        for key in topic.pods:
            if self._topic_of.get(key) is topic:
                del self._topic_of[key]
        if self._topics.get(topic.key) is not topic:
            return
        del self._topics[topic.key]
        if (new := self._new.get(topic.namespace)) is not None:
            new.pop(topic.key, None)
        if (answered := self._answered.get(topic.namespace)) is not None:
            answered.topics.pop(topic.key, None)
            if not answered.topics:
                answered.wake.set()
        if (division := self._divided.get(topic.of_all)) is not None:
            division.topics.discard(topic.key)
            if not division.topics:
                del self._divided[topic.of_all]

    def _explanation_of(self, answered: Answered, claims: Sequence[ResourceClaim]) -> messages.PendingAnswer:
        match answered.answer:
            case messages.PendingAnswer() as answer:
                return answer
            case messages.OverBudget() | messages.OutOfMemory() as costly:
                why = messages.refusal(costly, claims, self._workers.long_cpu_s)
                selector = costly.selector if isinstance(costly, messages.OverBudget) else None
                names_subject = selector is not None and not selector.device_class
                text = f"Too costly to explain: {why}."
                return messages.PendingAnswer(text, messages.TOO_COSTLY, names_subject=names_subject)
            case messages.Failed() as failed:
                why = messages.refusal(failed, claims, self._workers.long_cpu_s)
                return messages.PendingAnswer(f"Cannot be explained: {why}.", messages.UNKNOWN)
        raise TypeError(f"{answered.answer} is the answer to another question")

    def _on_change(self) -> None:
        for each in self._answered.values():
            each.wake.set()


class _Asker(NamedTuple):
    waiting: Callable[[ObjectKey], PodWithClaims | None]
    changed: Callable[[Pod], None]
    backlog: Callable[[], int]


def _own(question: bytes, division: _Division | None, pod: Pod) -> bytes:
    """The question, made specific to the pod or its group if the answer names them."""
    if division is None:
        return question
    return asked_by(question, pod.metadata.key if division.is_by_pod else gang_of(pod))
