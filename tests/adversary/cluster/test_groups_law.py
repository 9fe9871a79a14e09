"""The laws of groups: all that a group needs or nothing, and nobody holds devices while waiting for more."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.adversary.cluster.manifests import Member, pod
from tests.adversary.cluster.observer.groups import BEGUN_WITHIN_S, Groups, groups_of, holds_and_waits
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_observer import POD, a_world

Document = dict[str, Any]
LATER_S = BEGUN_WITHIN_S + 1.0


def member(number: int, *, size: str = "2", phase: str = "Pending", **more: Any) -> Document:
    one = pod("default", f"p{number}", [f"c{number}"], member=Member("g", size))
    one["metadata"] |= {"uid": POD.format(number), "resourceVersion": "3"} | more
    return one | {"status": {"phase": phase}}


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


@pytest.mark.parametrize("case", HOLDS)
def test_nobody_holds_devices_while_waiting_for_more(case: str) -> None:
    wrong, objects = HOLDS[case]
    assert bool(list(holds_and_waits(a_world(*objects)))) is wrong


class History:
    """A group of two pods through time."""

    def __init__(self, size: str = "2") -> None:
        self.world = a_world(("pod", member(1, size=size)), ("pod", member(2, size=size)))
        self.law = Groups(self.world)
        self.pods = {each["metadata"]["name"]: each for each in self.world.pods.values()}

    def allocated(self, number: int, now: float) -> "History":
        one = claim(number)
        before = learn(self.world, "claim", one)
        self.law.claim_changed(before, one, now)
        return self

    def found(self, now: float, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        return [each.law for each in self.law.weighed(now, grace_s=0.0, undisturbed=undisturbed)]


def test_a_group_that_gets_a_part_of_what_it_needs_is_told() -> None:
    history = History().allocated(1, 0.0)
    assert not history.found(1.0)
    assert history.found(LATER_S) == ["begun in part"]
    assert not history.found(LATER_S + 1.0)


def test_a_group_that_gets_all_that_it_needs_may_lose_some_of_it() -> None:
    history = History().allocated(1, 0.0).allocated(2, 0.5)
    assert not history.found(1.0)
    assert history.law.whole == 1
    lost = claim(2, waits=True)
    history.law.claim_changed(learn(history.world, "claim", lost), lost, 2.0)
    history.allocated(1, 3.0)
    assert not history.found(3.0 + LATER_S)


def test_a_group_that_gives_back_what_it_got_has_not_begun() -> None:
    history = History().allocated(1, 0.0)
    learn(history.world, "claim", claim(1, waits=True))
    assert not history.found(LATER_S)


def test_a_group_may_begin_in_part_when_its_allocator_dies_or_a_pod_is_deleted() -> None:
    assert not History().allocated(1, 0.0).found(LATER_S, undisturbed=lambda _: False)
    history = History().allocated(1, 0.0)
    history.law.pod_changed(history.pods["p2"], None, 1.0)
    assert not history.found(LATER_S)


def test_a_pod_that_has_succeeded_counts_and_one_more_than_needed_may_wait() -> None:
    history = History(size="1").allocated(1, 0.0)
    assert not history.found(LATER_S)
    history = History().allocated(1, 0.0)
    learn(history.world, "pod", member(2, phase="Succeeded"))
    assert not history.found(LATER_S)


def test_groups_that_contradict_themselves_are_not_judged() -> None:
    assert not list(groups_of(a_world(("pod", member(1)), ("pod", member(2, size="3")))))
    assert not list(groups_of(a_world(("pod", member(1, size="many")))))
