"""What it rests on who gets which devices, and what wakes the decision about that: the whole list.

A group that found no place is asked about again once something else is known than then. So whatever a question contains, and
whatever decides whether its answer is carried out, is in `Basis`, or else is the group's own (`Wanted`). Whatever can change one
of them is in `WAKES`, or in `TIMES` where it changes because time passes. What is missing in one of these lists leaves a group
waiting for ever beside free devices: each entry has a test that takes it out and sees just that. Owns the lists; decides nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from draco.allocation.ownership.gangs import gang_of
from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.preempting.preemption import Preemptions
from draco.controller.allocation.queue.gang_terms import Gangs
from draco.controller.allocation.queue.waiting import WaitingGroup
from draco.controller.allocation.reclaiming.returns import AllocationReturns
from draco.controller.allocation.writing.writes import AllocationWrites
from draco.controller.limits.guard import LimitGuard
from draco.controller.mig.handover import HandoverReconciler
from draco.controller.reservations.held_back import HeldBackClaims
from draco.controller.view import ClusterView
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodSpec
from draco.resources.names import ANNOTATION_TOPOLOGY, LABEL_RESERVATION, DeviceKey, PoolKey


class Basis(NamedTuple):
    """What a placement rests on, beside the group that it is for."""

    fleet: int
    """The version of what is published, tainted, and allocated by the claims that the watch has told of, and of the nodes."""
    limits: int
    """The version of what is permitted to whom. What namespaces hold is in `fleet`, and what they are about to in `writes`."""
    nominations: int
    """The version of what is kept for groups of a higher priority."""
    writes: int
    """How many writes of allocations have ended. One on its way counts as made, in a question and in those after it in the same
    one. If it is made, `fleet` tells so; if it is not, nothing else does."""
    owned: frozenset[GpuPlace]
    """The GPUs that may be given out."""
    withheld: frozenset[GpuPlace]
    """Those that are published as Draco's and may not."""
    preemptible: frozenset[GpuPlace]
    """Those from which pods may be evicted."""
    spread: frozenset[PoolKey]
    """The pools whose nodes are filled evenly."""
    taken_over: frozenset[DeviceKey]
    """What is on its way from a reservation to a claim."""
    kept: frozenset[DeviceKey]
    """What is kept for the group that has waited too long, and which group that is."""
    head: str

    def __str__(self) -> str:
        """With numbers in place of GPUs: there may be thousands."""
        shown = {name: len(each) if isinstance(each, frozenset) else each for name, each in self._asdict().items()}
        return ", ".join(f"{name}={each}" for name, each in shown.items())


class Wanted(NamedTuple):
    """What decides about a group's place and is its own: pods come and go, or are changed, and so are its terms.

    In no order: whatever the watch tells of a pod, also of its status alone, makes it the last of its group.
    """

    claims: frozenset[str]
    pods: Mapping[str, PodSpec]
    needed: int
    topology: str
    priority: int | None
    """What is kept from it, and who may leave for it: a PodGroup's may change, a reservation's is found out after it was made."""
    may_preempt: bool

    @classmethod
    def by(cls, waiting: WaitingGroup) -> "Wanted":
        """What the group wants now."""
        group, members = waiting.group, waiting.group.members
        return cls(
            frozenset(claim.metadata.uid for each in members for claim in (*each.claims, *each.others)),
            {pod.metadata.uid: pod.spec for each in members for pod in each.pods},
            group.needed,
            group.topology,
            waiting.priority,
            waiting.may_preempt,
        )


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


def _by_pod_groups(known: DecisionSources, wake: Wake) -> None:
    if known.view.pod_groups is not None:
        known.view.pod_groups.subscribe(wake)


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
    "PodGroups": _by_pod_groups,
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
asked about is `turns`', and when one is overdue the allocator's."""


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
