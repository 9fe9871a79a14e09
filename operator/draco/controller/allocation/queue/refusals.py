"""Nodes on which a pod could not run though its claims were allocated there: for a while others are tried first.

kube-scheduler takes the allocation of an idle claim back when it keeps the pod from every node that the pod could run on. Without
this memory Draco would give the pod the same devices again, for ever. Owns when such a refusal was seen, and how long it counts:
longer each time, since a node seldom changes as fast as an allocation. It is lost with the process, which costs one more try.
"""

from collections.abc import Callable

import structlog

from draco.allocation.ownership.claims import nodes_of
from draco.controller.view import ClusterView
from draco.kube.connect.retry import doubling_s
from draco.kube.events.events import EventRecorder
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

TAKEN_BACK_REASON = "AllocationTakenBack"
EVENT_ACTION = "Allocating"
_FIRST_S = 30.0
_LONGEST_S = 300.0


class NodeRefusals:
    """By the pod's UID, until the pod is gone."""

    def __init__(self, view: ClusterView, events: EventRecorder, *, returned: Callable[[ObjectKey], bool]) -> None:
        """`returned` tells whether it is Draco itself that is taking a claim's allocation back: that says nothing of its node."""
        self._returned = returned
        self._view = view
        self._events = events
        self._until_s: dict[str, dict[str, float]] = {}
        self._times: dict[str, int] = {}

    def follow(self) -> None:
        """Remember refusals from now on. On a replica that does not lead, what the leader takes back would count as one."""
        self._view.claims.subscribe(self._follow)
        self._view.pods.subscribe(self._forget)

    def nodes(self, uid: str) -> list[str]:
        """The nodes that are out for the pod, by name."""
        now_s = self._view.clock.monotonic()
        return sorted(name for name, until_s in self._until_s.get(uid, {}).items() if until_s > now_s)

    def until_s(self, uid: str, since_s: float) -> float:
        """When the first may be taken again of those that were out at `since_s`, by the monotonic clock; infinite without any."""
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
            # kube-scheduler takes back what nobody else has reserved; what others had goes once the last of them has ended.
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
        self._events.record(
            CLAIMS.reference(claim.metadata), type="Warning", reason=TAKEN_BACK_REASON, action=EVENT_ACTION, note=note
        )

    def _forget(self, change: Change[Pod]) -> None:
        if change.before is not None and (
            change.after is None or change.after.metadata.uid != change.before.metadata.uid
        ):
            self._until_s.pop(change.before.metadata.uid, None)
            self._times.pop(change.before.metadata.uid, None)
