"""What agents are told about GPUs that Jobs of policies have repaired: a reset ends earlier faults, but no later ones."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.health.requests import repaired_gpus
from draco.resources.api.draco import RepairedGpu
from draco.resources.api.health import FaultFamily, GpuFaultStatus
from draco.resources.api.maintenance import CONDITION_WORKED, DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import Condition
from draco.resources.names import ANNOTATION_FAULT, LABEL_REMEDIATES
from tests.builders import MOMENT, a_gpu_uuid, a_maintenance, a_sick_node

UUID = a_gpu_uuid("n", 0)
BEGAN = MOMENT + timedelta(minutes=5)
WORKED = Condition(type=CONDITION_WORKED, status="True", reason="JobsSucceeded")


def an_xid(code: int, last_seen: datetime | None = MOMENT) -> GpuFaultStatus:
    return GpuFaultStatus(family=FaultFamily.XID, name=f"Xid{code}", code=code, last_seen=last_seen)


def a_repair(fault: str = "Xid95", *, policy: str = "policy-uid", gpu: str = UUID, **status: Any) -> DeviceMaintenance:
    """A policy's request whose Jobs have succeeded."""
    made = a_maintenance("repair", phase=MaintenancePhase.VERIFYING)
    meta = msgspec.structs.replace(
        made.metadata,
        labels={LABEL_REMEDIATES: policy} if policy else {},
        annotations={ANNOTATION_FAULT: f"{gpu}: {fault}"},
    )
    told = {"started_at": BEGAN, "conditions": [WORKED], **status}
    return msgspec.structs.replace(made, metadata=meta, status=msgspec.structs.replace(made.status, **told))


def told(request: DeviceMaintenance, *faults: GpuFaultStatus) -> list[RepairedGpu]:
    return repaired_gpus([request], a_sick_node("n", list(faults), [an_xid(95)]).status.gpus)


def until(last_seen: datetime) -> list[RepairedGpu]:
    return [RepairedGpu(uuid=UUID, request="repair", until=last_seen)]


def test_a_job_that_succeeded_ends_what_a_reset_ends_on_its_gpu() -> None:
    later = MOMENT + timedelta(minutes=1)
    assert told(a_repair(), an_xid(95), an_xid(48, later)) == until(later)


def test_what_came_after_the_work_began_is_not_known_to_have_come_before_the_reset() -> None:
    after = BEGAN + timedelta(seconds=1)
    assert told(a_repair(), an_xid(95, after)) == []
    assert told(a_repair(), an_xid(95), an_xid(48, after)) == until(MOMENT)


def test_a_repair_for_what_nvml_asks_for_ends_the_xids_that_came_with_it() -> None:
    assert told(a_repair("NeedsReset"), an_xid(95)) == until(MOMENT)


NOTHING = {
    "its Jobs have not succeeded": a_repair(conditions=[]),
    "its work has not begun": a_repair(started_at=None),
    "it is a person's": a_repair(policy=""),
    "it is about another GPU": a_repair(gpu="GPU-elsewhere"),
    "it is over": a_repair(phase=MaintenancePhase.COMPLETED),
    "only a boot ends its fault": a_repair("Xid79"),
    "its fault is one of heat": a_repair("ThermalSlowdown"),
}


@pytest.mark.parametrize("request_", NOTHING.values(), ids=NOTHING)
def test_nothing_is_told_of_a_request(request_: DeviceMaintenance) -> None:
    assert told(request_, an_xid(95)) == []


def test_nothing_is_told_of_a_gpu_that_has_nothing_a_reset_ends() -> None:
    assert told(a_repair(), an_xid(79), an_xid(95, None)) == []
    assert told(a_repair()) == []
