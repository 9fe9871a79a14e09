"""What a reservation loses because no pod uses it, when that is announced, and that it stays lost until requested again."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.reservations.claims import lost_claims
from draco.reservations.plan import ReservedClaims, UnusedClaims, as_written, idle_claims, is_whole, plan
from draco.reservations.status import ReservationFacts, status_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, Takeover
from draco.resources.kinds import DEVICE_RESERVATIONS
from tests.builders import MOMENT, a_claim

FOUR_HOURS = timedelta(hours=4)
META = ObjectMeta(name="r", namespace="default", uid="r", generation=1)


def own(index: int, *pods: str, on: bool = True, allocated_at: datetime | None = None) -> ResourceClaim:
    made = a_claim(f"r-{index}", on=[f"node-0/gpu-{index}"] if on else [], reserved_for=pods)
    meta = msgspec.structs.replace(made.metadata, owner_references=[DEVICE_RESERVATIONS.owner(META)])
    status = made.status
    if status.allocation is not None:
        allocation = msgspec.structs.replace(status.allocation, allocation_timestamp=allocated_at)
        status = msgspec.structs.replace(status, allocation=allocation)
    return msgspec.structs.replace(made, metadata=meta, status=status)


class Course:
    """A reservation of two claims as the operator reconciles it; the API server keeps its status."""

    def __init__(self, limit: timedelta | None = FOUR_HOURS, **spec: Any) -> None:
        self.reservation = DeviceReservation(metadata=META, spec=DeviceReservationSpec(count=2, **spec))
        self.limit = limit
        self.takeovers: list[Takeover] = []

    def look(self, hours: float, *claims: ResourceClaim) -> tuple[UnusedClaims, list[str], list[int]]:
        """What is unused, which claims are deleted, and which are created. The status is written before either is done."""
        now = MOMENT + timedelta(hours=hours)
        seen = ReservedClaims(own=claims, takeovers=self.takeovers)
        found = idle_claims(self.reservation, seen, lambda _: self.limit, now)
        seen = msgspec.structs.replace(seen, lost=found.lost)
        planned = plan(self.reservation, seen, now, room=10)
        is_new = found.lost != lost_claims(self.reservation)
        status = status_of(self.reservation, seen, planned, ReservationFacts(idle=found), now)
        self.reservation = msgspec.structs.replace(self.reservation, status=status)
        return found, [] if is_new else [each.metadata.name for each in planned.delete], [] if is_new else planned.make

    @property
    def ready(self) -> tuple[str, str]:
        return self.reservation.status.conditions[0].reason, self.reservation.status.message

    def change(self, **spec: Any) -> None:
        meta = msgspec.structs.replace(self.reservation.metadata, generation=self.reservation.metadata.generation + 1)
        changed = msgspec.structs.replace(self.reservation.spec, **spec)
        self.reservation = msgspec.structs.replace(self.reservation, metadata=meta, spec=changed)


def test_what_no_pod_uses_for_too_long_is_given_back_after_a_warning_and_is_not_made_again() -> None:
    course = Course()
    found, deleted, made = course.look(0, own(0, "pod"), own(1))
    assert [(each.claim, each.since, each.loses_at) for each in found.idle] == [("r-1", MOMENT, MOMENT + FOUR_HOURS)]
    assert (found.warned, deleted, made, found.next) == ([], [], [], MOMENT + timedelta(hours=3))
    found, _, _ = course.look(3, own(0, "pod"), own(1))
    assert [each.claim for each in found.warned] == ["r-1"]
    assert "r-1 is used by no pod and loses its devices from 2026-03-01T16:00:00Z on" in course.ready[1]
    assert found.next == MOMENT + FOUR_HOURS
    found, deleted, _ = course.look(4, own(0, "pod"), own(1))
    assert (len(found.lost), deleted) == (1, [])  # recorded first
    _, deleted, made = course.look(4, own(0, "pod"), own(1))
    assert (deleted, made) == (["r-1"], [])
    _, deleted, made = course.look(5, own(0, "pod"))
    assert (deleted, made) == ([], [])
    assert course.ready == (
        "Unused",
        (
            "1 claim was deleted: no pod used it within spec.reservations.longestIdle of the GPUs' MigPolicy. "
            "To reserve again, change spec.count or make another reservation."
        ),
    )
    course.change(count=3)
    assert course.look(5, own(0, "pod"))[2] == [1, 2]


def test_what_a_pod_came_to_use_at_the_last_moment_stays_and_is_not_counted_as_lost() -> None:
    course = Course()
    course.look(0, own(0, "pod"), own(1))
    course.look(4, own(0, "pod"), own(1))
    found, deleted, made = course.look(4, own(0, "pod"), own(1, "late"))
    assert (found.lost, deleted, made) == ([], [], [])
    found, deleted, made = course.look(4, own(0, "pod"), own(1))
    assert (found.lost, deleted, made, found.idle[0].since) == ([], [], [], MOMENT + FOUR_HOURS)


def test_the_time_begins_again_after_each_pod_also_if_no_operator_saw_that() -> None:
    course = Course()
    course.look(0, own(0))
    found, _, _ = course.look(4, own(0, allocated_at=MOMENT + timedelta(hours=2)))
    assert (found.lost, found.idle[0].since) == ([], MOMENT + timedelta(hours=2))


def test_a_limit_that_comes_later_takes_nothing_at_once() -> None:
    course = Course(limit=None)
    assert course.look(0, own(0))[0] == UnusedClaims()
    course.limit = FOUR_HOURS
    found, _, _ = course.look(100, own(0, allocated_at=MOMENT))
    assert (found.lost, found.next) == ([], MOMENT + timedelta(hours=103))


def test_what_has_no_devices_or_is_being_taken_over_is_not_unused() -> None:
    course = Course()
    course.takeovers = [Takeover(claim="pod-gpu", uid="x", reserved="r-1", since=MOMENT, allocation={})]
    found, _, _ = course.look(0, own(0, on=False), own(1))
    assert found.idle == []


def test_a_clock_that_was_set_back_gives_no_more_time_than_the_policy_does() -> None:
    course = Course()
    course.look(10, own(0))
    assert course.look(0, own(0))[0].idle[0].loses_at == MOMENT + FOUR_HOURS


@pytest.mark.parametrize(("generation", "whole"), [(1, True), (2, False)])
def test_what_is_left_gets_devices_though_something_was_lost_until_more_is_asked_for(
    generation: int, whole: bool
) -> None:
    course = Course()
    lost = as_written(course.reservation, ["gone"])
    status = msgspec.structs.replace(course.reservation.status, lost=lost)
    meta = msgspec.structs.replace(META, generation=generation)
    reservation = msgspec.structs.replace(course.reservation, metadata=meta, status=status)
    assert is_whole(reservation, [own(0, on=False)], MOMENT) is whole
