"""A node is under maintenance once all its devices are, and not before."""

from datetime import timedelta

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.isolating.node_conditions import node_conditions
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import all_timed
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from tests.builders import MOMENT, a_maintenance, a_slice

NODE = PoolKey(NVIDIA_DRIVER, "node-0")


def pools(*devices: str, driver: str = NVIDIA_DRIVER) -> dict[PoolKey, PoolHardware]:
    return {PoolKey(driver, "node-0"): PoolHardware([a_slice("node-0", devices, driver=driver)])}


def request(name: str, *devices: str, phase: MaintenancePhase = MaintenancePhase.IN_MAINTENANCE) -> DeviceMaintenance:
    return a_maintenance(name, phase=phase, devices=devices)


def true(*requests: DeviceMaintenance, devices: tuple[str, ...] = ("gpu-0", "gpu-1")) -> set[str]:
    return {each.type for each in node_conditions(pools(*devices), requests) if each.status == "True"}


def test_a_node_with_one_gpu_at_work_says_nothing() -> None:
    assert node_conditions(pools("gpu-0", "gpu-1"), [request("one", "node-0/gpu-0")]) == []
    assert node_conditions(pools("gpu-0"), []) == []
    assert node_conditions(pools(), [request("one", "node-0/gpu-0")]) == []


def test_a_gpu_at_work_counts_while_its_agent_publishes_it_again() -> None:
    slices = [a_slice(devices=[each], name=each, of=2) for each in ("gpu-0", "gpu-1")]
    slices[0] = a_slice(devices=["gpu-0"], name="gpu-0", of=2, generation=2)
    assert node_conditions({NODE: PoolHardware(slices)}, [request("one", "node-0/gpu-0")]) == []


def test_devices_of_several_requests_add_up() -> None:
    both = [request("one", "node-0/gpu-0"), request("two", "node-0/gpu-1")]
    assert true(*both) == {"MaintenanceInProgress", "Drained"}
    (said, *_) = node_conditions(pools("gpu-0", "gpu-1"), both)
    assert said.message == "All its devices are in maintenance: one, two."


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (MaintenancePhase.PENDING, set()),
        (MaintenancePhase.REHEARSED, {"MaintenancePlanned"}),
        (MaintenancePhase.ISOLATED, {"MaintenanceInProgress", "DrainInProgress"}),
        (MaintenancePhase.DRAINING, {"MaintenanceInProgress", "DrainInProgress"}),
        (MaintenancePhase.VERIFYING, {"MaintenanceInProgress", "Drained"}),
        (MaintenancePhase.FAILED, {"MaintenanceInProgress", "Drained"}),
        (MaintenancePhase.COMPLETED, set()),
        (MaintenancePhase.CANCELLED, set()),
    ],
)
def test_the_device_that_is_least_far_decides(phase: MaintenancePhase, expected: set[str]) -> None:
    assert true(request("one", "node-0/gpu-0"), request("two", "node-0/gpu-1", phase=phase)) == expected


def test_a_whole_gpu_stands_for_its_partitions() -> None:
    names = ("gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1")
    assert true(request("one", "node-0/gpu-0"), devices=names)
    assert not true(request("one", "node-0/gpu-0-mig-1g10gb-19-1"), devices=names)


def test_what_is_merely_the_same_hardware_does_not_count() -> None:
    asked = request("one", "node-0/gpu-0", "node-0/gpu-1")
    devices = [
        msgspec.structs.replace(each, overlaps="x" if each.device == "gpu-1" else "") for each in asked.status.devices
    ]
    assert not true(msgspec.structs.replace(asked, status=msgspec.structs.replace(asked.status, devices=devices)))


def test_another_drivers_devices_do_not_count() -> None:
    both = pools("gpu-0") | pools("nic-0", driver="nic.example.com")
    assert node_conditions(both, [request("one", "node-0/gpu-0")])


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    def written(phase: MaintenancePhase, before: list, minutes: int) -> list:  # type: ignore[type-arg]
        now = node_conditions(pools("gpu-0"), [request("one", "node-0/gpu-0", phase=phase)])
        return all_timed(now, before, MOMENT + timedelta(minutes=minutes))

    first = written(MaintenancePhase.DRAINING, [], 0)
    assert written(MaintenancePhase.DRAINING, first, 1) == first
    times = {each.type: each.last_transition_time for each in written(MaintenancePhase.IN_MAINTENANCE, first, 1)}
    assert times["MaintenanceInProgress"] == MOMENT
    assert times["Drained"] == MOMENT + timedelta(minutes=1)
    late = [msgspec.structs.replace(each, last_transition_time=MOMENT + timedelta(hours=1)) for each in first]
    assert written(MaintenancePhase.DRAINING, late, 0) == first  # written by another clock
