"""Finds Draco's allocations that nobody can use: of a broken group, of withdrawn devices, or of a pod that may not use them.

A pod or claim may be deleted, and a device withdrawn, between a decision and its last write, or while a new operator takes over.
Owns which allocations are taken back for that: only unreserved ones, and only where the cause is certain (the group's size is
known; the pool is published completely and without the device; the pod names another claim). Checks only what has changed, since
most allocations are valid for hours. Writes nothing.
"""

from collections.abc import Callable, Iterator

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, gang_of, has_served, job_set_of
from draco.allocation.pod_claims import held_back
from draco.controller.allocation.gang_reading import Gangs, of_job
from draco.controller.view import MADE_FOR, ClusterView
from draco.kube.watch.store import Change
from draco.reservations.claims import reserved_by
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.jobs import Job
from draco.resources.api.meta import ObjectKey
from draco.resources.api.scheduling import PodGroup
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import ANNOTATION_POD_CLAIM
from draco.resources.texts import agreeing, listed


class UselessAllocations:
    """Tracks changed groups and claims to check. A pod with a claim that is `refused` cannot start."""

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
        """Start recording for `found`. Only where `found` is called: the records would otherwise grow forever."""
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
        view.jobs.subscribe(self._job_changed, reads=of_job)

    def found(self) -> Iterator[tuple[ResourceClaim, str]]:
        """Claims to deallocate, and why. They are checked again next time."""
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
        """Allocations of the group's pods that wait for pods that do not exist or cannot start."""
        terms = self._gangs.terms(gang)
        if not isinstance(terms, GangTerms):
            return []  # they start one by one, or the group's size is unknown
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
        """Whether Draco allocated it and nobody uses it. Kubernetes deallocates claims that are deleted."""
        return (
            claim.status.allocation is not None
            and not claim.status.reserved_for
            and claim.metadata.deletion_timestamp is None
            and is_for_operator(claim, self._view.classes_by_name)
        )

    def _gone(self, claim: ResourceClaim) -> list[str]:
        """Its devices that certainly no longer exist."""
        return [f"{each.device} of {each.pool}" for each in claim.results if self._has_left(each)]

    def _does_without(self, claim: ResourceClaim) -> Pod | None:
        """The pod the claim was made for, if it uses another claim: kube-controller-manager may crash and create a second one."""
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

    def _job_changed(self, change: Change[Job]) -> None:
        self._groups.update(map(job_set_of, change.versions))


def cannot_start(group: str) -> str:
    """Why a part of a group gets nothing."""
    return f"{group} cannot start as a whole now, and others may use them meanwhile."
