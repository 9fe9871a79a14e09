"""Which claims of a reservation no pod uses, since when, and which lose their devices for that.

Owns the rule: a claim that has devices and that no pod uses is unused from when the operator first sees it so, or it was
allocated last; a policy of its GPUs may say for how long it may be. What is lost is written down before it is given back, and is
not reserved again until the reservation's spec is changed. Which policies the GPUs have is the caller's to say.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from draco.reservations.claims import is_in_use, lost_claims
from draco.reservations.plan import ReservedClaims
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.reservations import DeviceReservation, LostClaims, UnusedClaim

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
