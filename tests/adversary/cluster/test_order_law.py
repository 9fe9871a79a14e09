"""The law of order: which groups differ only in age, and that the younger is not served first."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.adversary.cluster.manifests import LABELS, Member, limit, pod, pod_group
from tests.adversary.cluster.observer.order import JUDGED_AFTER_S, KNOWN_AFTER_S, REMEMBERED_S, Order
from tests.adversary.cluster.observer.watching import KINDS, learn
from tests.adversary.cluster.test_allocators_law import OWN, given
from tests.adversary.cluster.test_observer import OTHER, a_slice, a_world, whole

Document = dict[str, Any]
Change = Callable[["Line", "Group"], None]
BEGINS_AT = 100.0
JUDGED_AT = BEGINS_AT + JUDGED_AFTER_S
MADE = datetime(2026, 1, 1, tzinfo=UTC)


class Group:
    """Pods that start together, each with a claim of Draco's from a template."""

    def __init__(
        self,
        title: str,
        *,
        age_s: float,
        by: str = "Kueue",
        topology: str = "",
        size: int = 2,
        pods: int = 2,
        namespace: str = "tenant-a",
        **more: Any,
    ) -> None:
        made = (MADE - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        says: Document = {"member": Member(title, str(size), topology, by)}
        if by == "PodGroup":
            says = {"pod_group": title}
        self.pod_group = pod_group(namespace, title, size, topology=topology) if by == "PodGroup" else None
        self.pods = [pod(namespace, f"{title}-{each}", [], templates=[title], **says, **more) for each in range(pods)]
        self.claims = [given("draco-operator") for _ in self.pods]
        for one, claim in zip(self.pods, self.claims, strict=True):
            name = one["metadata"]["name"]
            one["metadata"] |= {"uid": name, "resourceVersion": "1", "creationTimestamp": made}
            one["status"] = {"phase": "Pending", "resourceClaimStatuses": [{"name": "t0", "resourceClaimName": name}]}
            claim["metadata"] |= {
                "namespace": namespace,
                "name": name,
                "uid": f"claim-{name}",
                "creationTimestamp": made,
            }
            claim["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": name, "uid": name}]
            claim["status"] = {}
        if self.pod_group is not None:
            self.pod_group["metadata"] |= {"uid": title, "resourceVersion": "1", "creationTimestamp": made}

    @property
    def objects(self) -> list[tuple[str, Document]]:
        """All objects of the group."""
        groups = [("pod group", self.pod_group)] if self.pod_group is not None else []
        return [*groups, *(("pod", each) for each in self.pods), *(("claim", each) for each in self.claims)]


class Line:
    """Waiting groups and their changes."""

    def __init__(self, *groups: Group) -> None:
        self.world = a_world(("slice", a_slice(whole(taints=OWN), whole("gpu-1", OTHER, taints=OWN))))
        self.law = Order(self.world)
        for group in groups:
            self.comes(group)
        self.look(0.0)

    def look(self, now: float, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        return [each.law for each in self.law.weighed(now, grace_s=0.0, undisturbed=undisturbed)]

    def comes(self, group: Group, now: float = 0.0) -> "Line":
        for kind, one in group.objects:
            self.see(kind, one, now)
        return self

    def see(self, kind: str, one: Document, now: float = 0.0) -> None:
        self._changed(kind, learn(self.world, kind, one), one, now)

    def gone(self, kind: str, one: Document, now: float = 0.0) -> None:
        getattr(self.world, KINDS[kind].kept_in).pop(one["metadata"]["uid"])
        self._changed(kind, one, None, now)

    def _changed(self, kind: str, before: Document | None, after: Document | None, now: float) -> None:
        match kind:
            case "pod":
                self.law.pod_changed(before, after)
            case "claim":
                self.law.claim_changed(before, after, now)
            case "event":
                self.law.event_changed(after, now)

    def begins(self, group: Group, now: float = BEGINS_AT) -> "Line":
        for claim in group.claims:
            got = given("draco-operator")
            self.see("claim", {**got, "metadata": {**got["metadata"], **claim["metadata"]}}, now)
        return self

    def found(self, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        """The verdict when it is time to judge, after one more look before."""
        assert not self.look(JUDGED_AT - 1.0)
        return self.look(JUDGED_AT, undisturbed=undisturbed)


def a_limit(namespace: str) -> Document:
    one = limit("l", {"devices": 8}, per="Namespace", namespaces=[namespace])
    one["metadata"] |= {"uid": "l", "resourceVersion": "1"}
    return one


PASSED = ["passed by a younger"]


def two(**more: Any) -> tuple[Group, Group]:
    return Group("old", age_s=60.0, **more), Group("young", age_s=30.0, **more)


@pytest.mark.parametrize("by", [*LABELS, "PodGroup"])
def test_the_younger_of_two_groups_gets_nothing_while_the_older_waits(by: str) -> None:
    old, young = two(by=by)
    line = Line(old, young).begins(young)
    assert line.found() == PASSED
    assert line.law.compared == 1
    assert not line.look(JUDGED_AT + 1.0)


def test_the_older_comes_first() -> None:
    old, young = two()
    line = Line(old, young).begins(old)
    assert not line.found()
    assert line.law.compared == 1
    assert not line.begins(young, BEGINS_AT + 20.0).look(BEGINS_AT + 40.0)


def test_who_gets_devices_a_moment_later_was_not_passed() -> None:
    old, young = two()
    line = Line(old, young).begins(young).begins(old, BEGINS_AT + JUDGED_AFTER_S - 2.0)
    assert not line.found()
    assert line.law.compared == 1


DIFFERENT: dict[str, Callable[[], tuple[Group, Group]]] = {
    "a topology": lambda: (Group("old", age_s=60.0, topology="spread"), Group("young", age_s=30.0)),
    "how many start together": lambda: (Group("old", age_s=60.0, size=2), Group("young", age_s=30.0, size=1)),
    "its age is that of the other": lambda: (Group("old", age_s=30.0), Group("young", age_s=30.0)),
    "a namespace": lambda: (Group("old", age_s=60.0, namespace="tenant-b"), Group("young", age_s=30.0)),
    "it is for one node": lambda: two(node="node"),
    "what it tolerates": lambda: (Group("old", age_s=60.0, tolerations=[{"key": "k"}]), Group("young", age_s=30.0)),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_groups_that_differ_in_more_than_their_age_are_not_compared(case: str) -> None:
    old, young = DIFFERENT[case]()
    line = Line(old, young).begins(young)
    assert not line.found()
    assert not line.law.compared


def _asks_for_more(_: Line, old: Group) -> None:
    old.claims[0]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2


def _has_a_claim_by_name(_: Line, old: Group) -> None:
    old.claims[0]["metadata"]["ownerReferences"] = []


def _takes_over(_: Line, old: Group) -> None:
    old.claims[0]["metadata"]["labels"] = {"draco.dev/reservation": "r"}


def _has_a_gate(_: Line, old: Group) -> None:
    old.pods[0]["spec"]["schedulingGates"] = [{"name": "somebody/else"}]


def _has_an_affinity(_: Line, old: Group) -> None:
    old.pods[0]["spec"]["affinity"] = {"nodeAffinity": {}}


def _has_a_more_urgent_pod(_: Line, old: Group) -> None:
    old.pods[0]["spec"]["priority"] = 10


def _has_a_more_urgent_pod_group(_: Line, old: Group) -> None:
    assert old.pod_group is not None
    old.pod_group["spec"]["priority"] = 10


def _says_where_by_its_pod_group(_: Line, old: Group) -> None:
    assert old.pod_group is not None
    old.pod_group["spec"]["schedulingConstraints"] = {"topology": [{"key": "example.com/rack"}]}


def _lacks_a_claim(_: Line, old: Group) -> None:
    old.claims.pop()


def _lacks_a_pod(_: Line, old: Group) -> None:
    old.pods.pop()


def _has_a_part(_: Line, old: Group) -> None:
    old.claims[0]["status"] = given("draco-operator")["status"]


def _shares_a_claim_with_another_pod(line: Line, old: Group) -> None:
    one = pod("tenant-a", "lone", [old.claims[0]["metadata"]["name"]])
    one["metadata"] |= {"uid": "lone", "resourceVersion": "1", "creationTimestamp": "2025-01-01T00:00:00Z"}
    line.see("pod", one)


def _has_lost_a_pod(line: Line, old: Group) -> None:
    line.comes(old)
    line.gone("pod", old.pods[0], 1.0)


def _has_lost_what_it_had(line: Line, old: Group) -> None:
    line.comes(old)
    waits = old.claims[0]
    line.see("claim", {**waits, "status": given("draco-operator")["status"]}, 1.0)
    line.see("claim", waits, 2.0)


def _has_lost_a_claim(line: Line, old: Group) -> None:
    line.comes(old)
    line.gone("claim", old.claims[0], 1.0)


def _is_limited(line: Line, _: Group) -> None:
    line.see("limit", a_limit("tenant-a"))


def _got_no_answer(line: Line, old: Group) -> None:
    regarding = {"namespace": "tenant-a", "uid": old.pods[0]["metadata"]["uid"]}
    line.see(
        "event", {"metadata": {"uid": "e"}, "note": "No answer was found within 3 s.", "regarding": regarding}, 50.0
    )


def _others_may_be_evicted_for_it(line: Line, _: Group) -> None:
    one = pod("tenant-b", "low", ["c"])
    one["metadata"] |= {"uid": "low", "resourceVersion": "1", "creationTimestamp": "2025-01-01T00:00:00Z"}
    one["spec"]["priority"] = -1
    line.see("pod", one | {"status": {"phase": "Running"}})


TOLD_APART: list[Change] = [
    _asks_for_more,
    _has_a_claim_by_name,
    _takes_over,
    _has_a_gate,
    _has_an_affinity,
    _has_a_more_urgent_pod,
    _has_a_more_urgent_pod_group,
    _says_where_by_its_pod_group,
    _lacks_a_claim,
    _lacks_a_pod,
    _has_a_part,
    _shares_a_claim_with_another_pod,
    _has_lost_a_pod,
    _has_lost_what_it_had,
    _has_lost_a_claim,
    _is_limited,
    _got_no_answer,
    _others_may_be_evicted_for_it,
]


@pytest.mark.parametrize("change", TOLD_APART, ids=[each.__name__ for each in TOLD_APART])
def test_a_group_that_something_else_may_keep_waiting_is_not_compared(change: Change) -> None:
    old, young = two(by="PodGroup")
    line = Line(young)
    change(line, old)
    line.comes(old).look(KNOWN_AFTER_S)
    line.look(BEGINS_AT - KNOWN_AFTER_S - 1.0)
    assert not line.begins(young).found()
    assert not line.law.compared


def test_groups_that_wait_for_the_scheduler_too_are_not_compared() -> None:
    old, young = two()
    for each in (old, young):
        each.claims[1]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    line = Line(old, young).begins(young)
    assert not line.found()
    assert not line.law.compared


def test_a_pod_group_that_came_after_its_pods_has_its_age() -> None:
    old, young = two(by="PodGroup")
    assert old.pod_group is not None
    old.pod_group["metadata"]["creationTimestamp"] = young.pods[0]["metadata"]["creationTimestamp"]
    line = Line(old, young).begins(young)
    assert not line.found()
    assert not line.law.compared


@pytest.mark.parametrize("late", [0, 1], ids=["the older", "the younger"])
def test_who_was_not_complete_for_a_while_may_be_passed(late: int) -> None:
    groups = two()
    line = Line(groups[1 - late])
    line.comes(groups[late], BEGINS_AT - 2.0).look(BEGINS_AT - 2.0)
    assert not line.begins(groups[1]).found()
    assert not line.law.compared


def test_who_asks_for_more_than_before_has_just_come() -> None:
    groups = two(pods=3)
    line = Line(*(two()))
    for group in groups:
        line.comes(group, BEGINS_AT - 2.0)
    line.look(BEGINS_AT - 2.0)
    assert not line.begins(groups[1]).found()
    assert not line.law.compared


@pytest.mark.parametrize(("before_s", "told"), [(10.0, []), (REMEMBERED_S + 1.0, PASSED)], ids=["lately", "long ago"])
def test_what_was_handed_back_lately_may_have_been_meant_for_the_older(before_s: float, told: list[str]) -> None:
    old, young = two()
    line = Line(old, young)
    line.see("slice", a_slice(whole(taints=OWN), whole("gpu-1", OTHER), generation=2))
    line.look(BEGINS_AT - before_s)
    assert line.begins(young).found() == told


@pytest.mark.parametrize(("before_s", "told"), [(10.0, []), (REMEMBERED_S + 10.0, PASSED)], ids=["lately", "long ago"])
def test_a_limit_that_was_lifted_lately_may_have_been_about_the_older(before_s: float, told: list[str]) -> None:
    old, young = two()
    line = Line(old, young)
    line.see("limit", one := a_limit("tenant-a"))
    line.look(BEGINS_AT - before_s)
    line.gone("limit", one)
    line.look(BEGINS_AT - KNOWN_AFTER_S - 1.0)
    assert line.begins(young).found() == told


def test_a_limit_of_another_namespace_is_about_neither() -> None:
    old, young = two()
    line = Line(old, young)
    line.see("limit", a_limit("tenant-b"))
    assert line.begins(young).found() == PASSED


def test_another_operator_may_not_have_known_both() -> None:
    old, young = two()
    assert not Line(old, young).begins(young).found(undisturbed=lambda _: False)


def test_an_older_group_that_loses_a_pod_meanwhile_does_not_wait_on() -> None:
    old, young = two()
    line = Line(old, young).begins(young)
    line.gone("pod", old.pods[0], BEGINS_AT + 1.0)
    line.comes(old, BEGINS_AT + 1.0)
    assert not line.found()


def test_what_the_scheduler_or_a_reservation_gives_a_group_is_out_of_line() -> None:
    old, young = two()
    line = Line(old, young)
    got = given("somebody-else")
    fields = {"managedFields": got["metadata"]["managedFields"]}
    line.see("claim", {**got, "metadata": young.claims[0]["metadata"] | fields}, BEGINS_AT)
    assert not line.found()
