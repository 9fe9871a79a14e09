"""Requests that HealthPolicies open automatically: when, for how long, how often, and when a person has to look."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.health.policy import SeenGpus, decide_node, ready
from draco.health.remediation import RemediationPlan, SeenRemedies, left_behind, plan_remediation
from draco.health.requests import concerns, expired, places_of
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import FaultScope, HealthPolicy, Remediation
from draco.resources.api.maintenance import (
    DeviceMaintenance,
    DrainPolicy,
    MaintainedDevice,
    MaintenancePhase,
    VerificationMode,
)
from draco.resources.api.meta import Condition
from draco.resources.names import ANNOTATION_OUTCOME, NVIDIA_DRIVER, PoolKey
from tests.builders import (
    MOMENT,
    a_device_key,
    a_fault,
    a_gpu_uuid,
    a_health_policy,
    a_health_rule,
    a_maintenance,
    a_sick_node,
)

UUID = a_gpu_uuid("n", 0)
RESET = Remediation(from_cron_job="reset-gpu")
LATER = MOMENT + timedelta(minutes=30)
SICK = a_sick_node("n", [a_fault()], [])
HEALTHY = a_sick_node("n", [], [])
EMPTY = msgspec.structs.replace(HEALTHY, status=msgspec.structs.replace(HEALTHY.status, gpus=[]))
POLICY = a_health_policy("p", a_health_rule("fault.xid == 79", "NoSchedule", name="fatal", remediation=RESET))
EVICTING = a_health_policy("p", a_health_rule("fault.xid == 79", "Evict", name="fatal"))


def planned(
    node: GpuNode,
    *requests: DeviceMaintenance,
    policy: HealthPolicy | None = POLICY,
    others: Sequence[HealthPolicy] = (),
    now: datetime = LATER,
    published: bool = True,
    readable: bool = True,
) -> RemediationPlan:
    policies = [*([policy] if policy else []), *others]
    decided = decide_node(SeenGpus(gpu_node=node), [ready(each, None) for each in policies])
    in_force = [each for each in policies if not each.spec.dry_run]
    matches = [match for each in in_force for match in decided.shares[each.metadata.uid].matches]
    return plan_remediation(
        SeenRemedies(
            now=now,
            pool=PoolKey(NVIDIA_DRIVER, "n"),
            gpus=node.status.gpus,
            published={gpu.uuid for gpu in node.status.gpus} if published else (),
            readable=readable,
            matches=matches,
            policies={each.metadata.uid: each for each in policies},
            requests=requests,
        )
    )


def opened(*before: DeviceMaintenance, policy: HealthPolicy = POLICY, node: GpuNode = SICK) -> DeviceMaintenance:
    """The request that is opened, as the API server would return it, created at MOMENT."""
    (made,) = planned(node, *before, policy=policy).create
    meta = msgspec.structs.replace(
        made.metadata, uid=f"uid-of-{made.metadata.name}", resource_version="1", creation_timestamp=MOMENT
    )
    return msgspec.structs.replace(made, metadata=meta)


def moved(
    request: DeviceMaintenance,
    phase: MaintenancePhase | None,
    *,
    made: datetime | None = None,
    outcome: str = "",
    **status: Any,
) -> DeviceMaintenance:
    meta = request.metadata
    annotations = meta.annotations | ({ANNOTATION_OUTCOME: outcome} if outcome else {})
    return msgspec.structs.replace(
        request,
        metadata=msgspec.structs.replace(
            meta, annotations=annotations, creation_timestamp=made or meta.creation_timestamp
        ),
        status=msgspec.structs.replace(request.status, phase=phase, **status),
    )


def notes(plan: RemediationPlan) -> list[tuple[str, bool]]:
    return [(note.text, note.given_up) for note in plan.notes]


def steps(plan: RemediationPlan) -> Iterable[str]:
    return [*(f"open {each.metadata.name}" for each in plan.create), *map(str, plan.change)]


def test_a_fault_opens_one_request_for_its_gpu() -> None:
    (request,) = planned(SICK).create

    selector = request.spec.device_selector
    assert (selector.driver, selector.pool, selector.device) == (NVIDIA_DRIVER, "n", "gpu-0")
    assert request.metadata.name == f"health-{UUID.lower()}-1"
    assert request.metadata.labels["draco.dev/remediates"] == POLICY.metadata.uid
    assert request.metadata.annotations == {"draco.dev/fault": f"{UUID}: Xid79"}
    assert request.spec.reason == "Xid79 (HealthPolicy p, rule fatal)"
    assert request.spec.work is not None
    assert request.spec.work.from_cron_job == "reset-gpu"
    assert request.spec.drain.policy is DrainPolicy.WAIT
    assert request.spec.verification.mode is VerificationMode.AGENT
    assert planned(SICK, request).create == ()


@pytest.mark.parametrize(
    ("effect", "drain"),
    [(None, "Wait"), ("Record", "Wait"), ("NoSchedule", "Wait"), ("Evict", "Evict"), ("NoExecute", "Evict")],
)
def test_the_effect_says_how_pods_leave(effect: str | None, drain: str) -> None:
    verified = Remediation(from_cron_job="reset-gpu", verify_from_cron_job="try-gpu")
    policy = a_health_policy("p", a_health_rule("true", effect, remediation=verified))

    (request,) = planned(SICK, policy=policy).create

    assert request.spec.drain.policy == drain
    assert (request.spec.verification.mode, request.spec.verification.from_cron_job) == ("Job", "try-gpu")


def test_nothing_is_opened_unless_a_rule_says_so() -> None:
    for effect in ("Record", "Announce", "NoSchedule", "NoExecute"):
        assert planned(SICK, policy=a_health_policy("p", a_health_rule("true", effect))).create == ()
    dry = a_health_policy("p", a_health_rule("true", "Evict", remediation=RESET), dry_run=True)
    assert planned(SICK, policy=dry).create == ()


def test_mere_eviction_has_no_work_and_is_finished_when_the_fault_is_over() -> None:
    request = moved(opened(policy=EVICTING), MaintenancePhase.IN_MAINTENANCE, isolated_at=MOMENT)
    assert (request.spec.work, request.spec.drain.policy) == (None, DrainPolicy.EVICT)

    assert steps(planned(SICK, request, policy=EVICTING)) == []
    assert steps(planned(HEALTHY, request, policy=EVICTING)) == [f"finish {request.metadata.name}"]


@pytest.mark.parametrize("phase", [MaintenancePhase.PENDING, MaintenancePhase.REHEARSED])
def test_a_request_that_waits_is_withdrawn_when_its_fault_is_over(phase: MaintenancePhase) -> None:
    request = moved(opened(), phase)

    assert steps(planned(SICK, request)) == []
    assert steps(planned(HEALTHY, request)) == [f"cancel {request.metadata.name} (withdrawn)"]
    dry = msgspec.structs.replace(POLICY, spec=msgspec.structs.replace(POLICY.spec, dry_run=True))
    assert steps(planned(SICK, request, policy=dry)) == [f"cancel {request.metadata.name} (withdrawn)"]


def test_a_request_that_waits_is_withdrawn_when_its_own_policy_asks_for_nothing_though_another_does() -> None:
    dry = msgspec.structs.replace(POLICY, spec=msgspec.structs.replace(POLICY.spec, dry_run=True))
    other = a_health_policy("q", a_health_rule("true", "Evict"))
    request = moved(opened(), MaintenancePhase.REHEARSED)

    assert steps(planned(SICK, request, policy=dry, others=[other])) == [f"cancel {request.metadata.name} (withdrawn)"]
    assert steps(planned(SICK, request, others=[other])) == []


def test_a_request_that_waits_keeps_its_turn_while_its_gpu_is_not_published() -> None:
    """Whether the policy selects it is unknown then: its node reboots, or its driver is reloaded."""
    spec = msgspec.structs.replace(
        POLICY.spec, device_selectors=[DeviceSelector(cel=CelSelector(expression="device.driver != ''"))]
    )
    policy = msgspec.structs.replace(POLICY, spec=spec)
    dry = msgspec.structs.replace(policy, spec=msgspec.structs.replace(spec, dry_run=True))
    request = moved(opened(), MaintenancePhase.REHEARSED)

    assert steps(planned(SICK, request, policy=policy, published=False)) == []
    assert steps(planned(SICK, request, policy=policy)) == [f"cancel {request.metadata.name} (withdrawn)"]
    assert steps(planned(SICK, request, policy=dry, published=False)) == [f"cancel {request.metadata.name} (withdrawn)"]
    assert steps(planned(HEALTHY, request, policy=policy, published=False)) == [
        f"cancel {request.metadata.name} (withdrawn)"
    ]


@pytest.mark.parametrize("phase", [None, MaintenancePhase.PENDING, MaintenancePhase.REHEARSED])
def test_a_request_that_waits_is_withdrawn_when_its_gpu_has_left_the_node(phase: MaintenancePhase | None) -> None:
    """Its device name may be given to another board, which has no fault."""
    request = moved(opened(), phase)
    withdrawn = [f"cancel {request.metadata.name} (withdrawn)"]

    assert steps(planned(EMPTY, request)) == withdrawn
    assert [str(each) for each in left_behind([request], {POLICY.metadata.uid}, "n")] == withdrawn
    assert steps(planned(EMPTY, request, readable=False)) == []
    assert steps(planned(EMPTY, request, policy=None)) == []
    assert left_behind([request], {POLICY.metadata.uid}, "another") == ()


def test_a_request_is_withdrawn_when_another_board_has_the_name_before_work_began() -> None:
    """For example, another machine took the node's name: its board has no fault, and would stay out of service."""
    other = [Condition(type="ReadyForWork", status="False", reason="OtherGpu")]
    request = moved(opened(), MaintenancePhase.ISOLATED, isolated_at=MOMENT, conditions=other)

    assert steps(planned(EMPTY, request)) == [f"cancel {request.metadata.name} (withdrawn)"]
    assert steps(planned(SICK, request)) == [], "its own board is on the node, under whatever name"
    for status in (
        {"conditions": other, "started_at": MOMENT},
        {"conditions": [Condition(type="ReadyForWork", status="False", reason="InUse")]},
        {},
    ):
        going_on = moved(opened(), MaintenancePhase.ISOLATED, isolated_at=MOMENT, **status)
        assert steps(planned(EMPTY, going_on)) == []


def test_a_request_at_work_goes_on_when_its_gpu_has_left_the_node() -> None:
    at_work = moved(opened(), MaintenancePhase.IN_MAINTENANCE, isolated_at=MOMENT)
    over = moved(opened(), MaintenancePhase.CANCELLED, outcome="withdrawn")
    cancelled = msgspec.structs.replace(opened(), spec=msgspec.structs.replace(opened().spec, cancelled=True))

    assert steps(planned(EMPTY, at_work, over, cancelled)) == []


@pytest.mark.parametrize(
    "phase", [each for each in MaintenancePhase if each not in {"Completed", "Cancelled", "Failed"}]
)
def test_a_request_whose_policy_was_deleted_is_left_alone(phase: MaintenancePhase) -> None:
    request = moved(opened(), phase)

    assert steps(planned(SICK, request, policy=None)) == []
    assert steps(planned(HEALTHY, request, policy=None)) == []


@pytest.mark.parametrize("phase", [MaintenancePhase.ISOLATED, MaintenancePhase.DRAINING, MaintenancePhase.VERIFYING])
def test_a_request_at_work_goes_on_when_its_fault_is_over(phase: MaintenancePhase) -> None:
    assert steps(planned(HEALTHY, moved(opened(), phase, isolated_at=MOMENT))) == []


def test_there_is_never_a_second_request_while_any_other_concerns_the_gpu() -> None:
    for other in (
        a_maintenance("by-device", driver=NVIDIA_DRIVER, pool="n", device="gpu-0"),
        a_maintenance("by-part", driver=NVIDIA_DRIVER, pool="n", device="gpu-0-mig-1g10gb-19-4"),
        a_maintenance("by-node", nodeName="n"),
        a_maintenance("found", phase=MaintenancePhase.FAILED, devices=["n/gpu-0"], deviceClassName="big"),
        a_maintenance("yet-unknown", deviceClassName="big"),
    ):
        plan = planned(SICK, other)
        assert plan.create == ()
        assert notes(plan) == [(f"gpu-0 of n waits for DeviceMaintenance {other.metadata.name}.", False)]
    for other in (
        a_maintenance("other-gpu", driver=NVIDIA_DRIVER, pool="n", device="gpu-1"),
        a_maintenance("other-node", nodeName="m"),
        a_maintenance("found-others", devices=["n/gpu-1"], deviceClassName="big"),
        a_maintenance("done", phase=MaintenancePhase.COMPLETED, devices=["n/gpu-0"]),
        a_maintenance("back", phase=MaintenancePhase.CANCELLED, devices=["n/gpu-0"]),
    ):
        assert len(planned(SICK, other).create) == 1


def test_what_concerns_a_gpu_is_found_by_its_node_or_its_uuid() -> None:
    """Among thousands of requests, no others are considered for a node."""
    renamed = a_maintenance("renamed", devices=["m/gpu-7"], pool="m")
    found = [msgspec.structs.replace(each, uuid=UUID) for each in renamed.status.devices]
    moved_on = msgspec.structs.replace(renamed, status=msgspec.structs.replace(renamed.status, devices=found))
    for each in (
        opened(),
        moved_on,
        a_maintenance("by-device", driver=NVIDIA_DRIVER, pool="n", device="gpu-0"),
        a_maintenance("by-part", driver=NVIDIA_DRIVER, pool="n", device="gpu-0-mig-1g10gb-19-4"),
        a_maintenance("by-node", nodeName="n"),
        a_maintenance("found", phase=MaintenancePhase.FAILED, devices=["n/gpu-0"], deviceClassName="big"),
        a_maintenance("yet-unknown", deviceClassName="big"),
    ):
        assert concerns(each, a_device_key("n/gpu-0"), UUID)
        assert places_of(each) & {"", "n", UUID}
    other = a_maintenance("other", driver=NVIDIA_DRIVER, pool="m", device="gpu-0")
    assert places_of(other) == {"m"}
    assert not concerns(other, a_device_key("n/gpu-0"), UUID)


def test_a_gpu_is_known_by_its_uuid_too() -> None:
    renamed = msgspec.structs.replace(
        a_maintenance("m"),
        status=msgspec.structs.replace(
            a_maintenance("m").status,
            devices=[MaintainedDevice(driver=NVIDIA_DRIVER, pool="n", device="gpu-7", uuid=UUID)],
        ),
    )
    assert concerns(renamed, a_device_key("n/gpu-0"), UUID)


def test_a_failed_request_makes_room_for_the_next_until_there_were_too_many() -> None:
    first = moved(opened(), MaintenancePhase.FAILED, isolated_at=MOMENT)
    assert steps(planned(SICK, first)) == [f"cancel {first.metadata.name} (failed)"]

    first = moved(first, MaintenancePhase.CANCELLED, outcome="failed")
    second = opened(first)
    assert second.metadata.name == f"health-{UUID.lower()}-2"

    plan = planned(SICK, first, moved(second, MaintenancePhase.FAILED, isolated_at=MOMENT))
    assert steps(plan) == []
    said = f"A person has to look: 2 requests for gpu-0 of n failed in a row. Repair it, and cancel {second.metadata.name}."
    assert notes(plan) == [(said, True)]


def test_a_request_that_has_just_failed_may_yet_be_completed() -> None:
    since = Condition(type="Failed", status="True", last_transition_time=LATER - timedelta(seconds=30))
    failed = moved(opened(), MaintenancePhase.FAILED, isolated_at=MOMENT, conditions=[since])

    plan = planned(SICK, failed)
    assert (steps(plan), plan.look_again) == ([], timedelta(seconds=150))
    assert steps(planned(SICK, failed, now=LATER + timedelta(minutes=3))) == [f"cancel {failed.metadata.name} (failed)"]


def test_a_fault_that_is_back_within_an_hour_was_not_repaired() -> None:
    done = moved(opened(), MaintenancePhase.COMPLETED, completed_at=MOMENT + timedelta(minutes=10))
    soon = a_sick_node("n", [a_fault(first_seen=MOMENT + timedelta(minutes=60))], [])
    late = a_sick_node("n", [a_fault(first_seen=MOMENT + timedelta(minutes=80))], [])
    once = a_health_policy(
        "p", a_health_rule("true", remediation=Remediation(from_cron_job="reset-gpu", max_failures=1))
    )
    now = MOMENT + timedelta(minutes=90)

    assert planned(late, done, policy=once, now=now).create
    plan = planned(soon, done, policy=once, now=now)
    assert plan.create == ()
    assert notes(plan)[0][1]
    # By default twice is too often; the second attempt counts from the end of the first.
    again = moved(opened(done, node=soon), MaintenancePhase.COMPLETED, made=now, completed_at=now)
    back = a_sick_node("n", [a_fault(first_seen=now + timedelta(minutes=5))], [])
    first = moved(done, MaintenancePhase.COMPLETED, completed_at=now - timedelta(minutes=5))
    assert planned(back, first, again, now=now + timedelta(minutes=6)).create == ()


def test_a_fault_that_never_went_away_is_given_a_minute_after_the_work() -> None:
    done = moved(opened(), MaintenancePhase.COMPLETED, completed_at=LATER - timedelta(seconds=20))

    plan = planned(SICK, done)
    assert (plan.create, plan.look_again) == ((), timedelta(seconds=40))
    assert planned(SICK, done, now=LATER + timedelta(minutes=1)).create


def test_nobody_waits_because_a_clock_was_ahead() -> None:
    tomorrow = LATER + timedelta(days=1)
    since = Condition(type="Failed", status="True", last_transition_time=tomorrow)
    failed = moved(opened(), MaintenancePhase.FAILED, isolated_at=MOMENT, conditions=[since])

    assert planned(SICK, moved(opened(), MaintenancePhase.COMPLETED, completed_at=tomorrow)).create
    assert steps(planned(SICK, failed)) == [f"cancel {failed.metadata.name} (failed)"]


def test_success_in_between_ends_the_row() -> None:
    failed = moved(opened(), MaintenancePhase.CANCELLED, outcome="failed")
    good = moved(opened(failed), MaintenancePhase.COMPLETED, completed_at=MOMENT, made=MOMENT - timedelta(hours=2))
    late = a_sick_node("n", [a_fault(first_seen=MOMENT + timedelta(hours=3))], [])

    assert planned(late, failed, good, now=MOMENT + timedelta(hours=3)).create


def test_what_a_person_cancelled_is_not_opened_again_for_the_same_fault() -> None:
    cancelled = moved(opened(), MaintenancePhase.CANCELLED)

    plan = planned(SICK, cancelled)
    assert plan.create == ()
    assert notes(plan) == [
        (
            f"Xid79 of gpu-0 of n: DeviceMaintenance {cancelled.metadata.name} was cancelled. Delete it to try again.",
            False,
        )
    ]
    again = a_sick_node("n", [a_fault(first_seen=MOMENT + timedelta(minutes=1))], [])
    assert planned(again, cancelled).create
    assert planned(SICK, moved(opened(), MaintenancePhase.CANCELLED, outcome="withdrawn")).create


def test_work_on_one_gpu_is_not_begun_for_a_fault_of_the_node() -> None:
    node = a_sick_node("n", [a_fault("DriverGone", scope=FaultScope.NODE)], [])
    policy = a_health_policy("p", a_health_rule("true", "NoSchedule", remediation=RESET))

    plan = planned(node, policy=policy)
    assert plan.create == ()
    assert "DriverGone concerns all of node n" in plan.notes[0].text
    assert plan.notes[0].given_up

    evicting = a_health_policy("p", a_health_rule("true", "Evict", remediation=RESET))
    (request,) = planned(node, policy=evicting).create
    assert request.spec.work is None


def test_a_gpu_that_is_not_published_cannot_be_named() -> None:
    plan = planned(SICK, published=False)

    assert plan.create == ()
    assert notes(plan) == [("Xid79: gpu-0 of n is not published, so nothing is opened for it.", False)]


def test_old_requests_are_cleared_away_but_for_those_that_count() -> None:
    def of(number: int, phase: MaintenancePhase, *, age: timedelta, outcome: str = "") -> DeviceMaintenance:
        request = moved(opened(), phase, outcome=outcome, completed_at=LATER - age)
        meta = msgspec.structs.replace(request.metadata, name=f"health-x-{number}")
        return msgspec.structs.replace(request, metadata=meta)

    done, days = MaintenancePhase.COMPLETED, timedelta(days=1)
    many = [of(number, done, age=timedelta(hours=20 - number)) for number in range(1, 9)]
    assert [each.metadata.name for each in expired(many, LATER)] == ["health-x-2", "health-x-1"]
    assert [each.metadata.name for each in expired([of(1, done, age=8 * days), of(2, done, age=8 * days)], LATER)] == [
        "health-x-1"
    ]
    assert expired([of(1, MaintenancePhase.FAILED, age=99 * days)], LATER) == []
    assert expired([a_maintenance("mine", phase=done)], LATER + 99 * days) == []
    failed = [
        of(number, MaintenancePhase.CANCELLED, age=timedelta(hours=1), outcome="failed") for number in range(1, 9)
    ]
    assert expired(failed, LATER) == []
