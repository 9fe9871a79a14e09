"""Gives back allocations that nobody can use: their group cannot start, or their devices are gone.

A write in flight counts as allocated until the watch delivers it. `deallocation_writes` does the writing.
"""

import structlog

from draco.controller.deallocation_writes import Deallocations
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

GIVEN_BACK_REASON = EventReason("AllocationGivenBack", "Allocating")
_UNANSWERED_S = 10.0
"""How long a write without an answer may take to show up before it counts as failed."""
_CHANGED_S = 1.0
"""How soon to retry a claim after a conflict: the watch event may trigger nothing."""


class AllocationReturns:
    """Deallocations in flight, by claim."""

    def __init__(self, client: Client, view: ClusterView, events: EventRecorder) -> None:
        self._view = view
        self._events = events
        self._deallocations = Deallocations(client, view)
        self._replaced: dict[ObjectKey, tuple[str, float]] = {}
        self._again_s = float("-inf")

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._replaced

    def next_s(self, since_s: float) -> float:
        """Seconds until an unanswered, refused or conflicting write may be retried, or infinite. `since_s` as in Pauses."""
        dues = [until_s for _, until_s in self._replaced.values()]
        dues += [self._again_s] if self._again_s > since_s else []
        left_s = max(0.0, min(dues, default=float("inf")) - self._view.clock.monotonic())
        return min(self._deallocations.next_s(since_s), left_s)

    def settle(self) -> None:
        """Forget writes that the watch has delivered, or that were unanswered for too long."""
        now_s = self._view.clock.monotonic()
        self._replaced = {
            key: (version, until_s)
            for key, (version, until_s) in self._replaced.items()
            if until_s > now_s
            and (claim := self._view.claims.store.get(key)) is not None
            and claim.metadata.resource_version == version
        }

    async def give_back(self, claim: ResourceClaim, why: str) -> None:
        """Deallocate the claim and report why. Raises nothing: the watch shows the result."""
        if self._deallocations.left_s(claim) > 0:
            return
        meta = claim.metadata
        self._replaced[meta.key] = (meta.resource_version, self._view.clock.monotonic() + _UNANSWERED_S)
        try:
            if not await self._deallocations.take_back(claim):
                self._replaced.pop(meta.key, None)  # no write of ours is in flight
                self._again_s = self._view.clock.monotonic() + _CHANGED_S
                return
        except ApiError as error:
            log.warning("allocation.not_given_back", claim=str(meta.key), error=str(error), again_in_s=_UNANSWERED_S)
            return
        devices = listed(f"{each.device} of {each.pool}" for each in claim.results)
        log.info("allocation.given_back", claim=str(meta.key), devices=devices, why=why)
        regarding = CLAIMS.reference(claim.metadata)
        self._events.record(regarding, GIVEN_BACK_REASON, f"Draco took back {devices}: {why}")
