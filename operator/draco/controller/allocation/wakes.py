"""What wakes the decision who gets which devices: the whole list.

Whatever can change what that rests on (`asking.basis`) is in `WAKES`, or in `TIMES` where it changes because time passes. What is
missing here leaves a group waiting for ever beside free devices: each entry has a test that takes it out and sees just that.
Owns the lists; decides nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from draco.allocation.ownership.gangs import gang_of
from draco.controller.allocation.gangs import Gangs
from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.allocation.reclaiming.returns import AllocationReturns
from draco.controller.allocation.writing.writes import AllocationWrites
from draco.controller.limits.enforcement import LimitGuard
from draco.controller.reservations.held_back import HeldBackClaims
from draco.controller.view import ClusterView
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.names import ANNOTATION_TOPOLOGY, LABEL_RESERVATION


class DecisionSources(NamedTuple):
    """Those who know of it."""

    view: ClusterView
    handover: HandoverReconciler
    guard: LimitGuard
    gangs: Gangs
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
    "reservations": lambda known, wake: known.view.reservations.subscribe(wake),
    "topologies of DeviceClasses": lambda known, wake: known.view.classes.subscribe(
        wake, reads=lambda each: each.metadata.annotations.get(ANNOTATION_TOPOLOGY)
    ),
    "GPUs that may be given out, or emptied": lambda known, wake: known.handover.when_owned.add(wake),
    "limits": lambda known, wake: known.guard.when_changed.add(wake),
    "nominations": lambda known, wake: known.preemptions.listeners.add(wake),
}
"""What wakes the decision, by what changes. Each is given what to call, with whatever."""

TIMES: Final[Mapping[str, Callable[[DecisionSources, float], float]]] = {
    "writes": lambda known, since_s: known.writes.next_s(since_s),
    "returns": lambda known, since_s: known.returns.next_s(since_s),
    "Jobs of JobSets": lambda known, _: known.gangs.next_s(),
    "claims that a reservation holds back": lambda known, _: known.held_back.next_s(),
}
"""In how many seconds to look again though nothing changes, by what passes. Each counts what had not passed yet when the look
began, at the time that it is given: it may have counted then, and have passed by now. When to ask again about a group that was
asked about is `asking.schedule`'s, and when one is overdue the allocator's."""


def _what_waits(claim: ResourceClaim) -> object:
    # What is followed are allocations: a claim that has none changes nothing for anybody, until it is served. One that is being
    # deleted is of use to no pod, so what others of its group have is not either.
    meta = claim.metadata
    terms = meta.owner_references, meta.labels.get(LABEL_RESERVATION), meta.annotations.get(ANNOTATION_TOPOLOGY)
    return meta.uid, claim.status.allocation is None, meta.deletion_timestamp is None, *terms


def _concern(pod: Pod) -> object:
    # A pod that waits may be let go by the controller that gated it, tolerate more, and be told what group it is of. Of one that
    # does not, it counts for its group that it is there, and what it says of that.
    gang, claims = gang_of(pod), pod.claims
    if gang is None and not claims and not pod.spec.resource_claims:
        return None
    terms = (pod.metadata.labels, pod.metadata.annotations) if gang or pod.waits else ()
    ended_as = pod.status.phase if pod.has_ended else ""
    uses = claims, pod.status.resource_claim_statuses, pod.spec if pod.waits else None
    return pod.waits, pod.is_over, ended_as, gang, *uses, *terms
