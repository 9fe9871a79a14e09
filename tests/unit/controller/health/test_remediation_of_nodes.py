"""What happens to requests opened by HealthPolicies after their node is gone."""

from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from draco.controller.health.decisions import HealthDecisions
from draco.controller.health.remediation import RemediationReconciler
from draco.controller.view import ClusterView
from draco.health.remediation import RemediationPlan, SeenRemedies, plan_remediation
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_fault, a_gpu_uuid, a_health_policy, a_health_rule, a_maintenance, a_sick_node
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import tell

POLICY = a_health_policy("p", a_health_rule("true", "Evict"))


class Server:
    """An API server that records patches."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, dict[str, Any]]] = []

    async def patch(self, _: Any, key: ObjectKey, body: dict[str, Any]) -> DeviceMaintenance:
        self.patches.append((key.name, body))
        return a_request(MaintenancePhase.PENDING)


def a_request(phase: MaintenancePhase) -> DeviceMaintenance:
    made = a_maintenance("health-1", phase=phase, driver=NVIDIA_DRIVER, pool="n", device="gpu-0")
    meta = msgspec.structs.replace(
        made.metadata,
        labels={"draco.dev/remediates": POLICY.metadata.uid},
        annotations={"draco.dev/fault": f"{a_gpu_uuid('n', 0)}: Xid79"},
    )
    return msgspec.structs.replace(made, metadata=meta, status=msgspec.structs.replace(made.status, isolated_at=None))


def remediation(*objects: Any) -> tuple[RemediationReconciler, Server]:
    server, clock = Server(), ManualClock()
    view = ClusterView(cast("Client", server), None, clock=clock)
    tell(view, *objects)
    opened = Counter("opened", "Opened.", ["policy"], registry=CollectorRegistry())
    decisions = HealthDecisions(view)
    events = cast("EventRecorder", None)
    made = RemediationReconciler(cast("Client", server), view, decisions, events, opened=opened)
    return made, server


async def test_what_waits_for_a_gpu_of_a_node_that_is_gone_is_withdrawn() -> None:
    made, server = remediation(POLICY, a_request(MaintenancePhase.PENDING))

    assert "n" in made.all_keys()
    await made.reconcile("n")

    ((name, body),) = server.patches
    assert (name, body["spec"]) == ("health-1", {"cancelled": True})
    assert body["metadata"]["annotations"] == {"draco.dev/outcome": "withdrawn"}


async def test_what_waits_for_a_gpu_of_a_node_that_is_there_stays() -> None:
    made, server = remediation(POLICY, a_request(MaintenancePhase.PENDING), a_sick_node("n", [a_fault()]))

    await made.reconcile("n")

    assert server.patches == []


async def test_only_what_may_concern_a_node_is_looked_at_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a driver is broken everywhere, there are as many requests as GPUs."""
    looked_at: list[str] = []

    def spied(seen: SeenRemedies) -> RemediationPlan:
        looked_at.extend(each.metadata.name for each in seen.requests)
        return plan_remediation(seen)

    monkeypatch.setattr("draco.controller.health.remediation.plan_remediation", spied)
    elsewhere = [a_maintenance(f"other-{number}", pool=f"m-{number}", device="gpu-0") for number in range(9)]
    wide = a_maintenance("wide", deviceClassName="big")
    made, _ = remediation(POLICY, a_request(MaintenancePhase.PENDING), a_sick_node("n", [a_fault()]), *elsewhere, wide)

    await made.reconcile("n")

    assert sorted(looked_at) == ["health-1", "wide"]


async def test_a_node_with_a_note_is_looked_at_when_any_request_changes() -> None:
    """The request that its GPU waits for may name no node."""
    noted, quiet = a_sick_node("n", [a_fault()]), a_sick_node("m", [])
    made, _ = remediation(POLICY, noted, quiet)
    woken: set[str] = set()
    made.subscribe(woken.add)
    for node in ("n", "m"):
        await made.reconcile(node)

    assert [note.policy for note in made.notes("p")] == ["p"]
    woken.clear()
    tell(made._view, a_maintenance("wide", deviceClassName="big"))

    assert woken == {"n"}
