"""What to do about the claims of a DeviceReservation.

Owns which claims are made and deleted: names are numbered from 0, a claim in use is never deleted, and a name used by a foreign
claim blocks. `status` owns the status; nothing is written here.

Also owns which claims are unused, since when, and which are lost. An allocated claim without pods is unused since the operator
first saw it so, or since its last allocation; a policy of its GPUs may limit that time. A loss is recorded before the claim is
deleted, and the claim is not reserved again until the spec changes. The caller finds the policies.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.reservations.claims import claim_name, index_of, is_in_use, is_there_to_stay, lost_claims, reserved_by
from draco.reservations.validity import ReservationProblem, is_expired
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation, LostClaims, Takeover, UnusedClaim


class ReservedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The current claims: the reservation's own (also those being deleted), and related ones.

    `takeovers` are claims of pods that each count as one of its own, `bereft` the UIDs of those that lost the devices again.
    `lost` are the UIDs of claims, existing or not, that were unused for too long. `foreign` are names used by others' claims;
    `awaited` are names of own claims that pods wait for.
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
    """Claims to make, by number, and to delete if unchanged. `blocked` are names used by others."""

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
    """What to do now. With a `problem` no claims are made; otherwise at most `room`."""
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
    """Whether a current reservation has all claims, so that they get devices. `claims`: its namespace's that may be its own."""
    own = [each for each in claims if reserved_by(each) == reservation.metadata.uid and is_there_to_stay(each)]
    elsewhere = len(reservation.status.takeovers)
    elsewhere += len(set(lost_claims(reservation)) - {each.metadata.uid for each in own})
    return not is_expired(reservation, now) and len(own) + elsewhere >= reservation.spec.count


def _to_give_back(reservation: DeviceReservation, claims: ReservedClaims, number: int) -> list[ResourceClaim]:
    """At most `number` unused claims to delete: first those taken over, not awaited, without devices, the highest index."""
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
    """The lowest free numbers, and the names among them used by others. Claims being deleted still occupy their names."""
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
    """The names that the reservation's claims can have now."""
    most = reservation.spec.count + own
    return [ObjectKey(reservation.metadata.namespace, claim_name(reservation, index)) for index in range(most)]


WARNED_OF: Final = 4
"""The warning begins in the last 1/WARNED_OF of the time."""


class UnusedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """`idle` has unused claims with a limit, `warned` those lost soon, `lost` UIDs of lost claims, `next` the next change."""

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
    """The unused claims now. `longest` is how long a claim may stay unused; None without a limit."""
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
    """The lost claims as its status records them."""
    return LostClaims(generation=reservation.metadata.generation, claims=lost) if lost else None
