"""The laws of Draco's scheduling gate: when it may be removed from a pod or a gang, and that it does not stay needlessly."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.adversary.cluster.manifests import Member, pod, pod_group
from tests.adversary.cluster.observer.gates import (
    KNOWN_AFTER_S,
    REMEMBERED_S,
    UNHEARD_S,
    WEIGHED_AFTER_S,
    Gates,
    held_behind_gates,
    kept_gate,
)
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_observer import a_world

Document = dict[str, Any]
GATE_WENT_AT, AT_REVISION = 100.0, 50
LONG_AGO_S = KNOWN_AFTER_S + 1.0


def member(
    number: int,
    *,
    gated: bool = True,
    uses: Sequence[str] = (),
    group: str = "g",
    phase: str = "Pending",
    revision: int = 3,
) -> Document:
    one = pod("default", f"p{number}", list(uses) or [f"c{number}"], pod_group=group, gated=gated)
    one["metadata"] |= {"uid": f"p{number}", "resourceVersion": str(revision)}
    return one | {"status": {"phase": phase}}


def claim(title: str, *, has: bool = True, revision: int = 10, device_class: str = "gpu.draco.dev") -> Document:
    one = given("draco-operator", device_class=device_class, revision=revision)
    one["metadata"] |= {"name": title, "uid": title}
    return one if has else one | {"status": {}}


def group(least: int | None = 2) -> Document:
    one = pod_group("default", "g", least)
    one["metadata"] |= {"uid": "g", "resourceVersion": "2"}
    return one


class History:
    """Pods with the gate, and changes of them and their claims."""

    def __init__(self, *pods: Document, of: Document | None = None) -> None:
        self.world = a_world()
        self.law = Gates(self.world)
        if of is not None:
            self.comes(of)
        for each in pods:
            self.pod(each, 0.0)

    def comes(self, one: Document, now: float = 0.0) -> "History":
        learn(self.world, "pod group", one)
        self.law.pod_group_changed(one, now)
        return self

    def pod(self, one: Document, now: float) -> "History":
        self.law.pod_changed(learn(self.world, "pod", one), one, now)
        return self

    def claims(self, *claims: Document, now: float = 1.0) -> "History":
        for one in claims:
            self.law.claim_changed(learn(self.world, "claim", one), one, now)
        return self

    def deleted(self, number: int, now: float) -> "History":
        one = self.world.pods.pop(f"p{number}")
        self.law.pod_changed(one, None, now)
        return self

    def off(self, number: int = 1, *, then: Callable[["History"], object] = lambda _: None, **more: Any) -> list[str]:
        """The verdict on a removed gate; `then` is what happens right after."""
        self.pod(member(number, gated=False, revision=AT_REVISION, **more), GATE_WENT_AT)
        then(self)
        assert not self.found(GATE_WENT_AT)
        return self.found(GATE_WENT_AT + WEIGHED_AFTER_S)

    def found(self, now: float, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        self.law.claim_changed(None, claim("of-somebody", revision=AT_REVISION + 1), now)
        return self.weighed(now, undisturbed=undisturbed)

    def weighed(self, now: float, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        return [each.law for each in self.law.weighed(now, grace_s=0.0, undisturbed=undisturbed)]


TWO = (member(1), member(2))


def test_a_gate_goes_when_the_pod_has_what_draco_allocates() -> None:
    assert History(member(1)).claims(claim("c1", has=False)).off() == ["gate off early"]
    history = History(member(1)).claims(claim("c1"))
    assert not history.off()
    assert (history.law.off, history.law.off_gangs) == (1, 0)


def test_a_gate_is_weighed_by_claims_that_are_heard_of_later_than_the_pod() -> None:
    history = History(member(1)).claims(claim("c1", has=False))
    history.pod(member(1, gated=False, revision=AT_REVISION), GATE_WENT_AT)
    weighed_at = GATE_WENT_AT + WEIGHED_AFTER_S
    assert not history.weighed(weighed_at), "the watch of claims may be late"
    assert not history.claims(claim("c1"), now=weighed_at).found(weighed_at)
    history = History(member(1)).claims(claim("c1", has=False))
    history.pod(member(1, gated=False, revision=AT_REVISION), GATE_WENT_AT)
    assert history.weighed(GATE_WENT_AT + UNHEARD_S) == ["gate off early"], "but not for ever"


def test_a_gate_does_not_wait_for_claims_of_the_scheduler_but_for_all_claims_to_be_there() -> None:
    theirs = claim("t", has=False, device_class="gpu.nvidia.com")
    assert not History(member(1, uses=["c1", "t"])).claims(claim("c1"), theirs).off(uses=["c1", "t"])
    assert History(member(1, uses=["c1", "t"])).claims(claim("c1")).off(uses=["c1", "t"]) == ["gate off early"]


def test_a_claim_of_the_scheduler_that_goes_right_after_the_gate_is_remembered() -> None:
    def goes(history: History) -> None:
        history.law.claim_changed(history.world.claims.pop("t"), None, GATE_WENT_AT)

    theirs = claim("t", has=False, device_class="gpu.nvidia.com")
    assert not History(member(1, uses=["t"])).claims(theirs).off(uses=["t"], then=goes)


def test_a_claim_that_its_template_has_not_made_has_no_devices() -> None:
    before, after = member(1), member(1, gated=False, revision=AT_REVISION)
    for one in (before, after):
        one["spec"]["resourceClaims"].append({"name": "t0", "resourceClaimTemplateName": "t"})
    history = History(before).claims(claim("c1")).pod(after, GATE_WENT_AT)
    assert history.found(GATE_WENT_AT + WEIGHED_AFTER_S) == ["gate off early"]


def test_a_pod_may_be_told_the_name_of_its_claim_after_the_gate_went() -> None:
    before, after = member(1), member(1, gated=False, revision=AT_REVISION)
    for one in (before, after):
        one["spec"]["resourceClaims"].append({"name": "t0", "resourceClaimTemplateName": "t"})
    history = History(before).claims(claim("c1"), claim("t-made", has=False, device_class="gpu.nvidia.com"))
    history.pod(after, GATE_WENT_AT)
    told = after["status"] | {"resourceClaimStatuses": [{"name": "t0", "resourceClaimName": "t-made"}]}
    later = {"metadata": after["metadata"] | {"resourceVersion": str(AT_REVISION + 1)}, "status": told}
    history.pod(after | later, GATE_WENT_AT + 1.0)
    assert not history.found(GATE_WENT_AT + WEIGHED_AFTER_S)


def test_a_claim_of_which_is_heard_a_moment_later_counts_if_it_was_allocated_before() -> None:
    assert not History(member(1)).off(then=lambda history: history.claims(claim("c1"), now=GATE_WENT_AT + 1.0))
    late = History(member(1)).off(
        then=lambda history: history.claims(claim("c1", revision=AT_REVISION + 1), now=GATE_WENT_AT)
    )
    assert late == ["gate off early"]


@pytest.mark.parametrize(("before_s", "wrong"), [(1.0, False), (LONG_AGO_S, True)])
def test_a_claim_may_have_lost_its_devices_a_moment_before(before_s: float, wrong: bool) -> None:
    history = History(member(1)).claims(claim("c1")).claims(claim("c1", has=False), now=GATE_WENT_AT - before_s)
    assert bool(history.off()) is wrong


def test_gates_of_a_gang_go_when_as_many_as_start_together_have_their_devices() -> None:
    assert History(*TWO, of=group()).claims(claim("c1"), claim("c2", has=False)).off() == ["gate off alone"]
    history = History(*TWO, of=group()).claims(claim("c1"), claim("c2"))
    assert not history.off()
    assert (history.law.off, history.law.off_gangs) == (1, 1)
    assert not history.off(2)


def test_a_pod_that_wants_nothing_of_dracos_waits_for_its_gang_too() -> None:
    theirs = claim("t", has=False, device_class="gpu.nvidia.com")
    lone = History(member(1, uses=["t"]), member(2), of=group()).claims(theirs, claim("c2", has=False))
    assert lone.off(uses=["t"]) == ["gate off alone"]
    assert not History(member(1, uses=["t"]), member(2), of=group()).claims(theirs, claim("c2")).off(uses=["t"])


NO_GANG: dict[str, Callable[[], History]] = {
    "a pod more than start together": lambda: History(*TWO, of=group(1)).claims(claim("c1"), claim("c2", has=False)),
    "a policy without a number": lambda: History(*TWO, of=group(None)).claims(claim("c1"), claim("c2", has=False)),
    "no PodGroup": lambda: History(*TWO).claims(claim("c1"), claim("c2", has=False)),
    "a PodGroup that has just come": lambda: (
        History(*TWO).comes(group(), GATE_WENT_AT - 1.0).claims(claim("c1"), claim("c2", has=False))
    ),
    "a late member of a gang that runs": lambda: History(
        member(1), member(2, gated=False, phase="Running"), of=group()
    ).claims(claim("c1"), claim("c2")),
    "what the PodGroup keeps for all": lambda: History(
        *(member(number, uses=["all"]) for number in (1, 2)), of=group()
    ).claims(claim("all")),
}


@pytest.mark.parametrize("case", NO_GANG)
def test_a_gate_may_go_without_the_others(case: str) -> None:
    history = NO_GANG[case]()
    uses = [each["resourceClaimName"] for each in history.world.pods["p1"]["spec"]["resourceClaims"]]
    assert not history.off(uses=uses)


@pytest.mark.parametrize(("before_s", "wrong"), [(1.0, False), (LONG_AGO_S, True)])
@pytest.mark.parametrize("how", ["deleted", "over"])
def test_a_member_may_have_gone_a_moment_before(before_s: float, wrong: bool, how: str) -> None:
    history, at = History(*TWO, of=group()).claims(claim("c1"), claim("c2")), GATE_WENT_AT - before_s
    if how == "deleted":
        history.deleted(2, at)
    else:
        history.pod(member(2, phase="Succeeded"), at)
    assert history.off() == (["gate off alone"] if wrong else [])


def test_a_pod_of_a_group_by_label_loses_its_gate_alone() -> None:
    pods = [member(number, group="") for number in (1, 2)]
    for each in pods:
        each["metadata"] |= {"labels": Member("g", "2").labels, "annotations": Member("g", "2").annotations}
    history = History(*pods).claims(claim("c1"), claim("c2", has=False))
    assert not history.off(group="")


def test_a_pod_that_goes_with_its_gate_was_not_let_go() -> None:
    assert not History(member(1)).claims(claim("c1", has=False)).deleted(1, 2.0).found(2.0 + WEIGHED_AFTER_S)
    ends = member(1, gated=False, phase="Failed")
    assert not History(member(1)).claims(claim("c1", has=False)).pod(ends, 2.0).found(2.0 + WEIGHED_AFTER_S)


def test_a_leader_may_have_slept_on_what_it_knew() -> None:
    def late(before_s: float) -> list[str]:
        history = History(member(1)).claims(claim("c1")).claims(claim("c1", has=False), now=GATE_WENT_AT - before_s)
        history.pod(member(1, gated=False, revision=AT_REVISION), GATE_WENT_AT)
        return history.found(GATE_WENT_AT + WEIGHED_AFTER_S, undisturbed=lambda since: since > GATE_WENT_AT - 20.0)

    assert not late(20.0)
    assert late(REMEMBERED_S + 1.0) == ["gate off early"]


KEPT = {
    "a pod that has its devices": (True, [("pod", member(1, group="")), ("claim", claim("c1"))]),
    "a pod that has none": (False, [("pod", member(1, group="")), ("claim", claim("c1", has=False))]),
    "a claim is missing": (False, [("pod", member(1, group="", uses=["c1", "c2"])), ("claim", claim("c1"))]),
    "it lacks only the scheduler's": (
        True,
        [
            ("pod", member(1, group="", uses=["c1", "t"])),
            *(("claim", each) for each in (claim("c1"), claim("t", has=False, device_class="gpu.nvidia.com"))),
        ],
    ),
    "it is over": (False, [("pod", member(1, group="", phase="Failed")), ("claim", claim("c1"))]),
    "it has no gate": (False, [("pod", member(1, group="", gated=False)), ("claim", claim("c1"))]),
    "its gang lacks another's": (
        False,
        [("pod group", group()), *(("pod", each) for each in TWO), ("claim", claim("c1")), ("claim", claim("c2", has=False))],
    ),
    "its gang has all": (
        True,
        [("pod group", group()), *(("pod", each) for each in TWO), ("claim", claim("c1")), ("claim", claim("c2"))],
    ),
    "its gang needs no other": (
        True,
        [("pod group", group(1)), *(("pod", each) for each in TWO), ("claim", claim("c1")), ("claim", claim("c2", has=False))],
    ),
    "its PodGroup lets each start alone": (
        True,
        [("pod group", group(None)), *(("pod", each) for each in TWO), ("claim", claim("c1")), ("claim", claim("c2", has=False))],
    ),
    "its gang is short of a pod that is over": (
        False,
        [
            ("pod group", group()),
            ("pod", member(1)),
            ("pod", member(2, phase="Succeeded")),
            *(("claim", claim(each)) for each in ("c1", "c2")),
        ],
    ),
    "its PodGroup is not there": (False, [("pod", member(1)), ("claim", claim("c1"))]),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_no_gate_stays_for_nothing(case: str) -> None:
    wrong, objects = KEPT[case]
    world = a_world(*objects)
    assert bool(list(kept_gate(world))) is wrong


HELD = {
    "all of its pods are held": (
        True,
        [pod("default", "p1", ["c1"], held=True), pod("default", "p2", ["c1"], held=True)],
    ),
    "one of them is free": (False, [pod("default", "p1", ["c1"], held=True), pod("default", "p2", ["c1"], gated=True)]),
    "nobody names it": (False, []),
}


@pytest.mark.parametrize("case", HELD)
@pytest.mark.parametrize("is_reserved", [False, True])
def test_nothing_is_kept_for_pods_that_others_hold_back(case: str, *, is_reserved: bool) -> None:
    wrong, pods = HELD[case]
    world, one = a_world(), claim("c1")
    if is_reserved:
        one["metadata"]["ownerReferences"] = [
            {"kind": "DeviceReservation", "uid": "r", "name": "r", "controller": True}
        ]
    world.claims["c1"] = one
    for number, each in enumerate(pods):
        each["metadata"] |= {"uid": f"p{number}"}
        world.pods[f"p{number}"] = {**each, "status": {"phase": "Pending"}}
    assert bool(list(held_behind_gates(world))) is (wrong and not is_reserved)


def test_a_gate_that_stays_beside_another_is_not_kept_for_nothing() -> None:
    world = a_world()
    world.claims["c1"] = claim("c1")
    one = pod("default", "p1", ["c1"], gated=True, held=True)
    one["metadata"] |= {"uid": "p1"}
    world.pods["p1"] = {**one, "status": {"phase": "Pending"}}
    assert not list(kept_gate(world))
