"""What the model of maintenance requires of a request that has come to rest."""

from datetime import datetime

from draco.maintenance.gate import start_time
from draco.maintenance.selecting.matching import has_begun, is_exact
from draco.maintenance.taint_rules import isolated_board, maintained_device
from draco.resources.api.maintenance import (
    CONDITION_WORKED,
    OVER,
    Approval,
    DeviceMaintenance,
    MaintenancePhase,
    VerificationMode,
)
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from tests.unit.maintenance.machine_world import World, in_use, made, number, rivals, same


def judge_at_rest(
    request: DeviceMaintenance,
    world: World,
    rules: list[DeviceTaintRule],
    *,
    now: datetime,
    tolerated: bool,
    work: str | None,
) -> None:
    """An undisturbed request has reached its final state. `work` is the state of the Job that does its work."""
    devices = {device.device: rule for rule in rules if (device := maintained_device(rule))}
    assert len(devices) == len(rules), "a rule that is not exact survived"
    phase = request.status.phase
    if phase in OVER:
        assert not devices
        return
    assert not request.spec.cancelled
    if not has_begun(request):
        assert not any(rule.spec.taint.effect in BLOCKING_EFFECTS for rule in devices.values())
        waits = request.spec.approval is Approval.REQUIRED and not request.spec.approved
        waits = waits or world.paused or world.limit is not None or world.percent is not None
        assert phase is not MaintenancePhase.REHEARSED or waits or not start_time(request, now).is_open
        return
    if request.spec.finished or request.says(CONDITION_WORKED):
        # Only what is not verified stays: a GPU is unhealthy, or a Job is running or has failed.
        assert phase in {MaintenancePhase.VERIFYING, MaintenancePhase.FAILED}
        assert world.sick or request.spec.verification.mode is VerificationMode.JOB
        return
    _judge_extent(request, world, devices)
    boards = dict(world.devices)
    boards |= {number(name): uuid for name, uuid in boards.items()}  # also for a whole GPU that is published divided
    swapped = any(
        isolated_board(each) not in {"", boards.get(name, "")} for name, each in devices.items() if name in boards
    )
    if phase is MaintenancePhase.FAILED:
        late = request.spec.deadline is not None and request.status.started_at is None
        assert late or work == "failed"
    elif not devices or request.spec.taint.effect not in BLOCKING_EFFECTS:
        assert phase is MaintenancePhase.PENDING
    elif not in_use(request, world) and not swapped and not tolerated:
        others = [
            each
            for each in rivals(request, world)
            if each.spec.taint.effect in BLOCKING_EFFECTS and not each.spec.finished
        ]
        works = any(each.status.phase is MaintenancePhase.IN_MAINTENANCE for each in others)
        if phase is MaintenancePhase.IN_MAINTENANCE:
            assert not works
        else:  # a request that was ready before an older one began to isolate keeps the device
            assert phase is MaintenancePhase.ISOLATED
            assert works or any(made(each) < made(request) for each in others)
    else:
        assert phase in {MaintenancePhase.ISOLATED, MaintenancePhase.DRAINING}


def _judge_extent(request: DeviceMaintenance, world: World, devices: dict[str, DeviceTaintRule]) -> None:
    """Every device that the request means, and that exists, has a rule."""
    asked, boards = request.spec.device_selector.device, dict(world.devices)
    if not is_exact(request.spec.device_selector):  # its devices were fixed when it began
        meant = {each.device for each in request.status.devices if not each.overlaps}
        assert boards.keys() & meant <= devices.keys()
    elif not asked or asked in boards or any(number(name) == asked for name in boards):
        assert {name for name in boards if not asked or same(name, asked)} <= devices.keys()
    elif asked in devices:  # the device moved with its board, or the board is divided differently now
        board, part = isolated_board(devices[asked]), asked.removeprefix(number(asked))
        there = {name for name, uuid in boards.items() if uuid == board}
        assert {name for name in there if same(number(name) + part, name)} <= devices.keys()
