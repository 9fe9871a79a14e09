"""Victims of preemption: who can be evicted for others, what becomes free, and what it costs. Chooses no victim.

Pods leave together if they share a claim or start together, because the rest of a group would hold devices without progress. As
in Kubernetes, victims are pods of lower priority. The unused claim of a DeviceReservation can be a victim too; it loses its
allocation. A pod on reserved devices has the higher of both priorities, because its devices would return to the reservation,
which controls the claim or gave it the devices. Devices in a take-over are not taken.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.maintenance.draining.disruption import covering
from draco.reservations.claims import reserved_by
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.names import ANNOTATION_MIRROR

_OVERDUE: Final = timedelta(seconds=30)
"""A pod that still exists this long after its grace period is considered stuck."""


IMMUNE: Final = 1 << 31
"""Above every priority: for a reservation of unknown priority."""


class Victim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pods that leave together and the claims that become free; without pods, the unused claim of a reservation.

    `lone` is the number of pods without a controller, `ran_s` their total run time. `budgets` are the PodDisruptionBudgets that
    cover them, with the number of pods.
    """

    claims: list[ObjectKey]
    pods: list[ObjectKey]
    priority: int = 0
    lone: int = 0
    ran_s: float = 0.0
    budgets: list[tuple[ObjectKey, int]] = []


class Evictable(msgspec.Struct, frozen=True):
    """What can become free: claims of pods that are leaving anyway, and victims.

    `guarded` would be victims without the PodDisruptionBudgets. `returning` are claims of leaving pods that return to a
    reservation, with its priority: free only for a higher priority.
    """

    leaving: list[ObjectKey]
    victims: list[Victim]
    guarded: list[Victim] = []
    returning: dict[ObjectKey, int] = {}

    def leaving_for(self, priority: int) -> list[ObjectKey]:
        """The claims of leaving pods that are free for this priority."""
        return sorted([*self.leaving, *(key for key, its in self.returning.items() if its < priority)])


def own_priority(pod: Pod) -> int:
    """The priority of the pod alone."""
    return pod.spec.priority


def never_reserved(claim: ResourceClaim) -> int | None:
    """A `reserved_at` that takes nothing from reservations."""
    return IMMUNE if reserved_by(claim) else None


class VictimInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the search for victims.

    `claims` are Draco's allocated claims; `permits` says whether the policy of a claim's GPUs allows preemption. `pods_of` has
    the pods of a claim, `together` the pods that start together with a pod (itself included), `priority_of` their priority.
    `reserved_at` is the priority of the reservation to which a claim's devices return; None without one. Pods with `spared` UIDs
    are not evicted now.
    """

    now: datetime
    claims: Sequence[ResourceClaim]
    permits: Callable[[ResourceClaim], bool]
    pods_of: Callable[[ObjectKey], Sequence[Pod]]
    together: Callable[[Pod], Sequence[Pod]]
    priority_of: Callable[[Pod], int] = own_priority
    reserved_at: Callable[[ResourceClaim], int | None] = never_reserved
    budgets: Sequence[PodDisruptionBudget] = ()
    spared: Collection[str] = ()


def evictable(seen: VictimInput) -> Evictable:
    """What can become free, for any priority: the caller compares priorities."""
    held = {claim.metadata.key: claim for claim in seen.claims if claim.status.reserved_for}
    going = {key: seen.reserved_at(claim) for key, claim in held.items() if _is_leaving(claim, seen)}
    rest = {key: claim for key, claim in held.items() if key not in going}
    victims, guarded, done = _unused(seen), list[Victim](), set[ObjectKey]()
    for key in rest:
        if key not in done:
            claims, pods = _together(key, rest, seen)
            done.update(claims)
            if _may_leave(claims.values(), pods, seen):
                found = victims if _is_allowed(pods, seen) else guarded
                found.append(_victim(claims, pods, seen))
    leaving = sorted(key for key, its in going.items() if its is None)
    return Evictable(leaving, victims, guarded, {key: its for key, its in going.items() if its is not None})


def _unused(seen: VictimInput) -> list[Victim]:
    """Unused claims of reservations. They have at least the priority of pods that wait for them."""
    found = []
    for claim in seen.claims:
        priority = seen.reserved_at(claim)
        if priority is None or priority == IMMUNE or not reserved_by(claim) or claim.status.reserved_for:
            continue
        if claim.metadata.deletion_timestamp is None and seen.permits(claim):
            users = (seen.priority_of(pod) for pod in seen.pods_of(claim.metadata.key) if not pod.is_over)
            found.append(Victim([claim.metadata.key], [], max([priority, *users])))
    return found


def _is_leaving(claim: ResourceClaim, seen: VictimInput) -> bool:
    """Whether it becomes free without preemption: all its pods are leaving or gone."""
    if not all(each.is_pod for each in claim.status.reserved_for):
        return False
    pods = seen.pods_of(claim.metadata.key)
    return all(pod.is_over and not _is_stuck(pod, seen.now) for pod in pods)


def _is_stuck(pod: Pod, now: datetime) -> bool:
    deleted = pod.metadata.deletion_timestamp
    return deleted is not None and deleted + _OVERDUE < now


def _together(
    first: ObjectKey, held: Mapping[ObjectKey, ResourceClaim], seen: VictimInput
) -> tuple[dict[ObjectKey, ResourceClaim], dict[ObjectKey, Pod]]:
    """The claims and pods connected with this claim, without ended pods that hold nothing."""
    claims, pods, open_ = dict[ObjectKey, ResourceClaim](), dict[ObjectKey, Pod](), [first]
    while open_:
        key = open_.pop()
        if key in claims:
            continue
        claims[key] = claim = held[key]
        holders = {each.uid for each in claim.status.reserved_for}
        for user in seen.pods_of(key):
            if user.is_over:
                found = [user] if user.metadata.uid in holders else []
            else:
                found = [user, *(pod for pod in seen.together(user) if not pod.is_over)]
            for pod in found:
                if pod.metadata.key not in pods:
                    pods[pod.metadata.key] = pod
                    open_ += [each for each in pod.claims if each in held]
    return claims, pods


def _may_leave(claims: Iterable[ResourceClaim], pods: Mapping[ObjectKey, Pod], seen: VictimInput) -> bool:
    for claim in claims:
        consumers = claim.status.reserved_for
        if not all(each.is_pod for each in consumers) or seen.reserved_at(claim) == IMMUNE:
            return False
        if not seen.permits(claim):
            return False
    if any(
        ANNOTATION_MIRROR in pod.metadata.annotations or pod.metadata.uid in seen.spared or _is_stuck(pod, seen.now)
        for pod in pods.values()
    ):
        return False
    return bool(_to_evict(pods))


def _is_allowed(pods: Mapping[ObjectKey, Pod], seen: VictimInput) -> bool:
    """Whether the budgets allow all evictions. A pod covered by two budgets is never evicted."""
    if any(len(covering(pod, seen.budgets)) > 1 for pod in pods.values()):
        return False
    allowed = {each.metadata.key: each.status.disruptions_allowed for each in seen.budgets}
    return all(number <= allowed[key] for key, number in _budgets(pods, seen))


def _to_evict(pods: Mapping[ObjectKey, Pod]) -> list[Pod]:
    """Pods to evict: those bound to a node; others hold nothing."""
    return [pod for pod in pods.values() if not pod.is_over and pod.spec.node_name]


def _budgets(pods: Mapping[ObjectKey, Pod], seen: VictimInput) -> list[tuple[ObjectKey, int]]:
    """Pods per budget, without pending ones, for which the Eviction API checks no budget."""
    covered = Counter(
        each.metadata.key for pod in _to_evict(pods) if not pod.pending for each in covering(pod, seen.budgets)
    )
    return sorted(covered.items())


def _victim(claims: Mapping[ObjectKey, ResourceClaim], pods: Mapping[ObjectKey, Pod], seen: VictimInput) -> Victim:
    asked = _to_evict(pods)
    return Victim(
        claims=sorted(claims),
        pods=sorted(pod.metadata.key for pod in asked),
        priority=max(
            [
                *(seen.priority_of(pod) for pod in pods.values() if not pod.is_over),
                *(its for claim in claims.values() if (its := seen.reserved_at(claim)) is not None),
            ]
        ),
        lone=sum(pod.metadata.controller is None for pod in asked),
        ran_s=sum(_ran_s(pod, seen.now) for pod in asked),
        budgets=_budgets(pods, seen),
    )


def _ran_s(pod: Pod, now: datetime) -> float:
    since = pod.status.start_time or pod.metadata.creation_timestamp
    return max(0.0, (now - since).total_seconds()) if since is not None else 0.0


def reserved_at(
    claim: ResourceClaim, reservation: DeviceReservation | None, taken_from: Iterable[DeviceReservation]
) -> int | None:
    """The priority of the claim's reservation; None without one, IMMUNE if unknown.

    `reservation` has the name of the claim's controller; `taken_from` are reservations whose devices the claim took over.
    """
    if uid := reserved_by(claim):
        if reservation is None or reservation.metadata.uid != uid or reservation.status.priority is None:
            return IMMUNE
        yields = (each.reserved for each in reservation.status.takeovers if each.allocation is not None)
        return IMMUNE if claim.metadata.name in yields else reservation.status.priority
    priorities = (IMMUNE if each.status.priority is None else each.status.priority for each in taken_from)
    return max(priorities, default=None)
