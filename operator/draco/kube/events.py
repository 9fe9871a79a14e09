"""Events about objects, for the people who look at them.

Owns aggregation, the limit per object, and posting in the background. Its laws:

- `record` never waits and never fails: it notes what is to be said and returns.
- The same regarding, reason, action and type is one Event object for as long as it keeps happening: its note is updated, its
  count raised. It is never repeated as another object while the first is fresh.
- What is said of one object is limited; beyond the limit, updates are merged and posted later, not lost. New series beyond the
  memory's bound are dropped and counted.
- Errors of the API delay what is to be posted, or drop the one Event the server refuses; they never reach the caller.
"""

import asyncio
from collections import OrderedDict
from random import Random
from typing import Any, Literal, NamedTuple

import msgspec
import structlog

from draco.kube.client import Client
from draco.kube.clock import Clock, wait_for
from draco.kube.errors import AlreadyExists, ApiError, NotFound
from draco.kube.retry import TRANSIENT, Backoff
from draco.resources.events import Event, EventSeries, ObjectReference
from draco.resources.kinds import EVENTS, Kind
from draco.resources.meta import ObjectKey, ObjectMeta, micro_time

log = structlog.get_logger()

EventType = Literal["Normal", "Warning"]

NOTE_BYTES = 1024
CLUSTER_EVENTS_NAMESPACE = "default"
"""Where Events about cluster-scoped objects live."""

_SAME_EVENTS = Kind("", "v1", "events", "Event", True, dict)
"""The same objects through the core API. The note of an Event cannot be changed through events.k8s.io, here it can."""


class EventLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is said. Of one object at most `burst` posts at once, then one per `refill_s` seconds.

    A series that has been silent for `series_s` seconds is over: what happens next is a new Event.
    """

    burst: int = 10
    refill_s: float = 30.0
    series_s: float = 900.0
    series: int = 10_000


class _Subject(NamedTuple):
    regarding: ObjectReference
    reason: str
    action: str
    type: EventType


class _Series(msgspec.Struct):
    """One Event as it should be, and what of it has been posted."""

    name: str
    note: str
    first: str
    last: str
    count: int
    last_at: float
    posted: bool = False


class _Bucket(msgspec.Struct):
    """A budget of posts that refills with time."""

    tokens: float
    at: float


class EventRecorder:
    """Says what happened. `controller` is a qualified name such as "draco.dev/operator", `instance` names this process."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        clock: Clock,
        random: Random,
        limits: EventLimits | None = None,
    ) -> None:
        self.dropped = 0
        """Records that found no room, or that the server refused."""
        self._client = client
        self._controller = controller
        self._instance = instance
        self._clock = clock
        self._random = random
        self._limits = limits or EventLimits()
        self._series: OrderedDict[_Subject, _Series] = OrderedDict()  # the longest silent first
        self._unposted: OrderedDict[_Subject, None] = OrderedDict()
        self._buckets: dict[ObjectReference, _Bucket] = {}
        self._wake = asyncio.Event()

    def record(self, regarding: ObjectReference, *, type: EventType, reason: str, action: str, note: str) -> None:  # noqa: A002 - the field's name
        """Say that something happened to `regarding`.

        `reason` and `action` are CamelCase words for programs, `note` a sentence for people, cut at 1024 bytes.
        """
        now, at = micro_time(self._clock.now()), self._clock.monotonic()
        self._forget_silent(at)
        subject = _Subject(regarding, reason, action, type)
        note = _cut(note)
        series = self._series.get(subject)
        if series is None:
            if len(self._series) >= self._limits.series:
                self.dropped += 1
                return
            series = _Series(name=self._name(regarding), note=note, first=now, last=now, count=0, last_at=at)
            self._series[subject] = series
        series.note, series.last, series.last_at = note, now, at
        series.count += 1
        self._series.move_to_end(subject)
        self._unposted.setdefault(subject)
        self._wake.set()

    async def run(self) -> None:
        """Post what is recorded, until cancelled."""
        backoff = Backoff(self._random, base_s=0.5, cap_s=60.0)
        while True:
            self._wake.clear()
            subject, wait_s = self._next()
            if subject is None:
                await wait_for(self._wake, self._clock, wait_s)
                continue
            try:
                await self._post(subject)
            except TRANSIENT as error:
                pause_s = backoff.next(at_least_s=error.retry_after_s)
                log.warning(
                    "events.delayed", waiting=len(self._unposted), error=str(error), again_in_s=round(pause_s, 1)
                )
                await self._clock.sleep(pause_s)
            except ApiError as error:
                self.dropped += 1
                log.warning(
                    "events.refused", regarding=str(subject.regarding.name), reason=subject.reason, error=str(error)
                )
            else:
                backoff.reset()

    async def flush(self, timeout_s: float) -> None:
        """Post what waits, limits aside, before the process ends; give up after `timeout_s`. `run` must have ended."""
        try:
            async with asyncio.timeout(timeout_s):
                for subject in list(self._unposted):
                    await self._post(subject)
        except (ApiError, TimeoutError) as error:
            log.warning("events.not_posted", waiting=len(self._unposted), error=str(error) or "no time left")

    def _next(self) -> tuple[_Subject | None, float | None]:
        """What to post now; else in how many seconds something may be posted (None: nothing waits)."""
        at = self._clock.monotonic()
        wait_s: float | None = None
        for subject in self._unposted:
            bucket = self._buckets.setdefault(subject.regarding, _Bucket(self._limits.burst, at))
            bucket.tokens = min(self._limits.burst, bucket.tokens + (at - bucket.at) / self._limits.refill_s)
            bucket.at = at
            if bucket.tokens >= 1:
                return subject, None
            missing_s = (1 - bucket.tokens) * self._limits.refill_s
            wait_s = missing_s if wait_s is None else min(wait_s, missing_s)
        return None, wait_s

    async def _post(self, subject: _Subject) -> None:
        series = self._series.get(subject)
        self._unposted.pop(subject, None)
        if series is None:
            return
        if bucket := self._buckets.get(subject.regarding):
            bucket.tokens -= 1
        try:
            if series.posted:
                await self._update(subject, series)
            else:
                await self._create(subject, series)
        except TRANSIENT:
            self._unposted.setdefault(subject)
            raise
        series.posted = True

    async def _create(self, subject: _Subject, series: _Series) -> None:
        regarding = subject.regarding
        event = Event(
            metadata=ObjectMeta(name=series.name, namespace=_namespace(regarding)),
            event_time=series.first,
            series=EventSeries(count=series.count, last_observed_time=series.last) if series.count > 1 else None,
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=subject.action,
            reason=subject.reason,
            regarding=regarding,
            note=series.note,
            type=subject.type,
        )
        try:
            await self._client.create(EVENTS, event)
        except AlreadyExists:
            log.debug("events.exists", name=series.name)  # ours: the answer to the first attempt was lost

    async def _update(self, subject: _Subject, series: _Series) -> None:
        patch: dict[str, Any] = {
            "message": series.note,
            "series": {"count": series.count, "lastObservedTime": series.last},
        }
        try:
            await self._client.patch(_SAME_EVENTS, ObjectKey(_namespace(subject.regarding), series.name), patch)
        except NotFound:
            # Events live for an hour; this one has expired. What is said now is the start of another.
            series.name = self._name(subject.regarding)
            series.count, series.first = 1, series.last
            await self._create(subject, series)

    def _forget_silent(self, at: float) -> None:
        while self._series:
            subject, series = next(iter(self._series.items()))
            if at - series.last_at < self._limits.series_s or subject in self._unposted:
                return
            del self._series[subject]
            bucket = self._buckets.get(subject.regarding)
            if bucket and bucket.tokens + (at - bucket.at) / self._limits.refill_s >= self._limits.burst:
                del self._buckets[subject.regarding]

    def _name(self, regarding: ObjectReference) -> str:
        return f"{regarding.name[:200].rstrip('.-')}.{self._random.getrandbits(64):016x}"


def _namespace(regarding: ObjectReference) -> str:
    return regarding.namespace or CLUSTER_EVENTS_NAMESPACE


def _cut(note: str) -> str:
    encoded = note.encode()
    return note if len(encoded) <= NOTE_BYTES else encoded[: NOTE_BYTES - 3].decode(errors="ignore") + "…"
