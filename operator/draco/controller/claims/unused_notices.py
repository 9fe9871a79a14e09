"""Tells a claim and its pods that nobody uses a device of theirs; the agent reports it in the claim's status only.

Owns who is told, and that each pause is reported once. Pauses from before this replica led are not reported, unless they are
recent. Keys are claims.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import Final

from draco.controller.event_subjects import claim_and_pods
from draco.controller.view import ClusterView
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.names import CONDITION_UNUSED
from draco.resources.texts import listed

REASON: Final = EventReason("GpuUnused", "Watch")
_RECENT: Final = timedelta(seconds=60)
_Unused = tuple[str, str, datetime | None]


class UnusedNoticeReconciler:
    """Reconciles one claim at a time."""

    def __init__(self, view: ClusterView, events: EventRecorder) -> None:
        self._view = view
        self._events = events
        self._told: dict[ObjectKey, tuple[str, set[_Unused]]] = {}  # each with the claim's UID

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with every claim whose unused devices change."""
        self._view.claims.subscribe(lambda change: wake(change.key), reads=lambda claim: list(_unused(claim)))

    def all_keys(self) -> Collection[ObjectKey]:
        """The claims with an unused device."""
        return [claim.metadata.key for claim in self._view.claims.store.values() if any(_unused(claim))]

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Report the devices that are unused since the last time."""
        claim = self._view.claims.store.get(key)
        uid, told = self._told.pop(key, ("", set()))
        if claim is None:
            return None
        found = set(_unused(claim))
        if found:
            self._told[key] = claim.metadata.uid, found
        new = {one for one in found if self._is_recent(one) and (uid != claim.metadata.uid or one not in told)}
        if new:
            self._tell(claim, new)
        return None

    def _is_recent(self, one: _Unused) -> bool:
        began = one[2]
        return began is not None and self._view.clock.now() - began < _RECENT

    def _tell(self, claim: ResourceClaim, unused: Collection[_Unused]) -> None:
        since = sorted({sentence for _, sentence, _ in unused})
        devices = listed(sorted(device for device, _, _ in unused))
        note = f"{devices}: {' '.join(since)} End the pod if it does not need the GPU: it keeps it from others."
        for each in claim_and_pods(self._view, claim):
            self._events.record(each, REASON, note)


def _unused(claim: ResourceClaim) -> Iterator[_Unused]:
    """The devices that the claim's agents call unused, with their sentences, and since when they do."""
    for one in claim.status.devices:
        said = find_condition(one.conditions, CONDITION_UNUSED)
        if said is not None and said.status == "True":
            yield f"{one.device} of {one.pool}", said.message, said.last_transition_time
