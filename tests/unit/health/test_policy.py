"""What HealthPolicies make of faults: which rule applies, whom policies select, and what happens if something is unclear."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.health.policy import MOST_OVERRIDES, NodeHealth, ReadyPolicy, SeenGpus, decide_node, first_asked_first, ready
from draco.health.policy_status import PolicyTotals, status_of
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import HealthEffect, HealthPolicy, HealthPolicyStatus, Remediation
from draco.resources.api.meta import LabelSelector
from draco.resources.api.slices import Device, DeviceAttribute
from tests.builders import MOMENT, a_device_class, a_fault, a_gpu_uuid, a_health_policy, a_health_rule, a_sick_node

XID = "fault.xid == 79"


def a_selector(expression: str) -> DeviceSelector:
    return DeviceSelector(cel=CelSelector(expression=expression))


def decided(
    node: GpuNode, *policies: HealthPolicy, labels: dict[str, str] | None = None, published: bool = True
) -> NodeHealth:
    devices = {
        gpu.uuid: Device(name=gpu.device, attributes={"uuid": DeviceAttribute(string=gpu.uuid)})
        for gpu in node.status.gpus
    }
    seen = SeenGpus(gpu_node=node, labels=labels or {}, devices=devices if published else {})
    return decide_node(seen, made_ready(*policies))


def made_ready(*policies: HealthPolicy) -> list[ReadyPolicy]:
    return [ready(policy, None) for policy in first_asked_first(policies)]


def said(health: NodeHealth) -> list[tuple[str, str | None, str]]:
    return [(each.fault, each.effect, each.policy) for each in health.overrides]


def status(policy: HealthPolicy, *nodes: NodeHealth) -> HealthPolicyStatus:
    totals = PolicyTotals()
    for each in nodes:
        totals.add(each.shares[policy.metadata.uid])
    return status_of(ready(policy, None), totals, [], 0, MOMENT)


def test_the_first_rule_that_is_true_counts() -> None:
    policy = a_health_policy(
        "p",
        a_health_rule("fault.xid == 63", "Announce", name="remap"),
        a_health_rule('fault.family == "xid"', "NoExecute", name="xid"),
        a_health_rule("true", "Record", name="rest"),
    )

    health = decided(a_sick_node("n", [a_fault("Xid79"), a_fault("Xid63"), a_fault("Hot")]), policy)

    assert said(health) == [("Hot", "Record", "p"), ("Xid63", "Announce", "p"), ("Xid79", "NoExecute", "p")]


def test_the_higher_priority_is_asked_first_then_the_older_policy() -> None:
    young = a_health_policy("a-young", a_health_rule(XID, "Record"), created=MOMENT + timedelta(hours=1))
    old = a_health_policy("b-old", a_health_rule(XID, "Announce"))
    high = a_health_policy(
        "c-high", a_health_rule("fault.xid == 63", "NoExecute"), priority=1, created=MOMENT + timedelta(hours=1)
    )

    health = decided(a_sick_node("n", [a_fault("Xid79"), a_fault("Xid63")]), young, old, high)

    assert said(health) == [("Xid63", "NoExecute", "c-high"), ("Xid79", "Announce", "b-old")]


def test_a_fault_that_no_rule_is_about_is_left_to_the_agent() -> None:
    policy = a_health_policy("p", a_health_rule(XID, "Record"))

    assert decided(a_sick_node("n", [a_fault("Xid63")], []), policy).overrides == ()


def test_a_rule_without_an_effect_keeps_the_agents_own_and_ends_the_search() -> None:
    policy = a_health_policy("p", a_health_rule(XID, clean_probes=9), a_health_rule("true", "NoExecute"))
    (override,) = decided(a_sick_node("n", [a_fault()]), policy).overrides
    assert (override.effect, override.clean_probes) == (None, 9)

    silent = a_health_policy("p", a_health_rule(XID), a_health_rule("true", "NoExecute"))
    assert decided(a_sick_node("n", [a_fault()]), silent).overrides == ()


def test_a_dry_run_changes_nothing_and_says_what_it_would_do() -> None:
    remediation = Remediation(from_cron_job="reset-gpu")
    tried = a_health_policy("tried", a_health_rule(XID, "Evict", remediation=remediation), priority=9, dry_run=True)
    real = a_health_policy("real", a_health_rule(XID, "Announce"))

    health = decided(a_sick_node("n", [a_fault()]), tried, real)

    assert said(health) == [("Xid79", "Announce", "real")]
    assert status(tried, health).message == (
        "Dry run: would treat Xid79 as Evict and open a DeviceMaintenance with CronJob reset-gpu on gpu-0 of n (rule rule)."
    )
    assert status(real, health).message == "Xid79 of gpu-0 of n → Announce (rule rule)."


def test_policies_select_by_node_device_and_class() -> None:
    node = a_sick_node("n", [a_fault()], [a_fault()])
    by_label = a_health_policy(
        "p", a_health_rule(XID, "Record"), node_selector=LabelSelector(match_labels={"zone": "a"})
    )
    assert len(decided(node, by_label, labels={"zone": "a"}).overrides) == 2
    assert decided(node, by_label, labels={"zone": "b"}).overrides == ()

    wanted = f'device.attributes["gpu.nvidia.com"].uuid == "{a_gpu_uuid("n", 1)}"'
    by_device = a_health_policy("p", a_health_rule(XID, "Record"), device_selectors=[a_selector(wanted)])
    (override,) = decided(node, by_device).overrides
    assert override.uuid == a_gpu_uuid("n", 1)

    by_class = a_health_policy("p", a_health_rule(XID, "Record"), device_class_name="big")
    assert ready(by_class, a_device_class("big", selector="false")).selectors[0].expression == "false"


def test_a_device_that_no_selector_can_be_asked_about_is_not_selected_which_is_said() -> None:
    policy = a_health_policy("p", a_health_rule(XID, "Record"), device_selectors=[a_selector("true")])
    node = a_sick_node("n", [a_fault()])
    odd = Device(name="gpu-0", attributes={"driverVersion": DeviceAttribute(version="580")})

    health = decide_node(SeenGpus(gpu_node=node, devices={a_gpu_uuid("n", 0): odd}), made_ready(policy))

    assert health.overrides == ()
    assert "Its selectors cannot be evaluated for gpu-0 of n: attribute driverVersion" in status(policy, health).message


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        (
            {"rules": [a_health_rule("fault.xidd == 1")]},
            "InvalidCondition",
            "rule rule is invalid: at 1:6: undefined field",
        ),
        ({"device_selectors": [a_selector("device.")]}, "InvalidSelector", "spec.deviceSelectors[0] is invalid: at"),
        ({"device_selectors": [a_selector("device.uuid == '1'")]}, "InvalidSelector", "undefined field 'uuid'."),
        ({"device_class_name": "none"}, "ClassNotFound", "There is no DeviceClass none."),
    ],
)
def test_a_policy_that_cannot_be_understood_is_not_accepted_and_keeps_its_gpus_from_others(
    spec: dict[str, Any], reason: str, text: str
) -> None:
    rules = spec.pop("rules", [a_health_rule(XID, "Record")])
    broken = a_health_policy("broken", *rules, priority=1, **spec)
    behind = a_health_policy("behind", a_health_rule(XID, "NoExecute"))

    health = decided(a_sick_node("n", [a_fault()]), broken, behind)

    assert health.overrides == ()
    (condition,) = status(broken, health).conditions
    assert (condition.type, condition.status, condition.reason) == ("Accepted", "False", reason)
    assert text in condition.message
    assert "HealthPolicy broken comes first there, and is not accepted" in status(behind, health).message


def test_an_invalid_dry_run_keeps_no_gpu_from_others() -> None:
    broken = a_health_policy("broken", a_health_rule("fault.xidd == 1"), priority=1, dry_run=True)
    behind = a_health_policy("behind", a_health_rule(XID, "Record"))

    health = decided(a_sick_node("n", [a_fault()]), broken, behind)

    assert said(health) == [("Xid79", "Record", "behind")]
    assert "comes first" not in status(behind, health).message


def test_a_rule_without_an_answer_matches_nothing_and_is_said() -> None:
    policy = a_health_policy(
        "p", a_health_rule("79 / fault.xid == 1", "Record", name="odd"), a_health_rule("true", "Announce")
    )

    health = decided(a_sick_node("n", [a_fault("Hot")]), policy)

    assert said(health) == [("Hot", "Announce", "p")]
    assert status(policy, health).message.startswith(
        "Rule odd cannot be evaluated for Hot of gpu-0 of n: modulus or divide by zero."
    )


def test_an_override_goes_with_its_fault() -> None:
    policy = a_health_policy("p", a_health_rule(XID, "Record"))
    (override,) = decided(a_sick_node("n", [a_fault()]), policy).overrides

    assert decided(a_sick_node("n", [], overrides=[override]), policy).overrides == ()


@pytest.mark.parametrize("readable", [True, False])
def test_an_override_stays_while_the_agent_cannot_see_its_gpus(readable: bool) -> None:
    policy = a_health_policy("p", a_health_rule(XID, "Record"))
    (override,) = decided(a_sick_node("n", [a_fault()]), policy).overrides
    restarted = a_sick_node("n", readable=readable, overrides=[override])

    assert decided(restarted, policy).overrides == (() if readable else (override,))
    assert decided(restarted).overrides == ()  # the policy is gone


def test_an_override_stays_while_its_gpu_is_not_published() -> None:
    policy = a_health_policy("p", a_health_rule(XID, "Record"), device_selectors=[a_selector("true")])
    (override,) = decided(a_sick_node("n", [a_fault()]), policy).overrides

    assert decided(a_sick_node("n", [a_fault()], overrides=[override]), policy, published=False).overrides == (
        override,
    )
    assert decided(a_sick_node("n", [a_fault()]), policy, published=False).overrides == ()


def test_faults_of_two_instances_are_two() -> None:
    policy = a_health_policy("p", a_health_rule("fault.instance == 2", "Record"), a_health_rule("true", "Announce"))

    health = decided(a_sick_node("n", [a_fault(instance=1), a_fault(instance=2)]), policy)

    assert [(each.instance, each.effect) for each in health.overrides] == [
        (1, HealthEffect.ANNOUNCE),
        (2, HealthEffect.RECORD),
    ]


def test_no_more_is_written_than_a_gpu_node_takes() -> None:
    policy = a_health_policy("p", a_health_rule("true", "Record"))
    gpus = [[a_fault(f"Xid{number}") for number in range(64)] for _ in range(17)]

    assert len(decided(a_sick_node("n", *gpus), policy).overrides) == MOST_OVERRIDES


def test_a_policy_that_is_being_deleted_has_no_say() -> None:
    policy = a_health_policy("p", a_health_rule("true", "Record"))
    going = a_health_policy("q", a_health_rule("true", "NoExecute"), priority=5)
    going = msgspec.structs.replace(going, metadata=msgspec.structs.replace(going.metadata, deletion_timestamp=MOMENT))

    assert said(decided(a_sick_node("n", [a_fault()]), policy, going)) == [("Xid79", "Record", "p")]


def test_a_status_counts_gpus_and_names_the_first_fault() -> None:
    policy = a_health_policy("p", a_health_rule("true", "NoSchedule", name="all"))
    first = decided(a_sick_node("n1", [a_fault(), a_fault("Xid63")], []), policy)
    second = decided(a_sick_node("n2", [a_fault()]), policy)

    summed = status(policy, first, second)

    assert (summed.gpus, summed.faulty) == (3, 2)
    assert summed.message == "Xid79 of gpu-0 of n1 → NoSchedule (rule all), and 2 other faults."
    assert status(policy, decided(a_sick_node("n1", []), policy)).message == (
        "None of 1 GPU has a fault that a rule matches."
    )
