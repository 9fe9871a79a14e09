"""What waits for Draco's allocation: single claims, the claims of a pod, and those of pods that start together.

Owns how cluster objects form groups, and the order of service: by priority, then by age, counted from when a pod existed without
another controller's scheduling gate. Incomplete groups (missing pods, claims or terms, or a write in flight) are left out or
marked `unready`. Decides no place, writes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.gangs import GangKey, GangTerms, UnknownTerms, default_topology, gang_of, has_served
from draco.allocation.ownership.leaks import ended_users
from draco.allocation.pod_claims import held_back
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.queue.refusals import NodeRefusals
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.allocation.writing.writes import FINALIZER
from draco.controller.view import BY_RESERVATION, UNALLOCATED, ClusterView
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.reservations.claims import is_there_to_stay, reservation_key, reserved_by
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservationStatus
from draco.resources.names import ANNOTATION_TOPOLOGY, LABEL_RESERVATION
from draco.resources.texts import counted

_NEVER: Final = "Never"


class _GangPods(msgspec.Struct):
    """The pods of a gang, sorted by state."""

    members: list[GroupMember] = []
    settled: int = 0
    """Pods that have their devices, or need none."""
    placed: list[ResourceClaim] = []
    loose: list[ResourceClaim] = []
    leaving: list[str] = []
    """Why some pods can no longer start; the rest of the group may start without them."""
    unready: list[str] = []


class WaitingGroups:
    """Builds groups from the view; keeps no state."""

    def __init__(
        self, view: ClusterView, gangs: Gangs, refusals: NodeRefusals, in_flight: Callable[[ObjectKey], bool]
    ) -> None:
        self._view = view
        self._gangs = gangs
        self._refusals = refusals
        self._in_flight = in_flight

    def groups(self) -> list[WaitingGroup]:
        """All groups, in the order of service."""
        return sorted(self._groups(), key=lambda each: each.order)

    def _groups(self) -> Iterator[WaitingGroup]:
        classes = self._view.classes_by_name
        mine = {
            key: claim
            for claim in self._view.claims.store.by_index(UNALLOCATED, True)
            if not self._in_flight(key := claim.metadata.key) and is_for_operator(claim, classes)
        }
        done: set[ObjectKey | GangKey] = set()
        for key, claim in mine.items():
            if key in done:
                continue
            users = self._view.pods_of(key)
            pods = self._waiting(users)
            if not pods:
                if ended_users(claim, users):
                    continue  # kube-controller-manager would deallocate it immediately while they exist
                if uid := reserved_by(claim):
                    if (group := self._reserved(uid, mine)) is not None:
                        done |= {each.metadata.key for each in group.group.claims}
                        yield group
                elif _is_for_later(claim, users):
                    yield self._alone(claim)
                continue  # otherwise it was made for pods that are unknown yet, or no longer need it
            gang = gang_of(pods[0])
            if gang in done:
                continue
            if gang is not None and (terms := self._gangs.terms(gang)) is not None:
                done.add(gang)
                yield from self._gang(gang, terms, mine, classes)
                continue
            found = self._of_pod(pods[0], mine)
            if isinstance(found, GroupMember):
                done |= {each.metadata.key for each in found.claims}
                yield WaitingGroup(
                    uid=pods[0].metadata.uid,
                    group=ClaimGroup([found]),
                    order=self._order(pods[:1], priority=pods[0].spec.priority),
                    priority=pods[0].spec.priority,
                    may_preempt=_may_preempt([found]),
                    since=self._since([found], 1),
                )

    def _alone(self, claim: ResourceClaim) -> WaitingGroup:
        meta, since = claim.metadata, self._view.waiting_times.of_claim(claim)
        order = (0, str(since), str(meta.key))
        return WaitingGroup(uid=meta.uid, group=ClaimGroup([GroupMember([claim])]), order=order, since=since)

    def _reserved(self, uid: str, mine: Mapping[ObjectKey, ResourceClaim]) -> WaitingGroup | None:
        """A reservation's waiting claims that no pod waits for; they are allocated together."""
        own = self._view.claims.store.by_index(BY_RESERVATION, uid)
        if any(self._in_flight(each.metadata.key) for each in own):
            return None
        waiting = [each for each in own if each.metadata.key in mine and self._is_unused(each)]
        times = self._view.waiting_times.of_claim
        oldest = min(waiting, key=lambda each: (str(times(each)), each.metadata.key))
        placed = [each for each in own if each.status.allocation and is_there_to_stay(each)]
        topology = oldest.metadata.annotations.get(ANNOTATION_TOPOLOGY, "")
        name = f"DeviceReservation {oldest.metadata.labels.get(LABEL_RESERVATION, '')}"
        members = [GroupMember([each]) for each in sorted(waiting, key=lambda each: each.metadata.key)]
        key = reservation_key(oldest)
        reservation = self._view.reservations.store.get(key) if key is not None else None
        status = reservation.status if reservation is not None else DeviceReservationStatus()
        return WaitingGroup(
            uid=uid,
            group=ClaimGroup(members, len(members), topology, placed, name),
            order=(-(status.priority or 0), str(times(oldest)), str(oldest.metadata.key)),
            priority=status.priority,
            may_preempt=status.priority is not None and status.preemption_policy != _NEVER,
            since=_latest([*map(times, waiting), *(each.metadata.creation_timestamp for each in own)]),
        )

    def _is_unused(self, claim: ResourceClaim) -> bool:
        """Whether no pod waits for the claim, and no ended pod of it remains."""
        users = self._view.pods_of(claim.metadata.key)
        return not self._waiting(users) and not ended_users(claim, users)

    def _waiting(self, users: Iterable[Pod]) -> list[Pod]:
        """Pods that wait for the claim, oldest first; the oldest decides where it goes."""
        pods = [each for each in users if each.waits and not each.is_gated_by_others]
        return sorted(pods, key=self._age) if len(pods) > 1 else pods

    def _of_pod(self, pod: Pod, mine: Mapping[ObjectKey, ResourceClaim]) -> GroupMember | str:
        """The pod's claims to allocate, or why that is not known yet."""
        keys = self._view.claims_of(pod)
        if len(keys) < len(pod.spec.resource_claims):
            return f"the claims of pod {pod.metadata.name} are not all made yet"
        found = [(key, self._view.claims.store.get(key)) for key in keys]
        known = [(key, claim) for key, claim in found if claim is not None]
        if leaving := self._leaving(pod):
            return leaving
        if missing := [key.name for key, claim in found if claim is None]:
            named, name = missing[0], pod.metadata.name
            return f"claim {named} of pod {name} does not exist: create it, or delete the pod if a template made it"
        # A write in flight decides where the other claims go; it counts once delivered.
        if any(map(self._in_flight, keys)):
            return f"a claim of pod {pod.metadata.name} is being written, or was refused by the API server"
        together = [mine[key] for key in keys if key in mine]
        beside = [each for _, each in known if each.status.allocation]
        others = [each for key, each in known if not each.status.allocation and key not in mine]
        if others:
            classes = self._view.classes_by_name
            others = [each for each in others if not is_for_operator(each, classes)]
        return GroupMember(together, [pod], beside, self._refusals.nodes(pod.metadata.uid), others)

    def _leaving(self, pod: Pod) -> str:
        """The reason if the pod waits with a claim that is being deleted (Kubernetes starts no such pod), else ""."""
        claims = filter(None, map(self._view.claims.store.get, self._view.claims_of(pod))) if pod.waits else ()
        claim = next((each.metadata for each in claims if each.metadata.deletion_timestamp is not None), None)
        if claim is None:
            return ""
        foreign = [each for each in claim.finalizers if each != FINALIZER]
        kept = f": it stays until the finalizer {foreign[0]} is taken off it" if foreign else ""
        return f"claim {claim.name} of pod {pod.metadata.name} is being deleted{kept}"

    def _gang(
        self,
        gang: GangKey,
        terms: GangTerms | UnknownTerms,
        mine: Mapping[ObjectKey, ResourceClaim],
        classes: Mapping[str, DeviceClass],
    ) -> Iterator[WaitingGroup]:
        pods = self._gangs.pods(gang)
        found = self._sorted_out(gang, pods, mine)
        members = _sharing_together(found.members)
        if not members:
            return
        known = terms if isinstance(terms, GangTerms) else GangTerms(size=1)
        missing = known.size - found.settled - sum(len(each.pods) for each in members)
        # Allocated claims define the topology, too, so that a replaced pod is not placed elsewhere.
        claims = [claim for each in members for claim in each.claims]
        claims += [each for each in found.placed if is_for_operator(each, classes)]
        needed = max(1, min(len(members), known.size - found.settled))
        topology = known.topology or default_topology(gang, claims, classes)
        unready = ""
        if isinstance(terms, UnknownTerms):
            unready = terms.why
        elif isinstance(topology, UnknownTerms):
            unready = topology.why
        elif found.unready:
            unready = f"Of {gang}, {found.unready[0]}."
        elif missing > 0 and found.leaving:
            unready = f"Of {gang}, {found.leaving[0]}."
        elif missing > 0:
            unready = f"{gang} waits for {counted(missing, 'more pod')}: {known.size} start together."
        yield WaitingGroup(
            uid=str(gang),
            group=ClaimGroup(
                members,
                needed,
                topology if isinstance(topology, str) else "",
                found.placed,
                str(gang),
            ),
            order=self._order(pods, priority=known.priority),
            priority=known.priority,
            may_preempt=_may_preempt(members),
            since=_latest([self._since(members, needed), self._gangs.made_at(gang)]),
            loose=found.loose if found.settled < known.size else (),
            unready=unready,
        )

    def _sorted_out(self, gang: GangKey, pods: Iterable[Pod], mine: Mapping[ObjectKey, ResourceClaim]) -> _GangPods:
        found = _GangPods()
        for pod in pods:
            if has_served(gang, pod):
                found.settled += 1
            elif pod.is_over:
                continue
            elif pod.waits and pod.is_gated_by_others:
                found.unready.append(f"pod {pod.metadata.name} has a scheduling gate")
            elif leaving := self._leaving(pod):
                found.leaving.append(leaving)
            elif isinstance(member := self._of_pod(pod, mine), str):
                found.unready.append(member)
            else:
                self._take_in(found, pod, member)
        return found

    def _take_in(self, found: _GangPods, pod: Pod, member: GroupMember) -> None:
        found.placed += member.beside
        if member.claims:
            found.members.append(member)
        else:
            found.settled += 1
        if pod.waits:
            gang = gang_of(pod)
            loose = [
                each for each in member.beside if not each.status.reserved_for and self._gangs.users(each) == {gang}
            ]
            found.loose += [each for each in loose if each not in found.loose]

    def _since(self, members: Iterable[GroupMember], needed: int) -> datetime | None:
        """When `needed` of the members were complete."""
        pods_since = self._view.waiting_times.of_pod
        times = sorted(
            filter(
                None,
                (
                    _latest([*map(pods_since, each.pods), *(one.metadata.creation_timestamp for one in each.claims)])
                    for each in members
                ),
            )
        )
        return times[min(needed, len(times)) - 1] if times else None

    def _order(self, pods: Sequence[Pod], *, priority: int) -> tuple[int, str, str]:
        """Sort key: priority, then the age of the oldest pod."""
        return (-priority, *min(map(self._age, pods)))

    def _age(self, pod: Pod) -> tuple[str, str]:
        """A pod does not age while another controller's gate holds it."""
        return str(self._view.waiting_times.of_pod(pod)), str(pod.metadata.key)


def _is_for_later(claim: ResourceClaim, users: Sequence[Pod]) -> bool:
    """Whether to allocate a claim that no pod waits for. Pods held by other controllers' gates get nothing yet."""
    is_made_for_others = any(owner.kind in {"Pod", "PodGroup"} for owner in claim.metadata.owner_references)
    return not is_made_for_others and not held_back(users)


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max(filter(None, times), default=None)


def _may_preempt(members: Sequence[GroupMember]) -> bool:
    return all(member.pods and all(pod.spec.preemption_policy != _NEVER for pod in member.pods) for member in members)


def _sharing_together(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Merge members that share a claim: they must be on one node."""
    members = list(members)
    uses = Counter(claim.metadata.key for member in members for claim in member.claims)
    if all(times == 1 for times in uses.values()):
        return members
    together: list[GroupMember] = []
    for member in members:
        keys = {claim.metadata.key for claim in member.claims}
        sharing = [each for each in together if keys & {claim.metadata.key for claim in each.claims}]
        together = [each for each in together if each not in sharing]
        together.append(reduce(_joined, sharing, member))
    return together


def _joined(one: GroupMember, other: GroupMember) -> GroupMember:
    claims = {claim.metadata.key: claim for claim in [*one.claims, *other.claims]}
    others = {claim.metadata.key: claim for claim in [*one.others, *other.others]}
    return GroupMember(
        list(claims.values()),
        [*one.pods, *other.pods],
        [*one.beside, *other.beside],
        sorted({*one.without, *other.without}),
        list(others.values()),
    )
