"""Gives allocations back that nobody has a use for: their group cannot start, or their devices have left.

What is on its way counts as allocated until the watch has delivered it. How it is written is `deallocations`'.
"""

import structlog

from draco.controller.deallocations import Deallocations
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.kube.events.events import EventRecorder
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

GIVEN_BACK_REASON = "AllocationGivenBack"
EVENT_ACTION = "Allocating"
_UNANSWERED_S = 10.0
"""How long a write whose answer was lost may take to be seen, before it counts as not made."""
_CHANGED_S = 1.0
"""How soon to look again at a claim that was another by then: the watch may tell of nothing that wakes anybody."""


class AllocationReturns:
    """By claim, those that are on their way."""

    def __init__(self, client: Client, view: ClusterView, events: EventRecorder) -> None:
        self._view = view
        self._events = events
        self._deallocations = Deallocations(client, view)
        self._replaced: dict[ObjectKey, tuple[str, float]] = {}
        self._again_s = float("-inf")

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._replaced

    def next_s(self, since_s: float) -> float:
        """In how many seconds one that was not answered, was refused or had changed may be tried again; infinite without any.

        `since_s` as of Pauses.
        """
        dues = [until_s for _, until_s in self._replaced.values()]
        dues += [self._again_s] if self._again_s > since_s else []
        left_s = max(0.0, min(dues, default=float("inf")) - self._view.clock.monotonic())
        return min(self._deallocations.next_s(since_s), left_s)

    def settle(self) -> None:
        """Forget what the watch has delivered, or what is not answered for too long."""
        now_s = self._view.clock.monotonic()
        self._replaced = {
            key: (version, until_s)
            for key, (version, until_s) in self._replaced.items()
            if until_s > now_s
            and (claim := self._view.claims.store.get(key)) is not None
            and claim.metadata.resource_version == version
        }

    async def give_back(self, claim: ResourceClaim, why: str) -> None:
        """Take the allocation away, and say why. Raises nothing: what became of it is seen on the watch."""
        if self._deallocations.left_s(claim) > 0:
            return
        meta = claim.metadata
        self._replaced[meta.key] = (meta.resource_version, self._view.clock.monotonic() + _UNANSWERED_S)
        try:
            if not await self._deallocations.take_back(claim):
                self._replaced.pop(meta.key, None)  # nothing of ours is on its way
                self._again_s = self._view.clock.monotonic() + _CHANGED_S
                return
        except ApiError as error:
            log.warning("allocation.not_given_back", claim=str(meta.key), error=str(error), again_in_s=_UNANSWERED_S)
            return
        devices = listed(f"{each.device} of {each.pool}" for each in claim.results)
        log.info("allocation.given_back", claim=str(meta.key), devices=devices, why=why)
        self._events.record(
            CLAIMS.reference(claim.metadata),
            type="Normal",
            reason=GIVEN_BACK_REASON,
            action=EVENT_ACTION,
            note=f"Draco took back {devices}: {why}",
        )
