"""The laws of evictions for others: which pods may be evicted for which, only together with their group, and within budgets."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.adversary.cluster.manifests import Member, pod, pod_budget, policy
from tests.adversary.cluster.observer.evicted import IN_PART_S, REMEMBERED_S, Evictions
from tests.adversary.cluster.observer.pod_budgets import KNOWN_AFTER_S, LATE_S, PodBudgets
from tests.adversary.cluster.observer.taking import WEIGHED_AFTER_S, Bystanders
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_allocators_law import given
from tests.adversary.cluster.test_observer import OTHER, a_slice, a_world, whole

Document = dict[str, Any]
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
READY = {"type": "Ready", "status": "True"}
WENT_AT = 100.0


BY = pytest.mark.parametrize("by", ["label", "PodGroup"])


def a_pod(
    title: str, *, priority: int = 0, node: str = "", group: str = "", by: str = "label", wants: str = "", **more: Any
) -> Document:
    member: Document = {"pod_group": group} if by == "PodGroup" else {"member": Member(group, "2") if group else None}
    one = pod("tenant-a", title, [f"c-{title}"], node=wants, **member)
    one["metadata"] |= {"uid": title, "resourceVersion": "3"}
    one["spec"] |= {"priority": priority, **({"nodeName": node} if node else {}), **more}
    return one | {"status": {"phase": "Running" if node else "Pending", "conditions": [READY] if node else []}}


def a_claim(
    title: str, *pods: str, device: str = "gpu-0", by: str = "draco-operator", device_class: str = "gpu.draco.dev"
) -> Document:
    """A claim; it has a device if pods use it."""
    one = given(by, device_class=device_class)
    one["metadata"] |= {"name": f"c-{title}", "namespace": "tenant-a", "uid": f"c-{title}"}
    one["status"]["allocation"]["devices"]["results"][0]["device"] = device
    one["status"]["reservedFor"] = [{"name": each, "uid": each} for each in pods]
    return one if pods else one | {"status": {}}


def permitting(title: str = "mp", *, node: str = "node", **spec: Any) -> Document:
    one = policy(title, node, "Dynamic", allocator="Operator", preemption="LowerPriority")
    one["metadata"] |= {"uid": title, "resourceVersion": "2"}
    one["spec"] |= spec
    return one


class Leaves:
    """A pod that is evicted while another waits: the objects over time, and the laws' verdict."""

    def __init__(self) -> None:
        self.world = a_world(("slice", a_slice(whole(), whole("gpu-1", OTHER))))
        self.law = Evictions(self.world)
        self.bystanders = Bystanders(self.world, ["tenant-a"], self.law.why_not)

    def see(self, kind: str, one: Document, now: float = 1.0) -> "Leaves":
        before = learn(self.world, kind, one)
        return self._changed(kind, before, one, now)

    def gone(self, kind: str, one: Document, now: float = 1.0) -> "Leaves":
        kept = {"pod": self.world.pods, "claim": self.world.claims, "policy": self.world.policies}[kind]
        return self._changed(kind, kept.pop(one["metadata"]["uid"], one), None, now)

    def _changed(self, kind: str, before: Document | None, after: Document | None, now: float) -> "Leaves":
        self.law.needless.changed(kind, before, after, now)
        match kind:
            case "pod":
                self.law.pod_changed(before, after, now)
                self.bystanders.pod_changed(before, after, now)
            case "claim":
                self.law.claim_changed(before, after, now)
                self.bystanders.claim_changed(before, now)
            case "policy":
                self.law.policy_changed(before, now)
        return self

    def evicted(self, one: Document, now: float = WENT_AT) -> "Leaves":
        told = one | {"status": {**one["status"], "conditions": [EVICTED]}}
        return self.see("pod", told, now).gone("pod", told, now)

    def found(self) -> list[str]:
        """The verdict on this pod alone, a moment later."""
        return [each.text for each in self.bystanders.weighed(WENT_AT + WEIGHED_AFTER_S)]

    def in_part(self, *, undisturbed: Callable[[float], bool] = lambda _: True) -> list[str]:
        """The verdict on the pods that did not leave with it."""
        assert not self.found()
        assert not list(self.law.weighed(WENT_AT + WEIGHED_AFTER_S, grace_s=0.0, undisturbed=undisturbed))
        found = self.law.weighed(WENT_AT + IN_PART_S, grace_s=0.0, undisturbed=undisturbed)
        return [each.law for each in found]


LOW = a_pod("low", priority=10, node="node")
HIGH = a_pod("high", priority=100)
HELD, WAITS = a_claim("low", "low"), a_claim("high")


def preempted(
    *, low: Document = LOW, held: Document = HELD, high: Document = HIGH, waits: Document = WAITS, permit: Document
) -> Leaves:
    leaves = Leaves().see("policy", permit).see("claim", held).see("claim", waits)
    return leaves.see("pod", low).see("pod", high).evicted(low)


def test_a_pod_leaves_for_one_of_a_higher_priority_where_a_policy_permits_it() -> None:
    leaves = preempted(permit=permitting())
    assert leaves.found() == []
    assert leaves.law.preempted == 1


WRONG: dict[str, tuple[str, dict[str, Document]]] = {
    "nobody permits it": ("no policy", {"permit": permitting(preemption="Never")}),
    "kube-scheduler allocates": ("no policy", {"permit": permitting(allocator="Scheduler")}),
    "another node's policy": ("no policy", {"permit": permitting(node="other")}),
    "an equal waits": ("higher priority", {"high": a_pod("high", priority=10)}),
    "it is polite": ("higher priority", {"high": a_pod("high", priority=100, preemptionPolicy="Never")}),
    "it wants another node": ("higher priority", {"high": a_pod("high", priority=100, wants="other")}),
    "it wants nothing of Draco's": ("higher priority", {"waits": a_claim("high", device_class="gpu.nvidia.com")}),
    "it has what it wants": ("higher priority", {"waits": a_claim("high", "high", device="gpu-1")}),
    "it has a node": ("higher priority", {"high": a_pod("high", priority=100, node="node")}),
    "what it held is the scheduler's": ("nothing that Draco", {"held": a_claim("low", "low", by="kube-scheduler")}),
    "it held nothing": ("nothing that Draco", {"held": a_claim("low")}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pod_that_leaves_for_nobody_who_may_ask_it_to_is_told(case: str) -> None:
    why, changed = WRONG[case]
    found = preempted(**({"permit": permitting()} | changed)).found()
    assert len(found) == 1
    assert why in found[0]


@pytest.mark.parametrize("gone", [False, True])
def test_a_pod_on_a_node_has_its_claims_though_nobody_has_seen_them_reserved_for_it(*, gone: bool) -> None:
    """As after a restart of the watch of claims: kube-scheduler reserves claims before it binds the pod."""
    held = {**HELD, "status": {**HELD["status"], "reservedFor": []}}
    leaves = Leaves().see("policy", permitting()).see("claim", held).see("claim", WAITS).see("pod", LOW)
    leaves.see("pod", HIGH).evicted(LOW)
    if gone:
        leaves.gone("claim", held, WENT_AT + 0.5)
    assert not leaves.found()
    assert leaves.law.preempted == 1


def test_a_pod_that_was_not_evicted_did_not_leave_for_others() -> None:
    leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("claim", WAITS).see("pod", LOW)
    found = leaves.see("pod", HIGH).gone("pod", LOW, WENT_AT).found()
    assert len(found) == 1
    assert "not evicted" in found[0]


@pytest.mark.parametrize(("reserved_at", "wrong"), [(5, False), (99, False), (100, True)])
def test_a_pod_keeps_what_it_uses_of_a_reservation_from_those_who_are_not_more_urgent_than_that(
    reserved_at: int, *, wrong: bool
) -> None:
    held = a_claim("low", "low")
    owner = {"kind": "DeviceReservation", "uid": "r", "name": "r", "controller": True}
    held["metadata"]["ownerReferences"] = [owner]
    leaves = Leaves().see("policy", permitting()).see("claim", held).see("claim", WAITS)
    leaves.world.reservations["r"] = {"metadata": {"uid": "r"}, "spec": {}, "status": {"priority": reserved_at}}
    found = leaves.see("pod", LOW).see("pod", HIGH).evicted(LOW).found()
    assert bool(found) is wrong


@pytest.mark.parametrize(("reserves_at", "wrong"), [(11, False), (10, True)])
def test_a_pod_leaves_for_a_reservation_of_a_higher_priority_that_waits(reserves_at: int, *, wrong: bool) -> None:
    waits = a_claim("r-0")
    owner = {"kind": "DeviceReservation", "uid": "r", "name": "r", "controller": True}
    waits["metadata"]["ownerReferences"] = [owner]
    leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("claim", waits)
    leaves.world.reservations["r"] = {"metadata": {"uid": "r"}, "spec": {}, "status": {"priority": reserves_at}}
    assert bool(leaves.see("pod", LOW).evicted(LOW).found()) is wrong


def test_a_group_leaves_by_the_lowest_priority_of_its_pods() -> None:
    urgent = a_pod("urgent", priority=1000, node="node", group="g")
    low = a_pod("low", priority=10, node="node", group="g")
    held = a_claim("urgent", "urgent")
    leaves = Leaves().see("policy", permitting()).see("claim", held).see("claim", WAITS)
    assert not leaves.see("pod", low).see("pod", urgent).see("pod", HIGH).evicted(urgent).found()


@pytest.mark.parametrize(("before_s", "wrong"), [(5.0, False), (REMEMBERED_S + 5.0, True)])
def test_whoever_waited_and_whatever_was_permitted_a_moment_ago_may_be_why(before_s: float, wrong: bool) -> None:
    at = WENT_AT - before_s
    leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("claim", WAITS).see("pod", LOW)
    assert bool(leaves.see("pod", HIGH).gone("pod", HIGH, at).evicted(LOW).found()) is wrong
    leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("claim", WAITS).see("pod", LOW)
    leaves.see("pod", HIGH).see("policy", permitting(preemption="Never"), at)
    assert bool(leaves.evicted(LOW).found()) is wrong


def test_whoever_was_served_at_once_had_waited() -> None:
    leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("claim", WAITS).see("pod", LOW)
    leaves.see("pod", HIGH).evicted(LOW).see("claim", a_claim("high", "high"), WENT_AT + 0.5)
    assert not leaves.found()


def test_a_policy_for_one_board_permits_nothing_on_another() -> None:
    def on(bus: str) -> Document:
        selectors = [{"cel": {"expression": f'device.attributes["resource.kubernetes.io"].pciBusID == "{bus}"'}}]
        return permitting(deviceSelectors=selectors)

    def judged(permit: Document) -> list[str]:
        leaves = Leaves()
        one = whole()
        one["attributes"]["resource.kubernetes.io/pciBusID"] = {"string": "0000:1b:00.0"}
        leaves.see("slice", a_slice(one)).see("policy", permit).see("claim", HELD).see("claim", WAITS)
        return leaves.see("pod", LOW).see("pod", HIGH).evicted(LOW).found()

    assert not judged(on("0000:1b:00.0"))
    assert judged(on("0000:43:00.0"))


@BY
def test_the_lowest_priority_of_a_group_counts(by: str) -> None:
    leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("pod", LOW)
    for title, priority in (("a", 100), ("b", 10)):
        leaves.see("claim", a_claim(title)).see("pod", a_pod(title, priority=priority, group="g", by=by))
    assert leaves.evicted(LOW).found()


def a_group_on_two_gpus(by: str = "label") -> tuple[Leaves, Document, Document]:
    one, other = (a_pod(each, priority=10, node="node", group="g", by=by) for each in ("one", "other"))
    leaves = Leaves().see("policy", permitting()).see("claim", WAITS).see("pod", HIGH)
    leaves.see("claim", a_claim("one", "one")).see("claim", a_claim("other", "other", device="gpu-1"))
    return leaves.see("pod", one).see("pod", other), one, other


@BY
def test_those_that_start_together_leave_together(by: str) -> None:
    leaves, one, _ = a_group_on_two_gpus(by)
    assert leaves.evicted(one).in_part() == ["left in part"]
    leaves, one, other = a_group_on_two_gpus(by)
    assert leaves.evicted(one).evicted(other).in_part() == []


def test_those_that_share_a_claim_leave_together() -> None:
    one, other, lone = (a_pod(each, priority=10, node="node") for each in ("one", "other", "lone"))
    leaves = Leaves().see("policy", permitting()).see("claim", WAITS).see("pod", HIGH)
    leaves.see("claim", a_claim("one", "one", "other")).see("claim", a_claim("lone", "lone", device="gpu-1"))
    leaves.see("pod", one).see("pod", other).see("pod", lone)
    assert leaves.evicted(one).in_part() == ["left in part"]
    leaves = Leaves().see("policy", permitting()).see("claim", WAITS).see("pod", HIGH)
    leaves.see("claim", a_claim("one", "one")).see("pod", one).see("pod", lone)
    assert leaves.evicted(one).in_part() == []


def test_some_may_stay_when_the_operator_died_or_a_budget_guards_them_or_they_have_just_come() -> None:
    leaves, one, _ = a_group_on_two_gpus()
    assert leaves.evicted(one).in_part(undisturbed=lambda _: False) == []
    leaves, one, _ = a_group_on_two_gpus()
    leaves.evicted(one).see("pod budget", a_budget(1))
    assert leaves.in_part() == []
    leaves, one, _ = a_group_on_two_gpus()
    late = a_pod("late", priority=10, node="node", group="g")
    leaves.bystanders.asked("tenant-a/other")
    leaves.gone("pod", a_pod("other")).see("pod", late, WENT_AT - 1.0)
    assert leaves.evicted(one).in_part() == []


def a_group_that_lost_a_pod(
    *, since: float = 0.0, member: Document | None = None, by: str = "label", **spec: Any
) -> Leaves:
    """One pod runs, the next waits, and the policy releases the group."""
    says: dict[str, Any] = {"preemption": "Never", "gangs": {"onPartialLoss": "Release"}} | spec
    one = a_pod("one", node="node", group="g", by=by)
    held = a_claim("one", "one")
    held["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": "one", "name": "one", "controller": True}]
    leaves = Leaves().see("policy", permitting(**says)).see("claim", held).see("claim", a_claim("next"))
    leaves.see("pod", one).see("pod", member or a_pod("next", group="g", by=by), since)
    return leaves.evicted(one)


@BY
def test_the_rest_of_a_group_that_lost_a_pod_leaves_where_a_policy_says_so(by: str) -> None:
    leaves = a_group_that_lost_a_pod(by=by)
    assert leaves.found() == []
    assert (leaves.law.preempted, leaves.law.released) == (0, 1)


@pytest.mark.parametrize(
    ("why", "changed"),
    [
        ("no policy has groups leave", {"gangs": {"onPartialLoss": "Keep"}}),
        ("no policy has groups leave", {"allocator": "Scheduler"}),
        ("no pod of its group waited for so long", {"since": WENT_AT - 3.0}),
        ("no pod of its group waited for so long", {"member": a_pod("next", group="other")}),
        ("no pod of its group waited for so long", {"member": a_pod("next", group="g", node="node")}),
    ],
)
def test_the_rest_of_a_group_stays_where_it_may(why: str, changed: dict[str, Any]) -> None:
    found = a_group_that_lost_a_pod(**changed).found()
    assert len(found) == 1
    assert why in found[0]


def test_pods_of_a_label_and_of_a_pod_group_of_one_name_are_two_groups() -> None:
    found = a_group_that_lost_a_pod(member=a_pod("next", group="g", by="PodGroup")).found()
    assert "no pod of its group waited for so long" in found[0]


def test_whoever_has_what_its_pod_group_keeps_leaves_for_nobody() -> None:
    low, held = a_pod("low", priority=10, node="node", group="g", by="PodGroup"), a_claim("low", "g")
    held["status"]["reservedFor"] = [{"resource": "podgroups", "name": "g", "uid": "g"}]
    found = preempted(low=low, held=held, permit=permitting()).found()
    assert "what it held its PodGroup keeps" in found[0]


def test_a_pod_that_is_drained_of_what_its_pod_group_keeps_is_no_bystander() -> None:
    low, held = a_pod("low", priority=10, node="node", group="g", by="PodGroup"), a_claim("low", "g")
    held["status"]["reservedFor"] = [{"resource": "podgroups", "name": "g", "uid": "g"}]
    other = a_pod("other", priority=10, node="node", group="g", by="PodGroup")
    leaves = Leaves().see("claim", held).see("pod", low).see("pod", other)
    rule = {"metadata": {"name": "r", "uid": "r"}, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}}
    leaves.bystanders.rule_changed(rule, WENT_AT)
    assert not leaves.evicted(low).found()
    assert leaves.evicted(other).found(), "it names no claim that its PodGroup keeps"


@pytest.mark.parametrize(("by_its_job", "evicted"), [(True, False), (True, True), (False, False)])
def test_the_job_controller_may_delete_pods_of_jobs_and_draco_only_evicts(*, by_its_job: bool, evicted: bool) -> None:
    one, law = a_pod("low", node="node"), Bystanders(a_world(), ["tenant-a"])
    one["metadata"] |= {"ownerReferences": [{"kind": "Job", "uid": "job"}]} if by_its_job else {}
    one["status"]["conditions"] += [EVICTED] if evicted else []
    law.pod_changed(one, None, WENT_AT)
    wrong = [each.law for each in law.weighed(WENT_AT + WEIGHED_AFTER_S)]
    assert wrong == ([] if by_its_job and not evicted else ["bystander taken"])


def test_a_claim_by_name_and_a_pod_of_no_group_stay() -> None:
    says: dict[str, Any] = {"preemption": "Never", "gangs": {"onPartialLoss": "Release"}}
    leaves = Leaves().see("policy", permitting(**says)).see("claim", HELD).see("claim", WAITS).see("pod", HIGH)
    assert "in no group" in leaves.see("pod", LOW).evicted(LOW).found()[0]
    one = a_pod("one", node="node", group="g")
    leaves = Leaves().see("policy", permitting(**says)).see("claim", a_claim("one", "one"))
    leaves.see("claim", a_claim("next")).see("pod", one).see("pod", a_pod("next", group="g"))
    assert "not made for it" in leaves.evicted(one).found()[0]


class Need:
    """A pod is evicted, and another gets a GPU a moment later."""

    def __init__(self, *more: tuple[str, Document]) -> None:
        self.leaves = Leaves().see("policy", permitting()).see("claim", HELD).see("claim", WAITS)
        for kind, one in more:
            self.leaves.see(kind, one)
        self.leaves.see("pod", LOW).see("pod", HIGH)

    def judged(self, gets: str, *, undisturbed: bool = True) -> list[str]:
        leaves = self.leaves.evicted(LOW).gone("claim", HELD, WENT_AT + 0.2)
        if gets:
            leaves.see("claim", a_claim("high", "high", device=gets), WENT_AT + 1.0)
        assert not leaves.found()
        found = leaves.law.weighed(WENT_AT + IN_PART_S, grace_s=0.0, undisturbed=lambda _: undisturbed)
        return [each.law for each in found]


def test_whoever_was_served_without_what_the_pod_had_did_not_need_it_to_leave() -> None:
    need = Need()
    assert need.judged("gpu-1") == ["evicted needlessly"]
    need = Need()
    assert need.judged("gpu-0") == []
    assert need.leaves.law.needless.judged == 1


@pytest.mark.parametrize("kind", ["claim", "policy"])
def test_what_else_became_free_may_have_been_taken_instead(kind: str) -> None:
    other = ("claim", a_claim("other", "other", device="gpu-1")) if kind == "claim" else ("policy", permitting("p2"))
    for at, wrong in ((WENT_AT + 0.5, False), (WENT_AT - 1.0, False), (WENT_AT - 20.0, True), (WENT_AT + 2.0, True)):
        need = Need(other)
        need.leaves.gone(kind, other[1], at)
        assert bool(need.judged("gpu-1")) is wrong


def test_an_eviction_is_not_judged_where_another_may_have_been_meant_or_the_operator_died_or_nobody_is_served() -> None:
    need = Need(("claim", a_claim("higher")), ("pod", a_pod("higher", priority=200)))
    assert need.judged("gpu-1") == []
    assert Need().judged("gpu-1", undisturbed=False) == []
    assert Need().judged("") == []


def a_budget(least: int) -> Document:
    one = pod_budget("tenant-a", "b", least)
    one["metadata"] |= {"uid": "b", "resourceVersion": "2"}
    return one


class Guarded:
    """Three pods, and a budget for them."""

    def __init__(self, least: int) -> None:
        self.pods = [a_pod(f"p{number}", node="node") for number in range(3)]
        self.world = a_world(*(("pod", each) for each in self.pods))
        self.law = PodBudgets(self.world)
        self.set(least, 0.0)

    def set(self, least: int, now: float) -> None:
        self.law.budget_changed(learn(self.world, "pod budget", a_budget(least)), a_budget(least), now)

    def goes(self, number: int, now: float, *, evicted: bool = True) -> list[str]:
        one = self.pods[number]
        if evicted:
            one = one | {"status": {**one["status"], "conditions": [READY, EVICTED]}}
        self.world.pods.pop(one["metadata"]["uid"])
        self.law.pod_changed(one, None, now)
        return [each.law for each in self.law.weighed()]


def test_no_eviction_leaves_fewer_pods_than_a_budget_wants() -> None:
    guarded = Guarded(2)
    assert guarded.goes(0, KNOWN_AFTER_S) == []
    assert guarded.goes(1, KNOWN_AFTER_S) == ["pod budget overrun"]


def test_a_budget_that_has_just_come_and_pods_that_were_not_evicted_are_learned_of_late() -> None:
    guarded = Guarded(0)
    guarded.set(3, LATE_S)
    assert guarded.goes(0, LATE_S + 1.0) == []
    guarded = Guarded(2)
    assert guarded.goes(0, LATE_S, evicted=False) == []
    assert guarded.goes(1, LATE_S + 1.0) == []
    guarded = Guarded(2)
    assert guarded.goes(0, LATE_S, evicted=False) == []
    assert guarded.goes(1, 2 * LATE_S) == ["pod budget overrun"]
