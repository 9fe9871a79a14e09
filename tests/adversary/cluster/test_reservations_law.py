"""The laws of reservations, limits and holds: reservations are kept, limits respected, and nodes with reserved devices held."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.adversary.cluster.manifests import limit, pod, reservation
from tests.adversary.cluster.observer import holds, limited
from tests.adversary.cluster.observer.limited import KNOWN_AFTER_S, Limits, miscounted
from tests.adversary.cluster.observer.reservations import WEIGHED_AFTER_S, Reservations, kept_after_the_end, kept_unused
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.observer.world import World
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_observer import DRIVER, a_slice, a_world, partition, whole

Document = dict[str, Any]
LATER_S = WEIGHED_AFTER_S + 1.0
GPU_0 = {"driver": DRIVER, "pool": "node", "device": "gpu-0"}


def reserved(*, duration: str = "", revision: int = 3, takers: tuple[str, ...] = (), has: bool = False) -> Document:
    one = reservation("default", "r", [], duration=duration)
    one["metadata"] |= {"uid": "r", "resourceVersion": str(revision), "creationTimestamp": "2026-01-01T00:00:00Z"}
    allocation = None if has else {"devices": {"results": [GPU_0]}}
    one["status"] = {
        "takeovers": [{"claim": each, "uid": each, "reserved": "r-0", "allocation": allocation} for each in takers]
    }
    return one


def a_claim(title: str = "r-0", *, own: bool = True, waits: bool = False, revision: int = 5, **more: Any) -> Document:
    one = given("draco-operator", revision=revision)
    one["metadata"] |= {"name": title, "uid": title} | more
    if own:
        one["metadata"]["ownerReferences"] = [
            {"kind": "DeviceReservation", "uid": "r", "name": "r", "controller": True}
        ]
    if waits:
        one["status"] = {}
    return one


def of_priority(priority: int, **status: Any) -> Document:
    one = reserved()
    one["status"] |= {"priority": priority, **status}
    return one


def judged(
    claim: Document,
    *,
    before: Document | None = None,
    said: tuple[Document, ...] = (),
    pods: tuple[Document, ...] = (),
    there: tuple[Document, ...] = (whole(),),
) -> list[str]:
    world = a_world(("slice", a_slice(*there)))
    world.reservations["r"] = of_priority(5)
    law = Reservations(world)
    for one in said:
        law.reservation_changed(None, one)
    for one in pods:
        law.pod_changed(one, 0.0)
    law.claim_changed(before, claim, 0.0)
    return [each.law for each in law.weighed(LATER_S)]


def test_what_is_about_to_be_taken_over_goes_to_nobody_else() -> None:
    waiting = a_claim("taker", own=False, waits=True)
    promised = reserved(takers=("taker",))
    assert judged(a_claim("taker", own=False), before=waiting, said=(promised,)) == []
    assert judged(a_claim("other", own=False), said=(promised,)) == ["given while promised"]
    assert judged(a_claim("other", own=False), said=(promised, reserved(takers=("taker",), revision=4, has=True))) == []
    assert judged(a_claim("other", own=False), said=(reserved(takers=("taker",), revision=9),)) == []


def test_a_reserved_claim_keeps_its_devices_unless_a_pod_could_not_use_them() -> None:
    before, after = a_claim(), a_claim(waits=True, revision=6)
    assert judged(after, before=before) == ["reservation lost"]
    assert judged(after, before=before, there=()) == [], "its device has left the pool"
    assert judged(after, before=before, pods=(pod("default", "p", ["r-0"]),)) == []
    assert judged(a_claim(own=False, waits=True), before=a_claim(own=False)) == []
    used = a_claim()
    used["status"]["reservedFor"] = [{"name": "p", "uid": "p"}]
    assert judged(after, before=used) == []
    assert judged(a_claim(waits=True, deletionTimestamp="2026-01-01T00:00:00Z"), before=before) == []


@pytest.mark.parametrize(("priority", "found"), [(4, ["reservation lost"]), (5, ["reservation lost"]), (6, [])])
def test_what_a_reservation_keeps_unused_goes_to_nobody_but_who_is_more_urgent(priority: int, found: list[str]) -> None:
    waits = pod("default", "p", ["another"])
    waits["spec"]["priority"] = priority
    assert judged(a_claim(waits=True, revision=6), before=a_claim(), pods=(waits,)) == found


@pytest.mark.parametrize(
    ("loses_at", "wrong"),
    [("2026-01-01T00:00:10Z", True), ("2026-01-01T00:02:00Z", False), ("", False)],
)
@pytest.mark.parametrize("used", [False, True])
def test_nothing_is_kept_unused_for_longer_than_it_says(loses_at: str, *, wrong: bool, used: bool) -> None:
    world, claim = World(), a_claim()
    claim["status"]["reservedFor"] = [{"name": "p", "uid": "p"}] if used else []
    world.claims["r-0"] = claim
    idle = {
        "claim": "r-0",
        "uid": "r-0",
        "since": "2026-01-01T00:00:00Z",
        **({"losesAt": loses_at} if loses_at else {}),
    }
    world.reservations["r"] = of_priority(0, idle=[idle])
    at = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert [each.law for each in kept_unused(world, at)] == ["kept unused"] * (wrong and not used)


ENDS = {
    "it has ended": (True, reserved(duration="10s"), a_claim()),
    "it lasts": (False, reserved(duration="2m"), a_claim()),
    "it lasts for ever": (False, reserved(), a_claim()),
    "another's claim": (False, reserved(duration="10s"), a_claim(own=False)),
    "one that goes": (False, reserved(duration="10s"), a_claim(deletionTimestamp="2026-01-01T00:00:00Z")),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_reservation_that_has_ended_has_no_unused_claims(case: str) -> None:
    wrong, one, claim = ENDS[case]
    world, at = a_world(("reservation", one), ("claim", claim)), datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert bool(list(kept_after_the_end(world, at))) is wrong
    claim["status"]["reservedFor"] = [{"name": "p", "uid": "p"}]
    assert not list(kept_after_the_end(world, at))


PARTS = (partition("a", 0, 3), partition("b", 4, 7))


def a_limit(limits: Document, *, revision: int = 2, **more: Any) -> Document:
    one = limit("l", limits, **{"per": "Namespace", "namespaces": ["default"]} | more)
    one["metadata"] |= {"uid": "l", "resourceVersion": str(revision)}
    return one


def bound(*limits: Document, at: float = KNOWN_AFTER_S, by: str = "draco-operator", waited: float = 60.0) -> list[str]:
    """The verdict on Draco's allocation of half a board beside the scheduler's."""
    world = a_world(("slice", a_slice(*PARTS)), ("slice", a_slice(whole("gpu-1", "GPU-1"), number=2)))
    law = Limits(world)
    for one in limits:
        law.limit_changed(None, one, 0.0)
    for title, device, who, now in (("one", "a", "kube-scheduler", at - waited), ("two", "b", by, at)):
        claim = given(who)
        claim["metadata"] |= {"name": title, "uid": title}
        claim["status"]["allocation"]["devices"]["results"][0]["device"] = device
        learn(world, "claim", claim)
        law.claim_changed(None, claim, now)
    return [each.law for each in law.weighed(at + LATER_S)]


EXCEEDED: dict[str, tuple[bool, Document]] = {
    "devices": (True, {"devices": 1}),
    "as many devices as are permitted": (False, {"devices": 2}),
    "memory slices": (True, {"memorySlices": 7}),
    "as many slices as are permitted": (False, {"memorySlices": 8}),
    "shares": (True, {"gpuShare": "0.9"}),
    "as many shares as are permitted": (False, {"gpuShare": "1"}),
}


@pytest.mark.parametrize("case", EXCEEDED)
def test_draco_allocates_no_more_than_a_limit_permits(case: str) -> None:
    wrong, limits = EXCEEDED[case]
    assert bound(a_limit(limits)) == ["limit exceeded"] * wrong


def test_a_gpu_has_memory_slices_where_it_can_be_divided() -> None:
    counted: Any = [{"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}]
    cases: list[tuple[Document, list[str]]] = [({}, []), ({"consumesCounters": counted}, ["limit exceeded"])]
    for more, wrong in cases:
        world = a_world(("slice", a_slice(whole(**more))))
        law, claim = Limits(world), given("draco-operator")
        law.limit_changed(None, a_limit({"memorySlices": 7}), 0.0)
        learn(world, "claim", claim)
        law.claim_changed(None, claim, KNOWN_AFTER_S)
        assert [each.law for each in law.weighed(KNOWN_AFTER_S + LATER_S)] == wrong


def test_a_limit_is_about_its_namespaces_and_classes_and_about_what_draco_knew() -> None:
    nothing: Document = {"devices": 0}
    assert bound(a_limit(nothing)) == ["limit exceeded"]
    assert bound(a_limit(nothing), by="kube-scheduler") == []
    assert bound(a_limit(nothing, namespaces=["other"])) == []
    assert bound(a_limit(nothing, classes=["mig.draco.dev"])) == []
    assert bound(a_limit(nothing, classes=["gpu.draco.dev"])) == ["limit exceeded"]
    assert bound(a_limit(nothing), at=KNOWN_AFTER_S - 1.0) == []
    assert bound(a_limit({"devices": 4}), a_limit(nothing, revision=9)) == []
    assert bound(a_limit({"devices": 1}), waited=1.0) == [], "the scheduler's claim was too new"


def test_a_limit_says_how_many_devices_are_held() -> None:
    one = a_limit({"devices": 4})
    world = a_world(("limit", one), ("claim", given("kube-scheduler")))
    one["status"] = {"used": {"devices": 1}}
    assert not list(miscounted(world))
    one["status"] = {"used": {"devices": 2}}
    assert [each.law for each in miscounted(world)] == ["miscounted"]
    one["spec"]["namespaceSelector"]["matchExpressions"][0]["values"] = ["other"]
    assert [each.law for each in miscounted(world)] == ["miscounted"]
    one["status"] = {"used": {"devices": 0}}
    assert not list(miscounted(world))


def test_the_class_of_a_request_is_that_of_the_alternative_that_was_taken() -> None:
    either = [{"name": "x", "deviceClassName": "one"}, {"name": "y", "deviceClassName": "other"}]
    claim: Document = {"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": either}]}}}
    assert limited.class_of(claim, "r/y") == "other"


def a_node(**annotations: str) -> Document:
    return {"metadata": {"name": "node", "uid": "node", "resourceVersion": "1", "annotations": annotations}}


def test_a_node_is_held_as_long_as_something_is_reserved_there() -> None:
    held = a_node(**{holds.HELD: "x", holds.DISABLED: "true"})
    for node, claims, wrong in (
        (a_node(), [a_claim()], ["not held"]),
        (held, [a_claim()], []),
        (held, [], ["held for nobody"]),
        (a_node(), [], []),
        (a_node(**{holds.DISABLED: "false"}), [a_claim()], []),
    ):
        world = a_world(("node", node), *(("claim", each) for each in claims))
        assert [each.law for look in (holds.not_held, holds.held_for_nobody) for each in look(world)] == wrong
    used = a_claim()
    used["status"]["reservedFor"] = [{"name": "p", "uid": "p"}]
    assert not list(holds.not_held(a_world(("node", a_node()), ("claim", used))))
