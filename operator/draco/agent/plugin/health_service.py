"""The health of devices, streamed to kubelet for pod status.

Owns the stream: the whole list immediately, again on every change, and before kubelet considers it outdated. A list carries the
time of the last reading, so kubelet notices when the GPUs cannot be read any more.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import msgspec

from draco.agent.hardware.faults import health
from draco.agent.hardware.gpus import Gpu, GpuMigView, device_name
from draco.agent.hardware.monitor import HardwareView
from draco.agent.plugin.api.health_v1_pb2 import DeviceHealth, DeviceIdentifier, NodeWatchResourcesResponse
from draco.agent.record.contents import PreparedClaim, PreparedDevice
from draco.health.judgement import blocking
from draco.health.table import HealthState
from draco.resources.names import GpuUuid

NO_DIVISIONS: Mapping[GpuUuid, GpuMigView] = MappingProxyType({})
TIMEOUT_S = 30
"""After this time without news kubelet reports a device as Unknown."""
MESSAGE_LIMIT = 1024
GONE = "Its GPU instance is gone; when it has been made again, restart the containers that use it."


class DeviceReport(msgspec.Struct, frozen=True):
    """Health at `at` (Unix seconds). `part`: a partition of `gpu`. `fault`: the one in the message, "" for none."""

    device: str
    state: HealthState
    message: str
    at: int
    gpu: GpuUuid = GpuUuid("")
    part: bool = False
    fault: str = ""


def claimed_reports(
    whole: Iterable[DeviceReport],
    view: HardwareView,
    claims: Iterable[PreparedClaim],
    divisions: Mapping[GpuUuid, GpuMigView],
) -> list[DeviceReport]:
    """Health of claimed devices that are not whole GPUs under their current name: partitions, and renamed GPUs.

    It is that of their GPU, unless the instance itself is gone or has a fault. Before the first reading it is Unknown.
    """
    devices = [device for claim in claims for device in claim.devices]
    if view.driver is None:
        return list({device.device: _unread(device, view.fault) for device in devices}.values())
    gpus = {gpu.uuid: gpu for gpu in view.gpus}
    names = {gpu.uuid: device_name(gpu) for gpu in view.gpus}
    parents = {one.device: one for one in whole}
    found: dict[str, DeviceReport] = {}
    for device in devices:
        parent = parents.get(names.get(device.gpu, ""))
        if parent is None or device.device in parents:
            continue
        worst = None if device.partition is None else blocking(gpus[device.gpu].faults, device.partition.mask)
        if parent.state is HealthState.HEALTHY and worst is not None:
            said = worst.status
            parent = msgspec.structs.replace(parent, state=worst.health, message=said.message, fault=said.name)
        division = divisions.get(device.gpu)
        if parent.state is HealthState.HEALTHY and division is not None and device.key in division.missing:
            message = f"{GONE} {division.message}".strip()
            parent = msgspec.structs.replace(parent, state=HealthState.UNHEALTHY, message=message)
        found[device.device] = msgspec.structs.replace(parent, device=device.device, part=device.key is not None)
    return list(found.values())


def reports(view: HardwareView) -> list[DeviceReport]:
    """Health of every GPU of a view. After a failed reading it is Unknown. A fault persists: no GPU recovers unobserved."""
    at = int(view.read_at.timestamp()) if view.read_at else 0
    return [_report(gpu, view.fault, at) for gpu in view.gpus]


def _unread(device: PreparedDevice, why: str) -> DeviceReport:
    return DeviceReport(device.device, HealthState.UNKNOWN, why, 0, gpu=device.gpu, part=device.partition is not None)


def _report(gpu: Gpu, unread: str, at: int) -> DeviceReport:
    state, fault = health(gpu)
    name, message = (fault.status.name, fault.status.message) if fault is not None else ("", "")
    if unread and state is not HealthState.UNHEALTHY:
        state, message = HealthState.UNKNOWN, unread
    return DeviceReport(device_name(gpu), state, message, at, gpu=gpu.uuid, fault=name)


class HealthService:
    """The DRAResourceHealth service, in kubelet's versions v1 and v1alpha1. `update` is called with every new view."""

    def __init__(self, *, pool: str, timeout_s: int = TIMEOUT_S) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._reports: list[DeviceReport] = []
        self._changed = asyncio.Event()
        self._open = True
        self._told = asyncio.Event()

    def close(self) -> None:
        """End every stream: the agent is stopping."""
        self._open = False
        self._told.set()
        self._changed.set()

    @property
    def reports(self) -> list[DeviceReport]:
        """The latest reports, without their times."""
        return [msgspec.structs.replace(one, at=0) for one in self._reports]

    def update(
        self,
        view: HardwareView,
        claims: Iterable[PreparedClaim] = (),
        divisions: Mapping[GpuUuid, GpuMigView] = NO_DIVISIONS,
    ) -> bool:
        """Take a new view, and the claimed devices; returns whether a state or message differs. Streams send that immediately."""
        self._told.set()
        whole = reports(view)
        before, self._reports = self.reports, [*whole, *claimed_reports(whole, view, claims, divisions)]
        if self.reports == before:
            return False
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def watch(self, _request: Any, _context: Any) -> AsyncIterator[NodeWatchResourcesResponse]:
        """Serve NodeWatchResources."""
        await self._told.wait()  # until then kubelet keeps what the previous agent said
        while self._open:
            changed = self._changed
            yield self._response()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / 3):
                    await changed.wait()

    def _response(self) -> NodeWatchResourcesResponse:
        return NodeWatchResourcesResponse(
            devices=[
                DeviceHealth(
                    device=DeviceIdentifier(pool_name=self._pool, device_name=one.device),
                    health=one.state.name,
                    last_updated_time=one.at,
                    health_check_timeout_seconds=self._timeout_s,
                    message=one.message[:MESSAGE_LIMIT],
                )
                for one in self._reports
            ]
        )
