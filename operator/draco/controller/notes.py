"""An Event that is kept current: one per object, whose text follows what is the case.

Owns the writing of such Events, how often they are written, and their withdrawal. For what merely happened once there is
`kube.events`; there, a changed text would be another Event, since events.k8s.io/v1 holds the note immutable. The same object can
be changed through core/v1, which is what this module does.
"""

import contextlib
import hashlib
from datetime import datetime

import msgspec
import structlog

from draco.kube.client import Client
from draco.kube.clock import Clock
from draco.kube.errors import Forbidden, Invalid, NotFound
from draco.resources.events import CoreEvent, ObjectReference
from draco.resources.kinds import CORE_EVENTS
from draco.resources.meta import ObjectKey, ObjectMeta
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

_REPEAT_S = (30.0, 60.0, 120.0, 300.0)
"""A text that changes is written again after these pauses, the last one from then on."""
_KEEP_ALIVE_S = 1200.0
"""A text that stays is written again after this, well before the API server forgets Events (an hour)."""
_REFUSED_S = 300.0
"""How long an Event that the API server refused is not tried again."""
_PACE_S = 0.05
"""At least so long between any two writes: a thousand claims that wait must not drown the API server."""
_LONGEST_NAME = 230
_LONGEST_MESSAGE = 1024


class _Said(msgspec.Struct, frozen=True):
    key: ObjectKey
    text: str
    count: int
    first: datetime
    at_s: float


class Notes:
    """Says one thing per object, under one reason. Not for more than one event loop."""

    def __init__(self, client: Client, *, clock: Clock, instance: str, reason: str, action: str) -> None:
        self._client = client
        self._clock = clock
        self._instance = instance
        self._reason = reason
        self._action = action
        self._said: dict[str, _Said] = {}
        self._refused: dict[str, float] = {}  # by UID: until when not to try again
        self._next_write_s = 0.0

    async def say(self, regarding: ObjectReference, text: str) -> float:
        """Make the object's Event say `text`, at once or when its next change is due. Returns seconds until then."""
        now_s = self._clock.monotonic()
        if (until_s := self._refused.get(regarding.uid, now_s)) > now_s:
            return until_s - now_s
        before = self._said.get(regarding.uid)
        if before is not None:
            due_s = before.at_s + self._pause_s(before, text)
            if now_s < due_s:
                return due_s - now_s
        await self._pace()
        now = self._clock.now().replace(microsecond=0)  # core/v1 keeps seconds
        said = _Said(
            key=ObjectKey(regarding.namespace or "default", self._name(regarding)),
            text=text,
            count=before.count + 1 if before else 1,
            first=before.first if before else now,
            at_s=self._clock.monotonic(),
        )
        try:
            await self._client.apply(
                CORE_EVENTS,
                said.key,
                CoreEvent(
                    metadata=ObjectMeta(name=said.key.name, namespace=said.key.namespace),
                    involved_object=regarding,
                    reason=self._reason,
                    message=text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…",
                    type="Warning",
                    action=self._action,
                    count=said.count,
                    first_timestamp=said.first,
                    last_timestamp=now,
                    reporting_component=FIELD_MANAGER_OPERATOR,
                    reporting_instance=self._instance,
                ),
                manager=FIELD_MANAGER_OPERATOR,
            )
        except (Forbidden, NotFound, Invalid) as error:
            # Most often the namespace is on its way out. Whatever it is, saying it again at once will not help.
            log.warning("note.refused", regarding=str(said.key), reason=self._reason, error=str(error))
            self._refused[regarding.uid] = self._clock.monotonic() + _REFUSED_S
            return _REFUSED_S
        self._said[regarding.uid] = said
        return self._pause_s(said, "")

    async def withdraw(self, uid: str) -> None:
        """Delete what was said of the object: it is no longer so."""
        self._refused.pop(uid, None)
        said = self._said.get(uid)
        if said is None:
            return
        with contextlib.suppress(NotFound):
            await self._client.delete(CORE_EVENTS, said.key)
        self._said.pop(uid, None)

    def _pause_s(self, before: _Said, text: str) -> float:
        if text == before.text:
            return _KEEP_ALIVE_S
        return _REPEAT_S[min(before.count, len(_REPEAT_S)) - 1]

    def _name(self, regarding: ObjectReference) -> str:
        # The same for every replica, so that a new leader goes on with the Event of the one before.
        digest = hashlib.sha256(f"{regarding.uid}\0{self._reason}".encode()).hexdigest()[:16]
        return f"{regarding.name[:_LONGEST_NAME].rstrip('.-')}.{digest}"

    async def _pace(self) -> None:
        now_s = self._clock.monotonic()
        turn_s = max(now_s, self._next_write_s)
        self._next_write_s = turn_s + _PACE_S
        if turn_s > now_s:
            await self._clock.sleep(turn_s - now_s)
