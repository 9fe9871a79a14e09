"""Whether devices are healthy again: what agents and Jobs report, and what that means for the request."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.maintenance.plan import plan_maintenance
from draco.maintenance.progress import FailedJob, JobsState
from draco.maintenance.selecting.matching import MaintenanceScope
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import rule_for
from draco.maintenance.working.verification import AgentVerdict, VerificationVerdict, agents_say, verdict_of
from draco.resources.api.draco import GpuNode, GpuStatus
from draco.resources.api.health import FaultFamily, GpuFaultStatus, HealthEffect
from draco.resources.api.maintenance import (
    CONDITION_VERIFIED,
    DeviceMaintenance,
    MaintenancePhase,
    MaintenanceVerification,
    VerificationMode,
)
from draco.resources.api.meta import Condition
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_gpu_node, a_maintenance

DEVICE = DeviceKey(NVIDIA_DRIVER, "node-1", "gpu-0")
POOL = PoolKey(NVIDIA_DRIVER, "node-1")
GRACE = timedelta(seconds=45)


def a_fault(*, clean: int = 0, effect: HealthEffect = HealthEffect.NO_SCHEDULE, name: str = "Xid79") -> GpuFaultStatus:
    return GpuFaultStatus(
        family=FaultFamily.XID,
        name=name,
        message="It fell off the bus.",
        latched=True,
        effect=effect,
        clean_probes=clean,
    )


def a_node(*faults: GpuFaultStatus, health: str = "Healthy") -> GpuNode:
    node = a_gpu_node("node-1", gpus=1)
    gpu: GpuStatus = msgspec.structs.replace(node.status.gpus[0], health=health, faults=list(faults))
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=[gpu]))


def said_of(node: GpuNode | None, *, device: DeviceKey = DEVICE, silent: bool = False) -> AgentVerdict | None:
    return agents_say([(device, "", "")], {POOL: node} if node else {}, [POOL] if silent else [])


def verdict(
    agents: AgentVerdict | None,
    *,
    grace: timedelta = timedelta(0),
    mode: VerificationMode = VerificationMode.AGENT,
    **jobs: Any,
) -> VerificationVerdict:
    request = a_maintenance()
    spec = msgspec.structs.replace(request.spec, verification=MaintenanceVerification(mode=mode))
    request = msgspec.structs.replace(request, spec=spec)
    return verdict_of(request, agents, jobs.get("work"), jobs.get("verification"), grace=grace)


@pytest.mark.parametrize(
    ("node", "outcome"),
    [
        (a_node(), "good"),
        (a_node(a_fault()), "bad"),
        (a_node(a_fault(), health="Unhealthy"), "bad"),
        (a_node(health="Unhealthy"), "bad"),
        (a_node(a_fault(clean=1), health="Unhealthy"), "ending"),
        (a_node(a_fault(clean=2), a_fault(name="Xid48")), "bad"),
        (a_node(a_fault(effect=HealthEffect.ANNOUNCE)), "good"),
        (a_node(a_fault(effect=HealthEffect.RECORD)), "good"),
        (a_node(a_fault(effect=HealthEffect.EVICT)), "bad"),
    ],
)
def test_what_an_agent_says_of_a_gpu(node: GpuNode, outcome: str) -> None:
    said = said_of(node)
    assert said is not None
    found = "bad" if said.bad else "ending" if said.ending else "silent" if said.silent else "good"
    assert found == outcome


def test_a_partition_is_as_good_as_its_gpu() -> None:
    said = said_of(a_node(a_fault()), device=DEVICE._replace(device="gpu-0-mig-1g10gb-19-0"))
    assert said is not None
    assert len(said.bad) == 1


def test_a_gpu_that_the_agent_does_not_report_is_bad_and_an_agent_that_is_silent_is_not_believed() -> None:
    missing = said_of(a_node(), device=DEVICE._replace(device="gpu-7"))
    assert missing is not None
    assert "gpu-7 of node-1 is not reported" in missing.bad[0]
    assert said_of(a_node(a_fault()), silent=True) == AgentVerdict(silent=("node-1",))
    assert said_of(None, silent=True) == AgentVerdict(silent=("node-1",)), "its GpuNode was deleted"
    assert said_of(None) is None


@pytest.mark.parametrize(
    ("agents", "grace", "expected"),
    [
        (None, timedelta(0), ("passed", "")),
        (AgentVerdict(), timedelta(0), ("passed", "")),
        (AgentVerdict(bad=("Bad.",)), timedelta(0), ("failed", "GpuUnhealthy")),
        (AgentVerdict(bad=("Bad.",)), timedelta(seconds=1), ("waits", "NotReadYet")),
        (AgentVerdict(ending=("Ending.",)), timedelta(0), ("waits", "FaultEnding")),
        (AgentVerdict(bad=("Bad.",), ending=("Ending.",)), timedelta(0), ("failed", "GpuUnhealthy")),
        (AgentVerdict(ending=("Ending.",), silent=("node-1",)), timedelta(0), ("waits", "AgentSilent")),
    ],
)
def test_the_verdict_by_agents(agents: AgentVerdict | None, grace: timedelta, expected: tuple[str, str]) -> None:
    found = verdict(agents, grace=grace)
    assert ("passed" if found.passed else "failed" if found.failed else "waits", found.reason) == expected
    assert found.look_again == (grace if found.reason == "NotReadYet" else None)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (None, ("waits", "NoJobs")),
        (JobsState(wanted=1, missing=("v-0",)), ("waits", "Verifying")),
        (JobsState(wanted=1, running=("v-0",)), ("waits", "Verifying")),
        (JobsState(wanted=2, succeeded=("v-0",), running=("v-1",)), ("waits", "Verifying")),
        (JobsState(wanted=2, succeeded=("v-0",), failed=(FailedJob("v-1"),)), ("failed", "VerificationFailed")),
        (JobsState(wanted=1, succeeded=("v-0",)), ("passed", "")),
    ],
)
def test_the_verdict_by_jobs_whatever_the_agent_says(jobs: JobsState | None, expected: tuple[str, str]) -> None:
    found = verdict(AgentVerdict(bad=("Bad.",)), mode=VerificationMode.JOB, verification=jobs)
    assert ("passed" if found.passed else "failed" if found.failed else "waits", found.reason) == expected


@pytest.mark.parametrize("mode", VerificationMode)
def test_nothing_is_verified_while_a_job_still_works(mode: VerificationMode) -> None:
    found = verdict(AgentVerdict(), mode=mode, work=JobsState(wanted=1, running=("w-0",)))
    assert (found.passed, found.failed, found.reason) == (False, False, "StoppingJobs")


def test_who_verifies_in_person_is_believed() -> None:
    assert verdict(AgentVerdict(bad=("Bad.",)), mode=VerificationMode.PERSON).passed


def test_a_repaired_gpu_does_not_pass_through_failed() -> None:
    """After the work: an old report, clean readings one by one, then no fault."""
    request = in_maintenance()
    old, one, two, good = (
        said_of(a_node(*faults)) for faults in ([a_fault()], [a_fault(clean=1)], [a_fault(clean=2)], [])
    )
    phases = []
    for seconds, agents in ((0, old), (10, old), (44, old), (50, one), (60, two), (70, good), (72, good)):
        request, failed = look(request, seconds, agents)
        phases.append(request.status.phase)
        assert not failed
    assert phases[:6] == [MaintenancePhase.VERIFYING] * 6
    assert any(each.reason == "Returning" for each in request.status.conditions)


def test_a_gpu_that_is_not_repaired_fails_when_the_agent_has_had_time_to_say_so() -> None:
    request = in_maintenance()
    sick = said_of(a_node(a_fault()))
    request, failed = look(request, 0, sick)
    assert not failed
    request, failed = look(request, 44, sick)
    assert not failed
    request, failed = look(request, 45, sick)
    assert failed
    assert request.status.phase is MaintenancePhase.FAILED
    request, failed = look(request, 50, said_of(a_node(a_fault(clean=1))))
    assert not failed


def in_maintenance() -> DeviceMaintenance:
    base = a_maintenance(
        phase=MaintenancePhase.IN_MAINTENANCE,
        finished=True,
        driver=DEVICE.driver,
        pool=DEVICE.pool,
        device=DEVICE.device,
    )
    conditions = [Condition(type="Isolated", status="True", reason="Isolated", last_transition_time=MOMENT)]
    status = msgspec.structs.replace(base.status, isolated_at=MOMENT, started_at=MOMENT, conditions=conditions)
    return msgspec.structs.replace(base, status=status)


def look(request: DeviceMaintenance, seconds: int, agents: AgentVerdict | None) -> tuple[DeviceMaintenance, bool]:
    seen = MaintenanceSnapshot(
        now=MOMENT + timedelta(seconds=seconds),
        scope=MaintenanceScope(named=frozenset({DEVICE})),
        rules=(rule_for(request, DEVICE),),
        agents=agents,
        verify_grace=GRACE,
    )
    status = plan_maintenance(request, seen).status
    request = msgspec.structs.replace(request, status=status) if status else request
    failed = any(each.type == "Failed" for each in request.status.conditions)
    assert failed == (request.status.phase is MaintenancePhase.FAILED)
    assert failed <= any(each.type == CONDITION_VERIFIED for each in request.status.conditions)
    return request, failed
