"""Nodes on which a pod could not run though its claims were allocated there; others are tried first for a while.

kube-scheduler deallocates an idle claim when it rejects the pod on every node that the claim allows. Without this memory Draco
would allocate the same devices again, forever. Owns when a refusal was seen and how long it counts, with backoff, since nodes
change more slowly than allocations. Lost on restart, which costs one more try.
"""

from collections.abc import Callable

import structlog

from draco.allocation.ownership.claims import nodes_of
from draco.controller.view import ClusterView
from draco.kube.connect.retry import doubling_s
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

TAKEN_BACK_REASON = EventReason("AllocationTakenBack", "Allocating", "Warning")
_FIRST_S = 30.0
_LONGEST_S = 300.0


class NodeRefusals:
    """Refused nodes by pod UID, until the pod is gone."""

    def __init__(self, view: ClusterView, events: EventRecorder, *, returned: Callable[[ObjectKey], bool]) -> None:
        """`returned` tells whether Draco itself is deallocating a claim, which says nothing about its node."""
        self._returned = returned
        self._view = view
        self._events = events
        self._until_s: dict[str, dict[str, float]] = {}
        self._times: dict[str, int] = {}

    def follow(self) -> None:
        """Start recording. Only on the leader: other replicas would count the leader's deallocations as refusals."""
        self._view.claims.subscribe(self._follow)
        self._view.pods.subscribe(self._forget)

    def nodes(self, uid: str) -> list[str]:
        """Names of the nodes excluded for the pod."""
        now_s = self._view.clock.monotonic()
        return sorted(name for name, until_s in self._until_s.get(uid, {}).items() if until_s > now_s)

    def until_s(self, uid: str, since_s: float) -> float:
        """Monotonic time when the first node excluded at `since_s` may be tried again; infinite without any."""
        return min((each for each in self._until_s.get(uid, {}).values() if each > since_s), default=float("inf"))

    def _follow(self, change: Change[ResourceClaim]) -> None:
        before, after = change.before, change.after
        if before is None or after is None or before.metadata.uid != after.metadata.uid:
            return
        if before.status.allocation is None or after.status.allocation is not None or self._returned(change.key):
            return
        nodes = nodes_of(before)
        holders = {each.uid for each in before.status.reserved_for if each.is_pod}
        for pod in self._view.pods_of(change.key):
            # kube-scheduler deallocates only claims that no other pod has reserved; otherwise the last user's end does it.
            if pod.waits and nodes and holders <= {pod.metadata.uid}:
                self._refuse(pod, after, nodes)

    def _refuse(self, pod: Pod, claim: ResourceClaim, nodes: list[str]) -> None:
        uid = pod.metadata.uid
        times = self._times[uid] = self._times.get(uid, 0) + 1
        pause_s = doubling_s(_FIRST_S, times - 1, _LONGEST_S)
        self._until_s.setdefault(uid, {}).update(dict.fromkeys(nodes, self._view.clock.monotonic() + pause_s))
        log.info("allocation.taken_back", claim=str(claim.metadata.key), pod=str(pod.metadata.key), nodes=nodes)
        note = (
            f"Pod {pod.metadata.name} could not run on {listed(nodes)}, where this claim was allocated; Draco tries other nodes "
            f"for {pause_s:.0f} s."
        )
        self._events.record(CLAIMS.reference(claim.metadata), TAKEN_BACK_REASON, note)

    def _forget(self, change: Change[Pod]) -> None:
        if change.before is not None and (
            change.after is None or change.after.metadata.uid != change.before.metadata.uid
        ):
            self._until_s.pop(change.before.metadata.uid, None)
            self._times.pop(change.before.metadata.uid, None)
