"""Explanations of the pods that wait, kept as young as can be afforded.

Owns when an explanation is asked for again; the workers make it, in processes of their own, and share them between namespaces.
Nothing here waits for an answer: what is known is said, and who asked is woken when something else is to be said. The bounds:

- After a change, everything that arrives within `_COLLECT_S` is one change.
- One pod is explained at most once in `_AT_MOST_EVERY_S` because of changes elsewhere; of each namespace, the longest unexplained
  comes first. All of that takes half of one processor at most, however many pods wait and however much changes.
- Pods that ask for the same, as those of one Job or Deployment do, share one explanation.
- Nothing is explained again faster than the results are written: `backlog` says how much of that is still to do.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog

from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.controller.workers import messages
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.pool import Answered, WorkerPool
from draco.kube.clock import Clock
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey

log = structlog.get_logger(__name__)

_COLLECT_S = 0.1
_AT_MOST_EVERY_S = 0.5
_LONGEST_BACKLOG = 8
_BACKLOG_PAUSE_S = 0.05
_REMEMBERED = 4096


class PodExplanation(msgspec.Struct, frozen=True):
    """What is said of one pod, its main cause in one word, and what a new node would have to have."""

    text: str
    reason: str
    unmet: tuple[messages.UnmetDevices, ...] = ()


class _Topic(msgspec.Struct, eq=False):
    """One question, and all pods that ask it. `explanation` is None until it is answered for the first time."""

    key: bytes
    namespace: str
    pods: dict[ObjectKey, None] = msgspec.field(default_factory=dict)
    explanation: PodExplanation | None = None
    version: int = -1
    at_s: float = 0.0


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
        self._answered: dict[str, OrderedDict[bytes, _Topic]] = {}  # by namespace, the longest unexplained first
        self._personal: set[bytes] = set()  # questions whose answers name the pod
        self._of_groups: set[bytes] = set()  # and those whose answers name the pod's group
        self._new: deque[tuple[_Topic, PodWithClaims]] = deque()
        self._unkept: set[str] = set()  # namespaces with answers that nobody keeps young yet
        self._work = asyncio.Event()
        self._change = asyncio.Event()
        followed.listeners.add(self._on_change)

    def of(self, pod: Pod, claims: Sequence[ResourceClaim]) -> PodExplanation | None:
        """The explanation, if there is one for just this question; else it is asked for, and `changed` called with the answer."""
        key = pod.metadata.key
        question = self._own(_question(pod, claims), pod)
        topic = self._topics.get(question)
        if topic is None:
            topic = self._topics[question] = _Topic(question, key.namespace)
            self._new.append((topic, (pod, claims)))
            self._work.set()
        before = self._topic_of.get(key)
        if before is not topic:
            self._forget(key)
            topic.pods[key] = None
            self._topic_of[key] = topic
        return topic.explanation

    def _own(self, question: bytes, pod: Pod) -> bytes:
        """The question, or the same asked by nobody else, where the answer names who asks."""
        if question in self._personal:
            return _of(question, pod.metadata.key)
        return _of(question, gang_of(pod)) if question in self._of_groups else question

    async def keep_young(
        self,
        waiting: Callable[[ObjectKey], PodWithClaims | None],
        changed: Callable[[Pod], None],
        backlog: Callable[[], int],
    ) -> None:
        """Have explained what is asked for, and again what was explained before the last change, for ever.

        `waiting` gives the pod of that name with its claims, if it still waits; `changed` is called for each pod of which
        something else is to be said now.
        """
        young = _Young(waiting, changed, backlog)
        async with asyncio.TaskGroup() as group:
            while True:
                while self._new:
                    group.create_task(self._explain_first(*self._new.popleft(), young))
                while self._unkept:
                    group.create_task(self._keep_namespace(self._unkept.pop(), young))
                await self._work.wait()
                self._work.clear()

    async def _explain_first(self, topic: _Topic, waiting: PodWithClaims, young: "_Young") -> None:
        try:
            await self._explain(topic, waiting, QueuePriority.FIRST)
        except Exception:
            # One question's fault must not stop the others.
            log.exception("explaining.failed", pod=str(waiting[0].metadata.key))
            self._drop(topic)
            return
        self._tell(topic, young)

    async def _keep_namespace(self, namespace: str, young: "_Young") -> None:
        """Explain again, one after the other, what pods of the namespace ask, until none of them asks anything."""
        topics = self._answered[namespace]
        while topics:
            change = self._change
            oldest = next(iter(topics.values()))
            early_s = oldest.at_s + _AT_MOST_EVERY_S - self._clock.monotonic()
            if oldest.version >= self._followed.version:
                await change.wait()
                await self._clock.sleep(_COLLECT_S)
            elif young.backlog() > _LONGEST_BACKLOG:
                await self._clock.sleep(_BACKLOG_PAUSE_S)
            elif early_s > 0:
                await self._clock.sleep(early_s)
            else:
                await self._explain_again(oldest, young)
        del self._answered[namespace]

    async def _explain_again(self, topic: _Topic, young: "_Young") -> None:
        waiting = self._still_asked(topic, young)
        if waiting is None:
            self._drop(topic)
            return
        before = topic.explanation
        try:
            await self._explain(topic, waiting, QueuePriority.AGAIN)
        except Exception:
            log.exception("explaining.failed", pod=str(waiting[0].metadata.key))
            self._tell(topic, young)  # whose reconciliation asks again
            self._drop(topic)
            return
        if topic.explanation != before:
            self._tell(topic, young)

    def _still_asked(self, topic: _Topic, young: "_Young") -> PodWithClaims | None:
        """A pod that still asks this; others are let go."""
        for key in list(topic.pods):
            waiting = young.waiting(key)
            if waiting is not None:
                question = _question(*waiting)
                if topic.key in {question, _of(question, key), _of(question, gang_of(waiting[0]))}:
                    return waiting
            self._forget(key)
        return None

    async def _explain(self, topic: _Topic, waiting: PodWithClaims, urgency: QueuePriority) -> None:
        pod, claims = waiting
        question = messages.ExplainPending(pod, list(claims), scheduler_says(pod), self._minor)
        answered = await self._workers.ask(question, topic.namespace, urgency)
        topic.explanation = self._explanation_of(answered, claims)
        topic.version = answered.version
        topic.at_s = self._clock.monotonic()
        if self._topics.get(topic.key) is not topic:
            return  # nobody asks this any more
        known = self._answered.get(topic.namespace)
        if known is None:
            known = self._answered[topic.namespace] = OrderedDict()
            self._unkept.add(topic.namespace)
            self._work.set()
        known[topic.key] = topic
        known.move_to_end(topic.key)
        if topic.key != _question(pod, claims):
            return
        text, gang = topic.explanation.text, gang_of(pod)
        if _names_itself(text, pod, claims):
            self._divide(topic, pod, self._personal)
        elif gang is not None and str(gang) in text:
            self._divide(topic, pod, self._of_groups)

    def _divide(self, topic: _Topic, pod: Pod, divided: set[bytes]) -> None:
        """What was answered is true of that pod only, or of its group: the others are to be asked about for themselves."""
        if len(divided) >= _REMEMBERED:
            divided.clear()
        divided.add(topic.key)
        key = pod.metadata.key
        own = _Topic(
            self._own(topic.key, pod), topic.namespace, {key: None}, topic.explanation, topic.version, topic.at_s
        )
        self._drop(topic)
        self._topics[own.key] = self._topic_of[key] = own
        self._answered[own.namespace][own.key] = own

    def _tell(self, topic: _Topic, young: "_Young") -> None:
        for key in list(topic.pods):
            waiting = young.waiting(key)
            if waiting is not None:
                young.changed(waiting[0])

    def _forget(self, key: ObjectKey) -> None:
        topic = self._topic_of.pop(key, None)
        if topic is not None:
            topic.pods.pop(key, None)

    def _drop(self, topic: _Topic) -> None:
        self._topics.pop(topic.key, None)
        if topic.namespace in self._answered:
            self._answered[topic.namespace].pop(topic.key, None)
        for key in topic.pods:
            if self._topic_of.get(key) is topic:
                del self._topic_of[key]

    def _explanation_of(self, answered: Answered, claims: Sequence[ResourceClaim]) -> PodExplanation:
        match answered.answer:
            case messages.PendingAnswer(text, reason, unmet):
                return PodExplanation(text, reason, tuple(unmet))
            case messages.OverBudget() | messages.OutOfMemory() as costly:
                why = messages.refusal(costly, claims, self._workers.long_cpu_s)
                return PodExplanation(f"Too costly to explain: {why}.", messages.TOO_COSTLY)
            case messages.Failed() as failed:
                why = messages.refusal(failed, claims, self._workers.long_cpu_s)
                return PodExplanation(f"Cannot be explained: {why}.", messages.UNKNOWN)
        raise TypeError(f"{answered.answer} is the answer to another question")

    def _on_change(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()


class _Young(NamedTuple):
    """What `keep_young` was given."""

    waiting: Callable[[ObjectKey], PodWithClaims | None]
    changed: Callable[[Pod], None]
    backlog: Callable[[], int]


def scheduler_says(pod: Pod) -> str:
    """What kube-scheduler last said of the pod."""
    return pod.scheduled.message if pod.scheduled else ""


def _question(pod: Pod, claims: Sequence[ResourceClaim]) -> bytes:
    """Stands for everything of the pod and its claims that an explanation depends on; equal for pods that ask for the same."""
    spec = pod.spec
    asked = (
        [(claim.spec, claim.status, claim.metadata.deletion_timestamp) for claim in claims],
        (
            spec.node_name,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.scheduler_name,
            spec.scheduling_gates,
        ),
        spec.resource_claims if len(claims) < len(spec.resource_claims) else (),
        scheduler_says(pod),
        gang_of(pod) is not None,
        pod.metadata.namespace,
    )
    return _digest(msgspec.json.encode(asked))


def _of(question: bytes, whose: ObjectKey | GangKey | None) -> bytes:
    """The question, asked by that pod only, or by pods of that group."""
    return _digest(question + str(whose).encode())


def _digest(whole: bytes) -> bytes:
    return hashlib.blake2b(whole, digest_size=16).digest()


def _names_itself(text: str, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
    """Whether an explanation names the very pod or its claims, and so would be wrong of another that asks for the same."""
    return any(name in text for name in (pod.metadata.name, *(claim.metadata.name for claim in claims)))
