"""Explanations of the pods that wait, kept as fresh as can be afforded.

Owns when an explanation is asked for again; the workers make it, in processes of their own, and share them between namespaces.
Nothing here waits for an answer: what is known is said, and who asked is woken when something else is to be said. The bounds:

- After a change, everything that arrives within `_COLLECT_S` is one change.
- One pod is explained at most once in `_AT_MOST_EVERY_S` because of changes elsewhere; of each namespace, the longest unexplained
  comes first. All of that takes half of one processor at most, however many pods wait and however much changes.
- Pods that ask for the same, as those of one Job or Deployment do, share one explanation.
- Nothing is explained again faster than the results are written: `backlog` says how much of that is still to do.
- Nothing is kept of a pod but its name and a digest of what it asks: it is read when its question's turn comes. `forget` leaves
  nothing of it, and its question, if nobody else asks that, leaves the workers' queue.
- Of each namespace, `_ASKED_AT_ONCE` first questions and as many others as stand in a row are with the workers at a time.
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
from draco.controller.workers.contract import IN_A_ROW, Answered, ReadQuestion, WorkerPool
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
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
    """One question, and all pods that ask it. `explanation` is None until it is answered for the first time."""

    key: bytes
    namespace: str
    pods: dict[ObjectKey, None] = msgspec.field(default_factory=dict)
    explanation: messages.PendingAnswer | None = None
    version: int = -1
    at_s: float = 0.0
    of_all: bytes = b""
    """The question as it was before it was divided."""
    asking: "asyncio.Task[Answered | None] | None" = None


class _Division(msgspec.Struct, eq=False):
    """A question whose answer names who asks: the pod, or its group. So each asks it for itself, in these topics."""

    is_by_pod: bool
    topics: set[bytes] = msgspec.field(default_factory=set)


class _Namespace(msgspec.Struct, eq=False):
    """What was answered to pods of one namespace, the longest unexplained first, and what wakes who keeps it fresh."""

    topics: OrderedDict[bytes, _Topic] = msgspec.field(default_factory=OrderedDict)
    asked: set[bytes] = msgspec.field(default_factory=set)
    """Which of them are with the workers again."""
    wake: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


PodWithClaims = tuple[Pod, Sequence[ResourceClaim]]
"""A pod that waits, with its claims."""


class Explanations:
    """One explanation for each pod that waits, by a scheduler of Kubernetes 1.`minor` (None: unknown)."""

    def __init__(self, followed: FollowedFleet, workers: WorkerPool, *, clock: Clock, minor: int | None = None) -> None:
        self._followed = followed
        self._workers = workers
        self._clock = clock
        self._minor = minor
        self._topics: dict[bytes, _Topic] = {}
        self._topic_of: dict[ObjectKey, _Topic] = {}
        self._answered: dict[str, _Namespace] = {}
        self._divided: dict[bytes, _Division] = {}
        self._new: dict[str, OrderedDict[bytes, _Topic]] = {}  # by namespace, the oldest first
        self._asked: Counter[str] = Counter()  # first questions that are with the workers
        self._unkept: set[str] = set()  # namespaces with answers that nobody keeps fresh yet
        self._work = asyncio.Event()
        followed.listeners.add(self._on_change)

    def of(self, pod: Pod, claims: Sequence[ResourceClaim]) -> messages.PendingAnswer | None:
        """The explanation, if there is one for just this question; else it is asked for, and `changed` called with the answer."""
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
        """The pod of that name does not wait any more: leave nothing of it."""
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
        """Have explained what is asked for, and again what was explained before the last change, for ever.

        `waiting` gives the pod of that name with its claims, if it still waits; `changed` is called for each pod of which
        something else is to be said now.
        """
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
        """The questions that are to be asked for the first time now."""
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
            # One question's fault must not stop the others.
            log.exception("explaining.failed", pod=str(next(iter(topic.pods), "")))
            self._drop(topic)
        finally:
            self._asked[topic.namespace] -= 1
            if not self._asked[topic.namespace]:
                del self._asked[topic.namespace]
            self._work.set()

    async def _keep_namespace(self, namespace: str, asker: "_Asker", group: asyncio.TaskGroup) -> None:
        """Explain again, a few at a time, what pods of the namespace ask, until none of them asks anything."""
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
        """The longest unexplained of those that something has changed for and that are not asked already."""
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
            self._tell(topic, asker)  # whose reconciliation asks again
            self._drop(topic)
        finally:
            answered.asked.discard(topic.key)
            answered.wake.set()

    def _still_asked(self, topic: _Topic, asker: "_Asker") -> PodWithClaims | None:
        """A pod that still asks this; others are let go."""
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
        """Have it answered. Whether it is, and somebody still asks it."""
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
            # An answer may name who it is about: if that pod has gone, it is no answer to the others.
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
        """It is the latest explained, though something may have changed since it was asked about."""
        answered.topics[topic.key] = topic
        answered.topics.move_to_end(topic.key)
        answered.wake.set()

    def _divide(self, topic: _Topic, pod: Pod, *, is_by_pod: bool) -> None:
        """What was answered is true of that pod only, or of its group: the others are to be asked about for themselves."""
        key = pod.metadata.key
        division = self._divided[topic.key] = _Division(is_by_pod)
        own = _Topic(
            _own(topic.key, division, pod), topic.namespace, {key: None}, topic.explanation, topic.version, topic.at_s
        )
        own.of_all = topic.key
        division.topics.add(own.key)
        self._topics[own.key] = own
        self._put(own, self._answered[own.namespace])
        self._drop(topic)  # its pods stay named in it, to be told: the others ask for themselves then
        self._topic_of[key] = own

    def _tell(self, topic: _Topic, asker: "_Asker") -> None:
        for key in list(topic.pods):
            waiting = asker.waiting(key)
            if waiting is not None:
                asker.changed(waiting[0])

    def _drop(self, topic: _Topic) -> None:
        """Nobody asks it any more."""
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
    """What `keep_fresh` was given."""

    waiting: Callable[[ObjectKey], PodWithClaims | None]
    changed: Callable[[Pod], None]
    backlog: Callable[[], int]


def _own(question: bytes, division: _Division | None, pod: Pod) -> bytes:
    """The question, or the same asked by nobody else, where the answer names who asks."""
    if division is None:
        return question
    return asked_by(question, pod.metadata.key if division.is_by_pod else gang_of(pod))
