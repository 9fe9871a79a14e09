"""What a taint does to claims, pods and disruption budgets."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import pytest

from draco.maintenance.taint_impact import (
    BudgetImpact,
    EvictedPod,
    TaintAmounts,
    TaintImpact,
    impact_of,
    sentences,
    spares_extended_resources,
    with_budgets,
)
from draco.resources.api.claims import ResourceClaim, ResourceClaimConsumerReference
from draco.resources.api.core import Pod, PodDisruptionBudget, PodExtendedResourceClaimStatus, PodStatus
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule, DeviceToleration
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_budget, a_claim, a_device_key, a_pod, a_rule

GPU = a_device_key("node-0/gpu-0")
OTHER = a_device_key("node-0/gpu-1")


def on_gpu(effect: str = "NoExecute") -> DeviceTaintRule:
    return a_rule(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0", effect=effect)


def impact(
    rule: DeviceTaintRule,
    *claims: ResourceClaim,
    pods: Iterable[Pod] | None = None,
    budgets: Iterable[PodDisruptionBudget] = (),
    served: str = "v1beta2",
) -> TaintImpact:
    selector, (kind,) = rule.spec.device_selector, [each for each in TAINT_RULES if each.version == served]
    assert selector is not None
    found = impact_of(
        rule.spec.taint,
        selector.matches,
        devices=(GPU, OTHER),
        claims=claims,
        pods=pods,
        spares_extended=spares_extended_resources(kind),
    )
    return with_budgets(found, budgets, pods or ())


def running(name: str, *claims: str, **labels: str) -> Pod:
    return a_pod(name, claims=claims, node="node-0", labels=labels)


def keys(*names: str) -> tuple[ObjectKey, ...]:
    return tuple(ObjectKey("default", name) for name in names)


def test_only_what_has_the_device_is_hit() -> None:
    found = impact(
        on_gpu(),
        a_claim("has-it", on=["node-0/gpu-0"], reserved_for=["one"]),
        a_claim("has-another", on=["node-0/gpu-1"], reserved_for=["two"]),
        a_claim("waits"),
        pods=[running("one", "has-it"), running("two", "has-another")],
    )
    assert found == TaintImpact(
        devices=(GPU,), claims=keys("has-it"), pods=keys("one"), evicted=(EvictedPod(ObjectKey("default", "one")),)
    )


def test_pods_that_share_a_claim_and_one_with_two_claims_are_counted_once() -> None:
    found = impact(
        on_gpu(),
        a_claim("shared", on=["node-0/gpu-0"], reserved_for=["one", "two"]),
        a_claim("second", on=["node-0/gpu-0"], reserved_for=["two"], admin_access=True),
        pods=[running("one", "shared"), running("two", "shared", "second")],
    )
    assert found.pods == keys("one", "two")
    assert [each.key.name for each in found.evicted] == ["one", "two"]


def test_pods_that_cannot_be_read_are_counted() -> None:
    found = impact(on_gpu(), a_claim("claim", on=["node-0/gpu-0"], reserved_for=["unseen"]), budgets=[a_budget()])
    assert found.pods == keys("unseen")
    assert not found.budgets


def test_a_pod_that_is_gone_is_no_victim_though_the_claim_is_still_reserved_for_it() -> None:
    claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["gone", "another"])
    another = running("another", "claim")
    namesake = msgspec.structs.replace(another, metadata=msgspec.structs.replace(another.metadata, uid="of another"))
    found = impact(on_gpu(), claim, pods=[namesake])
    assert (found.claims, found.pods, found.evicted) == (keys("claim"), (), ())


def test_the_members_of_what_a_claim_is_reserved_for_are_its_pods() -> None:
    claim = a_claim("of-the-group", on=["node-0/gpu-0"])
    group = ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name="gang", uid="1")
    status = msgspec.structs.replace(claim.status, reserved_for=[group])
    found = impact(
        on_gpu(),
        msgspec.structs.replace(claim, status=status),
        pods=[running("member", "of-the-group"), running("stranger"), a_pod("not-there-yet", claims=["of-the-group"])],
    )
    assert found.pods == keys("member")


def test_pods_that_are_over_are_no_victims() -> None:
    found = impact(
        on_gpu(),
        a_claim("claim", on=["node-0/gpu-0"], reserved_for=["done", "going"]),
        pods=[
            a_pod("done", claims=["claim"], node="node-0", status=PodStatus(phase="Succeeded")),
            a_pod("going", claims=["claim"], node="node-0", deletion_timestamp=datetime.now(UTC)),
        ],
    )
    assert not found.pods
    assert not found.evicted


def test_a_pod_with_extended_resources_is_overlooked_unless_it_has_another_claim() -> None:
    made = PodExtendedResourceClaimStatus(resource_claim_name="made")
    status = PodStatus(phase="Running", extended_resource_claim_status=made)
    classic = a_pod("classic", node="node-0", status=status)
    both = a_pod("both", claims=["claim"], node="node-0", status=status)
    claims = [
        a_claim("made", on=["node-0/gpu-0"], reserved_for=["classic", "both"]),
        a_claim("claim", on=["node-0/gpu-0"], reserved_for=["both"]),
    ]
    rule = on_gpu()
    found = impact(rule, *claims, pods=[classic, both])
    assert (found.overlooked, [each.key.name for each in found.evicted]) == (keys("classic"), ["both"])
    assert found.pods == keys("both", "classic")
    assert "delete default/classic yourself" in " ".join(sentences(rule, found))
    since = impact(rule, *claims, pods=[classic, both], served="v1")
    assert ([each.key.name for each in since.evicted], since.overlooked) == (["both", "classic"], ())
    assert "yourself" not in " ".join(sentences(rule, since))
    tolerant = DeviceToleration(operator="Exists", effect="NoExecute")
    assert not impact(
        rule, a_claim("made", on=["node-0/gpu-0"], reserved_for=["classic"], tolerations=[tolerant]), pods=[classic]
    ).overlooked


@pytest.mark.parametrize(
    ("tolerations", "after_s"),
    [
        ([], 0),
        ([DeviceToleration(operator="Exists", effect="NoExecute")], None),
        ([DeviceToleration(operator="Exists", effect="NoExecute", toleration_seconds=300)], 300),
        ([DeviceToleration(operator="Exists", effect="NoExecute", toleration_seconds=-5)], 0),
        # Only tolerations with effect NoExecute count for keeping a device.
        ([DeviceToleration(operator="Exists")], 0),
        ([DeviceToleration(operator="Exists", effect="NoSchedule")], 0),
        ([DeviceToleration(key="another/taint", operator="Exists", effect="NoExecute")], 0),
        (
            [
                DeviceToleration(operator="Exists", effect="NoExecute", toleration_seconds=300),
                DeviceToleration(operator="Exists", effect="NoExecute", toleration_seconds=60),
            ],
            60,
        ),
    ],
)
def test_tolerations_of_the_allocation_decide_when_a_pod_goes(
    tolerations: list[DeviceToleration], after_s: int | None
) -> None:
    claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["pod"], tolerations=tolerations)
    found = impact(on_gpu(), claim, pods=[running("pod", "claim")])
    assert found.pods == keys("pod")
    assert [each.after_s for each in found.evicted] == ([] if after_s is None else [after_s])


def test_budgets_count_the_pods_that_they_cover() -> None:
    claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["a", "b", "c"])
    pods = [running("a", "claim", app="web"), running("b", "claim", app="web"), running("c", "claim", app="db")]
    found = impact(
        on_gpu(),
        claim,
        pods=pods,
        budgets=[
            a_budget("tight", allows=1, app="web"),
            a_budget("wide", allows=2, app="web"),
            a_budget("of-others", app="cache"),
            a_budget("elsewhere", namespace="elsewhere", app="web"),
            PodDisruptionBudget(metadata=a_budget("without-selector").metadata),
        ],
    )
    tight = BudgetImpact(ObjectKey("default", "tight"), evicted=2, allowed=1)
    assert found.budgets == (tight, BudgetImpact(ObjectKey("default", "wide"), evicted=2, allowed=2))
    assert found.broken == [tight]


def said(effect: str, **more: int) -> str:
    claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["a", "b"])
    pods = [running("a", "claim", app="web"), running("b", "claim", app="web")]
    rule = on_gpu(effect)
    return " ".join(sentences(rule, impact(rule, claim, pods=pods, budgets=[a_budget("tight", allows=1, app="web")])))


def test_no_execute_says_who_is_deleted_and_which_budget_is_broken() -> None:
    text = said("NoExecute")
    assert "deletes 2 pods: default/a, default/b" in text
    assert "breaks PodDisruptionBudget default/tight (allows 1 of 2)" in text


def test_no_schedule_says_who_keeps_the_device_and_speaks_of_no_budget() -> None:
    text = said("NoSchedule")
    assert "keeps new claims off 1 device" in text
    assert "1 claim keeps its devices for 2 pods: default/claim" in text
    assert "Budget" not in text


def test_a_taint_that_only_announces_says_what_would_be() -> None:
    text = said("None")
    assert "would delete 2 pods" in text
    assert "would break PodDisruptionBudget default/tight" in text


def test_a_rule_that_matches_nothing_and_one_that_matches_everything_say_so() -> None:
    nothing = a_rule(driver=NVIDIA_DRIVER, pool="node-9")
    assert sentences(nothing, impact(nothing))[0].startswith("No published device matches it")
    everything = a_rule()
    assert "every device of the cluster" in sentences(everything, impact(everything))[0]
    without = msgspec.structs.replace(nothing, spec=msgspec.structs.replace(nothing.spec, device_selector=None))
    assert "no spec.deviceSelector" in sentences(without, TaintImpact())[0]


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        ("NoSchedule", "keeps new claims off 8000 devices. 50 claims keep their devices for 40 pods."),
        ("NoExecute", "keeps new claims off 8000 devices and deletes those of 40 pods that do not tolerate it."),
        (
            "None",
            "a taint on 8000 devices. 50 claims keep their devices for 40 pods. NoExecute would delete those of 40",
        ),
    ],
)
def test_where_only_numbers_are_known_they_are_said(effect: str, text: str) -> None:
    rule = a_rule(driver=NVIDIA_DRIVER, effect=effect)
    assert text in " ".join(sentences(rule, TaintImpact(totals=TaintAmounts(8000, 50, 40))))
