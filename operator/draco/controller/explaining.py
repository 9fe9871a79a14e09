"""Explanations of the pods that wait, kept as young as can be afforded.

Owns when an explanation is made anew and how much of the processor goes into that; `draco.explanation` makes it. The bounds:

- After a change, everything that arrives within `_COLLECT_S` is one change.
- One pod is explained at most once in `_AT_MOST_EVERY_S` because of changes elsewhere; the longest unexplained comes first.
- An explanation that took so long is followed by as long a rest, so all of them together take half of one processor at most,
  however many pods wait and however much changes.
- Pods that ask for the same, as those of one Job or Deployment do, share one explanation.
- Nothing is explained anew faster than what came of it is written: `backlog` says how much of that is still to do.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from draco.allocation.fleet import Fleet
from draco.controller.following import FollowedFleet
from draco.explanation.explain import explain
from draco.explanation.model import Explanation
from draco.kube.clock import Clock
from draco.resources.claims import ResourceClaim
from draco.resources.core import Pod
from draco.resources.errors import DracoError
from draco.resources.meta import ObjectKey

log = structlog.get_logger(__name__)

_COLLECT_S = 0.1
_AT_MOST_EVERY_S = 0.5
_REST = 1.0
_LONGEST_BACKLOG = 8
_BACKLOG_PAUSE_S = 0.05


class Explain(Protocol):
    """`draco.explanation.explain`."""

    def __call__(
        self, fleet: Fleet, claims: Sequence[ResourceClaim], *, pod: Pod, scheduler: str, minor: int | None
    ) -> Explanation:
        """Why the claims are not allocated."""
        ...


class Told(msgspec.Struct, frozen=True):
    """What is said of one pod, and its main cause in one word."""

    text: str
    reason: str


class _Explained(msgspec.Struct, frozen=True):
    question: bytes
    told: Told
    version: int
    at_s: float


Asks = tuple[Pod, Sequence[ResourceClaim]]
"""A pod that waits, with its claims."""


class Explanations:
    """One explanation for each pod that waits, by a scheduler of Kubernetes 1.`minor` (None: unknown)."""

    def __init__(
        self, followed: FollowedFleet, *, clock: Clock, minor: int | None = None, explain: Explain = explain
    ) -> None:
        self._followed = followed
        self._explain_claims = explain
        self._clock = clock
        self._minor = minor
        self._explained: OrderedDict[ObjectKey, _Explained] = OrderedDict()  # the longest unexplained first
        self._shared: dict[bytes, Told] = {}  # of `_shared_version`
        self._shared_version = -1
        self._turn = asyncio.Lock()
        self._rest_until_s = 0.0
        self._changed = asyncio.Event()
        self.made = 0
        """How many were made, and not shared."""
        followed.subscribe(self._changed.set)

    async def of(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Told:
        """The explanation, made now unless there is one for just this question."""
        known = self._explained.get(pod.metadata.key)
        if known is not None and known.question == _question(pod, claims):
            return known.told
        return await self._explain(pod, claims)

    async def keep_young(
        self, asks: Callable[[ObjectKey], Asks | None], changed: Callable[[Pod], None], backlog: Callable[[], int]
    ) -> None:
        """Explain again what was explained before the last change, for ever.

        `asks` gives the pod of that name with its claims, if it still waits; `changed` is told of each pod of which something
        else is to be said now.
        """
        while True:
            self._changed.clear()
            oldest = next(iter(self._explained.items()), None)
            if oldest is None or oldest[1].version == self._followed.version:
                await self._changed.wait()
                await self._clock.sleep(_COLLECT_S)
                continue
            if backlog() > _LONGEST_BACKLOG:
                await self._clock.sleep(_BACKLOG_PAUSE_S)
                continue
            key, before = oldest
            early_s = before.at_s + _AT_MOST_EVERY_S - self._clock.monotonic()
            if early_s > 0:
                await self._clock.sleep(early_s)
                continue
            question = asks(key)
            if question is None:
                del self._explained[key]
            elif await self._differs(question, before.told):
                changed(question[0])

    async def _differs(self, question: Asks, before: Told) -> bool:
        pod, claims = question
        try:
            return await self._explain(pod, claims) != before
        except Exception:
            # The outermost loop: one pod's fault must not stop the others. Its reconciliation will meet it, and try again.
            log.exception("explaining.failed", pod=str(pod.metadata.key))
            self._explained.pop(pod.metadata.key, None)
            return True

    async def _explain(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Told:
        question = _question(pod, claims)
        async with self._turn:
            rest_s = self._rest_until_s - self._clock.monotonic()
            if rest_s > 0:
                await self._clock.sleep(rest_s)
            version = self._followed.version
            if version != self._shared_version:
                self._shared, self._shared_version = {}, version
            told = self._shared.get(question)
            if told is None:
                started_s = self._clock.monotonic()
                told = self._make(pod, claims)
                ended_s = self._clock.monotonic()
                self._rest_until_s = ended_s + _REST * (ended_s - started_s)
                self.made += 1
                if not _names_itself(told.text, pod, claims):
                    self._shared[question] = told
            self._explained[pod.metadata.key] = _Explained(question, told, version, self._clock.monotonic())
            self._explained.move_to_end(pod.metadata.key)
            return told

    def _make(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Told:
        try:
            explanation = self._explain_claims(
                self._followed.fleet, claims, pod=pod, scheduler=scheduler_says(pod), minor=self._minor
            )
        except DracoError as error:
            # Something published cannot be read. Whoever waits is told so, and all others are still explained.
            return Told(f"Cannot be explained: {error}", "Unknown")
        return Told(str(explanation), str(explanation.reason))


def scheduler_says(pod: Pod) -> str:
    """What kube-scheduler last said of the pod."""
    return next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")


def _question(pod: Pod, claims: Sequence[ResourceClaim]) -> bytes:
    """Everything of the pod and its claims that an explanation depends on; equal for pods that ask for the same."""
    spec = pod.spec
    asked = (
        [(claim.spec, claim.status, claim.metadata.deletion_timestamp) for claim in claims],
        (spec.node_name, spec.node_selector, spec.affinity, spec.tolerations, spec.scheduler_name),
        spec.resource_claims if len(claims) < len(spec.resource_claims) else (),
        scheduler_says(pod),
        pod.metadata.namespace,
    )
    return msgspec.json.encode(asked)


def _names_itself(text: str, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
    """Whether an explanation names the very pod or its claims, and so would be wrong of another that asks for the same."""
    return any(name in text for name in (pod.metadata.name, *(claim.metadata.name for claim in claims)))
