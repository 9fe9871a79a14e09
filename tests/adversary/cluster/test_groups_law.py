"""The laws of groups: a group gets all devices that it needs or none, and holds none while waiting for more."""

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


def member(number: int, *, size: str = "2", phase: str = "Pending", of_both: bool = False, **more: Any) -> Document:
    uses = [f"c{number}", f"t{number}"] if of_both else [f"c{number}"]
    one = pod("default", f"p{number}", uses, member=Member("g", size))
    one["metadata"] |= {"uid": POD.format(number), "resourceVersion": "3"} | more
    return one | {"status": {"phase": phase}}


def group(size: str = "2") -> Document:
    one = pod_group("default", "g", int(size))
    one["metadata"] |= {"uid": "g", "resourceVersion": "2"}
    return one


def as_pod_group(objects: Objects, *, size: str = "2") -> Objects:
    """The same objects with a PodGroup in place of the label and annotation."""
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
    """The same objects with other labels and their annotation."""
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


def theirs(number: int, *, waits: bool = True) -> Document:
    """The pod's claim that kube-scheduler allocates."""
    one = given("kube-scheduler", device_class="gpu.nvidia.com")
    one["metadata"] |= {"name": f"t{number}", "uid": f"t{number}"}
    return one | {"status": {}} if waits else one


OF_BOTH: Objects = [("pod", member(each, of_both=True)) for each in (1, 2)]
HOLDS = {
    "both have all of Draco, and wait for kube-scheduler's": (
        False,
        [*OF_BOTH, *(("claim", claim(each)) for each in (1, 2)), *(("claim", theirs(each)) for each in (1, 2))],
    ),
    "of both allocators one has Draco's, one waits for it": (
        True,
        [*OF_BOTH, ("claim", claim(1)), ("claim", claim(2, waits=True)), *(("claim", theirs(each)) for each in (1, 2))],
    ),
    "of both allocators a claim is missing": (
        False,
        [*OF_BOTH, ("claim", claim(1)), ("claim", claim(2, waits=True)), ("claim", theirs(1))],
    ),
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
    """A group of two pods over time."""

    def __init__(self, size: str = "2", *, by: str = "Kueue", of_both: bool = False) -> None:
        pods: Objects = [("pod", member(each, size=size, of_both=of_both)) for each in (1, 2)]
        claims: Objects = [("claim", theirs(each)) for each in (1, 2)] if of_both else []
        self.world = a_world_of(by, *pods, *claims, size=size)
        self.law = Groups(self.world)
        self.pods = {each["metadata"]["name"]: each for each in self.world.pods.values()}

    def allocated(self, number: int, now: float) -> "History":
        one = claim(number)
        before = learn(self.world, "claim", one)
        self.law.claim_changed(before, one, now)
        return self

    def taken_back(self, number: int, now: float) -> "History":
        one = claim(number, waits=True)
        self.law.claim_changed(learn(self.world, "claim", one), one, now)
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
    history.taken_back(2, 2.0).allocated(1, 3.0)
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
def test_a_group_of_both_allocators_needs_only_dracos_devices_to_be_whole(by: str) -> None:
    history = History(by=by, of_both=True).allocated(1, 0.0)
    assert not history.found(1.0)
    assert not history.allocated(2, 2.0).found(LATER_S)
    assert history.law.whole == history.law.whole_of_both == 1
    assert History(by=by, of_both=True).allocated(1, 0.0).found(LATER_S) == ["begun in part"]


def test_the_scheduler_may_take_back_what_is_of_no_use_beside_its_own() -> None:
    assert not History(of_both=True).allocated(1, 0.0).allocated(2, 0.0).taken_back(2, 0.2).found(LATER_S)
    alone = History().allocated(1, 0.0).allocated(2, 0.0).taken_back(2, 0.2)
    assert alone.found(LATER_S) == ["begun in part"], "it had a use where nothing else is needed"
    served = History(of_both=True).allocated(1, 0.0).allocated(2, 0.0)
    for number in (1, 2):
        learn(served.world, "claim", theirs(number, waits=False))
    assert served.taken_back(2, 0.2).found(LATER_S) == ["begun in part"], "the scheduler had all of its own there"


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
