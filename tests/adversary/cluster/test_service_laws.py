"""The laws of maintenance: lifted or leftover taints, evicted bystanders, and allocations of tainted devices."""

from typing import Any

import pytest

from tests.adversary.cluster.observer import service
from tests.adversary.cluster.observer.tainted import IN_FLIGHT_S, GivenWhileTainted, withdrawn_for_ever
from tests.adversary.cluster.observer.taking import BY_A_TAINT, WEIGHED_AFTER_S, Bystanders
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.observer.world import World
from tests.adversary.cluster.test_observer import (
    DRIVER,
    GPU,
    OTHER,
    PARTS,
    a_claim,
    a_request,
    a_rule,
    a_slice,
    a_world,
    tainted,
    whole,
)

Document = dict[str, Any]
TWO = ("slice", a_slice(whole(), whole("gpu-1", OTHER)))
ON_0 = {"driver": DRIVER, "pool": "node", "device": "gpu-0"}


def asks(phase: str, device: str = "gpu-0", *, uuid: str = GPU, **spec: Any) -> Document:
    request = a_request(device, **spec)
    listed = [{"driver": DRIVER, "pool": "node", "device": device, "uuid": uuid}]
    request["status"] = {"phase": phase, "isolatedAt": "2026-01-01T00:00:00Z", "devices": listed}
    return request


@pytest.mark.parametrize(
    ("phase", "wrong"),
    [
        ("Rehearsed", False),
        ("Isolated", False),
        ("InMaintenance", True),
        ("Verifying", True),
        ("Failed", True),
        ("Completed", False),
        ("Cancelled", False),
    ],
)
def test_no_taint_is_lifted_while_a_request_says_that_somebody_works(phase: str, wrong: bool) -> None:
    assert bool(list(service.lifted_at_work(a_world(TWO, ("request", asks(phase)))))) is wrong
    assert not list(service.lifted_at_work(a_world(TWO, ("request", asks(phase)), ("rule", a_rule(**ON_0)))))


def test_the_taint_stays_on_the_board_that_was_taken_when_names_move() -> None:
    moved = ("slice", a_slice(whole("gpu-0", OTHER), whole("gpu-1", GPU), generation=2))
    world = a_world(TWO, ("request", asks("InMaintenance")), ("rule", a_rule(**ON_0)), moved)
    (wrong,) = service.lifted_at_work(world)
    assert "gpu-1" in wrong.text


def test_a_request_that_failed_before_it_took_anything_has_no_taint_to_keep() -> None:
    request = asks("Failed")
    del request["status"]["isolatedAt"]
    assert not list(service.lifted_at_work(a_world(TWO, ("request", request))))


def test_a_node_is_never_cordoned_and_never_tainted_by_draco() -> None:
    def node(**spec: Any) -> Document:
        return {"metadata": {"name": "n", "uid": "n", "resourceVersion": "1"}, "spec": spec}

    assert not list(service.cordoned(a_world(("node", node(taints=[{"key": "node.kubernetes.io/not-ready"}])))))
    assert list(service.cordoned(a_world(("node", node(unschedulable=True)))))
    assert list(service.cordoned(a_world(("node", node(taints=[{"key": "draco.dev/maintenance"}])))))


def of_maintenance(device: Document) -> Document:
    return {**device, "taints": [{"key": service.MAINTENANCE, "effect": "NoSchedule"}]}


LEFT = ("slice", a_slice(of_maintenance(whole()), whole("gpu-1", OTHER), generation=2))


def test_a_device_has_the_taint_of_maintenance_only_for_a_request_that_is_not_over() -> None:
    assert list(service.not_restored(a_world(LEFT))), "nobody asked"
    assert list(service.not_restored(a_world(LEFT, ("request", asks("Completed")))))
    assert list(service.not_restored(a_world(LEFT, ("request", asks("InMaintenance", "gpu-1", uuid=OTHER))))), (
        "another GPU"
    )
    assert not list(service.not_restored(a_world(LEFT, ("request", asks("InMaintenance")))))
    rule = a_rule(**ON_0)
    rule["spec"]["taint"]["key"] = service.MAINTENANCE
    assert list(service.not_restored(a_world(TWO, ("rule", rule)))), "a rule says the same"


def test_what_was_cancelled_or_deleted_does_not_stay_for_ever() -> None:
    assert not list(service.stuck(a_world(("request", asks("InMaintenance")))))
    assert list(service.stuck(a_world(("request", asks("InMaintenance", cancelled=True)))))
    assert not list(service.stuck(a_world(("request", asks("Cancelled", cancelled=True)))))
    deleted = asks("Completed")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert list(service.stuck(a_world(("request", deleted))))
    assert list(service.stuck(a_world(("request", {**asks(""), "status": {}}))))


def test_a_device_whose_agent_is_there_is_not_fenced() -> None:
    rule = a_rule(driver=DRIVER, pool="node")
    assert not list(service.fenced_without_cause(a_world(TWO, ("rule", rule))))
    rule["spec"]["taint"]["key"] = service.AGENT_LOST
    assert list(service.fenced_without_cause(a_world(TWO, ("rule", rule))))


class Allocates:
    """Claims that get devices while taints come and go."""

    def __init__(self) -> None:
        self.world = a_world(PARTS)
        self.law = GivenWhileTainted(self.world)

    def rule(self, rule: Document, at: float, *, revision: int = 3) -> None:
        rule["metadata"]["resourceVersion"] = str(revision)
        self.law.rule_changed(learn(self.world, "rule", rule), rule, at)

    def slice(self, one: Document, at: float) -> None:
        self.law.slice_changed(learn(self.world, "slice", one), one, at)

    def given(self, claim: Document, at: float) -> list[str]:
        learn(self.world, "claim", claim)
        self.law.allocated(claim, at, grace_s=0.0)
        return [each.text for each in self.law.weighed(at + 2.0)]


LATE = IN_FLIGHT_S + 1.0


def test_no_claim_is_given_what_a_rule_has_tainted_for_a_while() -> None:
    cluster = Allocates()
    cluster.rule(a_rule(driver=DRIVER, device="a"), 0.0)
    assert not cluster.given(a_claim(1, "a"), IN_FLIGHT_S - 1.0), "it was on its way"
    assert cluster.given(a_claim(2, "a"), LATE)
    assert not cluster.given(a_claim(3, "b"), LATE)
    assert not cluster.given(a_claim(4, "a", tolerations=[{"operator": "Exists"}]), LATE)
    assert not cluster.given(a_claim(5, "a", adminAccess=True), LATE)


def test_no_claim_is_given_what_its_slice_has_tainted_for_a_while() -> None:
    cluster = Allocates()
    cluster.slice(a_slice(tainted(whole()), generation=2), 0.0)
    assert cluster.given(a_claim(1, "gpu-0"), LATE)
    cluster.slice(a_slice(whole(), generation=3), 20.0)
    assert not cluster.given(a_claim(2, "gpu-0"), 40.0)


def test_no_claim_is_given_what_is_not_published_any_more() -> None:
    cluster = Allocates()
    cluster.slice(a_slice(whole(), generation=2), 0.0)
    cluster.slice(a_slice(whole("gpu-1", OTHER), generation=3), 10.0)
    assert not cluster.given(a_claim(1, "gpu-0"), 10.0 + IN_FLIGHT_S - 1.0), "it was on its way"
    assert cluster.given(a_claim(2, "gpu-0"), 10.0 + LATE)
    assert cluster.given(a_claim(3, "gpu-0", tolerations=[{"operator": "Exists"}]), 10.0 + LATE)
    assert not cluster.given(a_claim(4, "gpu-1"), 10.0 + LATE)
    cluster.slice(a_slice(whole(), generation=4), 30.0)
    assert not cluster.given(a_claim(5, "gpu-0"), 40.0)


def test_a_device_that_is_withdrawn_is_none_from_its_notice_on_and_is_gone_at_rest() -> None:
    cluster = Allocates()
    notice = {"key": "draco.dev/unsettled", "value": "Withdrawn", "effect": "NoSchedule"}
    cluster.slice(a_slice(whole() | {"taints": [notice]}, generation=2), 0.0)
    assert [each.key for each in withdrawn_for_ever(cluster.world)]
    cluster.slice(a_slice(whole("gpu-1", OTHER), generation=3), 3.0)
    assert cluster.given(a_claim(1, "gpu-0"), LATE)
    assert not list(withdrawn_for_ever(cluster.world))


def test_a_taint_that_announces_keeps_nobody_off() -> None:
    cluster = Allocates()
    cluster.rule(a_rule(driver=DRIVER, effect="None"), 0.0)
    assert not cluster.given(a_claim(1, "a"), LATE)


def test_a_taint_that_was_gone_at_the_claims_revision_counts_for_nothing_though_that_is_seen_late() -> None:
    cluster = Allocates()
    rule = a_rule(driver=DRIVER, device="a")
    cluster.rule(rule, 0.0)
    claim = a_claim(1, "a", revision=9)
    learn(cluster.world, "claim", claim)
    cluster.law.allocated(claim, LATE, grace_s=0.0)
    cluster.law.rule_changed(rule, None, LATE + 0.5)
    assert not list(cluster.law.weighed(LATE + 2.0)), "its rule went at revision 3"


def a_pod(**metadata: Any) -> Document:
    whose = {"name": "p", "namespace": "tenant-a", "uid": "pod", "resourceVersion": "1", **metadata}
    return {"metadata": whose, "spec": {"nodeName": "node"}, "status": {"phase": "Running"}}


def held_by_the_pod(device: str, **more: Any) -> Document:
    claim = a_claim(1, device, **more)
    claim["status"]["reservedFor"] = [{"name": "p", "uid": "pod"}]
    return claim


class Takes:
    """A pod with a GPU that leaves."""

    def __init__(self, device: str = "gpu-0", **more: Any) -> None:
        self.world: World = a_world(TWO, ("claim", held_by_the_pod(device, **more)), ("pod", a_pod()))
        self.law = Bystanders(self.world, ["tenant-a"])

    def goes(self) -> list[str]:
        going = a_pod(deletionTimestamp="2026-01-01T00:00:00Z")
        self.law.pod_changed(learn(self.world, "pod", going), going, 10.0)
        self.law.pod_changed(going, None, 10.1)
        return [each.text for each in self.law.weighed(10.0 + WEIGHED_AFTER_S)]


def test_a_pod_goes_only_when_somebody_asks() -> None:
    assert len(Takes().goes()) == 1
    asked = Takes()
    asked.law.asked("tenant-a/p")
    assert not asked.goes()


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_drain_takes_the_pods_of_its_own_devices_only(device: str) -> None:
    drained = Takes(device)
    drained.law.request_changed(asks("Draining", drain={"policy": "Evict"}), 5.0)
    assert bool(drained.goes()) is (device == "gpu-1")


def test_a_request_that_waits_takes_no_pod() -> None:
    waits = Takes()
    waits.law.request_changed(asks("Isolated"), 5.0)
    assert waits.goes()
    not_begun = Takes()
    not_begun.law.request_changed(asks("Rehearsed", drain={"policy": "Evict"}), 5.0)
    assert not_begun.goes()


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_pod_whose_claim_is_heard_to_be_free_first_held_it_all_the_same(device: str) -> None:
    drained = Takes(device)
    drained.law.request_changed(asks("Draining", drain={"policy": "Evict"}), 5.0)
    free = held_by_the_pod(device)
    del free["status"]
    drained.law.claim_changed(learn(drained.world, "claim", free), 9.9)
    assert bool(drained.goes()) is (device == "gpu-1")


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_pod_whose_claim_is_heard_of_only_after_it_has_gone_held_it_all_the_same(device: str) -> None:
    late = Takes(device)
    late.law.rule_changed(a_rule(effect="NoExecute", **ON_0), 5.0)
    held, free = held_by_the_pod(device), held_by_the_pod(device)
    del free["status"]
    learn(late.world, "claim", free)
    going = a_pod(deletionTimestamp="2026-01-01T00:00:00Z")
    late.law.pod_changed(learn(late.world, "pod", going), going, 10.0)
    late.law.claim_changed(learn(late.world, "claim", held), 10.1)
    assert bool(list(late.law.weighed(10.0 + WEIGHED_AFTER_S))) is (device == "gpu-1")


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_what_a_pod_had_counts_though_it_is_heard_of_late_and_is_over_when_the_pod_is_weighed(device: str) -> None:
    late = Takes(device)
    late.law.rule_changed(a_rule(effect="NoExecute", **ON_0), 5.0)
    held, free = held_by_the_pod(device), held_by_the_pod(device)
    del free["status"]
    learn(late.world, "claim", free)
    going = a_pod(deletionTimestamp="2026-01-01T00:00:00Z")
    going["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": BY_A_TAINT}]
    late.law.pod_changed(learn(late.world, "pod", going), going, 10.0)
    assert not list(late.law.weighed(25.0)), "what it had is not known yet"
    late.law.claim_changed(learn(late.world, "claim", held), 26.0)
    late.law.claim_changed(learn(late.world, "claim", free), 26.1)
    assert bool(list(late.law.weighed(38.0))) is (device == "gpu-1")


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_taint_takes_the_pods_of_its_own_devices_only(device: str) -> None:
    taken = Takes(device)
    taken.law.rule_changed(a_rule(effect="NoExecute", **ON_0), 5.0)
    assert bool(taken.goes()) is (device == "gpu-1")


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_taint_takes_pods_that_only_look_at_its_devices_and_a_drain_does_not(device: str) -> None:
    taken = Takes(device, adminAccess=True)
    taken.law.rule_changed(a_rule(effect="NoExecute", **ON_0), 5.0)
    assert bool(taken.goes()) is (device == "gpu-1")
    drained = Takes(device, adminAccess=True)
    drained.law.request_changed(asks("Draining", drain={"policy": "Evict"}), 5.0)
    assert drained.goes()


def test_a_pod_that_has_ended_is_no_bystander() -> None:
    ended = Takes()
    going = a_pod(deletionTimestamp="2026-01-01T00:00:00Z")
    going["status"]["phase"] = "Succeeded"
    ended.law.pod_changed(learn(ended.world, "pod", going), going, 10.0)
    assert not list(ended.law.weighed(10.0 + WEIGHED_AFTER_S))
