"""Since when pods and claims wait: as Kubernetes records it, or as this process has seen it if that is later.

The API server records when a pod was created, but not when its last scheduling gate was removed; and when a claim was created,
but not when it lost its devices. This process remembers what it sees of the latter, so every replica follows from its start,
leader or not. A pod of generation 1 was never changed, so it never had a gate removed: its creation counts. Any other pod first
seen without a foreign gate counts from that moment: late, never early. Nothing that a tenant can write is trusted. Decides
nothing.
"""

from datetime import datetime
from typing import Final

from draco.kube.clock import Clock
from draco.kube.watch.collection import Collection
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod

_NEVER_CHANGED: Final = 1


class WaitingTimes:
    """Times of what waits now; the rest is forgotten."""

    def __init__(self, pods: Collection[Pod], claims: Collection[ResourceClaim], *, clock: Clock) -> None:
        self._clock = clock
        self._ungated: dict[str, datetime] = {}
        """When a pod, by UID, was first seen without a foreign gate, unless it never had one."""
        self._lost: dict[str, datetime] = {}
        """When a claim, by UID, lost its allocation, or a pod that names it lost its gate, or left with it."""
        self._claims = claims.store
        pods.subscribe(self._pod_changed, reads=lambda pod: (pod.metadata.uid, pod.waits, pod.is_gated_by_others))
        claims.subscribe(self._claim_changed, reads=lambda claim: (claim.metadata.uid, claim.waits))

    def of_pod(self, pod: Pod) -> datetime | None:
        """Since when the pod has had no gate but Draco's; its creation while it has one."""
        return self._ungated.get(pod.metadata.uid, pod.metadata.creation_timestamp)

    def of_claim(self, claim: ResourceClaim) -> datetime | None:
        """Since when the claim has had no devices and no gated pod, as far as it was seen."""
        return self._lost.get(claim.metadata.uid, claim.metadata.creation_timestamp)

    def _pod_changed(self, change: Change[Pod]) -> None:
        before, after = change.before, change.after
        is_same = before is not None and after is not None and before.metadata.uid == after.metadata.uid
        if before is not None and not is_same:
            self._ungated.pop(before.metadata.uid, None)
        if before is not None and before.waits and before.is_gated_by_others:
            self._let_go(before)
        if after is None or not after.waits or after.is_gated_by_others:
            if after is not None:
                self._ungated.pop(after.metadata.uid, None)
            return
        has_lost_gates = is_same and before is not None and before.is_gated_by_others
        is_unknown = not is_same and after.metadata.generation != _NEVER_CHANGED
        if has_lost_gates or is_unknown:
            self._ungated[after.metadata.uid] = self._clock.now()

    def _let_go(self, pod: Pod) -> None:
        """Claims that this pod held back may be allocated from now on."""
        for claim in filter(None, map(self._claims.get, pod.claims)):
            if claim.waits:
                self._lost[claim.metadata.uid] = self._clock.now()

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        before, after = change.before, change.after
        is_same = before is not None and after is not None and before.metadata.uid == after.metadata.uid
        if before is not None and not is_same:
            self._lost.pop(before.metadata.uid, None)
        if after is None or not after.waits:
            if after is not None:
                self._lost.pop(after.metadata.uid, None)
        elif is_same:
            self._lost[after.metadata.uid] = self._clock.now()
