"""Keeps one Event per object with its current condition.

Owns the laws of such Events:

- An object has one Event, whose name follows from the object and the reason, so a new process continues it.
- A changed text is written immediately. A text that keeps changing has a budget, after which it is written less often; the last
  text is always written in the end. An unchanged text is written often enough that the server keeps it.
- `withdraw` leaves no Event, not even from a `say` whose answer was lost; `adopt` finds what another process left.
- An Event that the server refuses is retried after a while; every other error goes to the caller, who retries.
"""

import hashlib
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Generic, TypeVar

import msgspec
import structlog

from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import FORBIDDEN_LONGEST_S, FORBIDDEN_S, Pauses
from draco.kube.errors import ApiError, Forbidden, Invalid, NamespaceTerminating, NotFound
from draco.kube.events.events import EventWriter, cut, event_name
from draco.kube.events.shares import EventContent, EventReason, EventSubject, EventType
from draco.kube.rate_limit import Budget, RateLimit
from draco.resources.api.core import Event, ObjectReference
from draco.resources.kinds import EVENTS
from draco.resources.texts import shown

log = structlog.get_logger()

K = TypeVar("K", bound=Hashable)

_CHANGES = RateLimit(burst=3, refill_s=30.0)
"""Budget of immediate changes to one note."""
_KEEP_ALIVE_S = 1200.0
"""An unchanged note is written again after this, well before the API server's TTL of Events (an hour)."""
_PACE_S = 0.02
"""Minimum interval between any two notes: a thousand waiting claims must not flood the API server."""


class _Note(msgspec.Struct, frozen=True):
    said: EventContent
    at_s: float
    budget: Budget
    is_known: bool = True
    """Whether the Event has exactly this text, as far as this process knows."""


class Notes:
    """Reports one condition per object, under one reason. `controller` and `instance` as for EventRecorder."""

    def __init__(self, client: Client, *, controller: str, instance: str, clock: Clock, reason: EventReason) -> None:
        self._client = client
        self._writer = EventWriter(client, controller=controller, instance=instance)
        self._controller = controller
        self._clock = clock
        self._reason = reason
        self._said: dict[str, _Note] = {}  # by UID, like `_refused`
        self._refused: Pauses[str] = Pauses(clock.monotonic, first_s=FORBIDDEN_S, longest_s=FORBIDDEN_LONGEST_S)
        self._next_write_s = 0.0

    async def adopt(self) -> list[ObjectReference]:
        """Take over the Events of the previous leader, and return the objects that they are about."""
        adopted = []
        selector = f"reason={self._reason.name},reportingComponent={self._controller}"
        for event in await self._client.list(EVENTS, field_selector=selector):
            regarding = event.involved_object
            if regarding is None or event.metadata.name != self._name(regarding):
                continue
            first, last = times_of(event)
            count = event.series.count if event.series else 1
            age_s = max(0.0, (self._clock.now() - last).total_seconds()) if last else _KEEP_ALIVE_S
            said = EventContent(event.message, count, first or self._clock.now(), last or self._clock.now())
            now_s = self._clock.monotonic()
            self._said.setdefault(regarding.uid, _Note(said, now_s - age_s, _CHANGES.unspent(now_s)))
            adopted.append(regarding)
        return adopted

    async def say(self, regarding: ObjectReference, note: str, *, type: EventType | None = None) -> float:  # noqa: A002 - the field's name
        """Make the object's Event say `note`, now or when due. Return seconds until it must be said again.

        Without `type`, the Event has the type of its reason.
        """
        note = cut(shown(note))
        now_s = self._clock.monotonic()
        if (wait_s := self._refused.left_s(regarding.uid)) > 0:
            return wait_s
        before = self._said.get(regarding.uid)
        wait_s = _wait_s(before, note, now_s)
        if wait_s > 0:
            return wait_s
        await self._pace()
        now = self._clock.now()
        said = (
            EventContent(note, before.said.count + 1, before.said.first, now)
            if before
            else EventContent(note, 1, now, now)
        )
        try:
            await self._writer.write(self._subject(regarding, type), self._name(regarding), said)
        except (Forbidden, NotFound, Invalid) as error:
            if isinstance(error, NamespaceTerminating):  # nobody's mistake
                log.debug("events.refused", regarding=regarding.name, reason=self._reason.name, error=str(error))
            else:
                log.warning("events.refused", regarding=regarding.name, reason=self._reason.name, error=str(error))
            # Whatever the cause, an immediate retry will not help.
            return self._refused.begin(regarding.uid, str(error))
        except ApiError:
            # The write may have arrived though its answer was lost: the next note is written in any case.
            if before:
                self._said[regarding.uid] = msgspec.structs.replace(before, is_known=False)
            raise
        self._refused.forget(regarding.uid)
        budget = before.budget if before else _CHANGES.unspent(now_s)
        self._said[regarding.uid] = _Note(said, self._clock.monotonic(), budget.spent(now_s))
        return _KEEP_ALIVE_S

    async def withdraw(self, regarding: ObjectReference) -> None:
        """Delete the object's Event: the condition has ended."""
        # Forget first: even if the answer is lost, the same text must be written again when it applies again.
        self._said.pop(regarding.uid, None)
        self._refused.forget(regarding.uid)
        await self._writer.delete(self._subject(regarding), self._name(regarding))

    def _subject(self, regarding: ObjectReference, type_: EventType | None = None) -> EventSubject:
        return EventSubject(regarding, self._reason._replace(type=type_ or self._reason.type))

    def _name(self, regarding: ObjectReference) -> str:
        return event_name(regarding, hashlib.sha256(f"{regarding.uid}\0{self._reason.name}".encode()).hexdigest()[:16])

    async def _pace(self) -> None:
        now_s = self._clock.monotonic()
        turn_s = max(now_s, self._next_write_s)
        self._next_write_s = turn_s + _PACE_S
        if turn_s > now_s:
            await self._clock.sleep(turn_s - now_s)


class NotesByKey(Generic[K]):
    """Notes with the object of each key, so that they can be withdrawn when it is gone or replaced."""

    def __init__(self, notes: Notes, key_of: Callable[[ObjectReference], K]) -> None:
        self._notes = notes
        self._key_of = key_of
        self.said: dict[K, ObjectReference] = {}

    async def adopt(self) -> list[K]:
        """As `Notes.adopt`. Returns the keys of the Events."""
        for regarding in await self._notes.adopt():
            self.said.setdefault(self._key_of(regarding), regarding)
        return list(self.said)

    async def say(self, regarding: ObjectReference, note: str, *, type: EventType | None = None) -> float:  # noqa: A002 - the field's name
        """As `Notes.say`; withdraws the note of another object with the same key."""
        await self.withdraw_unless_of(regarding)
        self.said[self._key_of(regarding)] = regarding
        return await self._notes.say(regarding, note, type=type)

    async def withdraw_unless_of(self, regarding: ObjectReference) -> None:
        """Withdraw the note of another object with the same key."""
        said = self.said.get(self._key_of(regarding))
        if said is not None and said.uid != regarding.uid:
            await self.withdraw(self._key_of(regarding))

    async def withdraw(self, key: K) -> None:
        """Withdraw the key's note, if any. After a failure the next call tries again."""
        if (said := self.said.get(key)) is not None:
            await self._notes.withdraw(said)
            self.said.pop(key, None)


def _wait_s(before: _Note | None, note: str, now_s: float) -> float:
    """Seconds until `note` may, or must, be written."""
    if before is None:
        return 0.0
    if note == before.said.note and before.is_known:
        return before.at_s + _KEEP_ALIVE_S - now_s
    return before.budget.wait_s(now_s)


def times_of(event: Event) -> tuple[datetime | None, datetime | None]:
    """The Event's first and last time."""
    first = _moment(event.event_time)
    return first, (_moment(event.series.last_observed_time) if event.series else first)


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
