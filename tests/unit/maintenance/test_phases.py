"""The table of phases: every snapshot leads to one of its rows, and every row is reached."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.maintenance.gate import SelectionProblem, Waiting
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.progress import DrainPlan, FailedJob, JobsState
from draco.maintenance.selecting.matching import MaintenanceScope
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import rule_for
from draco.maintenance.working.verification import AgentVerdict
from draco.resources.api.maintenance import (
    Approval,
    DeadlineAction,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenanceDeadline,
    MaintenanceSchedule,
    MaintenanceTaint,
    MaintenanceVerification,
    VerificationMode,
)
from draco.resources.api.meta import ObjectKey, TimeWindow
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from scripts.maintenance_phases import PHASES
from tests.builders import MOMENT, a_claim, a_device_key, a_maintenance
from tests.unit.maintenance.phase_rows import row_of
from tests.unit.maintenance.test_plan import requests

GPU = a_device_key("node-1/gpu-3")
NOW = MOMENT + timedelta(hours=1)
LATER = NOW + timedelta(hours=1)
HERE = MaintenanceScope(named=frozenset({GPU}), boards={GPU: "GPU-a"})
BASE = a_maintenance("swap-fan", driver=NVIDIA_DRIVER, pool="node-1", device="gpu-3")
RULES = (rule_for(BASE, GPU, board="GPU-a"),)
JOB = FailedJob("swap-fan-0", "It ran for an hour.")

SPECS: list[dict[str, Any]] = [
    {},
    {"finished": True},
    {"cancelled": True},
    {"finished": True, "cancelled": True},
    {"finished": True, "verification": MaintenanceVerification(mode=VerificationMode.JOB)},
    {"deadline": MaintenanceDeadline(after="1m")},
    {"deadline": MaintenanceDeadline(after="1m", action=DeadlineAction.CANCEL)},
    {"taint": MaintenanceTaint(effect="None")},
    {"approval": Approval.REQUIRED},
    {"schedule": MaintenanceSchedule(start=LATER + timedelta(days=1))},
    {"schedule": MaintenanceSchedule(windows=[TimeWindow(start="22:00", duration="0m")])},
]
SEEN: list[dict[str, Any]] = [
    {"scope": MaintenanceScope()},
    {"scope": msgspec.structs.replace(HERE, boards={GPU: "GPU-b"})},
    {"rules": ()},
    {"now": LATER},
    {"settle": timedelta(days=9)},
    {"claims": (a_claim("train", on=["node-1/gpu-3"]),)},
    {"drain": DrainPlan(leaving=(ObjectKey("default", "train"),))},
    {"drain": DrainPlan(message="Waiting 5 minutes for pods to end.", waits_for=timedelta(minutes=5))},
    {"drain": DrainPlan(no_execute=True)},
    {"others": (requests()[1],)},
    {"tolerant": (ObjectKey("default", "tolerant"),)},
    {"unheeded": (GPU,)},
    {"vanished": (GPU,)},
    {"rules_served": False, "beyond": (GPU,)},
    {"work": JobsState(wanted=1, running=("swap-fan-0",))},
    {"work": JobsState(wanted=1, succeeded=("swap-fan-0",))},
    {"work": JobsState(wanted=1, failed=(JOB,))},
    {"verification": JobsState(wanted=1, missing=("verify-0",))},
    {"verification": JobsState(wanted=1, succeeded=("verify-0",))},
    {"verification": JobsState(wanted=1, failed=(JOB,))},
    {"incomplete": (PoolKey(GPU.driver, GPU.pool),)},
    {"agents": AgentVerdict()},
    {"agents": AgentVerdict(bad=("GPU gpu-3 is not good.",))},
    {"agents": AgentVerdict(bad=("GPU gpu-3 is not good.",)), "verify_grace": timedelta(0)},
    {"agents": AgentVerdict(silent=("node-1",))},
    {"agents": AgentVerdict(ending=("GPU gpu-3 is good again.",))},
    *({"problem": SelectionProblem(row.reason, "no")} for row in PHASES if row.phase == "Pending"),
    *(
        {"admission": Waiting(reason=reason, message="wait")}
        for reason in ("NeverFits", "Paused", "TooManyFailed", "BudgetUsedUp")
    ),
]


def a_request(status: DeviceMaintenanceStatus, spec: dict[str, Any]) -> DeviceMaintenance:
    changed = msgspec.structs.replace(BASE.spec, **spec)
    metadata = msgspec.structs.replace(BASE.metadata, creation_timestamp=NOW)
    return msgspec.structs.replace(BASE, metadata=metadata, spec=changed, status=status)


def snapshots() -> Iterator[tuple[MaintenanceSnapshot, DrainPlan | None]]:
    """Snapshots with up to two irregularities, before and after isolation."""
    for rules in ((), RULES):
        usual: dict[str, Any] = {"now": NOW, "scope": HERE, "rules": rules, "settle": timedelta(0)}
        for each in ({}, *SEEN, *(one | other for one, other in itertools.combinations(SEEN, 2))):
            known = usual | each
            drain = known.pop("drain", None)
            yield MaintenanceSnapshot(**known), drain


def essence(status: DeviceMaintenanceStatus) -> tuple[object, ...]:
    times = status.isolated_at, status.started_at
    return status.phase, *(each is not None for each in times), tuple(each.type for each in status.conditions)


@pytest.mark.exhaustive
def test_every_plan_stands_on_a_row_of_the_table_and_every_row_is_taken() -> None:
    everything = list(snapshots())
    reached = {essence(DeviceMaintenanceStatus()): DeviceMaintenanceStatus()}
    left, taken, steps = list(reached.values()), set(), 0
    while left:
        status = left.pop()
        for spec in SPECS:
            request = a_request(status, spec)
            for seen, drain in everything:
                steps += 1
                plan = plan_maintenance(request, seen, drain)
                if plan.status is None:
                    continue
                row = row_of(plan.status)
                assert row is not None, f"{spec}: {plan.status}"
                taken.add(row.reason)
                assert not (plan.drain or plan.work or plan.verify) or plan.status.phase == request.status.phase
                if (key := essence(plan.status)) not in reached and len(reached) < 5:
                    reached[key] = plan.status
                    left.append(plan.status)
    assert taken == {row.reason for row in PHASES}
    assert steps > 5_000


def test_a_status_of_somebody_elses_making_stands_on_no_row() -> None:
    assert row_of(DeviceMaintenanceStatus()) is None


@pytest.mark.parametrize("spec", [{"cancelled": True}, {"finished": True}])
def test_giving_back_is_not_called_off(spec: dict[str, Any]) -> None:
    request = a_request(DeviceMaintenanceStatus(), {})
    for _ in range(2):
        seen = MaintenanceSnapshot(now=NOW, scope=HERE, rules=RULES, settle=timedelta(0))
        if status := plan_maintenance(request, seen).status:
            request = a_request(status, {})
    returning = plan_maintenance(a_request(request.status, spec), seen)
    assert returning.status is not None
    assert returning.status_first
    assert returning.delete == RULES
    going = a_request(returning.status, {})
    assert going.is_returning
    assert plan_maintenance(going, seen).delete == RULES
