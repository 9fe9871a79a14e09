"""Devices that become free one after the other, as those of a job do that ends.

Owns until when that goes on. As long as it does, those that ask for little would find a place at each moment before the group
that asks for much and has waited longer. Decides nothing, writes nothing.
"""

from typing import Final

from draco.allocation.ownership.claims import is_for_operator
from draco.controller.view import ClusterView
from draco.kube.clock import Clock
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey

_STILL_S: Final = 0.1
"""So long after the last one no more are expected."""
_LONGEST_S: Final = 2.0
"""Where devices become free all the time, or do not though their pods are over, what there is by then is given out."""


class Releases:
    """Follows the claims that Draco allocates, and their pods."""

    def __init__(self, view: ClusterView, *, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._leaving: set[ObjectKey] = set()
        """Claims that still have devices, and no pod any more that stays."""
        self._since_s = self._last_s = float("-inf")
        view.claims.subscribe(self._claim_changed)
        view.pods.subscribe(self._pod_changed)

    def over_s(self, asked_s: float) -> float:
        """By the monotonic clock: when to ask again who asked at that time, since they are over or go on for long."""
        longest_s = max(self._since_s, asked_s) + _LONGEST_S
        return longest_s if self._leaving else min(self._last_s + _STILL_S, longest_s)

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        before, after = change.before, change.after
        self._sort(change.key)
        is_free = after is None or after.status.allocation is None
        if before is None or not is_free or not self._has_devices(before):
            return
        now_s = self._clock.monotonic()
        if now_s > self._last_s + _STILL_S:
            self._since_s = now_s
        self._last_s = now_s

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.differs(lambda pod: (pod.is_over, pod.claims)):
            for key in {key for pod in change.versions for key in pod.claims}:
                self._sort(key)

    def _sort(self, key: ObjectKey) -> None:
        claim = self._view.claims.store.get(key)
        if claim is not None and self._has_devices(claim) and self._is_left(claim):
            self._leaving.add(key)
        else:
            self._leaving.discard(key)

    def _has_devices(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is not None and is_for_operator(claim, self._view.classes_by_name)

    def _is_left(self, claim: ResourceClaim) -> bool:
        """Whether pods had it, and are over. A PodGroup keeps its claims whatever becomes of the pods."""
        users = claim.status.reserved_for
        are_pods = bool(users) and all(each.is_pod for each in users)
        return are_pods and all(pod.is_over for pod in self._view.pods_of(claim.metadata.key))
