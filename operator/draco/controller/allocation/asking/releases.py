"""Recognizes devices that become free one after the other, as when a job ends.

Owns how long such a release is waited for. Meanwhile small groups would take each free device before an older, larger group could
get enough. Decides nothing, writes nothing.
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
"""A release is over when nothing became free for this long."""
_LONGEST_S: Final = 2.0
"""Maximum wait for a release, for devices that become free continuously, or stay allocated though their pods ended."""


class Releases:
    """Follows the claims that Draco allocates, and their pods."""

    def __init__(self, view: ClusterView) -> None:
        self.freed = 0
        """Number of claims that have lost their devices."""
        self._view = view
        self._leaving: dict[ObjectKey, Pod | None] = {}
        """Claims that still have devices but no pod that stays, with the last known pod."""
        self._since_s = self._last_s = float("-inf")
        """When the first and the last device of the current release became free."""
        self._more_until_s = float("-inf")
        """More devices are expected until then."""
        view.claims.subscribe(self._claim_changed)
        view.pods.subscribe(self._pod_changed, reads=lambda pod: (pod.is_over, pod.claims))

    def over_s(self, asked_s: float) -> float:
        """Monotonic time at which to ask again about a group asked about at `asked_s`: the release is over or has timed out."""
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
        """Whether no pod of its job remains. For controllers other than gangs it is unknown which pods end together."""
        gang = gang_of(pod)
        if gang is None:
            return not pod.metadata.owner_references
        return all(each.is_over for each in self._view.pods_of_gang(gang))

    def _has_devices(self, claim: ResourceClaim) -> bool:
        return claim.status.allocation is not None and is_for_operator(claim, self._view.classes_by_name)

    def _is_left(self, claim: ResourceClaim) -> bool:
        """Whether the claim's pods have all ended. A PodGroup keeps its claims whatever its pods do."""
        users = claim.status.reserved_for
        are_pods = bool(users) and all(each.is_pod for each in users)
        return are_pods and all(pod.is_over for pod in self._view.pods_of(claim.metadata.key))
