"""Events: what happened to an object, for the people who look at it.

Owns the structs, in the form of core/v1. events.k8s.io/v1 serves the same objects under other names of fields.
"""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectMeta


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    """Names one object of any kind; `namespace` is "" for cluster-scoped ones."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""


class EventSeries(ApiStruct, frozen=True, kw_only=True):
    """How often it happened, and when last (a MicroTime text)."""

    count: int
    last_observed_time: str


class Event(ApiStruct, frozen=True, kw_only=True):
    """One Event, or a series of equal ones. `event_time` is a MicroTime text; `type` is Normal or Warning."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference | None = None
    reason: str = ""
    message: str = ""
    type: str
    action: str = ""
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
