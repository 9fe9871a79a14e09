"""Since when a group waits: since it could have been served, whoever leads, and not since its first object was created."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.controller.allocation.queue.overdue import OverdueGroups
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.reservations.plan import ReservedClaims
from draco.reservations.takeover import TakeoverCandidate, reservation_named, taken_up
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodStatus
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.names import LABEL_RESERVATION
from tests.builders import a_claim, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.allocation.test_waiting_groups import GPU, LABELS, SIZE, World
from tests.unit.controller.watching import tell

OTHERS, OWN = "example.com/admission", "draco.dev/allocation"
MOMENT = ManualClock().now()
DAYS_AGO = MOMENT - timedelta(days=2)


def an_old_claim(name: str, **more: Any) -> ResourceClaim:
    made = a_claim(name, device_class="gpu", **more)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=DAYS_AGO))


def a_waiting(name: str, *gates: str, generation: int = 1, at: datetime = DAYS_AGO, labels: bool = True) -> Pod:
    more: dict[str, Any] = {"labels": LABELS, "annotations": SIZE} if labels else {}
    return a_pod(
        name,
        claims=[name],
        gates=gates,
        creation_timestamp=at,
        generation=generation,
        status=PodStatus(phase="Pending"),
        **more,
    )


class Told(World):
    """A cluster that reports its changes. All claims are two days old."""

    def __init__(self) -> None:
        super().__init__(GPU)
        self.clock: ManualClock = self.view.clock  # type: ignore[assignment]

    def tell(self, *objects: object) -> None:
        tell(self.view, *objects)

    def claim(self, name: str, *on: str) -> None:
        self.tell(an_old_claim(name, on=on))

    def since(self) -> datetime | None:
        return self.group().since


def test_a_group_counts_from_when_the_gate_of_its_last_pod_goes_and_not_from_when_it_was_made() -> None:
    world = Told()
    world.claim("a")
    world.claim("b")
    world.tell(a_waiting("a", OTHERS), a_waiting("b", OTHERS))
    world.clock.put_right(timedelta(seconds=10))
    world.tell(a_waiting("a", generation=2))
    world.clock.put_right(timedelta(seconds=10))
    released = world.clock.now()
    world.tell(a_waiting("b", OWN, generation=2))
    world.clock.put_right(timedelta(seconds=10))
    world.tell(a_waiting("b", generation=3))  # Draco's own gate: it held nothing back before
    assert world.since() == released


@pytest.mark.parametrize(("generation", "is_creation"), [(1, True), (2, False), (0, False)])
def test_who_leads_next_goes_by_what_the_api_server_says_where_nobody_can_have_taken_a_gate_off(
    generation: int, is_creation: bool
) -> None:
    world = Told()
    for name in "ab":
        world.claim(name)
        world.tell(a_waiting(name, OWN, generation=generation))
    assert world.since() == (DAYS_AGO if is_creation else world.clock.now())


def test_a_group_counts_from_when_as_many_of_its_pods_are_there_as_start_together() -> None:
    world = Told()
    for days, name in enumerate("abc"):
        world.claim(name)
        world.tell(a_waiting(name, at=DAYS_AGO + timedelta(days=days)))
    assert world.since() == DAYS_AGO + timedelta(days=1)  # two start together


def test_a_claim_made_by_name_counts_with_each_pod_anew_and_after_it_lost_its_devices() -> None:
    world = Told()
    world.claim("named")
    assert world.since() == DAYS_AGO
    world.tell(a_waiting("named", at=MOMENT, labels=False))
    assert world.since() == MOMENT
    other = Told()
    other.claim("named", "node-0/gpu-0")
    other.clock.put_right(timedelta(seconds=5))
    other.claim("named")
    assert other.since() == other.clock.now()


def test_a_claim_whose_pods_wait_behind_gates_of_others_gets_nothing_and_counts_from_when_one_is_let_go() -> None:
    world = Told()
    world.claim("named")
    world.tell(a_waiting("named", OTHERS, labels=False))
    assert not world.waiting.groups()
    world.clock.put_right(timedelta(seconds=5))
    world.tell(a_waiting("named", OWN, generation=2, labels=False))
    assert [(each.metadata.name) for member in world.group().group.members for each in member.pods] == ["named"]
    assert world.since() == world.clock.now()


def test_who_deletes_the_pod_behind_the_gate_has_not_waited_with_the_claim_meanwhile() -> None:
    world = Told()
    world.claim("named")
    gated = a_waiting("named", OTHERS, labels=False)
    world.tell(gated)
    world.clock.put_right(timedelta(seconds=5))
    for change in world.view.pods.store.remove(gated.metadata.key):
        for subscriber in world.view.pods._subscribers:
            subscriber(change)
    assert world.since() == world.clock.now()


def test_what_waits_no_more_is_forgotten() -> None:
    world = Told()
    for name in ("one", "two"):
        world.claim(name)
        world.tell(a_waiting(name, OTHERS, labels=False))
        world.tell(a_waiting(name, generation=2, labels=False))
    world.claim("one", "node-0/gpu-0")
    world.tell(a_pod("one", node="node-0", claims=["one"], generation=2, status=PodStatus(phase="Pending")))
    for collection in (world.view.pods, world.view.claims):
        for change in collection.store.swap({}):
            for subscriber in collection._subscribers:
                subscriber(change)  # type: ignore[arg-type]
    times = world.view.waiting_times
    assert (times._ungated, times._lost) == ({}, {})


RESERVATION = DeviceReservation(
    metadata=ObjectMeta(name="r", namespace="default", uid="r"), spec=DeviceReservationSpec()
)


@pytest.mark.parametrize(("gates", "taken"), [((OWN,), True), ((OTHERS,), False)])
def test_a_pod_takes_over_what_is_reserved_for_it_once_it_is_let_go_however_old_its_claim_is(
    gates: Sequence[str], taken: bool
) -> None:
    owned = a_claim("r-0", device_class="gpu", on=["node-0/gpu-0"], reserved_for=())
    owner = DEVICE_RESERVATIONS.owner(RESERVATION.metadata)
    own = msgspec.structs.replace(owned, metadata=msgspec.structs.replace(owned.metadata, owner_references=[owner]))
    claim = an_old_claim("pod-gpu-x", made_for=("pod", "gpu"))
    pod = a_pod(
        "pod", templates=["gpu"], gates=gates, labels={LABEL_RESERVATION: "r"}, status=PodStatus(phase="Pending")
    )
    candidate = TakeoverCandidate(claim, pod, MOMENT)
    named = reservation_named(candidate) == "r"
    assert named is taken
    begun = taken_up(RESERVATION, ReservedClaims(own=[own]), [candidate] if named else [], MOMENT, lambda _: False)
    assert [each.claim for each in begun] == ["pod-gpu-x"] * taken


def waiting(uid: str, *, priority: int = 0, age_s: float = 0.0, unready: str = "") -> WaitingGroup:
    since = ManualClock().now() - timedelta(seconds=age_s)
    group = ClaimGroup([GroupMember([a_claim(uid)])])
    return WaitingGroup(uid=uid, group=group, order=(-priority, uid, uid), since=since, unready=unready)


def head(overdue: OverdueGroups, *groups: WaitingGroup, hopeless: str = "") -> str:
    overdue.look(groups)
    ready = {each.uid: each for each in groups if not each.unready}
    return overdue.head(ready, lambda uid: uid != hopeless)[0]


def next_s(overdue: OverdueGroups, *groups: WaitingGroup) -> float:
    return overdue.head({each.uid: each for each in groups}, lambda _: True)[1]


def test_devices_are_kept_for_the_first_that_is_overdue_among_the_most_urgent_that_can_find_a_place() -> None:
    overdue = OverdueGroups(clock=ManualClock(), overdue_s=600)
    old, older, young = (waiting(uid, age_s=age) for uid, age in (("b", 700), ("c", 900), ("a", 10)))
    assert head(overdue, old, older) == "b"
    assert head(overdue, young, old, older) == "b"  # replacing a member again and again starves no other group
    assert head(overdue, young, old, hopeless="b") == ""
    assert next_s(overdue, young) == 590
    urgent = waiting("u", priority=5, age_s=10)
    assert head(overdue, urgent, old) == ""
    assert head(overdue, urgent, old, hopeless="u") == "b"


def test_a_group_is_not_overdue_for_what_a_limit_or_a_missing_pod_kept_it_from() -> None:
    clock = ManualClock()
    overdue = OverdueGroups(clock=clock, overdue_s=600)
    old = waiting("old", age_s=10_000)
    overdue.limited(["old"])
    assert head(overdue, old) == ""
    overdue.permitted(["old"])
    assert (head(overdue, old), next_s(overdue, old)) == ("", 600)
    clock.put_right(timedelta(seconds=600))
    assert head(overdue, old) == "old"
    assert head(overdue, msgspec.structs.replace(old, unready="a pod is missing")) == ""
    assert (head(overdue, old), next_s(overdue, old)) == ("", 600)
    head(overdue)
    assert head(overdue, old) == "old"  # another group of that name: nothing is remembered of the one before
