"""What is to be done about the claims of a DeviceReservation.

Owns which claims are made and which are deleted: names are given from 0 on, a claim that is in use is never deleted, and a name
that somebody else's claim has is waited for. What the reservation says of itself is `status`'s; nothing is written here.

Owns also which claims no pod uses, since when, and which lose their devices for that: a claim that has devices and that no pod
uses is unused from when the operator first sees it so, or it was allocated last; a policy of its GPUs may say for how long it may
be. What is lost is written down before it is given back, and is not reserved again until the reservation's spec is changed. Which
policies the GPUs have is the caller's to say.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.reservations.asking import ReservationProblem, is_expired
from draco.reservations.claims import claim_name, index_of, is_in_use, is_there_to_stay, lost_claims, reserved_by
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation, LostClaims, Takeover, UnusedClaim


class ReservedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What is there: the reservation's own claims, also those that are being deleted, and what is known of others.

    `takeovers` are claims of pods that count as one of its own each, `bereft` the UIDs of those that lost what they took over.
    `lost` are the UIDs of claims, there or not, that it has no more, as no pod used them for too long.
    `foreign` are names of claims that somebody else made; `awaited` names of own claims that pods wait for.
    """

    own: Sequence[ResourceClaim]
    takeovers: Sequence[Takeover] = ()
    bereft: Collection[str] = frozenset()
    lost: Collection[str] = ()
    foreign: Collection[str] = frozenset()
    awaited: Collection[str] = frozenset()

    @property
    def staying(self) -> list[ResourceClaim]:
        """Own claims that are not being deleted."""
        return [each for each in self.own if is_there_to_stay(each)]


class ReservationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Claims to make, by number, and claims to delete, each only as it was seen. `blocked` are names that others have."""

    make: list[int] = []
    delete: list[ResourceClaim] = []
    blocked: list[str] = []

    def __str__(self) -> str:
        deleted = ", ".join(each.metadata.name for each in self.delete)
        made = ", ".join(map(str, self.make))
        return "; ".join(filter(None, [made and f"make {made}", deleted and f"delete {deleted}"])) or "nothing to do"


def plan(
    reservation: DeviceReservation,
    claims: ReservedClaims,
    now: datetime,
    *,
    problem: ReservationProblem | None = None,
    room: int,
) -> ReservationPlan:
    """What is to be done now. With a `problem` nothing is made, and at most `room` claims are."""
    staying = claims.staying
    if unused := [each for each in staying if each.metadata.uid in claims.lost and not is_in_use(each)]:
        return ReservationPlan(delete=unused)
    owed = reservation.spec.count - len(claims.takeovers) - len(claims.lost)
    wanted = 0 if is_expired(reservation, now) else max(owed, 0)
    if len(staying) > wanted:
        return ReservationPlan(delete=_to_give_back(reservation, claims, len(staying) - wanted))
    if problem is not None:
        return ReservationPlan()
    make, blocked = _to_make(reservation, claims, wanted - len(staying))
    return ReservationPlan(make=make[: max(room, 0)], blocked=blocked)


def is_whole(reservation: DeviceReservation, claims: Sequence[ResourceClaim], now: datetime) -> bool:
    """Whether all claims are made that the reservation asks for, and it has not ended: only then are they to get devices.

    `claims` are all of the namespace that may be its own, allocated or not.
    """
    own = [each for each in claims if reserved_by(each) == reservation.metadata.uid and is_there_to_stay(each)]
    elsewhere = len(reservation.status.takeovers)
    elsewhere += len(set(lost_claims(reservation)) - {each.metadata.uid for each in own})
    return not is_expired(reservation, now) and len(own) + elsewhere >= reservation.spec.count


def _to_give_back(reservation: DeviceReservation, claims: ReservedClaims, number: int) -> list[ResourceClaim]:
    """So many claims, or as many as nobody uses.

    First those whose devices are taken over, then those without devices and those for which no pod waits, the last first.
    """
    yielding = {each.reserved for each in claims.takeovers if each.allocation is not None}

    def worth(claim: ResourceClaim) -> tuple[bool, bool, bool, int]:
        index = index_of(claim, reservation)
        is_awaited = claim.metadata.name in claims.awaited
        return (
            claim.metadata.name not in yielding,
            is_awaited,
            claim.status.allocation is not None,
            -(index if index is not None else 1 << 30),
        )

    unused = [each for each in claims.staying if not is_in_use(each)]
    return sorted(unused, key=worth)[:number]


def _to_make(reservation: DeviceReservation, claims: ReservedClaims, number: int) -> tuple[list[int], list[str]]:
    """The lowest numbers that are free, and which names among them others have. What is being deleted has its name as yet."""
    staying = {each.metadata.name for each in claims.staying}
    leaving = {each.metadata.name for each in claims.own} - staying
    make: list[int] = []
    blocked: list[str] = []
    index = left = 0
    while left < number:
        name = claim_name(reservation, index)
        if name not in staying:
            left += 1
            if name in claims.foreign:
                blocked.append(name)
            elif name not in leaving:
                make.append(index)
        index += 1
    return make, blocked


def names_to_look_at(reservation: DeviceReservation, own: int) -> list[ObjectKey]:
    """The names that the reservation's claims can have now: whatever else has one of them is in the way."""
    most = reservation.spec.count + own
    return [ObjectKey(reservation.metadata.namespace, claim_name(reservation, index)) for index in range(most)]


WARNED_OF: Final = 4
"""A reservation is warned for the last of so many parts of the time."""


class UnusedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """`idle` is what no pod uses and a policy bounds, `warned` of it what is lost soon, and `lost` the UIDs of what goes.

    `next` is when there is something else to be said or done.
    """

    idle: list[UnusedClaim] = []
    warned: list[UnusedClaim] = []
    lost: list[str] = []
    next: datetime | None = None


def idle_claims(
    reservation: DeviceReservation,
    claims: ReservedClaims,
    longest: Callable[[ResourceClaim], timedelta | None],
    now: datetime,
) -> UnusedClaims:
    """How it stands now. `longest` is how long a claim may keep its devices unused; None where nothing bounds it."""
    known = {each.uid: each for each in reservation.status.idle}
    yielding = {each.reserved for each in claims.takeovers if each.allocation is not None}
    used = {each.metadata.uid for each in claims.own if is_in_use(each)}
    lost = [uid for uid in lost_claims(reservation) if uid not in used]
    idle, warned, times = list[UnusedClaim](), list[UnusedClaim](), list[datetime]()
    for claim in claims.staying:
        meta, allocation = claim.metadata, claim.status.allocation
        if allocation is None or is_in_use(claim) or meta.name in yielding or (limit := longest(claim)) is None:
            continue
        before = known.get(meta.uid)
        since = max(
            filter(None, [before.since if before else now, allocation.allocation_timestamp if before else None])
        )
        loses_at = min(since, now) + limit
        found = UnusedClaim(claim=meta.name, uid=meta.uid, since=min(since, now), loses_at=loses_at)
        idle.append(found)
        if loses_at <= now and meta.uid not in lost:
            lost.append(meta.uid)
        elif loses_at > now:
            warns_at = loses_at - limit / WARNED_OF
            warned += [found] if warns_at <= now else []
            times.append(loses_at if warns_at <= now else warns_at)
    idle.sort(key=lambda each: each.claim)
    return UnusedClaims(idle=idle, warned=warned, lost=lost, next=min(times, default=None))


def as_written(reservation: DeviceReservation, lost: list[str]) -> LostClaims | None:
    """What its status is to say of what it has lost."""
    return LostClaims(generation=reservation.metadata.generation, claims=lost) if lost else None
