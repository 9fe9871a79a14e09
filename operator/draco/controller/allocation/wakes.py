"""The complete list of what triggers the allocation decision.

Every change to the decision's basis (`asking.basis`) is in `WAKES`, or in `TIMES` if it changes with time. A missing entry leaves
a group waiting forever beside free devices; for each entry a test removes it and checks this. Owns the lists; decides nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from draco.allocation.ownership.gangs import gang_of
from draco.controller.allocation.gang_reading import of_job
from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.allocation.reclaiming.returns import AllocationReturns
from draco.controller.allocation.writing.writes import AllocationWrites
from draco.controller.limits.enforcement import LimitGuard
from draco.controller.reservations.held_back_claims import HeldBackClaims
from draco.controller.view import ClusterView
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.names import ANNOTATION_TOPOLOGY, LABEL_RESERVATION


class DecisionSources(NamedTuple):
    """The objects that know of changes."""

    view: ClusterView
    handover: HandoverReconciler
    guard: LimitGuard
    preemptions: Preemptions
    writes: AllocationWrites
    returns: AllocationReturns
    held_back: HeldBackClaims


Wake = Callable[..., None]


def _by_claims_on_their_way(known: DecisionSources, wake: Wake) -> None:
    def changed(change: Change[ResourceClaim]) -> None:
        if known.writes.remembers(change.key):
            wake()

    known.view.claims.subscribe(changed)


WAKES: Final[Mapping[str, Callable[[DecisionSources, Wake], object]]] = {
    "what is published, tainted and allocated, and nodes": lambda known, wake: known.view.followed.listeners.add(wake),
    "claims": lambda known, wake: known.view.claims.subscribe(wake, reads=_what_waits),
    "claims of which a write is remembered": _by_claims_on_their_way,
    "pods": lambda known, wake: known.view.pods.subscribe(wake, reads=_concern),
    "PodGroups": lambda known, wake: known.view.pod_groups.subscribe(wake),
    "Jobs of JobSets": lambda known, wake: known.view.jobs.subscribe(wake, reads=of_job),
    "reservations": lambda known, wake: known.view.reservations.subscribe(wake),
    "topologies of DeviceClasses": lambda known, wake: known.view.classes.subscribe(
        wake, reads=lambda each: each.metadata.annotations.get(ANNOTATION_TOPOLOGY)
    ),
    "GPUs that may be given out, or emptied": lambda known, wake: known.handover.when_owned.add(wake),
    "limits": lambda known, wake: known.guard.when_changed.add(wake),
    "nominations": lambda known, wake: known.preemptions.listeners.add(wake),
}
"""Subscriptions by what changes. The callback may get any arguments."""

TIMES: Final[Mapping[str, Callable[[DecisionSources, float], float]]] = {
    "writes": lambda known, since_s: known.writes.next_s(since_s),
    "returns": lambda known, since_s: known.returns.next_s(since_s),
    "claims that a reservation holds back": lambda known, _: known.held_back.next_s(),
}
"""Seconds until something changes with time, by what changes.

Each function counts from the start of the look (`since_s`): a timer that fired during the look must still count.
`asking.schedule` knows when to ask about a group again, and the allocator when one becomes overdue.
"""


def _what_waits(claim: ResourceClaim) -> object:
    # Only allocations matter here: a claim without one affects nobody until it is served. A claim being deleted serves no pod, so
    # it also affects the rest of its group.
    meta = claim.metadata
    terms = meta.owner_references, meta.labels.get(LABEL_RESERVATION), meta.annotations.get(ANNOTATION_TOPOLOGY)
    return meta.uid, claim.status.allocation is None, meta.deletion_timestamp is None, *terms


def _concern(pod: Pod) -> object:
    # A waiting pod may lose its gate, get tolerations, or join a group. Of other pods only their existence and group matter.
    gang, claims = gang_of(pod), pod.claims
    if gang is None and not claims and not pod.spec.resource_claims:
        return None
    terms = (pod.metadata.labels, pod.metadata.annotations) if gang or pod.waits else ()
    ended_as = pod.status.phase if pod.has_ended else ""
    uses = claims, pod.status.resource_claim_statuses, pod.spec if pod.waits else None
    return pod.waits, pod.is_over, ended_as, gang, *uses, *terms
