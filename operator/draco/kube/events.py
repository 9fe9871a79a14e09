"""Events about objects, for the people who look at them.

Owns how an Event is written, and the two ways of saying something: `EventRecorder` for what happened, `Notes` for what is the
case. All are written through core/v1 by server-side apply, nowhere else and no other way: there the text of an Event may change,
while events.k8s.io/v1, which serves the same objects, holds it immutable.

The laws of `EventRecorder`:

- `record` never waits and never fails: it notes what is to be said and returns.
- The same regarding, reason, action and type is one Event object for as long as it keeps happening: its note is updated, its
  count raised. It is never repeated as another object while the first is fresh.
- What is said of one object is limited; beyond the limit, updates are merged and posted later, not lost. New series beyond the
  memory's bound are dropped and counted.
- Errors of the API delay what is to be posted, or drop the one Event the server refuses; they never reach the caller.

The laws of `Notes`:

- What is said of one object is one Event, whose name follows from the object and the reason: a new process goes on with it.
- A text that keeps changing is written with growing pauses, one that stays often enough that the server does not forget it.
- `withdraw` leaves no Event behind, also of a `say` whose answer was lost.
- An Event that the server refuses is let be for a while; every other error is the caller's, who tries again.
"""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from datetime import datetime
from random import Random
from typing import Literal, NamedTuple

import msgspec
import structlog

from draco.kube.client import Client
from draco.kube.clock import Clock, wait_for
from draco.kube.errors import ApiError, Forbidden, Invalid, NotFound
from draco.kube.retry import TRANSIENT, Backoff
from draco.resources.events import Event, EventSeries, ObjectReference
from draco.resources.kinds import EVENTS
from draco.resources.meta import ObjectKey, micro_time

log = structlog.get_logger()

EventType = Literal["Normal", "Warning"]

NOTE_BYTES = 1024
CLUSTER_EVENTS_NAMESPACE = "default"
"""Where Events about cluster-scoped objects live."""

_LONGEST_STEM = 230  # of an Event's name; what makes it unique comes after it

_REPEAT_S = (30.0, 60.0, 120.0, 300.0)
"""A note that changes is written again after these pauses, the last one from then on."""
_KEEP_ALIVE_S = 1200.0
"""A note that stays is written again after this, well before the API server forgets Events (an hour)."""
_REFUSED_S = 300.0
"""How long a note that the API server refused is not tried again."""
_PACE_S = 0.05
"""At least so long between any two notes: a thousand claims that wait must not drown the API server."""


class _Subject(NamedTuple):
    regarding: ObjectReference
    reason: str
    action: str
    type: EventType


class _Happening(msgspec.Struct, frozen=True):
    """What an Event says: a note, how often it was so, and since when."""

    note: str
    count: int
    first: datetime
    last: datetime


class _Writer:
    """Writes Events as one reporter. `controller` is a qualified name, and the field manager too."""

    def __init__(self, client: Client, *, controller: str, instance: str) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance

    async def write(self, subject: _Subject, name: str, happening: _Happening) -> None:
        """Make the Event say this, whether or not it is there."""
        last = micro_time(happening.last)
        event = Event(
            involved_object=subject.regarding,
            reason=subject.reason,
            action=subject.action,
            type=subject.type,
            message=_cut(happening.note),
            event_time=micro_time(happening.first),
            series=EventSeries(count=happening.count, last_observed_time=last) if happening.count > 1 else None,
            reporting_component=self._controller,
            reporting_instance=self._instance,
        )
        await self._client.apply(EVENTS, _key(subject.regarding, name), event, manager=self._controller)

    async def delete(self, subject: _Subject, name: str) -> None:
        """Make sure that the Event is not there."""
        with contextlib.suppress(NotFound):
            await self._client.delete(EVENTS, _key(subject.regarding, name))


class EventLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is said. Of one object at most `burst` posts at once, then one per `refill_s` seconds.

    A series that has been silent for `series_s` seconds is over: what happens next is a new Event.
    """

    burst: int = 10
    refill_s: float = 30.0
    series_s: float = 900.0
    series: int = 10_000


class _Series(msgspec.Struct):
    """One Event as it should be, and when last something happened."""

    name: str
    said: _Happening
    last_at: float


class _Bucket(msgspec.Struct):
    """A budget of posts that refills with time."""

    tokens: float
    at: float


class EventRecorder:
    """Says what happened. `controller` is a qualified name such as "draco-operator", `instance` names this process."""

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
        self._writer = _Writer(client, controller=controller, instance=instance)
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
        now, at = self._clock.now(), self._clock.monotonic()
        self._forget_silent(at)
        subject = _Subject(regarding, reason, action, type)
        series = self._series.get(subject)
        if series is None:
            if len(self._series) >= self._limits.series:
                self.dropped += 1
                return
            name = _name(regarding, f"{self._random.getrandbits(64):016x}")
            series = self._series[subject] = _Series(name, _Happening(note, 0, now, now), at)
        series.said = _Happening(note, series.said.count + 1, series.said.first, now)
        series.last_at = at
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
            await self._writer.write(subject, series.name, series.said)
        except TRANSIENT:
            self._unposted.setdefault(subject)
            raise

    def _forget_silent(self, at: float) -> None:
        while self._series:
            subject, series = next(iter(self._series.items()))
            if at - series.last_at < self._limits.series_s or subject in self._unposted:
                return
            del self._series[subject]
            bucket = self._buckets.get(subject.regarding)
            if bucket and bucket.tokens + (at - bucket.at) / self._limits.refill_s >= self._limits.burst:
                del self._buckets[subject.regarding]


class _Note(msgspec.Struct, frozen=True):
    said: _Happening
    at_s: float


class Notes:
    """Says one thing per object, under one reason, as a warning. `controller` and `instance` as for EventRecorder."""

    def __init__(
        self, client: Client, *, controller: str, instance: str, clock: Clock, reason: str, action: str
    ) -> None:
        self._writer = _Writer(client, controller=controller, instance=instance)
        self._clock = clock
        self._reason = reason
        self._action = action
        self._said: dict[str, _Note] = {}  # by UID, as below
        self._refused: dict[str, float] = {}  # until when not to try again
        self._next_write_s = 0.0

    async def say(self, regarding: ObjectReference, note: str) -> float:
        """Make the object's Event say `note`, at once or when its next change is due. Returns seconds until then."""
        now_s = self._clock.monotonic()
        if (until_s := self._refused.get(regarding.uid, now_s)) > now_s:
            return until_s - now_s
        before = self._said.get(regarding.uid)
        if before is not None:
            due_s = before.at_s + _pause_s(before.said, note)
            if now_s < due_s:
                return due_s - now_s
        await self._pace()
        now = self._clock.now()
        said = (
            _Happening(note, before.said.count + 1, before.said.first, now) if before else _Happening(note, 1, now, now)
        )
        try:
            await self._writer.write(self._subject(regarding), self._name(regarding), said)
        except (Forbidden, NotFound, Invalid) as error:
            # Most often the namespace is on its way out. Whatever it is, saying it again at once will not help.
            log.warning("events.refused", regarding=regarding.name, reason=self._reason, error=str(error))
            self._refused[regarding.uid] = self._clock.monotonic() + _REFUSED_S
            return _REFUSED_S
        self._said[regarding.uid] = _Note(said, self._clock.monotonic())
        return _pause_s(said, "")

    async def withdraw(self, regarding: ObjectReference) -> None:
        """Delete what was said of the object: it is no longer so."""
        await self._writer.delete(self._subject(regarding), self._name(regarding))
        self._said.pop(regarding.uid, None)
        self._refused.pop(regarding.uid, None)

    def _subject(self, regarding: ObjectReference) -> _Subject:
        return _Subject(regarding, self._reason, self._action, "Warning")

    def _name(self, regarding: ObjectReference) -> str:
        return _name(regarding, hashlib.sha256(f"{regarding.uid}\0{self._reason}".encode()).hexdigest()[:16])

    async def _pace(self) -> None:
        now_s = self._clock.monotonic()
        turn_s = max(now_s, self._next_write_s)
        self._next_write_s = turn_s + _PACE_S
        if turn_s > now_s:
            await self._clock.sleep(turn_s - now_s)


def _pause_s(before: _Happening, note: str) -> float:
    if note == before.note:
        return _KEEP_ALIVE_S
    return _REPEAT_S[min(before.count, len(_REPEAT_S)) - 1]


def _key(regarding: ObjectReference, name: str) -> ObjectKey:
    return ObjectKey(regarding.namespace or CLUSTER_EVENTS_NAMESPACE, name)


def _name(regarding: ObjectReference, unique: str) -> str:
    return f"{regarding.name[:_LONGEST_STEM].rstrip('.-')}.{unique}"


def _cut(note: str) -> str:
    encoded = note.encode()
    return note if len(encoded) <= NOTE_BYTES else encoded[: NOTE_BYTES - 3].decode(errors="ignore") + "…"
