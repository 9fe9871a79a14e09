"""Tells a claim and its pods what its status says of usage: a device that nobody uses, or a share that is exceeded.

Owns who is told, and that each condition is reported once. What began before this replica led is not reported, unless it is
recent. Keys are claims.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

from draco.controller.event_subjects import claim_and_pods
from draco.controller.view import ClusterView
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.names import CONDITION_MEMORY_EXCEEDED, CONDITION_UNUSED
from draco.resources.texts import listed

_RECENT: Final = timedelta(seconds=60)
_REASONS: Final[Mapping[str, EventReason]] = MappingProxyType(
    {
        CONDITION_UNUSED: EventReason("GpuUnused", "Watch"),
        CONDITION_MEMORY_EXCEEDED: EventReason("GpuMemoryExceeded", "Watch", "Warning"),
    }
)
_FIXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        CONDITION_UNUSED: "End the pod if it does not need the GPU: it keeps it from others.",
        CONDITION_MEMORY_EXCEEDED: "Ask for as much as it needs: others that share the GPU may lack it.",
    }
)


class _Report(NamedTuple):
    condition: str
    device: str
    sentence: str
    began: datetime | None


class UsageNoticeReconciler:
    """Reconciles one claim at a time."""

    def __init__(self, view: ClusterView, events: EventRecorder) -> None:
        self._view = view
        self._events = events
        self._told: dict[ObjectKey, tuple[str, set[_Report]]] = {}  # each with the claim's UID

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with every claim of which something else is reported."""
        self._view.claims.subscribe(lambda change: wake(change.key), reads=lambda claim: list(_reports(claim)))

    def all_keys(self) -> Collection[ObjectKey]:
        """The claims of which something is reported."""
        return [claim.metadata.key for claim in self._view.claims.store.values() if any(_reports(claim))]

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Write an Event for what is reported since the last time."""
        claim = self._view.claims.store.get(key)
        uid, told = self._told.pop(key, ("", set()))
        if claim is None:
            return None
        found = set(_reports(claim))
        if found:
            self._told[key] = claim.metadata.uid, found
        new: dict[tuple[str, str], list[str]] = {}
        for one in sorted(found, key=lambda each: each[:3]):
            if self._is_recent(one) and (uid != claim.metadata.uid or one not in told):
                new.setdefault((one.condition, one.sentence), []).append(one.device)
        for (condition, sentence), devices in new.items():
            for each in claim_and_pods(self._view, claim):
                self._events.record(each, _REASONS[condition], f"{listed(devices)}: {sentence} {_FIXES[condition]}")
        return None

    def _is_recent(self, one: _Report) -> bool:
        return one.began is not None and self._view.clock.now() - one.began < _RECENT


def _reports(claim: ResourceClaim) -> Iterator[_Report]:
    """What agents report of the claim's devices."""
    for one in claim.status.devices:
        for name in _REASONS:
            said = find_condition(one.conditions, name)
            if said is not None and said.status == "True":
                yield _Report(name, f"{one.device} of {one.pool}", said.message, said.last_transition_time)
