"""Which changes a request accepts in which phase, and what is said about the others."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from draco.cli.maintain.changes import approval, cancellation, finish
from draco.cli.maintain.screen import age, numbers
from draco.cli.output import CommandError
from draco.overview.maintenances import PAUSE, claims_held, maintenance_view, next_steps, pause_warning, waits_for
from draco.resources.api.claims import ResourceClaimConsumerReference
from draco.resources.api.core import PodStatus
from draco.resources.api.maintenance import (
    Approval,
    DeviceMaintenance,
    DrainPolicy,
    MaintenanceBudget,
    MaintenanceBudgetSpec,
    MaintenancePhase,
    MaintenanceRehearsal,
    MaintenanceWork,
    RehearsedClass,
)
from draco.resources.api.meta import ObjectMeta
from tests.builders import a_claim, a_maintenance, a_pod

BEFORE = (None, MaintenancePhase.PENDING, MaintenancePhase.REHEARSED)
OVER = (MaintenancePhase.COMPLETED, MaintenancePhase.CANCELLED)
WORKING = (MaintenancePhase.IN_MAINTENANCE, MaintenancePhase.VERIFYING)


def in_phase(phase: MaintenancePhase | None, *, seen: bool = True, in_use: int = 0, **spec: Any) -> DeviceMaintenance:
    request = a_maintenance("swap", phase=phase, node="x", in_use=in_use)
    status = msgspec.structs.replace(request.status, observed_generation=1 if seen else 0)
    return msgspec.structs.replace(request, status=status, spec=msgspec.structs.replace(request.spec, **spec))


@pytest.mark.parametrize("phase", list(MaintenancePhase))
def test_every_request_that_is_not_over_can_be_cancelled(phase: MaintenancePhase) -> None:
    if phase in OVER:
        with pytest.raises(CommandError, match=f"is {phase.lower()} already"):
            cancellation(in_phase(phase))
    else:
        assert cancellation(in_phase(phase)) == {"cancelled": True}
        assert cancellation(in_phase(phase, cancelled=True)) == {}


@pytest.mark.parametrize("phase", [None, *MaintenancePhase])
def test_only_work_that_has_begun_can_be_finished(phase: MaintenancePhase | None) -> None:
    if phase in WORKING:
        assert finish(in_phase(phase)) == {"finished": True}
        assert finish(in_phase(phase, finished=True)) == {}
        return
    with pytest.raises(CommandError) as refused:
        finish(in_phase(phase))
    assert ("draco maintain start" if phase in OVER else "draco maintain cancel swap") in str(refused.value)


def test_only_what_waits_for_approval_is_approved() -> None:
    waiting = in_phase(MaintenancePhase.REHEARSED, approval=Approval.REQUIRED)
    assert approval(waiting) == {"approved": True}
    assert approval(in_phase(MaintenancePhase.REHEARSED, approval=Approval.REQUIRED, approved=True)) == {}
    with pytest.raises(CommandError, match="needs no approval"):
        approval(in_phase(MaintenancePhase.REHEARSED))
    with pytest.raises(CommandError, match="was cancelled"):
        approval(in_phase(MaintenancePhase.REHEARSED, approval=Approval.REQUIRED, cancelled=True))


def test_a_request_that_is_being_deleted_takes_nothing_any_more() -> None:
    request = in_phase(MaintenancePhase.IN_MAINTENANCE)
    going = msgspec.structs.replace(
        request, metadata=msgspec.structs.replace(request.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    )
    for action in (approval, finish, cancellation):
        with pytest.raises(CommandError, match="is being deleted"):
            action(going)


@pytest.mark.parametrize("phase", [None, *MaintenancePhase])
def test_every_request_says_what_it_waits_for_and_who_can_help(phase: MaintenancePhase | None) -> None:
    request = in_phase(phase, in_use=1)
    assert bool(waits_for(request)) is (phase not in OVER)
    if phase in OVER:
        assert next_steps(request) == []
    elif phase is not MaintenancePhase.VERIFYING:  # it continues without a person
        assert any(" swap" in step for step in next_steps(request))


def test_a_request_that_needs_approval_says_how_to_give_it() -> None:
    request = in_phase(MaintenancePhase.REHEARSED, approval=Approval.REQUIRED)
    assert waits_for(request) == "approval"
    assert next_steps(request)[0].endswith("draco maintain approve swap")


def test_nobody_is_told_to_finish_what_jobs_do() -> None:
    request = in_phase(MaintenancePhase.IN_MAINTENANCE, work=MaintenanceWork(from_cron_job="flash"))
    assert waits_for(request) == "Jobs of flash"
    assert not [step for step in next_steps(request) if "draco maintain finish" in step]


def test_a_change_that_the_operator_has_not_seen_is_what_is_waited_for() -> None:
    assert waits_for(in_phase(MaintenancePhase.IN_MAINTENANCE, seen=False)) == "the operator"


def test_the_pods_that_are_left_are_those_of_the_claims_that_hold_devices() -> None:
    request = a_maintenance("swap", phase=MaintenancePhase.ISOLATED, devices=["node-0/gpu-0"], in_use=1)
    held = [msgspec.structs.replace(each, claims=["default/shared"]) for each in request.status.devices]
    request = msgspec.structs.replace(request, status=msgspec.structs.replace(request.status, devices=held))
    claim = a_claim("shared", on=["node-0/gpu-0"], reserved_for=["web-0", "web-1"])
    view = maintenance_view(request, {"default/shared": claim})
    assert (view.claims, view.pods) == (["default/shared"], ["default/web-0", "default/web-1"])


def test_of_a_claim_that_is_reserved_for_a_pod_group_the_members_that_run_are_left() -> None:
    request = a_maintenance("swap", phase=MaintenancePhase.ISOLATED, devices=["node-0/gpu-0"], in_use=1)
    held = [msgspec.structs.replace(each, claims=["default/shared"]) for each in request.status.devices]
    request = msgspec.structs.replace(request, status=msgspec.structs.replace(request.status, devices=held))
    claim = a_claim("shared", on=["node-0/gpu-0"])
    gang = ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name="gang", uid="g")
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=[gang]))
    over = a_pod("over", node="node-0", claims=["shared"], status=PodStatus(phase="Succeeded"))
    pods = [a_pod("runs", node="node-0", claims=["shared"]), over, a_pod("waits", node="", claims=["shared"])]
    pods.append(a_pod("other", node="node-0", claims=["another"]))
    claims, members = {"default/shared": claim}, {each.metadata.key: each for each in pods}
    assert claims_held([request], {**claims, "default/another": a_claim("another")}) == [claim]
    assert maintenance_view(request, claims, members).pods == ["default/runs"]


def test_a_preview_counts_pods_and_says_what_remains() -> None:
    found = MaintenanceRehearsal(
        devices=1,
        claims=1,
        pods=70,
        pod_names=[f"ns/web-{index}" for index in range(64)],
        blocking_budgets=["ns/web"],
        classes=[RehearsedClass(name="h100", devices=8, free=3, free_after=2)],
    )
    waiting = "\n".join(numbers(found, DrainPolicy.WAIT))
    assert "no pod is evicted" in waiting
    assert "PodDisruptionBudget" not in waiting
    evicting = "\n".join(numbers(found, DrainPolicy.EVICT))
    assert "evicts 70 pods" in evicting
    assert "60 more" in evicting
    assert "ns/web." in evicting
    assert "DeviceClass h100: 2 of 8 stay free for new claims (now 3)." in evicting
    assert "regardless of disruption budgets" in "\n".join(numbers(found, DrainPolicy.NO_EXECUTE))


def a_paused_budget(name: str, *, paused: bool = True) -> MaintenanceBudget:
    return MaintenanceBudget(metadata=ObjectMeta(name=name), spec=MaintenanceBudgetSpec(paused=paused))


def test_a_pause_says_who_can_end_it() -> None:
    assert pause_warning([a_paused_budget("pause", paused=False)]) == ""
    assert "`draco maintain resume`" in pause_warning([a_paused_budget(PAUSE)])
    by_hand = pause_warning([a_paused_budget("by-hand")])
    assert "set spec.paused of by-hand to false" in by_hand
    assert "resume" not in by_hand


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (200_000, "2d")]
)
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 10, tzinfo=UTC)
    assert age(datetime.fromtimestamp(now.timestamp() - seconds, UTC).isoformat(), now) == text
