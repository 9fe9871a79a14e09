"""What Draco allocated and nobody can use: the rest of a group, devices that have left, what a pod may not use.

A pod or a claim may be deleted, and a device withdrawn, between a decision and its last write, or before another operator goes on
with what one left. Owns which allocations are taken back for that: only such as no pod has reserved, and only where it is certain
(the group's size is known; the pool is published completely, and without the device; the pod says which claim it uses). Looks
only at what has changed, as most allocations are good for hours. Writes nothing.
"""

from collections.abc import Callable, Iterator

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, gang_of, has_served
from draco.allocation.pod_claims import held_back
from draco.controller.allocation.gangs import Gangs
from draco.controller.view import MADE_FOR, ClusterView
from draco.kube.watch.store import Change
from draco.reservations.claims import reserved_by
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.scheduling import PodGroup
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import ANNOTATION_POD_CLAIM
from draco.resources.texts import agreeing, listed


class UselessAllocations:
    """Remembers what has changed and is to be looked at: groups and claims. A pod with a claim that is `refused` cannot start."""

    def __init__(
        self,
        view: ClusterView,
        gangs: Gangs,
        *,
        in_flight: Callable[[ObjectKey], bool],
        refused: Callable[[ObjectKey], bool],
    ) -> None:
        self._view = view
        self._gangs = gangs
        self._in_flight = in_flight
        self._refused = refused
        self._groups: set[GangKey] = set()
        self._claims: set[ObjectKey] = set()

    def follow(self) -> None:
        """Remember what is there, and what changes from now on, for `found`: without that it would be remembered for ever."""
        view = self._view
        view.pods.subscribe(
            self._pod_changed,
            reads=lambda pod: (pod.waits, pod.is_over, pod.claims, pod.status.resource_claim_statuses),
        )
        view.claims.subscribe(
            self._claim_changed, reads=lambda claim: (claim.status.allocation, claim.metadata.deletion_timestamp)
        )
        view.slices.subscribe(self._slice_changed)
        view.pod_groups.subscribe(self._group_changed)

    def found(self) -> Iterator[tuple[ResourceClaim, str]]:
        """Claims whose allocations are to be taken back, and why. What is found is looked at again the next time."""
        self._groups, groups = set(), self._groups
        self._claims, claims = set(), self._claims
        of_groups: set[ObjectKey] = set()
        for gang in groups:
            if rest := self._rest_of(gang):
                self._groups.add(gang)
                of_groups.update(each.metadata.key for each in rest)
                for each in rest:
                    if not self._in_flight(each.metadata.key):
                        yield each, cannot_start(str(gang))
        for key in claims - of_groups:
            claim = self._view.claims.store.get(key)
            if claim is not None and self._is_idle(claim) and (why := self._why_useless(claim)):
                self._claims.add(key)
                if not self._in_flight(key):
                    yield claim, why

    def _why_useless(self, claim: ResourceClaim) -> str:
        if gone := self._gone(claim):
            return f"{listed(gone)} left its pool meanwhile, so no pod could use the claim."
        if pod := self._does_without(claim):
            return f"pod {pod.metadata.name}, for which the claim was made, does not use it."
        if not reserved_by(claim) and (pods := held_back(self._view.pods_of(claim.metadata.key))):
            names = f"{agreeing(len(pods), 'pod', 'pods')} {listed(each.metadata.name for each in pods)}"
            return f"somebody's scheduling gate holds {names} back, and others may use them meanwhile."
        return ""

    def _rest_of(self, gang: GangKey) -> list[ResourceClaim]:
        """What pods of a group have that wait for others, which do not exist or cannot start."""
        terms = self._gangs.terms(gang)
        if not isinstance(terms, GangTerms):
            return []  # they start one by one, or it is not known how many start together
        pods = [pod for pod in self._gangs.pods(gang) if has_served(gang, pod) or not pod.is_over]
        if sum(not pod.waits or self._can_start(pod) for pod in pods) >= terms.size:
            return []
        keys = dict.fromkeys(key for pod in pods if pod.waits for key in self._view.claims_of(pod))
        known = filter(None, map(self._view.claims.store.get, keys))
        return [claim for claim in known if self._is_idle(claim) and self._gangs.users(claim) == {gang}]

    def _can_start(self, pod: Pod) -> bool:
        keys = self._view.claims_of(pod)
        if any(map(self._refused, keys)):
            return False
        claims = map(self._view.claims.store.get, keys)
        return not pod.is_gated_by_others and all(
            each is not None and each.metadata.deletion_timestamp is None for each in claims
        )

    def _is_idle(self, claim: ResourceClaim) -> bool:
        """Whether Draco allocated it and nobody uses it. Kubernetes takes the allocation of one that is deleted."""
        return (
            claim.status.allocation is not None
            and not claim.status.reserved_for
            and claim.metadata.deletion_timestamp is None
            and is_for_operator(claim, self._view.classes_by_name)
        )

    def _gone(self, claim: ResourceClaim) -> list[str]:
        """Devices that it has and that are certainly not there."""
        return [f"{each.device} of {each.pool}" for each in claim.results if self._has_left(each)]

    def _does_without(self, claim: ResourceClaim) -> Pod | None:
        """The pod that the claim was made for, if it uses another: kube-controller-manager may die, and make a second one."""
        pod = self._view.pod_made_for(claim)
        if pod is None or self._view.pods_of(claim.metadata.key):
            return None
        entry = claim.metadata.annotations[ANNOTATION_POD_CLAIM]
        return pod if entry in {status.name for status in pod.status.resource_claim_statuses} else None

    def _has_left(self, held: DeviceRequestAllocationResult) -> bool:
        slices = self._view.current_slices_of(held.key.pool_key)
        if not slices or len(slices) < slices[0].spec.pool.resource_slice_count:
            return False
        return not any(each.name == held.device for item in slices for each in item.spec.devices)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self._groups.update(filter(None, map(gang_of, change.versions)))
        made = (self._view.claims.store.by_index(MADE_FOR, each.metadata.uid) for each in change.versions)
        self._claims.update(claim.metadata.key for claims in made for claim in claims)
        self._claims.update(key for each in change.versions for key in each.claims)

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        self._claims.add(change.key)
        self._groups.update(filter(None, map(gang_of, self._view.pods_of(change.key))))

    def _slice_changed(self, change: Change[ResourceSlice]) -> None:
        for item in change.versions:
            self._claims.update(claim.metadata.key for claim in self._view.claims_in(item.pool))

    def _group_changed(self, change: Change[PodGroup]) -> None:
        self._groups.add(GangKey(GangSource.POD_GROUP, *change.key))


def cannot_start(group: str) -> str:
    """Why a part of a group is to have nothing."""
    return f"{group} cannot start as a whole now, and others may use them meanwhile."
