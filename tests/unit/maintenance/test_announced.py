"""A request that is only announced has isolated nothing: when it begins, it begins with the devices that exist then."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.plan import plan_maintenance
from draco.maintenance.plan_output import MaintenancePlan
from draco.maintenance.selecting.matching import isolated_boards, scope_of
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import isolated_board, maintained_device
from draco.resources.api.maintenance import (
    DeadlineAction,
    DeviceMaintenance,
    DeviceMaintenanceStatus,
    MaintenanceDeadline,
    MaintenancePhase,
    MaintenanceSelector,
    MaintenanceTaint,
)
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from tests.builders import MOMENT, a_maintenance, a_slice
from tests.unit.maintenance.test_machine import Maintenance

POOL = PoolKey(NVIDIA_DRIVER, "node-1")


class Announced:
    """A request and its rules, which reach the cluster immediately."""

    def __init__(self, device: str, here: PoolHardware, *, rules_served: bool) -> None:
        made = a_maintenance()
        selector = MaintenanceSelector(driver=NVIDIA_DRIVER, pool="node-1", device=device or None)
        spec = msgspec.structs.replace(made.spec, device_selector=selector)
        self.request = msgspec.structs.replace(made, spec=spec, status=DeviceMaintenanceStatus())
        self.rules: dict[str, DeviceTaintRule] = {}
        self.rules_served = rules_served
        self.becomes("None")
        self.sees(here)
        self.sees(here)

    def becomes(self, effect: str) -> None:
        spec = msgspec.structs.replace(self.request.spec, taint=MaintenanceTaint(effect=effect))
        self.request = msgspec.structs.replace(self.request, spec=spec)

    def sees(self, here: PoolHardware, *, after: timedelta = timedelta(0)) -> MaintenancePlan:
        pools, rules = {POOL: here}, tuple(self.rules.values())
        scope = scope_of(self.request.spec.device_selector, pools, (), isolated_boards(self.request, rules))
        seen = MaintenanceSnapshot(now=MOMENT + after, scope=scope, rules=rules, rules_served=self.rules_served)
        plan = plan_maintenance(self.request, seen)
        self.rules |= {each.metadata.name: each for each in plan.apply}
        for each in plan.delete:
            del self.rules[each.metadata.name]
        if plan.status:
            self.request = msgspec.structs.replace(self.request, status=plan.status)
        return plan

    @property
    def tainted(self) -> set[tuple[str, str]]:
        found = ((maintained_device(each), isolated_board(each)) for each in self.rules.values())
        return {(device.device if device else "", board) for device, board in found}


def named(request: DeviceMaintenance) -> set[tuple[str, str]]:
    return {(each.device, each.uuid) for each in request.status.devices}


def hardware(**boards: str) -> PoolHardware:
    """Hardware by device name: gpu_0="GPU-a" is a whole GPU."""
    return PoolHardware(
        [
            a_slice(
                "node-1",
                [
                    Device(name=name.replace("_", "-"), attributes={"uuid": DeviceAttribute(string=uuid)})
                    for name, uuid in boards.items()
                ],
            )
        ]
    )


@pytest.mark.parametrize("rules_served", [True, False])
@pytest.mark.parametrize(
    ("device", "now", "then"),
    [
        ("", {"gpu_1": "GPU-b"}, {("gpu-1", "GPU-b")}),
        ("", {"gpu_0": "GPU-new", "gpu_1": "GPU-b"}, {("gpu-0", "GPU-new"), ("gpu-1", "GPU-b")}),
        ("gpu-0", {"gpu_0": "GPU-new", "gpu_1": "GPU-a"}, {("gpu-0", "GPU-new")}),
    ],
)
def test_what_was_announced_and_is_not_there_any_more_is_not_begun_with(
    device: str, now: dict[str, str], then: set[tuple[str, str]], rules_served: bool
) -> None:
    announced = Announced(device, hardware(gpu_0="GPU-a", gpu_1="GPU-b"), rules_served=rules_served)
    announced.becomes("NoSchedule")
    announced.sees(hardware(**now))
    assert announced.request.status.isolated_at
    assert named(announced.request) == then
    assert not rules_served or announced.tainted == then


def test_what_has_begun_keeps_what_vanishes() -> None:
    announced = Announced("", hardware(gpu_0="GPU-a", gpu_1="GPU-b"), rules_served=True)
    announced.becomes("NoSchedule")
    announced.sees(hardware(gpu_0="GPU-a", gpu_1="GPU-b"))
    announced.sees(hardware(gpu_1="GPU-b"))
    assert announced.tainted == {("gpu-0", "GPU-a"), ("gpu-1", "GPU-b")}


def test_what_becomes_an_announcement_counts_as_begun_until_no_taint_is_left() -> None:
    here = hardware(gpu_0="GPU-a")
    announced = Announced("", here, rules_served=True)
    announced.becomes("NoSchedule")
    announced.sees(here)
    announced.becomes("None")
    plan = announced.sees(here)
    assert plan.status
    assert (plan.status.phase, plan.status.isolated_at) == (MaintenancePhase.PENDING, MOMENT)
    announced.sees(here)
    assert announced.request.status.isolated_at is None
    assert announced.sees(here).empty


def test_a_deadline_is_none_for_what_becomes_an_announcement() -> None:
    here = hardware(gpu_0="GPU-a")
    announced = Announced("", here, rules_served=True)
    announced.becomes("NoSchedule")
    announced.sees(here)
    deadline = MaintenanceDeadline(after="1m", action=DeadlineAction.CANCEL)
    spec = msgspec.structs.replace(announced.request.spec, deadline=deadline)
    announced.request = msgspec.structs.replace(announced.request, spec=spec)
    announced.becomes("None")
    for _ in range(3):
        announced.sees(here, after=timedelta(hours=1))
        assert announced.request.status.phase is MaintenancePhase.PENDING


def test_an_announcement_stands_for_what_is_there() -> None:
    announced = Announced("", hardware(gpu_0="GPU-a", gpu_1="GPU-b"), rules_served=True)
    announced.sees(hardware(gpu_1="GPU-new"))
    assert announced.tainted == named(announced.request) == {("gpu-1", "GPU-new")}
    assert announced.sees(hardware(gpu_1="GPU-new")).empty


ANNOUNCE: dict[str, Any] = {"name": "first", "device": "", "effect": "None", "kind": "plain"}
BEGIN = ANNOUNCE | {"effect": "NoSchedule"}


def a_node(*, limit: int) -> Maintenance:
    """All of a node is announced; then a budget is created."""
    state = Maintenance()
    state.begin(divided=False, asked="")
    state.divide("gpu-0", limit > 1)
    state.ask(**ANNOUNCE)
    state.make_progress(name="first", seconds=0.0)
    state.set_the_budget(limit=limit, percent=None, paused=False)
    return state


def test_a_budget_counts_no_gpu_that_vanished_since_it_was_announced() -> None:
    state = a_node(limit=1)
    state.ask(**BEGIN)
    state.vanish("gpu-0")
    state.teardown()


def test_a_budget_counts_no_board_that_was_exchanged_since_it_was_announced() -> None:
    state = a_node(limit=2)
    state.ask(**BEGIN)
    state.exchange("gpu-0", "GPU-new")
    state.teardown()


def test_a_second_request_gets_the_room_that_a_vanished_gpu_does_not_take() -> None:
    state = a_node(limit=1)
    state.ask(**BEGIN)
    state.ask(**BEGIN | {"name": "second", "device": "gpu-0"})
    state.vanish("gpu-0")
    state.make_progress(name="first", seconds=3.0)
    state.divide("gpu-0", True)
    state.die()
    state.teardown()


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_budget_holds_when_an_operator_dies_while_a_request_becomes_an_announcement(writes: int) -> None:
    state = Maintenance()
    state.begin(divided=False, asked="")
    state.make_progress(name="first", seconds=3.0)
    state.ask(**ANNOUNCE)
    state.hear("operator")
    state.plan("first")
    state.write(writes)
    state.die()
    state.set_the_budget(limit=1, percent=None, paused=False)
    state.wait(2.1)
    state.ask(**BEGIN)
    state.teardown()
