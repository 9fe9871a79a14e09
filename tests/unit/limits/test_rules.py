"""A check permits nothing that a limit forbids, in any order of questions, and says why."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.limits.amounts import ONE, DeviceOrigin, Holdings, LimitedAmount
from draco.limits.rules import LimitCheck, LimitRule, refusal_text, rule_of
from draco.resources.api.limits import LimitScope
from draco.resources.api.meta import LabelSelector
from tests.builders import a_limit

GPU = DeviceOrigin("gpu.draco.dev", "gpu.nvidia.com")
NAMESPACES = {"a-1": {"tenant": "a"}, "a-2": {"tenant": "a"}, "b": {"tenant": "b"}}


def holding(devices: int = 1, memory_gi: int = 0, origin: DeviceOrigin = GPU) -> Holdings:
    return {origin: {LimitedAmount.DEVICES: devices * ONE, LimitedAmount.MEMORY: (memory_gi << 30) * ONE}}


def check(*rules: LimitRule, **held: Holdings) -> LimitCheck:
    return LimitCheck(rules, NAMESPACES, lambda name: held.get(name.replace("-", "_"), {}))


def said(checking: LimitCheck, namespace: str, taking: Holdings) -> str:
    refusals = checking.refusals(namespace, taking)
    return refusal_text(refusals, namespace) if refusals else ""


def test_a_namespace_that_holds_too_much_with_it_is_told_what_it_holds_and_what_to_do() -> None:
    checking = check(rule_of(a_limit("team-a-memory", tenant="a", memory="80Gi")), a_1=holding(memory_gi=78))
    assert said(checking, "a-1", holding(memory_gi=2)) == ""
    assert said(checking, "a-1", holding(memory_gi=10)) == (
        "Namespace a-1 has 78Gi of 80Gi of GPU memory (DeviceLimit team-a-memory); this claim takes 10Gi more. Ask for a smaller "
        "profile or share, or free something."
    )
    assert said(checking, "a-2", holding(memory_gi=10)) == ""
    assert said(checking, "b", holding(memory_gi=100)) == ""


def test_a_claim_that_alone_is_too_much_is_not_told_to_wait() -> None:
    assert said(check(rule_of(a_limit("few", devices=2))), "b", holding(3)) == (
        "This claim takes 3 devices, and DeviceLimit few permits namespace b 2. Ask for fewer devices, or have the limit raised."
    )


def test_a_limit_on_the_selection_counts_all_its_namespaces_together() -> None:
    rule = rule_of(a_limit("tenant-a", tenant="a", devices=3, per=LimitScope.SELECTION))
    checking = check(rule, a_1=holding(2), a_2=holding(1))
    assert said(checking, "a-2", holding(1)).startswith("The namespaces of DeviceLimit tenant-a have 3 of 3 devices;")
    assert said(checking, "b", holding(1)) == ""


def test_all_limits_hold_together() -> None:
    rules = (
        rule_of(a_limit("many", devices=9)),
        rule_of(a_limit("few", devices=1)),
        rule_of(a_limit("none", devices=0)),
    )
    found = check(*rules).refusals("b", holding(2))
    assert [each.limit for each in found] == ["few", "none"]
    assert "DeviceLimit none forbids it too." in refusal_text(found, "b")


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"device_class_names": ["gpu.draco.dev"]}, True),
        ({"device_class_names": ["mig.draco.dev"]}, False),
        ({"driver": "gpu.nvidia.com"}, True),
        ({"driver": "other.example.com"}, False),
    ],
)
def test_only_devices_of_its_classes_and_its_driver_count(spec: dict[str, Any], refused: bool) -> None:
    rule = rule_of(a_limit(devices=0, **spec))
    assert bool(check(rule).refusals("b", holding(1))) is refused


def test_what_takes_nothing_of_a_limited_amount_is_not_refused_though_too_much_is_held() -> None:
    rule = rule_of(a_limit(memory="1Gi"))
    assert check(rule, b=holding(memory_gi=5)).refusals("b", holding(1, memory_gi=0)) == []


rules = st.lists(
    st.builds(
        lambda number, tenant, per, devices, memory: LimitRule(
            name=f"limit-{number}",
            selector=LabelSelector(match_labels={"tenant": tenant} if tenant else {}),
            per=per,
            classes=frozenset(),
            driver="",
            permitted={LimitedAmount.DEVICES: devices * ONE, LimitedAmount.MEMORY: (memory << 30) * ONE},
        ),
        st.integers(0, 5),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(LimitScope),
        st.integers(0, 8),
        st.integers(0, 40),
    ),
    max_size=4,
    unique_by=lambda rule: rule.name,
)
claims = st.lists(st.tuples(st.sampled_from(sorted(NAMESPACES)), st.integers(1, 3), st.integers(0, 20)), max_size=20)


@given(rules, claims, st.integers(0, 6))
def test_whatever_the_order_of_claims_no_limit_is_ever_passed(
    rules: list[LimitRule], claims: list[tuple[str, int, int]], held: int
) -> None:
    """Nor is anything refused that would have been within all limits."""
    before = {"a_1": holding(held, memory_gi=held)}
    checking = check(*rules, **before)
    total: dict[str, list[Holdings]] = {name: [] for name in NAMESPACES}
    total["a-1"].append(before["a_1"])
    for namespace, devices, memory_gi in claims:
        taking = holding(devices, memory_gi)
        refused = bool(checking.refusals(namespace, taking))
        would_be = {**total, namespace: [*total[namespace], taking]}
        assert refused is any(passed(rule, would_be, namespace, taking) for rule in rules)
        if not refused:
            checking.take(namespace, taking)
            total = would_be


def passed(rule: LimitRule, total: dict[str, list[Holdings]], namespace: str, taking: Holdings) -> bool:
    """Whether the limit of the namespace is exceeded, counted from scratch."""
    selected = [name for name, labels in NAMESPACES.items() if rule.selector.selects(labels)]
    if namespace not in selected:
        return False
    counted = [namespace] if rule.per is LimitScope.NAMESPACE else selected
    return any(
        taking[GPU][amount] and sum(each[GPU][amount] for name in counted for each in total[name]) > most
        for amount, most in rule.permitted.items()
    )
