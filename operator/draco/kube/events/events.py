"""Events about objects, for the people who look at them.

Owns how an Event is written, and `EventRecorder`, which reports happenings; `notes` reports conditions. All Events are written
through core/v1 by server-side apply and only here: there the text of an Event may change, while it is immutable in
events.k8s.io/v1, which serves the same objects.

The laws of `EventRecorder`:

- `record` never waits and never fails: it queues the report and returns.
- One regarding, reason, action and type is one Event object while it keeps happening: its note is updated and its count raised.
  There is no second object while the first is fresh.
- Posts per object are limited; beyond the limit, updates are merged and posted later, not lost. Totals are bounded by namespace
  (`shares`); what finds no room there is dropped and counted.
- API errors delay posts, or drop the one Event that the server refuses; they never reach the caller.
"""

import asyncio
import contextlib
from collections.abc import Callable
from secrets import token_hex
from typing import Final, Literal

import msgspec
import structlog

from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client
from draco.kube.connect.retry import TRANSIENT, Backoff
from draco.kube.errors import ApiError, NamespaceTerminating, NotFound
from draco.kube.events.shares import EventContent, EventReason, EventShares, EventSubject, RememberedSeries
from draco.kube.rate_limit import Budget, RateLimit
from draco.resources.api.core import Event, EventSeries, ObjectReference
from draco.resources.api.meta import ObjectKey, micro_time
from draco.resources.kinds import EVENTS
from draco.resources.texts import shown

log = structlog.get_logger()

NOTE_BYTES = 1024
CLUSTER_EVENTS_NAMESPACE = "default"

_REST, _LONGEST_REST_S = 2, 0.1
"""Rest after each post, as a multiple of its duration, and the maximum: Events must not slow down work or a busy server."""
_LONGEST_INSTANCE = 128  # of the reporting instance; a node's name may be longer
_LONGEST_STEM = 230  # of an Event's name; the unique part comes after it


class EventWriter:
    """Writes Events as one reporter. `controller` is a qualified name, and the field manager too."""

    def __init__(self, client: Client, *, controller: str, instance: str) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance[:_LONGEST_INSTANCE]

    async def write(self, subject: EventSubject, name: str, happening: EventContent) -> None:
        """Make the Event say this, creating it if necessary."""
        last = micro_time(happening.last)
        event = Event(
            involved_object=subject.regarding,
            reason=subject.reason.name,
            action=subject.reason.action,
            type=subject.reason.type,
            message=cut(shown(happening.note)),
            event_time=micro_time(happening.first),
            series=EventSeries(count=happening.count, last_observed_time=last) if happening.count > 1 else None,
            reporting_component=self._controller,
            reporting_instance=self._instance,
        )
        await self._client.apply(EVENTS, _key(subject.regarding, name), event, manager=self._controller)

    async def delete(self, subject: EventSubject, name: str) -> None:
        """Make sure that the Event does not exist."""
        with contextlib.suppress(NotFound):
            await self._client.delete(EVENTS, _key(subject.regarding, name))


class EventLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of reports. Per object at most `burst` posts, then one per `refill_s` seconds.

    A series that was silent for `series_s` seconds is over: the next happening is a new Event. At most `series` are remembered of
    all namespaces together, as many of cluster-scoped objects, and `series_in_namespace` of one namespace.
    """

    burst: int = 10
    refill_s: float = 30.0
    series_s: float = 900.0
    series: int = 10_000
    series_in_namespace: int = 1_000


Drop = Literal["full", "refused"]
"""Why an Event is not posted: its namespace has its maximum, or the API server refuses it."""

_SWEEP_S: Final = 60.0
"""How often to look for ended series while nothing happens."""


class EventRecorder:
    """Reports happenings. `controller` is a qualified name, `instance` names this process; `dropped` is told of each loss."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        clock: Clock,
        limits: EventLimits | None = None,
        dropped: Callable[[Drop], None] = lambda _: None,
    ) -> None:
        self._writer = EventWriter(client, controller=controller, instance=instance)
        self._clock = clock
        self._limits = limits or EventLimits()
        self._dropped = dropped
        self._shares = EventShares(most=self._limits.series, most_in_namespace=self._limits.series_in_namespace)
        self._shares.when_dropped.add(self._found_no_room)
        self._rate = RateLimit(self._limits.burst, self._limits.refill_s)
        self._budgets: dict[ObjectReference, Budget] = {}
        self._swept_at = self._said_full_at = float("-inf")
        self._wake = asyncio.Event()

    def record(self, regarding: ObjectReference, reason: EventReason, note: str) -> None:
        """Report an event of `regarding`. `note` is a sentence, cut at 1024 bytes."""
        now, at = self._clock.now(), self._clock.monotonic()
        self._forget_silent(at)
        subject = EventSubject(regarding, reason)
        series = self._shares.get(subject)
        if series is None:
            if not self._shares.has_room(subject):
                return
            series = RememberedSeries(event_name(regarding, token_hex(8)), EventContent(note, 0, now, now), at)
        series.said = EventContent(note, series.said.count + 1, series.said.first, now)
        series.last_at = at
        self._shares.put(subject, series)
        self._wake.set()

    async def run(self) -> None:
        """Post recorded Events until cancelled."""
        backoff = Backoff(self._clock, base_s=0.5, cap_s=60.0)
        while True:
            self._wake.clear()
            self._forget_silent(self._clock.monotonic())
            subject, wait_s = self._next()
            if subject is None:
                await wait_for(self._wake, self._clock, wait_s)
                continue
            began_s = self._clock.monotonic()
            try:
                is_posted = await self._is_posted(subject)
            except TRANSIENT as error:
                pause_s = backoff.next(at_least_s=error.retry_after_s)
                log.warning(
                    "events.delayed", waiting=self._shares.waiting, error=str(error), again_in_s=round(pause_s, 1)
                )
                await self._clock.sleep(pause_s)
                continue
            if is_posted:
                backoff.reset()
                rest_s = min(_REST * (self._clock.monotonic() - began_s), _LONGEST_REST_S)
                if rest_s > 0:
                    await self._clock.sleep(rest_s)

    async def flush(self, timeout_s: float) -> None:
        """Post all pending Events, ignoring limits, before the process ends; give up after `timeout_s`. `run` must have ended."""
        try:
            async with asyncio.timeout(timeout_s):
                for subject in list(self._shares.to_post()):
                    await self._is_posted(subject)
        except (ApiError, TimeoutError) as error:
            log.warning("events.not_posted", waiting=self._shares.waiting, error=str(error) or "no time left")

    def _found_no_room(self, subject: EventSubject) -> None:
        self._dropped("full")
        at = self._clock.monotonic()
        if at >= self._said_full_at + _SWEEP_S:
            self._said_full_at = at
            namespace, name = subject.regarding.namespace, subject.regarding.name
            log.warning("events.full", namespace=namespace, regarding=name, reason=subject.reason.name)

    def _next(self) -> tuple[EventSubject | None, float | None]:
        """The next Event to post, or seconds until one may be posted or is over (None: nothing is remembered)."""
        at = self._clock.monotonic()
        wait_s = _SWEEP_S if self._shares or self._budgets else None
        for subject in self._shares.to_post():
            missing_s = self._budget(subject.regarding, at).wait_s(at)
            if not missing_s:
                return subject, None
            wait_s = missing_s if wait_s is None else min(wait_s, missing_s)
        return None, wait_s

    def _budget(self, regarding: ObjectReference, at: float) -> Budget:
        return self._budgets.get(regarding) or self._rate.unspent(at)

    async def _is_posted(self, subject: EventSubject) -> bool:
        """Post an Event; False if the API server refuses it: it is dropped, and keeps no other from being posted.

        Raises what passes (TRANSIENT).
        """
        try:
            await self._post(subject)
        except TRANSIENT:
            raise
        except ApiError as error:
            self._dropped("refused")
            name = str(subject.regarding.name)
            if isinstance(error, NamespaceTerminating):  # nobody's mistake
                log.debug("events.refused", regarding=name, reason=subject.reason.name, error=str(error))
            else:
                log.warning("events.refused", regarding=name, reason=subject.reason.name, error=str(error))
            return False
        return True

    async def _post(self, subject: EventSubject) -> None:
        series = self._shares.get(subject)
        self._shares.posted(subject)
        if series is None:
            return
        at = self._clock.monotonic()
        self._budgets[subject.regarding] = self._budget(subject.regarding, at).spent(at)
        try:
            await self._writer.write(subject, series.name, series.said)
        except (*TRANSIENT, asyncio.CancelledError):  # if it did arrive, it is written once more unchanged
            self._shares.unposted(subject)
            raise

    def _forget_silent(self, at: float) -> None:
        """Forget ended series and full budgets."""
        self._shares.forget_silent(at - self._limits.series_s)
        if at >= self._swept_at + _SWEEP_S:
            self._swept_at = at
            self._budgets = {about: each for about, each in self._budgets.items() if not each.is_whole(at)}


def _key(regarding: ObjectReference, name: str) -> ObjectKey:
    return ObjectKey(regarding.namespace or CLUSTER_EVENTS_NAMESPACE, name)


def event_name(regarding: ObjectReference, unique: str) -> str:
    """An Event's name: the object's name and a unique part."""
    return f"{regarding.name[:_LONGEST_STEM].rstrip('.-')}.{unique}"


def cut(note: str) -> str:
    """The note, cut to what an Event may hold."""
    encoded = note.encode()
    return note if len(encoded) <= NOTE_BYTES else encoded[: NOTE_BYTES - 3].decode(errors="ignore") + "…"
