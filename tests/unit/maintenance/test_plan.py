"""The state machine of maintenance: what each situation leads to, and that any order of events converges."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.isolating.isolation_state import LISTED_DEVICES
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.plan_output import MaintenancePlan
from draco.maintenance.progress import DrainPlan, JobsState
from draco.maintenance.selecting.matching import MaintenanceScope, scope_of
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import maintained_device, maintenance_uid, rule_for, rule_name
from draco.resources.api.maintenance import (
    CONDITION_BLOCKED,
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    DeviceMaintenance,
    MaintenancePhase,
    MaintenanceSelector,
    MaintenanceTaint,
    MaintenanceVerification,
    VerificationMode,
)
from draco.resources.api.meta import Condition
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import LABEL_MAINTENANCE, NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_claim, a_device_key, a_maintenance, a_rule, a_slice

GPU_3 = a_device_key("node-1/gpu-3")
GPU_4 = a_device_key("node-1/gpu-4")
LATER = timedelta(seconds=60)


def a_request(name: str = "swap-fan", *, finished: bool = False, effect: str = "NoSchedule") -> DeviceMaintenance:
    request = a_maintenance(name, driver=NVIDIA_DRIVER, pool="node-1", device="gpu-3", finished=finished)
    request = msgspec.structs.replace(request, status=type(request.status)())
    spec = msgspec.structs.replace(request.spec, taint=MaintenanceTaint(effect=effect))
    return msgspec.structs.replace(request, spec=spec)


def carried_out(request: DeviceMaintenance, plan: MaintenancePlan) -> DeviceMaintenance:
    return msgspec.structs.replace(request, status=plan.status) if plan.status else request


def condition(request: DeviceMaintenance, type_: str) -> Condition:
    return next(each for each in request.status.conditions if each.type == type_)


def in_maintenance(request: DeviceMaintenance) -> tuple[DeviceMaintenance, tuple[DeviceTaintRule, ...]]:
    published = frozenset({GPU_3})
    rules = plan_maintenance(request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=published))).apply
    for after in (timedelta(0), LATER):
        seen = MaintenanceSnapshot(now=MOMENT + after, scope=MaintenanceScope(named=published), rules=rules)
        request = carried_out(request, plan_maintenance(request, seen))
    assert request.status.phase == MaintenancePhase.IN_MAINTENANCE
    return request, rules


def test_a_new_request_gets_one_exact_rule_for_its_device_after_its_status_says_so() -> None:
    request = a_request()
    plan = plan_maintenance(request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3}))))
    assert plan.status is not None
    assert plan.status_first
    assert (plan.status.phase, plan.status.isolated_at) == (MaintenancePhase.REHEARSED, MOMENT)
    (made,) = plan.apply
    assert made.spec.device_selector == DeviceTaintSelector(driver=NVIDIA_DRIVER, pool="node-1", device="gpu-3")
    assert (made.spec.taint.key, made.spec.taint.effect) == ("draco.dev/maintenance", "NoSchedule")


def test_where_nobody_is_left_to_delete_that_is_held_is_said() -> None:
    request, rules = in_maintenance(a_request())
    claims = (a_claim("train", on=["node-1/gpu-3"]),)
    drain = DrainPlan(no_execute=True)
    here = MaintenanceScope(named=frozenset({GPU_3}))
    seen = MaintenanceSnapshot(now=MOMENT + LATER, scope=here, rules=rules, claims=claims)
    ready = condition(carried_out(request, plan_maintenance(request, seen, drain)), CONDITION_READY_FOR_WORK)
    said = "1 of 1 device is still in use: gpu-3 of node-1 by default/train."
    assert (ready.reason, ready.message) == ("Draining", said)


def test_wait_and_deadline_count_from_no_time_that_is_yet_to_come() -> None:
    """The clock was ahead when the device was isolated, and was corrected."""
    request, rules = in_maintenance(a_request())
    status = msgspec.structs.replace(
        request.status, isolated_at=MOMENT + timedelta(days=1), draining_at=MOMENT + timedelta(days=1)
    )
    request = msgspec.structs.replace(request, status=status)
    seen = MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules)
    request = carried_out(request, plan_maintenance(request, seen))
    assert (request.status.isolated_at, request.status.draining_at) == (MOMENT, MOMENT)
    later = msgspec.structs.replace(seen, now=MOMENT + LATER)
    request = carried_out(request, plan_maintenance(request, later))
    assert (request.status.isolated_at, request.status.draining_at) == (MOMENT, MOMENT)


def test_a_rule_is_owned_and_labelled_by_its_request() -> None:
    request = a_request()
    made = rule_for(request, GPU_3)
    (owner,) = made.metadata.owner_references
    assert (owner.api_version, owner.kind) == ("draco.dev/v1alpha1", "DeviceMaintenance")
    assert (owner.name, owner.uid) == (request.metadata.name, request.metadata.uid)
    assert not owner.block_owner_deletion
    assert made.metadata.labels[LABEL_MAINTENANCE] == request.metadata.uid
    assert maintenance_uid(made) == request.metadata.uid
    assert maintained_device(made) == GPU_3


def test_the_devices_are_isolated_once_every_rule_is_seen() -> None:
    request = a_request()
    rules = (rule_for(request, GPU_3),)
    claims = (a_claim("train", on=["node-1/gpu-3"]),)
    seen = MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules, claims=claims)
    request = carried_out(request, plan_maintenance(request, seen))
    assert request.status.phase == MaintenancePhase.ISOLATED
    assert request.status.in_use == 1
    assert request.status.devices[0].claims == ["default/train"]
    assert request.status.devices[0].rule == rules[0].metadata.name
    assert request.status.message == "1 of 1 device is still in use: gpu-3 of node-1 by default/train."


def test_maintenance_starts_only_after_the_devices_stayed_free_for_a_while() -> None:
    request = a_request()
    published, rules = frozenset({GPU_3}), (rule_for(request, GPU_3),)
    first = plan_maintenance(
        request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=published), rules=rules)
    )
    assert first.look_again == timedelta(seconds=2)
    request = carried_out(request, first)
    assert request.status.phase == MaintenancePhase.ISOLATED
    almost = MOMENT + timedelta(seconds=1.5)
    second = plan_maintenance(
        request, MaintenanceSnapshot(now=almost, scope=MaintenanceScope(named=published), rules=rules)
    )
    assert second.look_again == timedelta(seconds=0.5)
    request = carried_out(request, second)
    assert request.status.phase == MaintenancePhase.ISOLATED
    now = MOMENT + timedelta(seconds=2)
    third = plan_maintenance(
        request, MaintenanceSnapshot(now=now, scope=MaintenanceScope(named=published), rules=rules)
    )
    request = carried_out(request, third)
    assert request.status.phase == MaintenancePhase.IN_MAINTENANCE
    assert request.status.started_at == now
    assert condition(request, CONDITION_READY_FOR_WORK).status == "True"


def test_a_claim_that_still_lands_on_the_device_takes_the_request_back_to_isolated() -> None:
    request, rules = in_maintenance(a_request())
    late = MaintenanceSnapshot(
        now=MOMENT + 2 * LATER,
        scope=MaintenanceScope(named=frozenset({GPU_3})),
        rules=rules,
        claims=(a_claim("late", on=["node-1/gpu-3"]),),
    )
    back = carried_out(request, plan_maintenance(request, late))
    assert back.status.phase == MaintenancePhase.ISOLATED
    assert condition(back, CONDITION_READY_FOR_WORK).status == "False"
    assert back.status.started_at == request.status.started_at


def test_administrative_access_does_not_count_as_use() -> None:
    request, rules = in_maintenance(a_request())
    monitor = a_claim("monitor", on=["node-1/gpu-3"], admin_access=True)
    seen = MaintenanceSnapshot(
        now=MOMENT + 2 * LATER, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules, claims=(monitor,)
    )
    watched = carried_out(request, plan_maintenance(request, seen))
    assert watched.status.phase == MaintenancePhase.IN_MAINTENANCE
    assert (watched.status.in_use, watched.status.devices[0].watched_by) == (0, ["default/monitor"])
    assert watched.status.message.endswith("Only monitoring, with administrative access: default/monitor.")


def test_nothing_is_written_when_nothing_changed() -> None:
    request, rules = in_maintenance(a_request())
    plan = plan_maintenance(
        request,
        MaintenanceSnapshot(now=MOMENT + 9 * LATER, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules),
    )
    assert plan.empty
    assert str(plan) == "maintenance swap-fan: nothing to do"


def test_a_device_whose_slice_is_gone_keeps_its_rule() -> None:
    request, rules = in_maintenance(a_request())
    assert plan_maintenance(request, MaintenanceSnapshot(now=MOMENT + 2 * LATER, rules=rules)).empty


def test_a_device_that_appears_later_is_isolated_too() -> None:
    request = a_maintenance("board", driver=NVIDIA_DRIVER, pool="node-1")
    rules = (rule_for(request, GPU_3),)
    seen = MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3, GPU_4})), rules=rules)
    plan = plan_maintenance(request, seen)
    assert [maintained_device(each) for each in plan.apply] == [GPU_4]
    assert plan.status is not None
    assert plan.status.phase == MaintenancePhase.REHEARSED
    assert plan.status.message == "1 of 2 devices is isolated."


def test_finishing_takes_readiness_back_then_deletes_the_rules_and_completes_when_none_is_left() -> None:
    request, rules = in_maintenance(a_request())
    request = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, finished=True))
    published = frozenset({GPU_3})
    plan = plan_maintenance(
        request, MaintenanceSnapshot(now=MOMENT + 2 * LATER, scope=MaintenanceScope(named=published), rules=rules)
    )
    assert plan.delete == rules
    assert plan.status_first
    assert not plan.apply
    request = carried_out(request, plan)
    assert condition(request, CONDITION_READY_FOR_WORK).status == "False"
    assert request.status.phase == MaintenancePhase.VERIFYING
    request = carried_out(
        request,
        plan_maintenance(request, MaintenanceSnapshot(now=MOMENT + 3 * LATER, scope=MaintenanceScope(named=published))),
    )
    assert request.status.phase == MaintenancePhase.COMPLETED
    assert request.status.completed_at == MOMENT + 3 * LATER
    assert [(each.device, each.rule) for each in request.status.devices] == [("gpu-3", "")]
    assert request.status.message == "1 device was returned to service."
    assert plan_maintenance(
        request, MaintenanceSnapshot(now=MOMENT + 4 * LATER, scope=MaintenanceScope(named=published))
    ).empty


def test_a_rule_that_reappears_after_completion_is_deleted_again() -> None:
    request, rules = in_maintenance(a_request())
    request = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, finished=True))
    request = carried_out(request, plan_maintenance(request, MaintenanceSnapshot(now=MOMENT)))
    assert plan_maintenance(request, MaintenanceSnapshot(now=MOMENT, rules=rules)).delete == rules


def test_a_request_being_deleted_gives_its_devices_back() -> None:
    request, rules = in_maintenance(a_request())
    meta = msgspec.structs.replace(request.metadata, deletion_timestamp=MOMENT)
    plan = plan_maintenance(
        msgspec.structs.replace(request, metadata=meta),
        MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules),
    )
    assert (plan.apply, plan.delete, plan.status) == ((), rules, None)


def test_without_a_matching_device_the_message_says_what_was_looked_for() -> None:
    request = carried_out(a_request(), plan_maintenance(a_request(), MaintenanceSnapshot(now=MOMENT)))
    assert request.status.phase == MaintenancePhase.PENDING
    assert condition(request, CONDITION_ISOLATED).reason == "NoDevices"
    assert request.status.message == (
        "No published device matches driver gpu.nvidia.com, pool node-1, device gpu-3; "
        "compare the names with `kubectl get resourceslices -o yaml`."
    )


def test_effect_none_never_counts_as_isolated() -> None:
    request = a_request(effect="None")
    rules = (rule_for(request, GPU_3),)
    plan = plan_maintenance(
        request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules)
    )
    request = carried_out(request, plan)
    assert request.status.phase == MaintenancePhase.PENDING
    assert condition(request, CONDITION_ISOLATED).reason == "EffectNone"


def test_a_changed_taint_is_applied_without_leaving_isolation() -> None:
    request, rules = in_maintenance(a_request())
    harder = msgspec.structs.replace(request.spec, taint=MaintenanceTaint(effect="NoExecute"))
    request = msgspec.structs.replace(request, spec=harder)
    plan = plan_maintenance(
        request,
        MaintenanceSnapshot(now=MOMENT + 2 * LATER, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=rules),
    )
    assert [each.spec.taint.effect for each in plan.apply] == ["NoExecute"]
    assert carried_out(request, plan).status.phase == MaintenancePhase.IN_MAINTENANCE


def test_two_requests_for_one_device_have_a_rule_each() -> None:
    one, other = a_request("one"), a_request("other")
    assert rule_for(one, GPU_3).metadata.name != rule_for(other, GPU_3).metadata.name


def test_a_rule_changed_by_hand_is_put_right() -> None:
    request, rules = in_maintenance(a_request())
    elsewhere = msgspec.structs.replace(rules[0].spec, device_selector=DeviceTaintSelector(driver=NVIDIA_DRIVER))
    tampered = msgspec.structs.replace(rules[0], spec=elsewhere)
    plan = plan_maintenance(
        request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=(tampered,))
    )
    assert plan.apply == rules
    assert plan.delete == ()


def test_a_rule_that_keeps_nobody_off_by_hand_isolates_nothing() -> None:
    request, (one,) = in_maintenance(a_request())
    taint = msgspec.structs.replace(one.spec.taint, effect="None")
    weak = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, taint=taint))
    seen = MaintenanceSnapshot(now=MOMENT + LATER, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=(weak,))
    after = carried_out(request, plan_maintenance(request, seen))
    assert condition(after, CONDITION_ISOLATED).status == "False"
    assert condition(after, CONDITION_READY_FOR_WORK).status == "False"


def test_a_rule_for_a_device_that_was_not_asked_for_is_deleted() -> None:
    request, rules = in_maintenance(a_request())
    surplus = rule_for(request, GPU_4)
    plan = plan_maintenance(
        request,
        MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=frozenset({GPU_3})), rules=(*rules, surplus)),
    )
    assert plan.delete == (surplus,)


def test_names_of_rules_are_valid_however_long_the_device_name() -> None:
    name = rule_name("u" * 36, DeviceKey("d" * 63, "p/" * 126, "x" * 63))
    assert len(name) == 98
    assert name.replace("-", "").isalnum()


def test_a_foreign_rule_is_not_ours_even_with_our_label() -> None:
    foreign = a_rule("broken", driver=NVIDIA_DRIVER)
    labelled = msgspec.structs.replace(
        foreign, metadata=msgspec.structs.replace(foreign.metadata, labels={LABEL_MAINTENANCE: "some-uid"})
    )
    assert maintenance_uid(foreign) == ""
    assert maintenance_uid(labelled) == ""


def test_the_status_lists_at_most_so_many_devices_and_those_in_use_first() -> None:
    request = a_maintenance("all", driver=NVIDIA_DRIVER)
    published = frozenset(DeviceKey(NVIDIA_DRIVER, "node-1", f"gpu-{i:04}") for i in range(LISTED_DEVICES + 10))
    last = max(published)
    claims = (a_claim("train", on=[str(last)]),)
    plan = plan_maintenance(
        request, MaintenanceSnapshot(now=MOMENT, scope=MaintenanceScope(named=published), claims=claims)
    )
    assert plan.status is not None
    assert len(plan.status.devices) == LISTED_DEVICES
    assert last.device in {each.device for each in plan.status.devices}
    assert plan.status.device_count == LISTED_DEVICES + 10
    assert plan.status.in_use == 1


HOUR = timedelta(hours=1)


def requests(**others: Any) -> tuple[DeviceMaintenance, DeviceMaintenance]:
    """The newer of two requests, whose device is isolated and free, and the older one, whose spec `others` changes."""
    newer, older = (a_maintenance(name, devices=["node-1/gpu-3"], device="gpu-3") for name in ("swap-fan", "recable"))
    made = [
        msgspec.structs.replace(each.metadata, uid=each.metadata.name, creation_timestamp=MOMENT - age)
        for each, age in ((newer, HOUR), (older, 2 * HOUR))
    ]
    spec = msgspec.structs.replace(older.spec, **others)
    return msgspec.structs.replace(newer, metadata=made[0]), msgspec.structs.replace(older, metadata=made[1], spec=spec)


def ready_beside(request: DeviceMaintenance, other: DeviceMaintenance, device: DeviceKey = GPU_3) -> Condition:
    rules = (rule_for(request, device),)
    for now in (MOMENT, MOMENT + LATER):
        seen = MaintenanceSnapshot(
            now=now, scope=MaintenanceScope(named=frozenset({device})), rules=rules, others=(other,)
        )
        request = carried_out(request, plan_maintenance(request, seen))
    return condition(request, CONDITION_READY_FOR_WORK)


def test_the_older_of_two_requests_for_a_device_goes_first() -> None:
    newer, older = requests()
    waits = ready_beside(newer, older)
    assert (waits.status, waits.reason) == ("False", "OtherRequest")
    assert "gpu-3 of node-1" in waits.message
    assert "recable" in waits.message
    assert ready_beside(older, newer).status == "True"


def test_a_request_that_is_ready_keeps_the_device_from_an_older_one() -> None:
    newer, older = requests()
    said = (CONDITION_ISOLATED, CONDITION_READY_FOR_WORK)
    since = MOMENT - HOUR
    working = [Condition(type=type_, status="True", last_transition_time=since) for type_ in said]
    status = msgspec.structs.replace(newer.status, conditions=working)
    assert ready_beside(older, msgspec.structs.replace(newer, status=status)).reason == "OtherRequest"
    assert ready_beside(msgspec.structs.replace(newer, status=status), older).status == "True"


@pytest.mark.parametrize("others", [{"finished": True}, {"taint": MaintenanceTaint(effect="None")}])
def test_nobody_waits_for_a_request_that_is_finished_or_only_looks(others: dict[str, Any]) -> None:
    assert ready_beside(*requests(**others)).status == "True"


def test_nobody_waits_for_a_request_for_another_device() -> None:
    assert ready_beside(*requests(), device=a_device_key("node-1/gpu-4")).status == "True"


def hardware(slices: list[ResourceSlice]) -> dict[PoolKey, PoolHardware]:
    return {item.pool: PoolHardware([each for each in slices if each.pool == item.pool]) for item in slices}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (MaintenanceSelector(), set()),
        (
            MaintenanceSelector(driver="gpu.example.com"),
            {"gpu.example.com/node-1/gpu-0", "gpu.example.com/node-1/gpu-1"},
        ),
        (
            MaintenanceSelector(pool="node-1", device="gpu-0"),
            {"gpu.example.com/node-1/gpu-0", "gpu.nvidia.com/node-1/gpu-0"},
        ),
        (MaintenanceSelector(device="gpu-1"), {"gpu.example.com/node-1/gpu-1", "gpu.nvidia.com/node-1/gpu-1"}),
    ],
)
def test_selectors_match_exact_names_of_any_driver(selector: MaintenanceSelector, expected: set[str]) -> None:
    slices = [a_slice("node-1"), a_slice("node-1", driver="gpu.example.com")]
    assert {str(device) for device in scope_of(selector, hardware(slices)).named} == expected


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    slices = [a_slice("node-1", ["old"], generation=1), a_slice("node-1", ["new"], generation=2)]
    assert {d.device for d in scope_of(MaintenanceSelector(driver=NVIDIA_DRIVER), hardware(slices)).named} == {"new"}


@pytest.mark.parametrize("phase", [MaintenancePhase.IN_MAINTENANCE, MaintenancePhase.VERIFYING])
def test_jobs_that_cannot_be_made_block_the_request_until_they_can(phase: MaintenancePhase) -> None:
    request, rules = in_maintenance(a_request())
    by_job = MaintenanceVerification(mode=VerificationMode.JOB, from_cron_job="probe")
    spec = msgspec.structs.replace(request.spec, verification=by_job, finished=phase is MaintenancePhase.VERIFYING)
    request = msgspec.structs.replace(request, spec=spec)

    def planned(trouble: str, *, missing: tuple[str, ...] = (), running: tuple[str, ...] = ()) -> MaintenancePlan:
        state = JobsState(wanted=1, trouble=trouble, missing=missing, running=running)
        works = phase is MaintenancePhase.IN_MAINTENANCE
        scope = MaintenanceScope(named=frozenset({GPU_3}))
        work, probe = (state, None) if works else (None, state)
        seen = MaintenanceSnapshot(now=MOMENT + LATER, scope=scope, rules=rules, work=work, verification=probe)
        return plan_maintenance(request, seen)

    request = carried_out(request, planned("no such CronJob", missing=("j",)))
    blocked = condition(request, CONDITION_BLOCKED)
    assert (request.status.phase, blocked.status, blocked.message) == (phase, "True", "no such CronJob")
    assert request.status.message == "no such CronJob"
    assert planned("no such CronJob", missing=("j",)).status is None
    request = carried_out(request, planned("", running=("j",)))
    assert CONDITION_BLOCKED not in {each.type for each in request.status.conditions}


def test_a_claim_that_is_to_be_made_again_is_as_good_a_reason_to_write_as_a_job() -> None:
    request, rules = in_maintenance(a_request(finished=False))
    by_job = MaintenanceVerification(mode=VerificationMode.JOB, from_cron_job="probe")
    request = msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, verification=by_job, finished=True)
    )
    scope = MaintenanceScope(named=frozenset({GPU_3}))
    jobs = JobsState(wanted=1, running=("j",), claimless=("j",))
    seen = MaintenanceSnapshot(now=MOMENT + LATER, scope=scope, rules=rules, verification=jobs)
    request = carried_out(request, plan_maintenance(request, seen))
    assert plan_maintenance(request, seen).verify
