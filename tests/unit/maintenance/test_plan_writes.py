"""What a plan writes, in which order, and what it logs."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.maintenance.plan import plan_maintenance
from draco.maintenance.plan_output import MaintenancePlan
from draco.maintenance.selecting.matching import MaintenanceScope, has_begun
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import rule_for
from draco.resources.api.maintenance import CONDITION_ISOLATED, CONDITION_READY_FOR_WORK, MaintainedDevice
from draco.resources.api.meta import Condition
from draco.resources.names import LABEL_MAINTENANCE
from tests.builders import MOMENT, a_claim, a_device_key
from tests.unit.maintenance.test_plan import GPU_3, LATER, a_request, carried_out, condition, in_maintenance

PART = a_device_key("node-1/gpu-3-mig-1g10gb-19-0")
MORE = frozenset(a_device_key(f"node-1/gpu-3-mig-1g10gb-19-{start}") for start in range(5))


def test_what_was_said_is_taken_back_before_a_new_device_is_isolated() -> None:
    request, rules = in_maintenance(a_request())
    seen = MaintenanceSnapshot(
        now=MOMENT + LATER, scope=MaintenanceScope(named=frozenset({GPU_3}), overlapping={PART: GPU_3}), rules=rules
    )
    plan = plan_maintenance(request, seen)
    assert plan.status_first
    assert [rule.spec.device_selector.device for rule in plan.apply if rule.spec.device_selector] == [PART.device]


def test_that_devices_are_to_be_isolated_is_said_before_any_rule_is_written() -> None:
    request = a_request()
    plan = plan_maintenance(request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3}))))
    assert plan.status_first
    assert plan.status is not None
    assert plan.status.isolated_at == MOMENT


def test_rules_come_first_where_everything_stays_isolated() -> None:
    request, rules = in_maintenance(a_request())
    old = rule_for(request, a_device_key("node-1/gpu-4"))
    plan = plan_maintenance(
        request,
        MaintenanceSnapshot(now=MOMENT + LATER, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=(*rules, old)),
    )
    assert plan.delete == (old,)
    assert not plan.status_first


def test_a_device_that_is_given_up_is_taken_off_the_status_before_its_rule_goes() -> None:
    request, rules = in_maintenance(a_request())
    given_up = rule_for(request, other := a_device_key("node-1/gpu-4"))
    both = [*request.status.devices, MaintainedDevice(**other._asdict(), rule=given_up.metadata.name)]
    plan = plan_maintenance(
        msgspec.structs.replace(request, status=msgspec.structs.replace(request.status, devices=both)),
        MaintenanceSnapshot(
            now=MOMENT + LATER,
            scope=MaintenanceScope(named=frozenset({GPU_3}), others=frozenset({other})),
            rules=(*rules, given_up),
        ),
    )
    assert plan.delete == (given_up,)
    assert plan.status_first
    assert plan.status is not None
    assert [each.device for each in plan.status.devices] == ["gpu-3"]


def test_what_only_announced_is_not_said_to_be_verified_when_it_is_finished() -> None:
    request = a_request(effect="None")
    found = MaintenanceScope(named=frozenset({GPU_3}))
    request = carried_out(request, first := plan_maintenance(request, MaintenanceSnapshot(now=MOMENT, scope=found)))
    finished = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, finished=True))
    plan = plan_maintenance(finished, MaintenanceSnapshot(now=MOMENT, scope=found, rules=first.apply))
    assert plan.delete == first.apply
    assert plan.status is not None
    assert not has_begun(msgspec.structs.replace(finished, status=plan.status)), "it was never out of service"


def test_time_alone_changes_nothing_while_a_claim_holds_a_device() -> None:
    request = a_request()
    seen = MaintenanceSnapshot(
        now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=(rule_for(request, GPU_3),)
    )
    assert plan_maintenance(request, seen).look_again == timedelta(seconds=2)
    held = msgspec.structs.replace(seen, claims=(a_claim("train", on=["node-1/gpu-3"]),))
    assert plan_maintenance(request, held).look_again is None


def test_a_condition_keeps_the_time_since_when_it_is_so() -> None:
    request, rules = in_maintenance(a_request())
    since = condition(request, CONDITION_ISOLATED).last_transition_time
    held = (a_claim("train", on=["node-1/gpu-3"]),)
    seen = MaintenanceSnapshot(
        now=MOMENT + 2 * LATER, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules, claims=held
    )
    after = carried_out(request, plan_maintenance(request, seen))
    assert condition(after, CONDITION_ISOLATED).last_transition_time == since == MOMENT
    assert condition(after, CONDITION_READY_FOR_WORK).last_transition_time == MOMENT + 2 * LATER


def test_a_request_says_what_a_condition_of_that_name_says() -> None:
    request, _ = in_maintenance(a_request())
    assert request.says(CONDITION_READY_FOR_WORK)
    assert not request.says("Another")
    wrong = Condition(type=CONDITION_READY_FOR_WORK, status="False")
    status = msgspec.structs.replace(request.status, conditions=[wrong])
    assert not msgspec.structs.replace(request, status=status).says(CONDITION_READY_FOR_WORK)


@pytest.mark.parametrize("taken", [{"labels": {}}, {"owner_references": []}, {"annotations": {}}])
def test_what_somebody_takes_off_a_rule_is_put_back(taken: dict[str, Any]) -> None:
    request = a_request()
    rule = rule_for(request, GPU_3, board="GPU-a")
    labels = {
        LABEL_MAINTENANCE: request.metadata.uid
    }  # without it, the rule has no owner and is applied as if it did not exist
    metadata = msgspec.structs.replace(rule.metadata, **({"labels": labels} if "labels" in taken else taken))
    scope = MaintenanceScope(named=frozenset({GPU_3}), boards={GPU_3: "GPU-a"})
    seen = MaintenanceSnapshot(now=MOMENT, scope=scope, rules=(msgspec.structs.replace(rule, metadata=metadata),))
    assert plan_maintenance(request, seen).apply == (rule,)


def test_a_plan_tells_in_the_log_what_it_does() -> None:
    request, rules = in_maintenance(a_request())
    nothing = MaintenancePlan(request="swap-fan")
    assert nothing.empty
    assert str(nothing) == "maintenance swap-fan: nothing to do"
    rule = f"rule {rules[0].metadata.name} (draco.dev/maintenance:NoSchedule on {GPU_3})"
    for plan, text in (
        (MaintenancePlan(request="swap-fan", apply=rules), f"apply {rule}"),
        (MaintenancePlan(request="swap-fan", delete=rules), f"delete {rule}"),
        (
            MaintenancePlan(request="swap-fan", status=request.status),
            f"set status InMaintenance: {request.status.message}",
        ),
        (
            MaintenancePlan(request="swap-fan", delete=rules, status=request.status),
            f"delete {rule}; set status InMaintenance: {request.status.message}",
        ),
    ):
        assert not plan.empty
        assert str(plan) == f"maintenance swap-fan: {text}"


def test_of_many_rules_a_plan_tells_the_first_three() -> None:
    request = a_request()
    rules = tuple(rule_for(request, device) for device in sorted(MORE))
    told = str(MaintenancePlan(request="swap-fan", apply=rules))
    assert told.count("rule draco-") == 3
    assert told.endswith(" and 2 more rules")
    assert "more" not in str(MaintenancePlan(request="swap-fan", apply=rules[:3]))
