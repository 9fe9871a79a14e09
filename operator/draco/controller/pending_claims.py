"""Says why a claim stays pending: one Event on the claim, kept current, with the counted causes.

Owns when a claim counts as waiting, when that is said again, and the number of waiting claims by main cause. The causes
themselves come from `draco.allocation`.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import structlog

from draco.allocation import explain_pending
from draco.controller.view import ClusterView
from draco.kube.clock import Clock
from draco.kube.events import Notes
from draco.kube.store import Change
from draco.resources.claims import ResourceClaim
from draco.resources.core import Pod
from draco.resources.events import ObjectReference
from draco.resources.kinds import CLAIMS
from draco.resources.meta import ObjectKey

log = structlog.get_logger(__name__)

EVENT_REASON = "ClaimPending"
EVENT_ACTION = "Allocating"
_LOOK_AGAIN_S = 30.0


class _Waiting(NamedTuple):
    claim: ObjectReference
    reason: str


class PendingClaims:
    """One claim at a time."""

    def __init__(self, view: ClusterView, notes: Notes, *, clock: Clock, pending_after_s: float) -> None:
        self._view = view
        self._notes = notes
        self._clock = clock
        self._pending_after_s = pending_after_s
        self._waiting: dict[ObjectKey, _Waiting] = {}

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Have `wake` called with every claim that a change may concern."""
        self._view.claims.subscribe(lambda change: self._wake_for_claim(change, wake))
        self._view.pods.subscribe(lambda change: _wake_for_pod(change, wake))

    def all_keys(self) -> set[ObjectKey]:
        """Every claim that is not allocated."""
        return {key for key, claim in self._view.claims.store.items() if claim.status.allocation is None}

    def reasons(self) -> dict[str, int]:
        """Waiting claims by main cause."""
        return Counter(waiting.reason for waiting in self._waiting.values())

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Say why the claim waits, or take back what was said when it no longer does."""
        claim = self._view.claims.store.get(key)
        waiting = self._waiting.get(key)
        if waiting is not None and (claim is None or claim.metadata.uid != waiting.claim.uid):
            await self._forget(key)
        if claim is None:
            return None
        pods = self._view.waiting_pods(key)
        if claim.status.allocation is not None or claim.metadata.deletion_timestamp is not None or not pods:
            await self._forget(key)
            return None
        left_s = self._pending_after_s - self._waited_s(claim, pods)
        if left_s > 0:
            return left_s
        classes = {each.metadata.name: each for each in self._view.classes.store.values()}
        causes = explain_pending(claim, self._view.supply(), classes, pods)
        if key not in self._waiting:
            log.info("claim.pending", claim=str(key), reason=causes.reason, causes=str(causes))
        regarding = ObjectReference(
            api_version=CLAIMS.api_version,
            kind=CLAIMS.kind,
            name=key.name,
            namespace=key.namespace,
            uid=claim.metadata.uid,
        )
        self._waiting[key] = _Waiting(regarding, causes.reason)
        return min(await self._notes.say(regarding, str(causes)), _LOOK_AGAIN_S)

    def _waited_s(self, claim: ResourceClaim, pods: list[Pod]) -> float:
        """For how long a pod has been waiting for the claim, in seconds."""
        pod_since = min((p.metadata.creation_timestamp for p in pods if p.metadata.creation_timestamp), default=None)
        since = [moment for moment in (claim.metadata.creation_timestamp, pod_since) if moment]
        return (self._clock.now() - max(since)).total_seconds() if since else 0.0

    async def _forget(self, key: ObjectKey) -> None:
        if waiting := self._waiting.get(key):
            await self._notes.withdraw(waiting.claim)
            del self._waiting[key]

    def _wake_for_claim(self, change: Change[ResourceClaim], wake: Callable[[ObjectKey], None]) -> None:
        waits = change.after is not None and change.after.status.allocation is None
        if waits or change.key in self._waiting:
            wake(change.key)


def _wake_for_pod(change: Change[Pod], wake: Callable[[ObjectKey], None]) -> None:
    # A pod's status changes often; for its claims only its node, its claims and its end matter.
    before = _matters(change.before) if change.before else None
    after = _matters(change.after) if change.after else None
    if before == after:
        return
    for pod in (change.before, change.after):
        for claim in pod.claims if pod else ():
            wake(claim)


def _matters(pod: Pod) -> tuple[object, ...]:
    return (pod.spec.node_name, pod.claims, pod.metadata.deletion_timestamp, pod.status.phase)
