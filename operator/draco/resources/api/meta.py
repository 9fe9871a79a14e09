"""Metadata, conditions, node selection and times of the week: what objects of many kinds share.

Owns the shared structs, the keys that name an object, and the rule that a condition's `lastTransitionTime` moves only with
`status`. Knows no kind. Reading the texts of times is `resources.windows`'.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from draco.resources.api.base import ApiStruct


def micro_time(moment: datetime) -> str:
    """Write a MicroTime of the API: RFC 3339 in UTC with exactly six decimals, which the server insists on."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ObjectKey(NamedTuple):
    """Namespace ("" for cluster-scoped objects) and name: unique within one kind at one time, not over time (a UID is)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(ApiStruct, frozen=True, kw_only=True):
    """An owner whose deletion takes this object with it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """The part of metadata that Draco reads or writes."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that made the object and looks after it."""
        return next((each for each in self.owner_references if each.controller), None)

    @property
    def as_seen(self) -> dict[str, str]:
        """The metadata of a write that the API server makes on top of just this version of this very object, or refuses."""
        return {"uid": self.uid, "resourceVersion": self.resource_version}


class ObjectStruct(ApiStruct, frozen=True, kw_only=True):
    """Base of the structs of kinds: what is stored under a name."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(ApiStruct, frozen=True, kw_only=True):
    """A standard condition. `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: datetime | None = None


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of this type, if it is among them."""
    return next((each for each in conditions if each.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition of this type is there and true."""
    found = find_condition(conditions, type_)
    return found is not None and found.status == "True"


class NodeSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    """One comparison of a node's label or field. Operators: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: list[str] = []


class NodeSelectorTerm(ApiStruct, frozen=True, kw_only=True):
    """Requirements that must all hold."""

    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []


class NodeSelector(ApiStruct, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    """Labels that must all agree. An empty one selects everything. Operators: In, NotIn, Exists, DoesNotExist."""

    match_labels: dict[str, str] = {}
    match_expressions: list[NodeSelectorRequirement] = []

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels are selected, as everywhere in Kubernetes."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(requirement_holds(each, labels.get(each.key)) for each in self.match_expressions)


def requirement_holds(wanted: NodeSelectorRequirement, value: str | None) -> bool:
    """Whether a label, None where there is none, is as wanted by any operator but Gt and Lt."""
    match wanted.operator:
        case "In":
            return value is not None and value in wanted.values
        case "NotIn":
            return value is None or value not in wanted.values
        case "Exists":
            return value is not None
        case _:
            return value is None


def timed(wanted: Condition, before: Sequence[Condition], now: datetime, *, generation: int | None = None) -> Condition:
    """Return the condition with the time at which its status became what it is; `before` is what was reported so far.

    `generation` is that of the spec which it is about, where it says one. A time that is yet to come is that of another clock,
    or of this one before it was set: one who waits from it on would wait for as long as they differ, so it is put right.
    """
    known = find_condition(before, wanted.type)
    since = known.last_transition_time if known is not None and known.status == wanted.status else None
    if since is not None and since > now:
        since = None
    return msgspec.structs.replace(
        wanted,
        observed_generation=wanted.observed_generation if generation is None else generation,
        last_transition_time=since or now,
    )


def all_timed(wanted: Sequence[Condition], before: Sequence[Condition], now: datetime) -> list[Condition]:
    """Return the same of several, by the second: the API server keeps no more of them."""
    return [timed(each, before, now.replace(microsecond=0)) for each in wanted]


class Weekday(StrEnum):
    """Days of the week, in their order."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


class TimeWindow(ApiStruct, frozen=True, kw_only=True):
    """A time of the week: from `start` ("22:00") of each day (all when none is named) for `duration` ("2h30m")."""

    start: str
    duration: str
    days: list[Weekday] = []
    time_zone: str = "UTC"
