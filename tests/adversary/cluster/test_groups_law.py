"""The laws of groups: all that a group needs or nothing, and nobody holds devices while waiting for more."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.adversary.cluster.manifests import LABELS, SIZE, Member, pod, pod_group
from tests.adversary.cluster.observer.groups import BEGUN_WITHIN_S, Groups, groups_of, holds_and_waits
from tests.adversary.cluster.observer.members import key_of, size_of
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.observer.world import World
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_observer import POD, a_world

Document = dict[str, Any]
Objects = list[tuple[str, Document]]
LATER_S = BEGUN_WITHIN_S + 1.0
SOURCES = pytest.mark.parametrize("by", [*LABELS, "PodGroup"])


def member(number: int, *, size: str = "2", phase: str = "Pending", **more: Any) -> Document:
    one = pod("default", f"p{number}", [f"c{number}"], member=Member("g", size))
    one["metadata"] |= {"uid": POD.format(number), "resourceVersion": "3"} | more
    return one | {"status": {"phase": phase}}


def group(size: str = "2") -> Document:
    one = pod_group("default", "g", int(size))
    one["metadata"] |= {"uid": "g", "resourceVersion": "2"}
    return one


def as_pod_group(objects: Objects, *, size: str = "2") -> Objects:
    """The same with a PodGroup that the pods name, instead of what their label and annotation say."""
    named: Objects = [("pod group", group(size))]
    for kind, one in objects:
        if kind == "pod":
            meta = {**one["metadata"], "labels": {}, "annotations": {}}
            spec = {**one["spec"], "schedulingGroup": {"podGroupName": "g"}}
            named.append((kind, {**one, "metadata": meta, "spec": spec}))
        else:
            named.append((kind, one))
    return named


def by_labels(objects: Objects, by: str) -> Objects:
    """The same with other labels, and the annotation that goes with them."""
    named: Objects = []
    for kind, one in objects:
        meta = one["metadata"]
        if kind == "pod":
            member = Member("g", meta["annotations"][SIZE], by=by)
            meta = {**meta, "labels": member.labels, "annotations": member.annotations}
        named.append((kind, {**one, "metadata": meta}))
    return named


def a_world_of(by: str, *objects: tuple[str, Document], size: str = "2") -> World:
    pods = list(objects)
    return a_world(*(as_pod_group(pods, size=size) if by == "PodGroup" else by_labels(pods, by)))


def claim(number: int, *, waits: bool = False, used: bool = False) -> Document:
    one = given("draco-operator")
    one["metadata"] |= {"name": f"c{number}", "uid": f"c{number}"}
    if waits:
        one["status"] = {}
    if used:
        one["status"]["reservedFor"] = [{"name": f"p{number}", "uid": POD.format(number)}]
    return one


HOLDS = {
    "one has, one waits": (True, [("pod", member(1)), ("pod", member(2)), ("claim", claim(1)), ("claim", claim(2, waits=True))]),
    "its pod uses it": (
        False,
        [("pod", member(1)), ("pod", member(2)), ("claim", claim(1, used=True)), ("claim", claim(2, waits=True))],
    ),
    "both have": (False, [("pod", member(1)), ("pod", member(2)), ("claim", claim(1)), ("claim", claim(2))]),
    "both wait": (
        False,
        [("pod", member(1)), ("pod", member(2)), ("claim", claim(1, waits=True)), ("claim", claim(2, waits=True))],
    ),
    "a pod is missing": (False, [("pod", member(1)), ("claim", claim(1))]),
    "one that is replaced later": (
        False,
        [
            ("pod", member(1, size="1")),
            ("pod", member(2, size="1")),
            ("claim", claim(1)),
            ("claim", claim(2, waits=True)),
        ],
    ),
}  # fmt: skip


@SOURCES
@pytest.mark.parametrize("case", HOLDS)
def test_nobody_holds_devices_while_waiting_for_more(case: str, by: str) -> None:
    wrong, objects = HOLDS[case]
    size = "1" if case == "one that is replaced later" else "2"
    assert bool(list(holds_and_waits(a_world_of(by, *objects, size=size)))) is wrong


def test_what_a_pod_group_reserves_for_its_pods_is_used() -> None:
    kept, shared = claim(1), claim(3)
    for each in (kept, shared):
        each["status"]["reservedFor"] = [
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
        ]
    pods = [("pod", member(1)), ("pod", member(2))]
    assert not list(holds_and_waits(a_world_of("PodGroup", *pods, ("claim", kept), ("claim", claim(2, waits=True)))))


class History:
    """A group of two pods through time."""

    def __init__(self, size: str = "2", *, by: str = "Kueue") -> None:
        self.world = a_world_of(by, ("pod", member(1, size=size)), ("pod", member(2, size=size)), size=size)
        self.law = Groups(self.world)
        self.pods = {each["metadata"]["name"]: each for each in self.world.pods.values()}

    def allocated(self, number: int, now: float) -> "History":
        one = claim(number)
        before = learn(self.world, "claim", one)
        self.law.claim_changed(before, one, now)
        return self

    def found(self, now: float, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        return [each.law for each in self.law.weighed(now, grace_s=0.0, undisturbed=undisturbed)]


@SOURCES
def test_a_group_that_gets_a_part_of_what_it_needs_is_told(by: str) -> None:
    history = History(by=by).allocated(1, 0.0)
    assert not history.found(1.0)
    assert history.found(LATER_S) == ["begun in part"]
    assert not history.found(LATER_S + 1.0)


@SOURCES
def test_a_group_that_gets_all_that_it_needs_may_lose_some_of_it(by: str) -> None:
    history = History(by=by).allocated(1, 0.0).allocated(2, 0.5)
    assert not history.found(1.0)
    assert history.law.whole == 1
    assert history.law.whole_pod_groups == (by == "PodGroup")
    lost = claim(2, waits=True)
    history.law.claim_changed(learn(history.world, "claim", lost), lost, 2.0)
    history.allocated(1, 3.0)
    assert not history.found(3.0 + LATER_S)


def test_a_group_that_gives_back_what_it_got_has_not_begun() -> None:
    history = History().allocated(1, 0.0)
    learn(history.world, "claim", claim(1, waits=True))
    assert not history.found(LATER_S)


@SOURCES
def test_a_group_may_begin_in_part_when_its_allocator_dies_or_a_pod_is_deleted(by: str) -> None:
    assert not History(by=by).allocated(1, 0.0).found(LATER_S, undisturbed=lambda _: False)
    history = History(by=by).allocated(1, 0.0)
    history.law.pod_changed(history.pods["p2"], None, 1.0)
    assert not history.found(LATER_S)


@SOURCES
def test_one_more_than_needed_may_wait(by: str) -> None:
    assert not History(size="1", by=by).allocated(1, 0.0).found(LATER_S)


def test_a_pod_that_has_succeeded_counts() -> None:
    history = History().allocated(1, 0.0)
    learn(history.world, "pod", member(2, phase="Succeeded"))
    assert not history.found(LATER_S)


def test_groups_that_contradict_themselves_are_not_judged() -> None:
    assert not list(groups_of(a_world(("pod", member(1)), ("pod", member(2, size="3")))))
    assert not list(groups_of(a_world(("pod", member(1, size="many")))))


def test_a_pod_group_that_nobody_made_or_whose_pods_start_one_by_one_is_not_judged() -> None:
    pods = as_pod_group([("pod", member(1)), ("pod", member(2))])
    (named, made), rest = pods[0], pods[1:]
    assert list(groups_of(a_world(*pods)))
    assert not list(groups_of(a_world(*rest)))
    one_by_one = {**made, "spec": {"schedulingPolicy": {"basic": {}}}}
    assert not list(groups_of(a_world((named, one_by_one), *rest)))


def test_the_pod_group_of_a_pod_goes_before_its_label() -> None:
    one = pod("default", "p", [], member=Member("label", "3"), pod_group="g")
    assert key_of(one) == "PodGroup default/g"
    assert key_of(pod("default", "p", [], member=Member("label", "3"))) == "Kueue pod group default/label"
    assert not key_of(pod("default", "p", []))


@pytest.mark.parametrize(
    ("by", "called"),
    [("Kueue alone", "Kueue pod group"), ("LeaderWorkerSet", "LeaderWorkerSet group"), ("JobSet", "JobSet")],
)
def test_the_labels_of_others_say_which_pods_start_together_and_how_many(by: str, called: str) -> None:
    one, other = (pod("default", f"p{number}", [], member=Member("g", "2", by=by, number=7)) for number in range(2))
    key = key_of(one)
    assert key == key_of(other) == f"{called} default/g" + ("-7" if by == "LeaderWorkerSet" else "")
    assert size_of(World(), key, [one, other]) == 2
    one["metadata"]["annotations"][SIZE] = other["metadata"]["annotations"][SIZE] = "3"
    assert size_of(World(), key, [one, other]) == 3, "Draco's annotation goes before theirs"


def test_the_first_labels_of_a_pod_count() -> None:
    one = pod("default", "p", [], member=Member("g", "2"))
    for by in LABELS:
        one["metadata"]["labels"] |= Member("g", "2", by=by).labels
    assert key_of(one) == "Kueue pod group default/g"
    one["metadata"]["labels"].pop("kueue.x-k8s.io/pod-group-name")
    assert key_of(one) == "LeaderWorkerSet group default/g-0"
    one["metadata"]["labels"].pop("leaderworkerset.sigs.k8s.io/group-index")
    assert key_of(one) == "JobSet default/g"


def test_of_a_job_set_that_says_no_size_nothing_is_judged() -> None:
    one = pod("default", "p", [], member=Member("g", "", by="JobSet"))
    assert size_of(World(), key_of(one), [one]) is None
