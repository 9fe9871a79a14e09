"""Which pods are asked to leave a device, which are waited for, and when NoExecute comes."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.maintenance.draining.disruption import covering, never_allows, why_refused
from draco.maintenance.draining.drain import ASKED_AT_ONCE, AskedPod, DrainInput, is_eviction_over, plan_drain
from draco.maintenance.progress import DrainPlan
from draco.resources.api.claims import ResourceClaim, ResourceClaimConsumerReference
from draco.resources.api.core import Pod, PodDisruptionBudget, PodExtendedResourceClaimStatus, PodStatus
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintenanceDrain
from draco.resources.api.meta import Condition, ObjectKey
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintRuleStatus, DeviceToleration
from draco.resources.names import ANNOTATION_MIRROR, TAINT_MAINTENANCE
from tests.builders import MOMENT, a_budget, a_claim, a_device_key, a_maintenance, a_pod, a_rule, a_uid, as_shares

GPU = a_device_key("node-0/gpu-0")
RUNNING = PodStatus(phase="Running")


def asks(policy: DrainPolicy = DrainPolicy.EVICT, *, draining: bool = False, **drain: Any) -> DeviceMaintenance:
    """A request that was isolated at MOMENT."""
    request = a_maintenance(pool="node-0", device="gpu-0")
    spec = msgspec.structs.replace(request.spec, drain=MaintenanceDrain(policy=policy, **drain))
    status = msgspec.structs.replace(request.status, isolated_at=MOMENT, draining_at=MOMENT if draining else None)
    return msgspec.structs.replace(request, spec=spec, status=status)


def holds(*pods: str, name: str = "claim", **claim: Any) -> ResourceClaim:
    return a_claim(name, on=["node-0/gpu-0"], reserved_for=pods, **claim)


def runs(name: str = "pod", claim: str = "claim", **fields: Any) -> Pod:
    return a_pod(name, node="node-0", claims=[claim], status=fields.pop("status", RUNNING), **fields)


def drain(
    request: DeviceMaintenance,
    claims: Sequence[ResourceClaim],
    pods: Sequence[Pod],
    *,
    after: timedelta = timedelta(0),
    **seen: Any,
) -> DrainPlan:
    found = plan_drain(
        request,
        DrainInput(now=MOMENT + after, devices=frozenset({GPU}), claims=claims, pods=pods, **seen),
    )
    assert found is not None
    return found


def keys(*names: str) -> tuple[ObjectKey, ...]:
    return tuple(ObjectKey("default", name) for name in names)


def asked(name: str, refusal: str = "", *, after: timedelta = timedelta(0), **fields: Any) -> dict[str, AskedPod]:
    return {a_uid("pod", "default", name): AskedPod(at=MOMENT + after, refusal=refusal, **fields)}


def test_by_the_policy_wait_nobody_is_asked_to_leave() -> None:
    request = asks(DrainPolicy.WAIT)
    assert plan_drain(request, DrainInput(now=MOMENT, claims=[holds("pod")], pods=[runs()])) is None


def test_nobody_is_asked_to_leave_before_the_device_is_isolated() -> None:
    request = asks()
    before = msgspec.structs.replace(request, status=msgspec.structs.replace(request.status, isolated_at=None))
    assert plan_drain(before, DrainInput(now=MOMENT, claims=[holds("pod")], pods=[runs()])) is None


def test_pods_have_the_time_to_end_by_themselves_and_are_evicted_then() -> None:
    request = asks(wait="10m")
    early = drain(request, [holds("pod")], [runs()], after=timedelta(minutes=4))
    assert (early.evict, early.begun, early.waits_for) == ((), False, timedelta(minutes=6))
    assert drain(request, [holds("pod")], [runs()], after=timedelta(minutes=10)).evict == keys("pod")


def test_pods_are_not_waited_for_because_another_clock_was_ahead() -> None:
    assert drain(asks(), [holds("pod")], [runs()], after=timedelta(minutes=-10)).evict == keys("pod")


def test_only_pods_that_a_claim_on_the_device_is_reserved_for_are_asked() -> None:
    """The others wait for the claim, use another one, or only have the name of a pod that it was reserved for."""
    claim = holds("pod", "gone")
    again = msgspec.structs.replace(
        runs("gone"), metadata=msgspec.structs.replace(runs("gone").metadata, uid="another")
    )
    pods = [runs("pod"), runs("waits"), runs("other", "other"), again]
    assert drain(asks(), [claim], pods).evict == keys("pod")


def test_a_pod_with_two_claims_and_a_claim_with_two_pods_count_once() -> None:
    claims = [holds("one", "two"), holds("one", name="second")]
    assert drain(asks(), claims, [runs("one"), runs("two")]).evict == keys("one", "two")


def test_the_pods_of_every_share_are_asked_and_waited_for() -> None:
    shares = [as_shares(holds(name, name=name), name, memory="10Gi") for name in ("one", "two")]
    pods = [runs("one", "one"), runs("two", "two")]
    assert drain(asks(), shares, pods).evict == keys("one", "two")
    assert drain(asks(), shares[1:], pods).evict == keys("two")


def test_members_of_what_the_claim_is_reserved_for_are_asked() -> None:
    claim = holds()
    group = ResourceClaimConsumerReference(resource="podgroups", api_group="scheduling.k8s.io", name="g", uid="1")
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=[group]))
    assert drain(asks(), [claim], [runs("member"), a_pod("unbound", claims=["claim"])]).evict == keys("member")


def test_a_pod_with_extended_resources_is_evicted_and_named_where_no_execute_overlooks_it() -> None:
    made = PodStatus(
        phase="Running",
        extended_resource_claim_status=PodExtendedResourceClaimStatus(resource_claim_name="claim"),
    )
    pod = a_pod("pod", node="node-0", status=made)
    assert drain(asks(), [holds("pod")], [pod]).evict == keys("pod")
    request = asks(DrainPolicy.NO_EXECUTE, draining=True)
    late = drain(request, [holds("pod")], [pod], after=timedelta(minutes=30))
    assert late.no_execute
    assert late.evict == keys("pod")
    assert "overlooks 1 pod" in late.message
    assert "kubectl delete pod -n default pod" in late.message
    since = drain(request, [holds("pod")], [pod], after=timedelta(minutes=30), spares_extended=False)
    assert since.no_execute
    assert "overlooks" not in since.message


def test_a_claim_without_a_pod_is_said_with_what_to_do() -> None:
    state = drain(asks(), [holds()], [])
    assert (state.evict, state.begun) == ((), False)
    assert "kubectl delete resourceclaim -n default claim" in state.message


def test_pods_that_are_leaving_are_not_asked_again() -> None:
    ending = runs("ending", deletion_timestamp=MOMENT)
    over = runs("over", status=PodStatus(phase="Succeeded"))
    state = drain(asks(), [holds("ending", "over", "asked")], [ending, over, runs("asked")], asked=asked("asked"))
    assert state.evict == ()
    assert state.leaving == keys("asked", "ending", "over")


def test_a_finalizer_that_keeps_a_pod_is_named() -> None:
    pod = runs("pod", deletion_timestamp=MOMENT, finalizers=["example.com/never"])
    early = drain(asks(), [holds("pod")], [pod])
    assert "finalizer" not in early.message
    assert early.look_again == timedelta(seconds=30)
    assert (
        "kept by finalizer example.com/never"
        in drain(asks(), [holds("pod")], [pod], after=timedelta(minutes=1)).message
    )


def of_pods(number: int, **fields: Any) -> str:
    """The message about this many pods with one claim."""
    names = [f"pod-{each}" for each in range(number)]
    pods = [runs(name, **fields) for name in names]
    return drain(asks(), [holds(*names)], pods, after=timedelta(minutes=1)).message


def refused(number: int) -> str:
    names = [f"pod-{each}" for each in range(number)]
    answers = {uid: each for name in names for uid, each in asked(name, "no").items()}
    return drain(asks(), [holds(*names)], list(map(runs, names)), asked=answers).message


def unused(number: int) -> str:
    return drain(asks(), [holds(name=f"claim-{each}") for each in range(number)], []).message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (of_pods(1), "1 pod is leaving"),
        (of_pods(2), "2 pods are leaving"),
        (of_pods(1, annotations={ANNOTATION_MIRROR: "x"}), "Pod default/pod-0 is not evicted"),
        (of_pods(2, annotations={ANNOTATION_MIRROR: "x"}), "Pod default/pod-0 (and 1 more pod) is not evicted"),
        (of_pods(3, annotations={ANNOTATION_MIRROR: "x"}), "Pod default/pod-0 (and 2 more pods) is not evicted"),
        (of_pods(1, deletion_timestamp=MOMENT), "Pod default/pod-0 is being deleted"),
        (of_pods(2, deletion_timestamp=MOMENT), "Pod default/pod-0 (and 1 more pod) is being deleted"),
        (refused(1), "cannot be evicted yet: no."),
        (refused(2), "no. 1 more pod is refused."),
        (refused(3), "no. 2 more pods are refused."),
        (unused(1), "Claim default/claim-0 holds"),
        (unused(2), "Claim default/claim-0 (and 1 more claim) holds"),
    ],
)
def test_sentences_agree_with_their_numbers(text: str, said: str) -> None:
    assert said in text


def test_a_static_pod_is_not_evicted_because_kubelet_makes_it_again() -> None:
    state = drain(asks(), [holds("pod")], [runs("pod", annotations={ANNOTATION_MIRROR: "x"})])
    assert state.evict == ()
    assert "static pod" in state.message


@pytest.mark.parametrize(
    ("seconds", "effect", "evicted_after"),
    [(None, "NoExecute", None), (600, "NoExecute", 600), (None, "NoSchedule", 0), (None, "", 0)],
)
def test_what_a_claim_tolerates_is_kept_as_the_cluster_itself_would(
    seconds: int | None, effect: str, evicted_after: int | None
) -> None:
    grants = DeviceToleration(operator="Exists", effect=effect, toleration_seconds=seconds)
    claim = holds("pod", tolerations=[grants])
    for after, expected in ((0, evicted_after == 0), (10**6, evicted_after is not None)):
        assert bool(drain(asks(), [claim], [runs()], after=timedelta(seconds=after)).evict) == expected
    if evicted_after is None:
        assert f"tolerates {TAINT_MAINTENANCE}:NoExecute" in drain(asks(), [claim], [runs()]).message


def test_a_pod_of_two_claims_of_which_one_tolerates_is_evicted() -> None:
    grants = DeviceToleration(operator="Exists", effect="NoExecute")
    claims = [holds("pod", tolerations=[grants]), holds("pod", name="other")]
    assert drain(asks(), claims, [runs()]).evict == keys("pod")


def test_of_thousands_of_pods_a_few_are_asked_at_once_and_all_in_the_end() -> None:
    names = [f"pod-{number:04}" for number in range(2000)]
    pods = [runs(name) for name in names]
    claim = holds(*names)
    first = drain(asks(), [claim], pods)
    assert len(first.evict) == ASKED_AT_ONCE
    assert first.look_again == timedelta(seconds=1)
    refused = {uid: each for key in first.evict for uid, each in asked(key.name, "no", by_budget=True).items()}
    second = drain(asks(draining=True), [claim], pods, after=timedelta(minutes=1), asked=refused)
    assert not set(second.evict) & set(first.evict), "who was refused does not stand in the way of others"


def test_a_refused_pod_is_asked_again_at_growing_intervals() -> None:
    def again_in(tries: int) -> timedelta | None:
        return drain(asks(), [holds("pod")], [runs()], asked=asked("pod", "no", tries=tries)).look_again

    assert [again_in(tries) for tries in (1, 2, 5, 500)] == [timedelta(seconds=each) for each in (5, 10, 60, 60)]
    later = timedelta(seconds=5)
    assert drain(asks(), [holds("pod")], [runs()], after=later, asked=asked("pod", "no")).evict == keys("pod")


def test_a_clock_that_was_set_back_does_not_make_a_refused_pod_wait() -> None:
    ahead = asked("pod", "no", after=timedelta(hours=3))
    assert drain(asks(), [holds("pod")], [runs()], asked=ahead).evict == keys("pod")


def test_a_paused_budget_stops_evictions_and_is_named() -> None:
    state = drain(asks(draining=True), [holds("pod")], [runs()], paused="freeze")
    assert state.evict == ()
    assert "MaintenanceBudget freeze is paused" in state.message


def test_what_the_operator_may_not_do_is_said_and_goes_on_being_tried() -> None:
    may_not: dict[str, Any] = {"forbidden": "Set operator.evictPods to true."}
    state = drain(asks(draining=True), [holds("pod")], [runs()], **may_not)
    assert (state.evict, state.message) == (keys("pod"), "Set operator.evictPods to true.")
    leaving = drain(asks(draining=True), [holds("pod")], [runs()], asked=asked("pod"), **may_not)
    assert leaving.message == "1 pod is leaving: default/pod."


def test_thousands_of_pods_that_may_not_be_evicted_cost_no_look_each_second() -> None:
    names = [f"pod-{number}" for number in range(ASKED_AT_ONCE + 1)]
    assert drain(asks(), [holds(*names)], [runs(name) for name in names], forbidden="May not.").look_again is None


def test_pods_that_come_again_are_said_with_their_claim() -> None:
    pod = runs("pod", creation_timestamp=MOMENT + timedelta(minutes=1))
    state = drain(asks(draining=True), [holds("pod")], [pod], after=timedelta(minutes=2))
    assert state.evict == keys("pod")
    assert "New pods started using claim default/claim during the drain" in state.message


def rule(effect: str = "NoExecute", *, over: bool = False, written: datetime | None = MOMENT) -> DeviceTaintRule:
    made = a_rule(effect=effect, pool="node-0", device="gpu-0")
    taint = msgspec.structs.replace(made.spec.taint, time_added=written)
    status = DeviceTaintRuleStatus(
        conditions=[Condition(type="EvictionInProgress", status="False" if over else "True")]
    )
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, taint=taint), status=status)


def test_no_execute_comes_last_and_only_if_it_is_asked_for() -> None:
    half_an_hour = timedelta(minutes=30)
    for policy, after, expected in (
        (DrainPolicy.EVICT, half_an_hour, False),
        (DrainPolicy.NO_EXECUTE, half_an_hour - timedelta(seconds=1), False),
        (DrainPolicy.NO_EXECUTE, half_an_hour, True),
    ):
        state = drain(asks(policy, draining=True), [holds("pod")], [runs()], after=after)
        assert state.no_execute is expected
    never_drained = drain(asks(DrainPolicy.NO_EXECUTE), [holds("pod")], [runs()], after=half_an_hour)
    assert not never_drained.no_execute


def test_no_execute_comes_for_nobody_and_not_while_a_budget_is_paused() -> None:
    request, late = asks(DrainPolicy.NO_EXECUTE, draining=True), timedelta(hours=1)
    assert not drain(request, [], [], after=late).no_execute
    assert not drain(request, [holds("pod")], [runs()], after=late, paused="freeze").no_execute
    assert drain(request, [], [], after=late, rules=[rule()], paused="freeze").no_execute, "what came stays"


def test_where_no_rules_are_served_no_execute_never_comes_and_the_pods_that_stay_are_named() -> None:
    """Agents publish the taint exactly as the request's spec has it; only a rule could add NoExecute later."""
    request, half_an_hour = asks(DrainPolicy.NO_EXECUTE, draining=True), timedelta(minutes=30)
    said = (
        "NoExecute deletes no pod, because this cluster serves no DeviceTaintRule: `kubectl delete pod -n default pod`."
    )
    for after, served, comes, told in (
        (half_an_hour - timedelta(seconds=1), False, False, False),
        (half_an_hour, False, False, True),
        (half_an_hour, True, True, False),
    ):
        state = drain(request, [holds("pod")], [runs()], after=after, rules_served=served)
        assert (state.no_execute, said in state.message) == (comes, told)
    taint = msgspec.structs.replace(request.spec.taint, effect="NoExecute")
    by_taint = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, taint=taint))
    assert said not in drain(by_taint, [holds("pod")], [runs()], after=half_an_hour, rules_served=False).message
    paused = drain(request, [holds("pod")], [runs()], after=half_an_hour, rules_served=False, paused="freeze")
    assert paused.message == "No pod is evicted while MaintenanceBudget freeze is paused."
    going = runs(deletion_timestamp=MOMENT + timedelta(hours=1))
    assert said not in drain(request, [holds("pod")], [going], after=half_an_hour, rules_served=False).message


def test_the_status_of_a_rule_is_trusted_ten_seconds_after_it_was_written() -> None:
    assert not is_eviction_over([rule(over=True)], MOMENT + timedelta(seconds=9))
    assert is_eviction_over([rule(over=True)], MOMENT + timedelta(seconds=10))
    assert not is_eviction_over([rule(over=False)], MOMENT + timedelta(minutes=9))
    assert not is_eviction_over([rule(over=True, written=None)], MOMENT + timedelta(minutes=9))
    assert not is_eviction_over([rule(over=True), rule()], MOMENT + timedelta(minutes=9))
    assert not is_eviction_over([], MOMENT)


def budget(name: str = "web", *, allows: int = 0, healthy: int = 0, wants: int = 0, of: int = 0, **spec: Any) -> Any:
    made = a_budget(name, allows=allows)
    status = msgspec.structs.replace(made.status, current_healthy=healthy, desired_healthy=wants, expected_pods=of)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, **spec), status=status)


@pytest.mark.parametrize(
    ("budgets", "never", "text"),
    [
        ([budget(healthy=2, wants=2, of=3)], False, "allows no eviction now (2 pods are healthy and it wants 2)"),
        (
            [budget(healthy=3, wants=3, of=3, min_available=3)],
            True,
            "can never be met, its minAvailable is 3 of 3 pods",
        ),
        ([budget(healthy=1, wants=1, of=2)], False, "(1 pod is healthy and it wants 1)"),
        ([budget(healthy=1, wants=1, of=1, min_available=1)], True, "its minAvailable is 1 of 1 pod"),
        ([budget(max_unavailable=0, of=3, wants=3)], True, "its maxUnavailable is 0"),
        ([budget(max_unavailable="0%")], True, "its maxUnavailable is 0%"),
        ([budget(min_available="100%")], True, "its minAvailable is 100%"),
        ([budget(allows=1, healthy=3, wants=2, of=3)], False, "allows 1 at a time"),
        ([budget("one"), budget("two")], False, "default/one, default/two cover it"),
    ],
)
def test_the_budget_in_the_way_is_named_with_its_reason(
    budgets: list[PodDisruptionBudget], never: bool, text: str
) -> None:
    refused = asked("pod", "the server's words", by_budget=True)
    state = drain(asks(), [holds("pod")], [runs()], asked=refused, budgets=budgets)
    (found,) = state.refused
    assert text in found.reason
    assert text in state.message
    assert len(state.message) < 300
    assert any(never_allows(each) for each in budgets) is never


def test_a_refusal_that_no_known_budget_explains_has_the_servers_words() -> None:
    state = drain(asks(), [holds("pod")], [runs()], asked=asked("pod", "the server's words", by_budget=True))
    assert "the server's words" in state.message


def test_a_budget_that_can_never_be_met_is_said_before_one_that_passes() -> None:
    pods = [runs("a", labels={"app": "a"}), runs("b", labels={"app": "b"})]
    budgets = [a_budget("passes", app="a"), msgspec.structs.replace(a_budget("never", app="b"))]
    budgets[1] = msgspec.structs.replace(budgets[1], spec=msgspec.structs.replace(budgets[1].spec, max_unavailable=0))
    refused = asked("a", "no", by_budget=True) | asked("b", "no", by_budget=True)
    state = drain(asks(), [holds("a", "b")], pods, asked=refused, budgets=budgets)
    assert state.message.startswith("Pod default/b cannot be evicted yet: PodDisruptionBudget default/never can never")
    assert "1 more pod is refused" in state.message


def test_budgets_of_other_namespaces_and_without_a_selector_cover_nothing() -> None:
    pod = runs("pod", labels={"app": "web"})
    budgets = [
        a_budget("elsewhere", namespace="elsewhere", app="web"),
        PodDisruptionBudget(metadata=a_budget("without-selector").metadata),
    ]
    assert covering(pod, budgets) == []
    assert why_refused(pod, budgets) == ""
