"""Devices that become free one after the other, as those of a job do that ends.

Owns until when that goes on. As long as it does, those that ask for little would find a place at each moment before the group
that asks for much and has waited longer. Decides nothing, writes nothing.
"""

from typing import Final

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import gang_of
from draco.controller.view import ClusterView
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

    def __init__(self, view: ClusterView) -> None:
        self.freed = 0
        """How many claims have lost their devices."""
        self._view = view
        self._leaving: dict[ObjectKey, Pod | None] = {}
        """Claims that still have devices, and no pod any more that stays, with the last one as far as it was seen."""
        self._since_s = self._last_s = float("-inf")
        """When the first and the last became free of those that did so shortly one after the other."""
        self._more_until_s = float("-inf")
        """Until then more are expected."""
        view.claims.subscribe(self._claim_changed)
        view.pods.subscribe(self._pod_changed, reads=lambda pod: (pod.is_over, pod.claims))

    def over_s(self, asked_s: float) -> float:
        """By the monotonic clock: when to ask again who asked at that time, since they are over or go on for long."""
        longest_s = max(self._since_s, asked_s) + _LONGEST_S
        return longest_s if self._leaving else min(self._more_until_s, longest_s)

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        before, after = change.before, change.after
        pod = self._leaving.get(change.key)
        self._sort(change.key, pod)
        is_free = after is None or after.status.allocation is None
        if before is None or not is_free or not self._has_devices(before):
            return
        self.freed += 1
        now_s = self._view.clock.monotonic()
        if now_s > self._last_s + _STILL_S:
            self._since_s = now_s
        self._last_s = now_s
        if pod is None or not self._is_last(pod):
            self._more_until_s = now_s + _STILL_S

    def _pod_changed(self, change: Change[Pod]) -> None:
        latest = {key: pod for pod in change.versions for key in pod.claims}
        for key, pod in latest.items():
            self._sort(key, pod)

    def _sort(self, key: ObjectKey, pod: Pod | None) -> None:
        claim = self._view.claims.store.get(key)
        if claim is not None and self._has_devices(claim) and self._is_left(claim):
            self._leaving[key] = pod
        else:
            self._leaving.pop(key, None)

    def _is_last(self, pod: Pod) -> bool:
        """Whether none of its job is left. Which pods a controller's other than a gang's end together is not known."""
        gang = gang_of(pod)
        if gang is None:
            return not pod.metadata.owner_references
        return all(each.is_over for each in self._view.pods_of_gang(gang))

    def _has_devices(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is not None and is_for_operator(claim, self._view.classes_by_name)

    def _is_left(self, claim: ResourceClaim) -> bool:
        """Whether pods had it, and are over. A PodGroup keeps its claims whatever becomes of the pods."""
        users = claim.status.reserved_for
        are_pods = bool(users) and all(each.is_pod for each in users)
        return are_pods and all(pod.is_over for pod in self._view.pods_of(claim.metadata.key))
