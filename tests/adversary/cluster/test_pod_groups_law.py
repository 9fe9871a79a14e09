"""The laws of PodGroups: Draco only reads them, and a claim kept for running pods keeps its devices."""

from typing import Any

import pytest

from tests.adversary.cluster.manifests import pod
from tests.adversary.cluster.observer.members import users_of
from tests.adversary.cluster.observer.pod_groups import SEEN_AFTER_S, WEIGHED_AFTER_S, PodGroups, written_by_draco
from tests.adversary.cluster.observer.reports import REASON, misreported
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_groups_law import group
from tests.adversary.cluster.test_observer import POD, a_rule, a_slice, a_world, told, whole

Document = dict[str, Any]
KEPT_FOR = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}


def member(number: int = 1, *, claim: str = "c", node: str = "node", phase: str = "Running") -> Document:
    one = pod("default", f"p{number}", [claim], pod_group="g")
    one["metadata"] |= {"uid": POD.format(number), "resourceVersion": "3"}
    one["spec"] |= {"nodeName": node} if node else {}
    return one | {"status": {"phase": phase}}


def kept(*, by_group: bool = True, allocated: bool = True) -> Document:
    one = given("draco-operator")
    one["metadata"] |= {"name": "c", "uid": "c"}
    one["status"]["reservedFor"] = [KEPT_FOR] if by_group else []
    return one if allocated else one | {"status": {}}


WRITERS = {
    "Draco's status": (True, [("kube-controller-manager", "status"), ("draco-operator", "status")]),
    "Draco's annotation": (True, [("draco-agent", "")]),
    "Kubernetes' status": (False, [("kube-scheduler", "status"), ("kubectl", "")]),
}


@pytest.mark.parametrize("case", WRITERS)
def test_draco_writes_no_pod_group(case: str) -> None:
    wrong, writers = WRITERS[case]
    one = group()
    one["metadata"]["managedFields"] = [{"manager": who, "subresource": what} for who, what in writers]
    assert bool(list(written_by_draco(a_world(("pod group", one))))) is wrong


class Keeping:
    """A claim that a PodGroup keeps for a pod, and its changes."""

    def __init__(self, one: Document) -> None:
        self.world = a_world(("pod group", group()), ("claim", kept()), ("pod", one))
        self.law = PodGroups(self.world)
        self.law.claim_changed(None, kept(), 0.0)
        self.law.pod_changed(one, 0.0)

    def becomes(self, after: Document | None, now: float, *, then: Document | None = None) -> list[str]:
        before = self.world.claims["c"]
        if after is None:
            self.world.claims.pop("c")
        else:
            learn(self.world, "claim", after)
        self.law.claim_changed(before, after, now)
        assert not list(self.law.weighed(now))
        if then is not None:
            learn(self.world, "pod", then)
        return [each.law for each in self.law.weighed(now + WEIGHED_AFTER_S)]


@pytest.mark.parametrize("after", [kept(by_group=False), kept(allocated=False)], ids=["reservation", "devices"])
def test_what_a_group_keeps_for_a_pod_that_runs_is_not_taken(after: Document) -> None:
    assert Keeping(member()).becomes(after, SEEN_AFTER_S) == ["taken from a group"]


def test_a_pod_of_whose_end_is_heard_a_moment_later_did_not_run() -> None:
    assert not Keeping(member()).becomes(kept(by_group=False), SEEN_AFTER_S, then=member(phase="Succeeded"))


PERMITTED = {
    "its pod has ended": (member(phase="Succeeded"), SEEN_AFTER_S),
    "its pod has no node": (member(node="", phase="Pending"), SEEN_AFTER_S),
    "its pod names another claim": (member(claim="other"), SEEN_AFTER_S),
    "its pod has just got its node": (member(), SEEN_AFTER_S - 1.0),
}


@pytest.mark.parametrize("case", PERMITTED)
def test_what_a_group_keeps_for_nobody_may_be_taken(case: str) -> None:
    one, after_s = PERMITTED[case]
    assert not Keeping(one).becomes(kept(by_group=False), after_s)


def test_a_claim_that_a_group_keeps_is_counted_once_and_may_go_with_it() -> None:
    keeping = Keeping(member())
    assert not keeping.becomes(kept(), SEEN_AFTER_S)
    assert keeping.law.kept == 1
    assert not keeping.becomes(None, SEEN_AFTER_S)


def test_the_pods_that_name_what_their_group_keeps_use_it() -> None:
    world = a_world(("pod group", group()), ("claim", kept()), ("pod", member()), ("pod", member(2, claim="other")))
    assert [each["metadata"]["name"] for each in users_of(world, world.claims["c"])] == ["p1"]


def test_the_event_on_a_rule_may_count_the_pods_of_a_group() -> None:
    note = "It keeps new claims off 1 device and deletes 1 pod: default/p1."
    rule = a_rule("mine", driver="gpu.nvidia.com", pool="node", device="gpu-0")
    objects = [("slice", a_slice(whole())), ("rule", rule), ("claim", kept()), told(note, about="mine", reason=REASON)]
    assert not list(misreported(a_world(*objects, ("pod", member()))))
    assert list(misreported(a_world(*objects, ("pod", member(claim="other")))))
