"""The world of the model of maintenance: a one-node cluster, what its claims hold, and how its pods, Jobs and agent behave."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.progress import DrainPlan, FailedJob, JobsState, Purpose
from draco.maintenance.selecting.fleet import FleetPool, PhysicalGpu
from draco.maintenance.selecting.matching import MaintenanceScope, has_begun
from draco.maintenance.selecting.rehearsal import PoolSelection, Selected
from draco.maintenance.selecting.selectors import test_of
from draco.maintenance.taint_rules import isolated_board, maintained_device, maintenance_uid
from draco.maintenance.working.verification import AgentVerdict
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.api.maintenance import (
    Approval,
    DeadlineAction,
    DeviceMaintenance,
    DrainPolicy,
    MaintainedDevice,
    MaintenanceDeadline,
    MaintenanceDrain,
    MaintenanceSchedule,
    MaintenanceSelector,
    MaintenanceVerification,
    MaintenanceWork,
    VerificationMode,
)
from draco.resources.api.meta import TimeWindow
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import MOMENT, a_slice

KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "approval": {"approval": Approval.REQUIRED},
    "work": {"work": MaintenanceWork(from_cron_job="reset")},
    "verify": {"verification": MaintenanceVerification(mode=VerificationMode.JOB, from_cron_job="probe")},
    "evict": {"drain": MaintenanceDrain(policy=DrainPolicy.NO_EXECUTE)},
    "fail": {"deadline": MaintenanceDeadline(after="1m")},
    "cancel": {"deadline": MaintenanceDeadline(after="1m", action=DeadlineAction.CANCEL)},
    "later": {"schedule": MaintenanceSchedule(start=MOMENT + timedelta(minutes=5))},
    "window": {"schedule": MaintenanceSchedule(windows=[TimeWindow(start="00:00", duration="23h58m")])},
}
SELECTORS: Final = {
    "all of the node": MaintenanceSelector(node_name="node-1"),
    "whole GPUs": MaintenanceSelector(
        selectors=[DeviceSelector(cel=CelSelector(expression=f'"uuid" in device.attributes["{NVIDIA_DRIVER}"]'))]
    ),
    "what a typing error means": MaintenanceSelector(
        selectors=[DeviceSelector(cel=CelSelector(expression="device.driver = 'gpu'"))]
    ),
}
"""Selectors whose devices are fixed when a request begins."""
POOL: Final = PoolKey(NVIDIA_DRIVER, "node-1")


class World(msgspec.Struct, frozen=True):
    """Everything in the API server, and therefore everything that a watch shows. Never changed, only replaced."""

    rules: dict[str, DeviceTaintRule]
    requests: dict[str, DeviceMaintenance]
    claims: dict[str, ResourceClaim]
    devices: tuple[tuple[str, str], ...]
    """The published devices by name, each with the UUID of its board."""
    limit: int | None = None
    """How many GPUs the budget allows out of service at the same time."""
    percent: int | None = None
    """The same, as a percentage of the published GPUs."""
    paused: bool = False
    jobs: dict[str, str] = {}
    """The state of the Jobs of each request, by UID and purpose: running, succeeded or failed."""
    sick: frozenset[str] = frozenset()
    """Boards that their agent reports as unhealthy."""

    @property
    def hardware(self) -> PoolHardware:
        return hardware_of(self.devices)


@cache
def hardware_of(devices: tuple[tuple[str, str], ...]) -> PoolHardware:
    return PoolHardware([a_slice("node-1", [device(*each) for each in devices])])


@cache
def fleet_of(devices: tuple[tuple[str, str], ...]) -> FleetPool:
    return FleetPool(POOL, [a_slice("node-1", [device(*each) for each in devices])])


def gpus_of(pool: FleetPool, devices: Iterable[MaintainedDevice | DeviceKey]) -> set[PhysicalGpu]:
    """The GPUs of these devices of the pool, as they are or were when isolated."""
    return {pool.gpu(each.device, each.uuid if isinstance(each, MaintainedDevice) else "") for each in devices}


def kept_out(world: World) -> frozenset[PhysicalGpu]:
    """The GPUs that requests keep out of service: requests that have begun and are not returning them."""
    pool = fleet_of(world.devices)
    begun = [each for each in world.requests.values() if has_begun(each) and not each.is_returning]
    return frozenset(gpu for each in begun for gpu in gpus_of(pool, each.status.devices))


def out_of_service(world: World, *, living: bool = False, without: str = "") -> frozenset[PhysicalGpu]:
    """The GPUs out of service by requests or rules; only those of `living` requests, and not those of request `without`."""
    pool = fleet_of(world.devices)
    found: set[PhysicalGpu] = set()
    for uid, request in world.requests.items():
        if has_begun(request) and uid != without:
            found |= gpus_of(pool, request.status.devices)
    for each in world.rules.values():
        uid, device = maintenance_uid(each), maintained_device(each)
        counts = uid and uid != without and (uid in world.requests or not living)
        if counts and device and each.spec.taint.effect in BLOCKING_EFFECTS:
            found.add(pool.gpu(device.device, isolated_board(each)))
    return frozenset(found)


def allowed_out(world: World) -> int | None:
    """How many GPUs may be out of service; None for any number."""
    limits = [] if world.limit is None else [world.limit]
    if world.percent is not None:
        limits.append(max(len({board for _, board in world.devices}) * world.percent // 100, min(world.percent, 1)))
    return min(limits, default=None)


def selected_in(world: World, request: DeviceMaintenance) -> Selected:
    """What a request selects that has not begun and whose selector has more than names."""
    asked = PoolSelection(test_of(request.spec.device_selector, {}))
    asked.add(fleet_of(world.devices))
    return asked.result()


def device(name: str, board: str) -> Device:
    return Device(name=name, attributes={"parentUUID" if "mig" in name else "uuid": DeviceAttribute(string=board)})


def key(name: str) -> DeviceKey:
    return DeviceKey(*POOL, name)


def made(request: DeviceMaintenance) -> datetime:
    assert request.metadata.creation_timestamp is not None
    return request.metadata.creation_timestamp


def is_current(request: DeviceMaintenance) -> bool:
    """Whether the status reflects the request's current generation."""
    return request.status.observed_generation == request.metadata.generation


def number(name: str) -> str:
    """The GPU to which a device belongs."""
    return "-".join(name.split("-")[:2])


def same(one: str, other: str) -> bool:
    """Whether two devices share hardware: the whole GPU with each part, but not two parts with each other."""
    return one == other or (number(one) == number(other) and ("mig" not in one or "mig" not in other))


def draining(
    request: DeviceMaintenance, scope: MaintenanceScope, claims: tuple[ResourceClaim, ...], now: datetime
) -> DrainPlan | None:
    """Pods are evicted immediately, and deleted after a while."""
    devices = {*scope.named, *scope.overlapping}
    leaving = tuple(each.metadata.key for each in claims if not devices.isdisjoint(each.devices_held))
    if request.spec.drain.policy is DrainPolicy.WAIT or not has_begun(request) or not leaving:
        return None
    since = request.status.draining_at
    return DrainPlan(leaving=leaving, no_execute=since is not None and now - since > timedelta(minutes=1))


def jobs_of(request: DeviceMaintenance, purpose: Purpose, seen: World) -> JobsState | None:
    asked = request.spec.work if purpose is Purpose.WORK else request.spec.verification.from_cron_job
    if not asked:
        return None
    name = f"{request.metadata.uid} {purpose}"
    state = seen.jobs.get(name)
    return JobsState(
        wanted=1,
        missing=() if state else (name,),
        running=(name,) if state == "running" else (),
        succeeded=(name,) if state == "succeeded" else (),
        failed=(FailedJob(name),) if state == "failed" else (),
    )


def agents_of(scope: MaintenanceScope, isolated: Mapping[DeviceKey, str], seen: World) -> AgentVerdict | None:
    bad = {board for device in scope.named for board in (scope.boards.get(device, ""),) if board in seen.sick}
    return AgentVerdict(bad=tuple(f"{board} is sick." for board in sorted(bad))) if scope.named or isolated else None


def in_use(request: DeviceMaintenance, world: World) -> set[str]:
    """Devices of the request's hardware that claims hold. The whole GPU of a partition counts only as that partition."""
    return {
        held
        for held in held_in(world)
        for each in request.status.devices
        if (held == each.device if each.overlaps else same(held, each.device))
    }


def rivals(request: DeviceMaintenance, world: World) -> list[DeviceMaintenance]:
    """Other requests for some of its devices; two partitions are independent."""
    mine = {each.key: each.overlaps for each in request.status.devices}
    return [
        other
        for uid, other in world.requests.items()
        if uid != request.metadata.uid
        and any(each.key in mine and not (each.overlaps and mine[each.key]) for each in other.status.devices)
    ]


def held_in(world: World) -> set[str]:
    return {device.device for claim in world.claims.values() for device in claim.devices_held}
