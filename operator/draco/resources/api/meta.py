"""Metadata, conditions, node selectors and time windows: structs shared by many kinds, and keys of objects.

A condition's `lastTransitionTime` changes only with `status`. `resources.windows` interprets time windows.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from draco.resources.api.base import ApiStruct


def micro_time(moment: datetime) -> str:
    """Write a MicroTime of the API: RFC 3339 in UTC with exactly six decimals, as the server requires."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ObjectKey(NamedTuple):
    """Namespace ("" if cluster-scoped) and name: unique within a kind at one time; over time, only a UID is unique."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(ApiStruct, frozen=True, kw_only=True):
    """An owner; its deletion deletes this object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """The fields of metadata that Draco reads or writes."""

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
        """The owner marked as controller; None without one."""
        return next((each for each in self.owner_references if each.controller), None)

    @property
    def as_seen(self) -> dict[str, str]:
        """Metadata for a write that the API server accepts only for this version of this object."""
        return {"uid": self.uid, "resourceVersion": self.resource_version}


class ObjectStruct(ApiStruct, frozen=True, kw_only=True):
    """Base of the structs of kinds."""

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
    """The condition of this type, or None."""
    return next((each for each in conditions if each.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition of this type exists with status True."""
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
    """Terms of which one must match."""

    node_selector_terms: list[NodeSelectorTerm] = []


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    """Labels and expressions that must all match; empty selects everything. Operators: In, NotIn, Exists, DoesNotExist."""

    match_labels: dict[str, str] = {}
    match_expressions: list[NodeSelectorRequirement] = []

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels match."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(requirement_holds(each, labels.get(each.key)) for each in self.match_expressions)


def requirement_holds(wanted: NodeSelectorRequirement, value: str | None) -> bool:
    """Whether a label (None if absent) meets the requirement, for any operator but Gt and Lt."""
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
    """Return the condition with the time of its last status change; `before` are the conditions so far.

    `generation` is that of the spec it describes. A time in the future comes from another or a changed clock; it is replaced,
    because a caller that waits from it on would wait too long.
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
    """Return several conditions with times in whole seconds, which is all the API server keeps."""
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
    """A weekly window: from `start` ("22:00") of each day (all if none is named) for `duration` ("2h30m")."""

    start: str
    duration: str
    days: list[Weekday] = []
    time_zone: str = "UTC"
