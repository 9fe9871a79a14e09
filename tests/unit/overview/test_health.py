"""What `draco health` says about GPUs."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from draco.overview.health import WHAT_TO_DO, UnidentifiedView, chosen, gpu_views, names_of, unidentified
from draco.resources.api.draco import GpuNode, UnidentifiedGpuStatus
from draco.resources.api.health import FaultFamily, FaultScope, GpuFaultStatus, HealthEffect
from draco.resources.api.maintenance import MaintainedDevice, MaintenancePhase
from draco.resources.names import DeviceKey
from tests.builders import a_claim, a_gpu_node, a_maintenance, a_slice, called_lost

SEEN = datetime(2026, 11, 24, 6, 0, tzinfo=UTC)
XID = GpuFaultStatus(
    family=FaultFamily.XID,
    name="Xid119",
    code=119,
    latched=True,
    effect=HealthEffect.NO_SCHEDULE,
    count=3,
    first_seen=SEEN,
    last_seen=SEEN,
)
WARM = GpuFaultStatus(family=FaultFamily.THERMAL, name="ThermalSlowdown", effect=HealthEffect.ANNOUNCE)


def a_sick_node(name: str = "node-0", *faults: GpuFaultStatus, **health: str) -> GpuNode:
    """A node whose first GPU has these faults."""
    node = a_gpu_node(name, gpus=health or {"gpu-0": "Unhealthy", "gpu-1": "Healthy"})
    gpus = [
        msgspec.structs.replace(gpu, faults=list(faults) if index == 0 else [])
        for index, gpu in enumerate(node.status.gpus)
    ]
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))


def views(*nodes: GpuNode, **objects: Any) -> list[Any]:
    return gpu_views(nodes, **objects)


def test_the_fault_that_does_most_comes_first() -> None:
    sick, well = views(a_sick_node("node-0", WARM, XID))
    assert [each.name for each in sick.faults] == ["Xid119", "ThermalSlowdown"]
    assert sick.faults[0].first_seen == "2026-11-24T06:00:00+00:00"
    assert (sick.is_noteworthy, well.is_noteworthy) == (True, False)


def test_a_healthy_gpu_with_a_fault_that_is_only_recorded_is_worth_a_line() -> None:
    recorded = msgspec.structs.replace(WARM, effect=HealthEffect.RECORD)
    assert views(a_sick_node("node-0", recorded, **{"gpu-0": "Healthy"}))[0].is_noteworthy


def test_nobody_knows_how_the_gpus_of_a_lost_agent_are() -> None:
    first, _ = views(called_lost(a_gpu_node("node-0")))
    assert (first.health, first.is_noteworthy) == ("Unknown", True)
    assert first.message == "The agent of node node-0 is lost; it last said Healthy."


def test_who_uses_a_gpu_or_a_part_of_it_is_said() -> None:
    sliced = a_slice(devices=["gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-1"])
    claims = [
        a_claim("part", on=["node-0/gpu-0-mig-1g10gb-19-0"], reserved_for=["web-0"]),
        a_claim("other", on=["node-0/gpu-1"], reserved_for=["web-1"]),
    ]
    sick, _ = views(a_sick_node("node-0", XID), slices=[sliced], claims=claims)
    assert (sick.claims, sick.pods) == (["default/part"], ["default/web-0"])


def test_only_requests_that_are_not_over_are_named() -> None:
    requests = [
        a_maintenance("now", phase=MaintenancePhase.DRAINING, devices=["node-0/gpu-0"]),
        a_maintenance("before", phase=MaintenancePhase.COMPLETED, devices=["node-0/gpu-0"]),
        a_maintenance("elsewhere", phase=MaintenancePhase.DRAINING, devices=["node-0/gpu-1"]),
    ]
    sick, _ = views(a_sick_node("node-0", XID), maintenances=requests)
    assert sick.maintenances == ["now (Draining)"]


def test_a_gpu_is_meant_by_its_node_its_name_or_its_uuid() -> None:
    found = views(a_sick_node("node-0", XID), a_sick_node("node-1"))
    assert len(chosen(found, "node-0")) == 2
    assert [each.device for each in chosen(found, "node-1/gpu-1")] == ["gpu-1"]
    assert chosen(found, found[0].uuid.upper()) == [found[0]]
    assert chosen(found, "gpu-0") == []
    assert {"node-0", "node-0/gpu-0", found[0].uuid} <= names_of(found)


def test_a_part_of_a_gpu_says_which() -> None:
    part = msgspec.structs.replace(XID, scope=FaultScope.GPU_INSTANCE, instance=0)
    (fault,) = views(a_sick_node("node-0", part))[0].faults
    assert (fault.scope, fault.instance) == ("GpuInstance", 0)


@pytest.mark.parametrize("family", list(FaultFamily))
def test_there_is_advice_for_every_family(family: FaultFamily) -> None:
    assert WHAT_TO_DO[family]


def test_requests_make_work_that_grows_with_the_fleet_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MaintainedDevice] = []
    plain = MaintainedDevice.__dict__["key"]

    def counted(self: MaintainedDevice) -> DeviceKey:
        asked.append(self)
        key: DeviceKey = plain.fget(self)
        return key

    monkeypatch.setattr(MaintainedDevice, "key", property(counted))

    def comparisons(nodes: int) -> int:
        asked.clear()
        names = [f"node-{number}" for number in range(nodes)]
        requests = [a_maintenance(name, phase=MaintenancePhase.ISOLATED, devices=[f"{name}/gpu-0"]) for name in names]
        found = views(*map(a_gpu_node, names), maintenances=requests)
        assert [each.maintenances for each in found if each.device == "gpu-0"] == [[f"{n} (Isolated)"] for n in names]
        return len(asked)

    assert comparisons(8) <= 2 * comparisons(4)


def test_what_is_not_known_of_a_healthy_gpu_is_worth_a_line_and_what_cannot_be_identified_is_listed() -> None:
    node = a_gpu_node("node-0", gpus={"gpu-0": "Healthy", "gpu-1": "Healthy"})
    first, other = node.status.gpus
    status = msgspec.structs.replace(
        node.status,
        gpus=[msgspec.structs.replace(first, notes=["published without memory: it has none."]), other],
        unidentified=[UnidentifiedGpuStatus(index=2, uuid="GPU-2", message="It has no minor number.")],
    )
    node = msgspec.structs.replace(node, status=status)
    noted, plain = views(node)
    assert (noted.is_noteworthy, noted.notes) == (True, ["published without memory: it has none."])
    assert not plain.is_noteworthy
    assert unidentified([node]) == [
        UnidentifiedView(node="node-0", index=2, uuid="GPU-2", message="It has no minor number.")
    ]
