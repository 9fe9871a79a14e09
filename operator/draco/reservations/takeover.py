"""How a pod's claim from a template takes over the devices of a reserved claim.

Owns the decision, step by step:

1. A pod, or the template of its claim, has the label draco.dev/reservation with a reservation's name. Its claim waits, and its
   spec equals that of an unused claim of the reservation whose devices are available to new claims.
2. The reservation records in its status which claim yields, and its allocation. From then on no process allocates these devices
   to another claim.
3. The yielding claim is deleted if unchanged; if a pod uses it by then, the take-over is cancelled.
4. When it is gone, the pod's claim gets the same allocation, if its devices are still available to new claims.
5. While the pod's claim exists, it counts as one of the reservation's.

If the pod cannot run there, kube-scheduler deallocates its claim, which is then allocated like any other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.reservations.claims import index_of, is_in_use, reserved_by
from draco.reservations.plan import ReservedClaims
from draco.reservations.validity import is_expired
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.reservations import DeviceReservation, Takeover
from draco.resources.names import LABEL_RESERVATION

LONGEST: Final = timedelta(seconds=60)
"""How long a pod's claim waits for a take-over. After that it is allocated like any other."""


class TakeoverCandidate(msgspec.Struct, frozen=True):
    """A waiting claim with its pod; `since`: from when it could have been served, if known."""

    claim: ResourceClaim
    pod: Pod
    since: datetime | None = None


def reservation_named(candidate: TakeoverCandidate) -> str:
    """The reservation named by claim or pod; "" if impossible. Several claims would need one node, so only a single one may."""
    claim, pod = candidate.claim, candidate.pod
    is_of_pod = any(each.kind == "Pod" and each.uid == pod.metadata.uid for each in claim.metadata.owner_references)
    if not is_of_pod or not claim.waits or len(pod.spec.resource_claims) != 1 or reserved_by(claim):
        return ""
    if not pod.waits or pod.is_gated_by_others:
        return ""
    return claim.metadata.labels.get(LABEL_RESERVATION) or pod.metadata.labels.get(LABEL_RESERVATION, "")


def taken_up(
    reservation: DeviceReservation,
    claims: ReservedClaims,
    candidates: Sequence[TakeoverCandidate],
    now: datetime,
    is_set_aside: Callable[[ResourceClaim], bool],
) -> list[Takeover]:
    """The take-overs that begin now, the oldest claims first; without devices that new claims must not get (`is_set_aside`)."""
    if is_expired(reservation, now):
        return []
    known = reservation.status.takeovers
    spare = _spare(reservation, claims, {each.reserved for each in known})
    found = []
    for each in sorted(candidates, key=_age):
        meta = each.claim.metadata
        if any(meta.uid == one.uid for one in known) or _gave_up(each, now):
            continue
        fitting = _take(spare, each.claim, is_set_aside)
        if fitting is not None:
            allocation = msgspec.to_builtins(fitting.status.allocation)
            found.append(
                Takeover(
                    claim=meta.name, uid=meta.uid, reserved=fitting.metadata.name, since=now, allocation=allocation
                )
            )
    return found


def kept_up(
    reservation: DeviceReservation, claims: ReservedClaims, takers: Mapping[str, ResourceClaim], now: datetime
) -> list[Takeover]:
    """The take-overs of the status that continue. `takers` are the existing claims, by UID."""
    used = {each.metadata.name for each in claims.staying if is_in_use(each)}
    found = []
    for each in reservation.status.takeovers:
        taker = takers.get(each.uid)
        if taker is None or taker.metadata.deletion_timestamp is not None:
            continue
        if each.allocation is None or taker.status.allocation is not None:
            found.append(msgspec.structs.replace(each, allocation=None))
        # A clock that was set back must not keep the pod waiting.
        elif each.reserved not in used and not is_expired(reservation, now) and abs(now - each.since) < LONGEST:
            found.append(each)
    return found


def allocation_of(takeover: Takeover) -> AllocationResult | None:
    """The allocation for the pod's claim; None once it was given, or if it is invalid."""
    if takeover.allocation is None:
        return None
    try:
        return msgspec.convert(takeover.allocation, AllocationResult)
    except msgspec.ValidationError:
        return None


def _spare(reservation: DeviceReservation, claims: ReservedClaims, yielding: Collection[str]) -> list[ResourceClaim]:
    spare = [
        each
        for each in claims.staying
        if each.status.allocation is not None
        and not is_in_use(each)
        and each.metadata.name not in claims.awaited
        and each.metadata.name not in yielding
    ]
    return sorted(spare, key=lambda each: index_of(each, reservation) or 0)


def _take(
    spare: list[ResourceClaim], taker: ResourceClaim, is_set_aside: Callable[[ResourceClaim], bool]
) -> ResourceClaim | None:
    """The first spare claim for the taker; removes it, and those set aside, from `spare`."""
    for one in list(spare):
        if one.spec != taker.spec:
            continue
        spare.remove(one)
        if not is_set_aside(one):
            return one
    return None


def _age(candidate: TakeoverCandidate) -> tuple[str, str]:
    meta = candidate.claim.metadata
    return str(meta.creation_timestamp), meta.name


def _gave_up(candidate: TakeoverCandidate, now: datetime) -> bool:
    """Whether the claim has waited too long for a take-over and is allocated like any other."""
    since = max(filter(None, [candidate.claim.metadata.creation_timestamp, candidate.since]), default=None)
    return since is not None and now - since >= LONGEST
