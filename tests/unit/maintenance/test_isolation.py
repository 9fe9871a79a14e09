"""What agents are told about maintenance, and when they are seen to comply."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.isolating.gpu_node_entries import isolated_gpus, not_heeded
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.selecting.matching import scope_of
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import rule_for
from draco.resources.api.draco import GpuNode, GpuNodeSpec, IsolatedGpu
from draco.resources.api.maintenance import (
    CONDITION_ISOLATED,
    CONDITION_READY_FOR_WORK,
    REASON_RETURNING,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenanceSelector,
    MaintenanceTaint,
)
from draco.resources.api.meta import Condition, ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_gpu_node, a_maintenance, a_slice

POOL = PoolKey(NVIDIA_DRIVER, "node-1")
TAINT = DeviceTaint(key="draco.dev/maintenance", effect="NoSchedule")


def a_request(effect: str = "NoSchedule", *, finished: bool = False, **selector: str) -> DeviceMaintenance:
    made = a_maintenance("swap-fan", finished=finished)
    meant = msgspec.convert(selector or {"pool": "node-1", "device": "gpu-0"}, MaintenanceSelector)
    spec = msgspec.structs.replace(made.spec, device_selector=meant, taint=MaintenanceTaint(effect=effect))
    return msgspec.structs.replace(made, spec=spec, status=DeviceMaintenanceStatus(isolated_at=MOMENT))


def hardware(**devices: str) -> PoolHardware:
    """Hardware by device name: gpu_0="GPU-a" is a whole GPU; a "!" after the UUID means that its own slice has the taint."""
    made = [
        Device(
            name=name.replace("_", "-"),
            attributes={"uuid": DeviceAttribute(string=uuid.rstrip("!"))},
            taints=[TAINT] if uuid.endswith("!") else [],
        )
        for name, uuid in devices.items()
    ]
    return PoolHardware([a_slice("node-1", made)])


def present(
    request: DeviceMaintenance,
    here: PoolHardware,
    rules: Sequence[DeviceTaintRule] = (),
    before: Sequence[IsolatedGpu] = (),
) -> set[tuple[str, str]]:
    return {(each.uuid, each.device) for each in isolated_gpus(request, POOL, here, rules, before)}


def test_a_device_is_isolated_by_the_uuid_of_its_gpu() -> None:
    assert present(a_request(), hardware(gpu_0="GPU-a", gpu_1="GPU-b")) == {("GPU-a", "gpu-0")}


def test_a_request_about_a_pool_is_about_gpus_that_come_later_too() -> None:
    assert present(a_request(pool="node-1"), hardware(gpu_0="GPU-a")) == {("", "")}
    assert present(a_request(driver=NVIDIA_DRIVER), hardware()) == {("", "")}
    assert present(a_request(pool="node-2"), hardware(gpu_0="GPU-a")) == set()


def test_the_gpu_that_was_isolated_stays_so_beside_the_one_that_has_its_name_now() -> None:
    request = a_request()
    rule = rule_for(request, DeviceKey(*POOL, "gpu-0"), board="GPU-a")
    assert present(request, hardware(gpu_0="GPU-b"), [rule]) == {("GPU-a", "gpu-0"), ("GPU-b", "gpu-0")}


def test_what_was_told_stays_while_nothing_is_published() -> None:
    before = isolated_gpus(a_request(), POOL, hardware(gpu_0="GPU-a"), [])
    assert present(a_request(), hardware(), before=before) == {("GPU-a", "gpu-0")}


def given_back(request: DeviceMaintenance) -> DeviceMaintenance:
    returning = Condition(type=CONDITION_ISOLATED, status="True", reason=REASON_RETURNING)
    return msgspec.structs.replace(request, status=DeviceMaintenanceStatus(isolated_at=MOMENT, conditions=[returning]))


def test_a_request_that_gives_back_or_keeps_nobody_off_or_has_not_begun_tells_nothing() -> None:
    waiting = msgspec.structs.replace(a_request(), status=DeviceMaintenanceStatus())
    for request in (given_back(a_request(finished=True)), a_request("None"), waiting):
        assert present(request, hardware(gpu_0="GPU-a")) == set()


def test_a_request_that_is_finished_tells_the_same_until_its_devices_are_verified() -> None:
    assert present(a_request(finished=True), hardware(gpu_0="GPU-a")) == {("GPU-a", "gpu-0")}


def test_what_was_told_of_another_request_by_the_same_name_does_not_stay() -> None:
    before = isolated_gpus(a_request(pool="node-1", device="gpu-1"), POOL, hardware(gpu_1="GPU-b"), [])
    assert present(a_request(), hardware(), before=before) == set()


def test_what_was_told_for_another_request_is_none_of_this_ones() -> None:
    before = isolated_gpus(a_request(), POOL, hardware(gpu_0="GPU-a"), [])
    others = [msgspec.structs.replace(each, request="another") for each in before]
    assert present(a_request(), hardware(), before=others) == set()


@pytest.mark.parametrize("over", [{"finished": True}, {"effect": "None"}])
def test_what_was_told_stays_as_long_as_the_status_says_that_work_can_start(over: dict[str, Any]) -> None:
    here = hardware(gpu_0="GPU-a")
    before = isolated_gpus(a_request(), POOL, here, [])
    request = msgspec.structs.replace(a_request(**over), status=DeviceMaintenanceStatus())
    ready = Condition(type=CONDITION_READY_FOR_WORK, status="True")
    says_ready = msgspec.structs.replace(request, status=DeviceMaintenanceStatus(conditions=[ready]))
    assert isolated_gpus(says_ready, POOL, here, [], before) == before
    assert isolated_gpus(request, POOL, here, [], before) == []
    deleted = msgspec.structs.replace(says_ready.metadata, deletion_timestamp=MOMENT)
    assert isolated_gpus(msgspec.structs.replace(says_ready, metadata=deleted), POOL, here, [], before) == []


def an_agents_node(*isolated: IsolatedGpu, isolates: bool = True) -> GpuNode:
    node = a_gpu_node("node-1")
    return msgspec.structs.replace(
        node,
        metadata=ObjectMeta(name="node-1"),
        spec=GpuNodeSpec(isolated=list(isolated)),
        status=msgspec.structs.replace(node.status, isolates=isolates),
    )


def is_ready(here: PoolHardware, node: GpuNode | None, *, idle: bool = False) -> bool:
    """Whether work can start on gpu-0 if everything else is fine."""
    request, pools = a_request(), {POOL: here}
    scope = scope_of(request.spec.device_selector, pools)
    nodes = {POOL: node} if node else {}
    seen = MaintenanceSnapshot(
        now=MOMENT,
        scope=scope,
        rules=tuple(rule_for(request, device, board="GPU-a") for device in scope.named),
        unheeded=tuple(not_heeded(request, scope, pools, nodes, {POOL} if idle else ())),
        settle=MOMENT - MOMENT,
    )
    status = plan_maintenance(request, seen).status
    assert status is not None
    ready = next(each for each in status.conditions if each.type == CONDITION_READY_FOR_WORK)
    assert ready.status == "True" or ready.reason == "Publishing"
    return ready.status == "True"


def test_work_starts_once_the_agent_publishes_the_gpu_with_the_taint() -> None:
    plain, tainted = hardware(gpu_0="GPU-a", gpu_1="GPU-b"), hardware(gpu_0="GPU-a!", gpu_1="GPU-b")
    (isolated,) = isolated_gpus(a_request(), POOL, plain, [])
    assert not is_ready(plain, an_agents_node())
    assert not is_ready(plain, an_agents_node(isolated))
    assert not is_ready(tainted, an_agents_node())  # from an earlier request
    assert is_ready(tainted, an_agents_node(isolated))


def test_another_request_by_the_same_name_is_not_yet_told() -> None:
    tainted = hardware(gpu_0="GPU-a!")
    (isolated,) = isolated_gpus(a_request(), POOL, tainted, [])
    for other in ({"device": "gpu-0-mig-1g10gb-19-0"}, {"value": "other"}):
        assert not is_ready(tainted, an_agents_node(msgspec.structs.replace(isolated, **other)))


def test_a_device_that_has_no_room_for_the_taint_is_not_waited_for() -> None:
    taints = [DeviceTaint(key="draco.dev/maintenance", value=value, effect="NoSchedule") for value in "abcd"]
    device = Device(name="gpu-0", attributes={"uuid": DeviceAttribute(string="GPU-a")}, taints=taints)
    full = PoolHardware([a_slice("node-1", [device])])
    (isolated,) = isolated_gpus(a_request(), POOL, full, [])
    assert is_ready(full, an_agents_node(isolated))
    assert not is_ready(full, an_agents_node())


def test_no_agent_is_waited_for_that_does_not_know_of_maintenance() -> None:
    plain = hardware(gpu_0="GPU-a")
    assert is_ready(plain, None)
    assert is_ready(plain, an_agents_node(isolates=False))


def test_an_agent_that_publishes_nothing_has_only_to_be_told() -> None:
    plain = hardware(gpu_0="GPU-a")
    (isolated,) = isolated_gpus(a_request(), POOL, plain, [])
    assert not is_ready(plain, an_agents_node(), idle=True)
    assert is_ready(plain, an_agents_node(isolated), idle=True)
