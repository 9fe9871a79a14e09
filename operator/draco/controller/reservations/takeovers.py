"""Take-overs for the allocator: which devices are kept for whom, and which claims are due.

Owns the reading of what reservations have recorded. `draco.reservations.takeover` decides. Writes nothing: the allocator writes
the allocation of a due claim before it decides anything else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from draco.allocation.fleet.capacity import is_left
from draco.allocation.fleet.state import AllocatedState
from draco.controller.view import BY_DEVICE, BY_NAMED, BY_RESERVATION, BY_TAKER, TAKING_OVER, ClusterView
from draco.placing.groups.group import placeholder
from draco.reservations.claims import reserved_by
from draco.reservations.plan import ReservedClaims, names_to_look_at
from draco.reservations.takeover import TakeoverCandidate, allocation_of, reservation_named, taken_up
from draco.resources.api.claims import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation, Takeover
from draco.resources.names import DeviceKey
from draco.resources.quantity import Quantity

KEPT: Final = "draco-taken-over"
_CANDIDATES: Final = 512


def candidates_of(view: ClusterView, key: ObjectKey) -> list[TakeoverCandidate]:
    """Waiting claims that may take over devices of the reservation of this name."""
    pods = view.pods.store.by_index(BY_NAMED, key)
    labelled = view.claims.store.by_index(BY_NAMED, key)
    keys = dict.fromkeys(
        [*(claim for pod in pods for claim in view.claims_of(pod)), *(each.metadata.key for each in labelled)]
    )
    return list(islice(_candidates(view, keys, key.name), _CANDIDATES))


def own_claims(view: ClusterView, reservation: DeviceReservation) -> ReservedClaims:
    """The existing claims of a reservation, and the claims that have its names."""
    store, uid, namespace = view.claims.store, reservation.metadata.uid, reservation.metadata.namespace
    own = [each for each in store.by_index(BY_RESERVATION, uid) if each.metadata.namespace == namespace]
    at_names = filter(None, map(store.get, names_to_look_at(reservation, len(own))))
    return ReservedClaims(
        own=own,
        foreign={each.metadata.name for each in at_names if reserved_by(each) != uid},
        awaited={each.metadata.name for each in own if view.pending_pods(each.metadata.key)},
    )


def begun(view: ClusterView, reservation: DeviceReservation, claims: ReservedClaims, now: datetime) -> list[Takeover]:
    """The take-overs of a reservation that begin now. Devices in maintenance, sick or unpublished are not handed to anyone."""
    candidates = candidates_of(view, reservation.metadata.key)
    return taken_up(reservation, claims, candidates, now, lambda claim: _are_set_aside(view, claim.results))


def kept_claims(view: ClusterView) -> list[ResourceClaim]:
    """Devices in transfer from one claim to another, as a claim that holds them: nobody else gets them."""
    results = [
        result
        for reservation in view.reservations.store.by_index(TAKING_OVER, True)
        for each in reservation.status.takeovers
        if (allocation := allocation_of(each)) is not None
        for result in allocation.devices.results
    ]
    return [placeholder(KEPT, results)] if results else []


def due(
    view: ClusterView, may_be_given: Callable[[DeviceKey], bool], on_their_way: Sequence[ResourceClaim] = ()
) -> Iterator[tuple[ResourceClaim, AllocationResult]]:
    """Due claims with the devices they get: these are free, and no new taint excludes them.

    `on_their_way` are claims whose allocation is being written.
    """
    for reservation in view.reservations.store.by_index(TAKING_OVER, True):
        for each in reservation.status.takeovers:
            claim = view.claims.store.get(ObjectKey(reservation.metadata.namespace, each.claim))
            allocation = allocation_of(each)
            if claim is None or claim.metadata.uid != each.uid or not claim.waits or allocation is None:
                continue
            results = allocation.devices.results
            if all(
                may_be_given(result.key) and _is_free(view, result, on_their_way) for result in results
            ) and not _are_set_aside(view, results):
                yield claim, allocation


def about_to_take_over(view: ClusterView, claims: Iterable[ResourceClaim], now: datetime) -> set[ObjectKey]:
    """The claims that must not be allocated otherwise, since they are about to take devices over."""
    found: set[ObjectKey] = set()
    if not view.reservations.store:
        return found
    looked_at: set[ObjectKey] = set()
    for claim in claims:
        if any(one.uid == claim.metadata.uid and one.allocation is not None for one in _takeovers(view, claim)):
            found.add(claim.metadata.key)
        for pod in view.pods_of(claim.metadata.key):
            name = reservation_named(TakeoverCandidate(claim, pod))
            key = ObjectKey(claim.metadata.namespace, name)
            reservation = view.reservations.store.get(key) if name and key not in looked_at else None
            looked_at.add(key)
            if reservation is not None:
                found |= _next(view, reservation, now)
    return found


def _is_free(view: ClusterView, result: DeviceRequestAllocationResult, on_their_way: Sequence[ResourceClaim]) -> bool:
    """Whether nobody has the device, or for a share, whether nobody has it alone and the other shares leave enough."""
    key, holders = result.key, view.claims.store.by_index(BY_DEVICE, result.key)
    others = AllocatedState.of([*holders, *(each for each in on_their_way if key in each.devices_held)])
    if result.share_id is None or not others.uses(key):
        return not others.uses(key)
    published = view.published(key)
    if published is None or others.holds(key) or others.has_share(key, result.share_id):
        return False
    taken = {name: Quantity.parse(text) for name, text in result.consumed_capacity.items()}
    return published[0].capacity.keys() <= taken.keys() and is_left(taken, published[0], others.consumed(key))


def _are_set_aside(view: ClusterView, results: Iterable[DeviceRequestAllocationResult]) -> bool:
    """Whether a taint keeps new claims with these tolerations off any of the devices, or one is not published now."""
    return any(not _is_open(view, result) for result in results if not result.admin_access)


def _is_open(view: ClusterView, result: DeviceRequestAllocationResult) -> bool:
    published = view.published(result.key)
    if published is None:
        return False
    aside = [taint for taint in (*published[0].taints, *view.rule_taints(result.key)) if taint.sets_aside]
    return all(any(each.tolerates(taint) for each in result.tolerations) for taint in aside)


def _next(view: ClusterView, reservation: DeviceReservation, now: datetime) -> set[ObjectKey]:
    meta = reservation.metadata
    takeovers = begun(view, reservation, own_claims(view, reservation), now)
    return {ObjectKey(meta.namespace, each.claim) for each in takeovers}


def _takeovers(view: ClusterView, claim: ResourceClaim) -> Iterator[Takeover]:
    for reservation in view.reservations.store.by_index(BY_TAKER, claim.metadata.uid):
        yield from reservation.status.takeovers


def _candidates(view: ClusterView, keys: Iterable[ObjectKey], name: str) -> Iterator[TakeoverCandidate]:
    for key in keys:
        claim = view.claims.store.get(key)
        if claim is not None:
            since = view.waiting_times.of_pod
            candidates = (TakeoverCandidate(claim, pod, since(pod)) for pod in view.pods_of(key))
            yield from (each for each in candidates if reservation_named(each) == name)
