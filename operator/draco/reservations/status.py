"""The status of a DeviceReservation: Ready, which is true while all claims have devices, and Expired."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from draco.reservations.claims import is_in_use
from draco.reservations.plan import ReservationPlan, ReservedClaims, UnusedClaims, as_written
from draco.reservations.validity import (
    ReservationPriority,
    ReservationProblem,
    expires_at,
    is_expired,
    is_past_from_the_start,
)
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import Condition, timed
from draco.resources.api.reservations import DeviceReservation, DeviceReservationStatus, Takeover, UnusedClaim
from draco.resources.texts import agreeing, are, counted, listed, reason_of, sentence, short_sentence, shown, them

CONDITION_READY: Final = "Ready"
CONDITION_EXPIRED: Final = "Expired"
LONGEST: Final = 600
POLICY_SAYS: Final = "spec.reservations.longestIdle of the GPUs' MigPolicy"
NOT_ENABLED: Final = ReservationProblem(
    "NotEnabled",
    "Draco allocates nothing in this cluster, so nothing is reserved: set the chart's value operator.allocate to true.",
)


class ReservationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps claims from being made or getting devices, if known; "" or None if nothing does."""

    problem: ReservationProblem | None = None
    refusal: str = ""
    """The API server's error for a claim."""
    full: str = ""
    """The error that the namespace has its maximum of reserved claims."""
    begun: Sequence[Takeover] = ()
    waits_for: str = ""
    """Why there are no devices yet."""
    priority: ReservationPriority | None = None
    idle: UnusedClaims = UnusedClaims()


def status_of(
    reservation: DeviceReservation,
    claims: ReservedClaims,
    planned: ReservationPlan,
    facts: ReservationFacts,
    now: datetime,
) -> DeviceReservationStatus:
    """The new status of the reservation."""
    taken = [each for each in claims.takeovers if each.uid not in claims.bereft]
    counts = _Counts(
        made=len(claims.staying) + len(claims.takeovers),
        reserved=sum(each.status.allocation is not None for each in claims.staying) + len(taken),
        in_use=sum(map(is_in_use, claims.own)) + sum(each.allocation is None for each in taken),
        lost=len(facts.idle.lost),
    )
    if is_expired(reservation, now):
        ready = _not("Expired", _over(reservation, counts.in_use))
    else:
        ready = _obstacle(reservation, counts, planned, facts) or _reserved(reservation, counts, facts)
    generation = reservation.metadata.generation
    conditions = [ready, _expired(reservation, now)]
    return DeviceReservationStatus(
        observed_generation=generation,
        priority=facts.priority.value if facts.priority else None,
        preemption_policy=facts.priority.preemption_policy if facts.priority else "",
        reserved=counts.reserved,
        in_use=counts.in_use,
        expires_at=expires_at(reservation),
        message=ready.message,
        takeovers=[*claims.takeovers, *facts.begun],
        idle=facts.idle.idle,
        lost=as_written(reservation, facts.idle.lost),
        conditions=[timed(each, reservation.status.conditions, now, generation=generation) for each in conditions],
    )


class _Counts(msgspec.Struct, frozen=True):
    made: int
    reserved: int
    in_use: int
    lost: int = 0


def _obstacle(
    reservation: DeviceReservation, counts: _Counts, planned: ReservationPlan, facts: ReservationFacts
) -> Condition | None:
    """What prevents claims or their devices; None if nothing does."""
    count, made, reserved = reservation.spec.count - counts.lost, counts.made, counts.reserved
    if facts.problem is not None and (made < count or reserved < made):
        return _not(facts.problem.reason, facts.problem.message)
    if names := planned.blocked:
        claims = agreeing(len(names), "ResourceClaim", "ResourceClaims")
        return _not(
            "NameTaken",
            f"{claims} {listed(names)} {agreeing(len(names), 'does', 'do')} not belong to this reservation: delete "
            f"{them(len(names))}, or give the reservation another name.",
        )
    if made < count:
        told = [("Refused", facts.refusal), ("NamespaceFull", facts.full)]
        told.append(("Making", f"{made} of {counted(count, 'claim')} {are(made)} made."))
        return _not(*next(each for each in told if each[1]))
    if reserved < made:
        said = f"{reserved} of {counted(made, 'claim')} {agreeing(reserved, 'has', 'have')} devices"
        return _not("WaitingForDevices", f"{said}: {facts.waits_for}" if facts.waits_for else f"{said}.")
    if counts.lost:
        return _not(
            "Unused", f"{lost_text(counts.lost)} To reserve again, change spec.count or make another reservation."
        )
    return None


def used_up(claim: ResourceClaim, user: Pod) -> str:
    """The text for a claim without devices because its pod has ended."""
    return (
        f"pod {user.metadata.name} has ended, and while it exists Kubernetes deallocates claim "
        f"{claim.metadata.name}: delete the pod."
    )


def lost_text(claims: int) -> str:
    """The text for lost claims."""
    were = agreeing(claims, "was", "were")
    return f"{counted(claims, 'claim')} {were} deleted: no pod used {them(claims)} within {POLICY_SAYS}."


def warning_text(warned: Sequence[UnusedClaim]) -> str:
    """The text for claims that will be lost soon."""
    first, number = min(each.loses_at for each in warned if each.loses_at), len(warned)
    use, lose = agreeing(number, "is used by no pod and loses its", "are used by no pod and lose their"), them(number)
    return (
        f"{listed(each.claim for each in warned)} {use} devices from {_written(first)} on, unless pods use {lose} "
        f"({POLICY_SAYS})."
    )


def _reserved(reservation: DeviceReservation, counts: _Counts, facts: ReservationFacts) -> Condition:
    reserved, in_use, more = counts.reserved, counts.in_use, counts.made - reservation.spec.count
    has = agreeing(reserved, "has", "have")
    said = f"{counted(reserved, 'claim')} {has} devices; {in_use} {are(in_use)} in use."
    if more > 0:
        their = agreeing(more, "its", "their")
        said += f" {more} more than requested {are(more)} deleted when {their} pods end."
    if facts.idle.warned:
        said += f" {warning_text(facts.idle.warned)}"
    return Condition(type=CONDITION_READY, status="True", reason="Reserved", message=short_sentence(said, LONGEST))


def _over(reservation: DeviceReservation, in_use: int) -> str:
    end = expires_at(reservation)
    if is_past_from_the_start(reservation):
        return (
            f"It ended at {_written(end)}, before it was created, so nothing is reserved: set a later spec.expiresAt."
        )
    left = f" {counted(in_use, 'claim')} in use {are(in_use)} deleted when {agreeing(in_use, 'its', 'their')} pods end."
    return f"It ended at {_written(end)}.{left if in_use else ''} To reserve again, set a later end."


def _expired(reservation: DeviceReservation, now: datetime) -> Condition:
    end = expires_at(reservation)
    if end is None:
        return Condition(
            type=CONDITION_EXPIRED, status="False", reason="NoEnd", message="It lasts until it is deleted."
        )
    if end <= now:
        return Condition(type=CONDITION_EXPIRED, status="True", reason="Ended", message=f"It ended at {_written(end)}.")
    return Condition(type=CONDITION_EXPIRED, status="False", reason="Lasts", message=f"It lasts until {_written(end)}.")


def refused(name: str, message: str) -> str:
    """The text for a claim that the API server refuses."""
    _, quota, what = message.partition("exceeded quota: ")
    if quota:
        return short_sentence(
            f"ResourceQuota {shown(what)}: claim {name} would exceed it. Raise the quota, or reserve fewer.", LONGEST
        )
    return f"The API server rejects claim {name}: {sentence(reason_of(message))}"


def full(namespace: str, most: int) -> str:
    """The text for a namespace with its maximum of reserved claims."""
    return f"Reservations have created {most} claims in {namespace}, the maximum: delete some, or reserve fewer."


def no_template(name: str) -> ReservationProblem:
    """The problem of a missing template."""
    return ReservationProblem(
        "NoTemplate",
        f"There is no ResourceClaimTemplate {shown(name)} in this namespace: create it, or reserve with another.",
    )


def _not(reason: str, message: str) -> Condition:
    return Condition(type=CONDITION_READY, status="False", reason=reason, message=short_sentence(message, LONGEST))


def _written(end: datetime | None) -> str:
    return f"{end:%Y-%m-%dT%H:%M:%SZ}" if end else ""
