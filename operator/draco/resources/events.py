"""Events: what happened to an object, for the people who look at it.

Owns the structs: events.k8s.io/v1, and the same objects as core/v1 shows them.
"""

from datetime import datetime

from draco.resources.base import ApiStruct
from draco.resources.meta import ObjectMeta


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    """Names one object of any kind; `namespace` is "" for cluster-scoped ones."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class EventSeries(ApiStruct, frozen=True, kw_only=True):
    """How often it happened, and when last (a MicroTime text)."""

    count: int
    last_observed_time: str


class Event(ApiStruct, frozen=True, kw_only=True):
    """One Event, or a series of equal ones. `event_time` is a MicroTime text; `type` is Normal or Warning."""

    metadata: ObjectMeta = ObjectMeta()
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference | None = None
    note: str = ""
    type: str


class CoreEvent(ApiStruct, frozen=True, kw_only=True):
    """An Event through core/v1, where its message may still change; events.k8s.io/v1 holds the note immutable."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference | None = None
    reason: str = ""
    message: str = ""
    type: str
    action: str = ""
    count: int = 0
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
