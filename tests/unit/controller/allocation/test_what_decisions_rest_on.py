"""Every input of a decision wakes it and has it made again: each entry of the lists, and what happens without that entry.

In each world something waits, and then one thing changes, or time passes. With the whole list, that is a reason to look or to
search again; without the one entry it is none, and the wait would never end.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
import pytest

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation import allocations
from draco.controller.allocation.allocations import ClaimAllocations
from draco.controller.allocation.asking.basis import Basis, Wanted
from draco.controller.allocation.rounds import Kept
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.allocation.wakes import TIMES, WAKES
from draco.controller.workers.messages import PlaceClaims, PlacementAnswer, Question, claims_of
from draco.kube.errors import NotFound
from draco.placing.preempting.victim_selection import PreemptionPlan
from draco.resources.api.core import Toleration
from draco.resources.api.jobs import Job, JobSpec
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, DeviceReservationStatus, Takeover
from draco.resources.api.scheduling import PodGroup
from draco.resources.names import LABEL_RESERVATION
from tests.builders import a_claim, a_slice, a_uid
from tests.unit.controller.allocation.test_asking_again import Lab, a_place, form, no_place, tolerate
from tests.unit.controller.watching import tell

GPU = GpuPlace("gpu.nvidia.com", "node-0", "gpu-1")


def another(collection: Any, name: str = "", **meta: Any) -> None:
    """Change the metadata of an object: of the only one, unless it is named."""
    found = next(each for each in collection.store.values() if name in ("", each.metadata.name))
    changed = msgspec.structs.replace(found.metadata, **meta)
    collection._publish(collection.store.put(msgspec.structs.replace(found, metadata=changed)))


def of_topology(classes: Any) -> None:
    another(classes, annotations={"draco.dev/topology": "node"})


def gone(lab: Lab, name: str) -> None:
    """The watch reports that a claim is gone."""
    lab.view.claims._publish(lab.view.claims.store.remove(ObjectKey("default", name)))


def reservation_of(lab: Lab, *takes_over: str) -> None:
    """A reservation whose claim was on `gpu-1`, which these claims take over."""
    held = a_claim(on=["node-0/gpu-1"]).status.allocation
    takeovers = [
        Takeover(
            claim=each, uid=each, reserved="evening-0", since=lab.clock.now(), allocation=msgspec.to_builtins(held)
        )
        for each in takes_over
    ]
    made = DeviceReservation(
        metadata=ObjectMeta(name="evening", namespace="default", uid="evening"),
        spec=DeviceReservationSpec(count=0),
        status=DeviceReservationStatus(takeovers=takeovers),
    )
    lab.view.reservations._publish(lab.view.reservations.store.put(made))


def permissive(lab: Lab) -> Any:
    """The stand-in for the handover and the limits."""
    return lab.allocations._handover


def owns(lab: Lab, **fields: Any) -> None:
    """Change what the handover says."""
    for name, value in fields.items():
        setattr(permissive(lab), name, value)
    permissive(lab).when_owned.tell()


async def nothing(_: Lab) -> None:
    """Nothing has to happen first."""


async def a_write_answered(lab: Lab) -> None:
    """A claim is allocated according to the API server, but not yet on the watch."""
    lab.refusal, lab.workers.instead = None, a_place
    lab.wait("young")
    await lab.look()
    lab.workers.instead = no_place


async def a_pod_waits(lab: Lab) -> None:
    tolerate(lab, more=False)


def a_job(parallelism: int) -> Job:
    return Job(metadata=ObjectMeta(name="j", namespace="default"), spec=JobSpec(parallelism=parallelism))


async def a_job_is_known(lab: Lab) -> None:
    tell(lab.view, a_job(parallelism=3))


def taken_back_unseen(lab: Lab) -> None:
    """The watch was interrupted while the claim was allocated and while that allocation was removed."""
    lab.wait("young", version="7")


def limits_change(lab: Lab) -> None:
    permissive(lab).version += 1
    permissive(lab).when_changed.tell()


World = tuple[Callable[[Lab], Awaitable[None]], Callable[[Lab], object]]
"""What happens first, and the change after it."""

WAKING: Final[Mapping[str, World]] = {
    "what is published, tainted and allocated, and nodes": (nothing, lambda lab: tell(lab.view, a_slice("node-0"))),
    "claims": (nothing, lambda lab: lab.wait("young")),
    "claims of which a write is remembered": (a_write_answered, taken_back_unseen),
    "pods": (a_pod_waits, lambda lab: tolerate(lab, more=True)),
    "PodGroups": (nothing, lambda lab: tell(lab.view, PodGroup(metadata=ObjectMeta(name="g", namespace="default")))),
    "Jobs of JobSets": (a_job_is_known, lambda lab: tell(lab.view, a_job(parallelism=2))),
    "reservations": (nothing, reservation_of),
    "topologies of DeviceClasses": (nothing, lambda lab: of_topology(lab.view.classes)),
    "GPUs that may be given out, or emptied": (nothing, owns),
    "limits": (nothing, limits_change),
    "nominations": (nothing, lambda lab: lab.allocations.preemptions.listeners.tell("group")),
}


@pytest.mark.parametrize("is_there", [True, False], ids=["with it", "without it"])
@pytest.mark.parametrize("entry", [*WAKES])
async def test_each_entry_alone_wakes_the_decision(
    entry: str, *, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, change = WAKING[entry]
    if not is_there:
        monkeypatch.setattr(allocations, "WAKES", {name: each for name, each in WAKES.items() if name != entry})
    lab = Lab()
    await lab.look()
    await before(lab)
    await lab.look()
    lab.is_woken = False
    change(lab)
    assert lab.is_woken is is_there


def one_by_one(lab: Lab, placed: str) -> None:
    """Workers that find a place for the claim of this name only."""

    def answer(question: Question) -> PlacementAnswer:
        assert isinstance(question, PlaceClaims)
        names = [group.claims[0].metadata.name for group in question.groups]
        placements = zip(names, a_place(question).placements, no_place(question).placements, strict=True)
        return PlacementAnswer([place if name == placed else none for name, place, none in placements])

    lab.workers.instead = answer


async def lost_to_one_that_is_gone(lab: Lab) -> None:
    """Searched for after a claim that was to get the missing device, and which is deleted before that is written."""
    lab.refusal = NotFound(404, "NotFound", "it is gone")
    gone(lab, "waits")
    await lab.look()
    lab.wait("early", creation_timestamp=lab.clock.now())
    lab.wait("waits")
    one_by_one(lab, placed="early")
    await lab.look()
    assert len(claims_of(lab.workers.asked[-1])) == 2


async def is_taken_over(lab: Lab) -> None:
    lab.wait("taker")
    reservation_of(lab, "taker")
    await lab.rest()
    gone(lab, "taker")
    await lab.rest()


async def is_overdue_in_a_moment(lab: Lab) -> None:
    another(lab.view.claims, creation_timestamp=lab.clock.now() - timedelta(seconds=500))
    await lab.rest()


def keeps(lab: Lab) -> None:
    """Devices are kept for no group: this lasts only a moment, once the group that they were kept for has its place."""
    lab.allocations._kept = Kept("", frozenset(a_claim(on=["node-0/gpu-1"]).devices_held))
    owns(lab)


RESTING: Final[Mapping[str, World]] = {
    "fleet": (nothing, lambda lab: lab.change(1)),
    "limits": (nothing, limits_change),
    "nominations": (nothing, lambda lab: lab.allocations.preemptions._changed("group")),
    "writes": (lost_to_one_that_is_gone, lambda lab: gone(lab, "early")),
    "owned": (nothing, lambda lab: owns(lab, owned=frozenset({GPU}))),
    "withheld": (nothing, lambda lab: owns(lab, withheld=frozenset({GPU}))),
    "preemptible": (nothing, lambda lab: owns(lab, preemptible=frozenset({GPU}))),
    "spread": (nothing, lambda lab: owns(lab, spread=frozenset({GPU.pool_key}))),
    "taken_over": (is_taken_over, reservation_of),
    "kept": (nothing, keeps),
    "head": (is_overdue_in_a_moment, lambda lab: lab.clock.pass_without_a_turn(60)),
}


@pytest.mark.parametrize("is_there", [True, False], ids=["with it", "without it"])
@pytest.mark.parametrize("field", Basis._fields)
async def test_who_found_no_place_is_asked_about_again_once_this_alone_is_another(
    field: str, *, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_there:
        whole, blind = ClaimAllocations._basis, {field: cast("Any", None)}
        monkeypatch.setattr(ClaimAllocations, "_basis", lambda self, head: whole(self, head)._replace(**blind))
    before, change = RESTING[field]
    lab = Lab()
    await lab.rest()
    await before(lab)
    lab.workers.asked.clear()
    lab.workers.instead = no_place
    change(lab)
    await lab.rest()
    assert bool(lab.workers.asked) is is_there
    lab.workers.asked.clear()
    await lab.rest()
    assert not lab.workers.asked


def another_spec(lab: Lab) -> None:
    """A pod of the group gets another toleration."""
    pod = lab.view.pods.store.get(ObjectKey("default", "one"))
    assert pod is not None
    spec = msgspec.structs.replace(pod.spec, tolerations=[Toleration(key="maintenance", operator="Exists")])
    tell(lab.view, msgspec.structs.replace(pod, spec=spec))


def urgent(lab: Lab, priority: int = 5, preemption_policy: str = "") -> None:
    """The reservation's priority becomes known."""
    known = lab.view.reservations.store.get(ObjectKey("default", "evening"))
    assert known is not None
    status = msgspec.structs.replace(known.status, priority=priority, preemption_policy=preemption_policy)
    lab.view.reservations._publish(lab.view.reservations.store.put(msgspec.structs.replace(known, status=status)))


WANTING: Final[Mapping[str, Callable[[Lab], object]]] = {
    "claims": lambda lab: another(lab.view.claims, "one", uid="one made again"),
    "pods": another_spec,
    "needed": lambda lab: form(lab, smaller=True),
    "topology": lambda lab: of_topology(lab.view.classes),
    "priority": lambda lab: urgent(lab, 10, "Never"),
    "may_preempt": urgent,
}


@pytest.mark.parametrize("is_there", [True, False], ids=["with it", "without it"])
@pytest.mark.parametrize("field", Wanted._fields)
async def test_a_group_that_wants_something_else_by_this_alone_is_asked_about_again(
    field: str, *, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_there:
        whole, blind = Wanted.by, {field: cast("Any", None)}
        monkeypatch.setattr(Wanted, "by", lambda waiting: whole(waiting)._replace(**blind))
    lab = Lab()
    gone(lab, "waits")
    form(lab, smaller=False)
    lab.reserve(1)
    urgent(lab, 5, "Never")
    await lab.rest()
    lab.workers.asked.clear()
    WANTING[field](lab)
    await lab.rest()
    assert bool(lab.workers.asked) is is_there


async def is_another_by_now(lab: Lab) -> None:
    lab.workers.instead, lab.workers.cpu_s = a_place, 0.1


async def cannot_be_given_back(lab: Lab) -> None:
    """A claim whose device is gone, and which has changed since the watch reported it."""
    gone(lab, "waits")
    tell(lab.view, a_slice("node-0"), a_claim("lost", device_class="gpu.draco.dev", on=["node-0/gpu-7"]))


async def may_take_over(lab: Lab) -> None:
    """A pod names a reservation with a claim that could yield, and this is not written down yet."""
    spec = a_claim(device_class="gpu.draco.dev").spec
    lab.begin("taker", labels={LABEL_RESERVATION: "evening"}, generation=1)
    another(
        lab.view.claims,
        "taker",
        owner_references=[
            OwnerReference(api_version="v1", kind="Pod", name="taker", uid=a_uid("pod", "default", "taker"))
        ],
        creation_timestamp=lab.clock.now() - timedelta(seconds=30),
    )
    lab.reserve(1)
    held = a_claim("evening-0", device_class="gpu.draco.dev", on=["node-0/gpu-1"])
    tell(lab.view, a_slice("node-0"))
    own = lab.view.claims.store.get(ObjectKey("default", "evening-0"))
    assert own is not None
    assert own.spec == spec
    lab.view.claims._publish(lab.view.claims.store.put(msgspec.structs.replace(own, status=held.status)))


PASSING: Final[Mapping[str, Callable[[Lab], Awaitable[None]]]] = {
    "writes": is_another_by_now,
    "returns": cannot_be_given_back,
    "claims that a reservation holds back": may_take_over,
}


@pytest.mark.parametrize("is_there", [True, False], ids=["with it", "without it"])
@pytest.mark.parametrize("entry", [*TIMES])
async def test_it_is_looked_again_when_this_alone_has_passed(
    entry: str, *, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_there:
        monkeypatch.setattr(allocations, "TIMES", {name: each for name, each in TIMES.items() if name != entry})
    lab = Lab()
    await PASSING[entry](lab)
    await lab.look()
    assert lab.has_reason is is_there


async def test_a_pod_that_was_let_go_is_kept_waiting_for_what_it_takes_over_from_then_on_however_old_its_claim_is() -> (
    None
):
    lab = Lab()
    await may_take_over(lab)
    claim = lab.view.claims.store.get(ObjectKey("default", "taker"))
    assert claim is not None
    old = lab.clock.now() - timedelta(days=1)
    for more in ({"gates": ["example.com/admission"]}, {"generation": 2}):
        lab.begin("taker", labels={LABEL_RESERVATION: "evening"}, creation_timestamp=old, **more)
    lab.view.claims._publish(lab.view.claims.store.put(claim))
    another(lab.view.claims, "taker", creation_timestamp=old)
    held_back = lab.allocations._held_back
    held_back.look()
    assert ObjectKey("default", "taker") in held_back
    assert held_back.next_s() == 60.0


def while_it_looks(lab: Lab, seconds: float) -> None:
    """Let this much time pass in each look, after it has read what waits."""
    said = lab.allocations._notes.tell_unready

    def late(waiting: Iterable[WaitingGroup]) -> float:
        lab.clock.pass_without_a_turn(seconds)
        return said(waiting)

    lab.allocations._notes.tell_unready = late  # type: ignore[method-assign]


async def test_a_pause_that_ends_while_it_is_looked_is_a_reason_to_look_again() -> None:
    """The claim was left out because it was in its pause; by the end of the look the pause is over."""
    lab = Lab()
    lab.workers.instead = a_place
    await lab.look()
    assert lab.writes == 1
    lab.refusal = None
    while_it_looks(lab, 0.06)
    lab.is_woken = True
    await lab.look()
    assert lab.writes == 2


async def test_a_node_that_may_be_taken_again_while_it_is_asked_is_a_reason_to_ask_again() -> None:
    lab = Lab()
    gone(lab, "waits")
    lab.begin("pod")
    pod = lab.view.pods.store.get(ObjectKey("default", "pod"))
    assert pod is not None
    lab.allocations._refusals._until_s[pod.metadata.uid] = {"node-0": lab.clock.monotonic() + 30}

    def slow(question: Question) -> PlacementAnswer:
        lab.clock.pass_without_a_turn(31)
        return no_place(question)

    lab.workers.instead = slow
    await lab.look()
    groups = [group for each in lab.workers.asked if isinstance(each, PlaceClaims) for group in each.groups]
    assert [list(each.members[0].without) for each in groups] == [["node-0"], []]


async def test_what_is_kept_for_a_group_of_another_priority_than_before_is_kept_from_others_than_before() -> None:
    lab = Lab()
    preemptions = lab.allocations.preemptions
    [waiting] = lab.allocations._waiting.groups()
    held = a_claim(on=["node-0/gpu-1"]).status.allocation
    assert held is not None
    versions = []
    for priority in (10, 10, 50):
        preemptions._nominate(waiting, priority, PreemptionPlan([], [[held]]), [], {})
        versions.append(preemptions.version)
    assert versions == [1, 1, 2]
