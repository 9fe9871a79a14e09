"""The GpuUsage of this node: what `draco top` shows.

Owns the object's existence and its status, and how often it is written: soon when users come or go, seldom for figures that
moved, never while nothing changes. No program watches these objects. If the kind is not installed, the agent works without it.
"""

from contextlib import suppress

import msgspec
import structlog

from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.nvml_usage import DeviceUse
from draco.agent.report.own_object import OwnObject
from draco.agent.usage.findings import UsageFindings
from draco.agent.usage.names import profile_name, published_name
from draco.agent.usage.reading import UsageReading
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import KubeError
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.api.meta import ObjectKey
from draco.resources.api.usage import DeviceUsage, DeviceUser, GpuUsageStatus, HeldTime, UnusedDevice
from draco.resources.kinds import GPU_USAGES
from draco.resources.names import FIELD_MANAGER_AGENT, GpuUuid

log = structlog.get_logger()

FIGURES_S = 30.0
"""The shortest time between two writes if only figures moved."""
FRESH_S = 300.0
"""The longest time between two writes, so that a reader can tell an unchanged node from a dead one."""
MOVED_PERCENT = 5
"""Smaller moves of a utilization, or of memory in percent of the device's, are not worth a write."""


def status(reading: UsageReading, unused: list[UnusedDevice], held: list[HeldTime]) -> GpuUsageStatus:
    """What a reading says."""
    gpus = {gpu.uuid: gpu for gpu in reading.gpus}
    users = [
        DeviceUser(
            uuid=use.device.uuid,
            namespace=use.namespace,
            claim=use.claim.name if use.claim else "",
            pod=use.pod,
            container=use.place.name,
            processes=use.processes,
            memory_used_bytes=use.memory_bytes,
            utilization_percent=use.utilization,
        )
        for use in reading.uses
    ]
    return GpuUsageStatus(
        time=reading.at.replace(microsecond=0),
        devices=[_device(one, gpus) for one in reading.devices],
        users=sorted(users, key=_identity),
        unused=unused,
        held=held,
        unread=list(reading.unread),
    )


def _device(one: DeviceUse, gpus: dict[GpuUuid, Gpu]) -> DeviceUsage:
    gpu = gpus[one.gpu]
    return DeviceUsage(
        uuid=one.uuid,
        device=published_name(gpu, one),
        gpu="" if one.instance is None else one.gpu,
        product_name=gpu.product_name,
        profile=profile_name(gpu, one),
        memory_total_bytes=one.total_bytes,
        memory_used_bytes=one.used_bytes,
        utilization_percent=one.utilization,
    )


def _identity(user: DeviceUser) -> tuple[str, ...]:
    return (user.uuid, user.namespace, user.claim, user.pod, user.container)


def _cast(said: GpuUsageStatus) -> object:
    """Who and what is there, without figures."""
    users = [(_identity(one), one.processes) for one in said.users]
    return [one.uuid for one in said.devices], users, said.unread, said.unused


def has_moved(before: GpuUsageStatus, after: GpuUsageStatus) -> bool:
    """Whether figures of two readings with the same devices and users differ so much that a person would want to know."""
    total = {one.uuid: one.memory_total_bytes or 0 for one in after.devices}
    pairs: list[tuple[DeviceUsage | DeviceUser, DeviceUsage | DeviceUser]] = [
        *zip(before.devices, after.devices, strict=True),
        *zip(before.users, after.users, strict=True),
    ]
    return any(
        _differ(one.utilization_percent, other.utilization_percent, 100)
        or _differ(one.memory_used_bytes, other.memory_used_bytes, total.get(other.uuid, 0))
        for one, other in pairs
    )


def _differ(one: int | None, other: int | None, whole: int) -> bool:
    if one is None or other is None:
        return one is not other
    return one != other and (0 in (one, other) or abs(one - other) * 100 >= MOVED_PERCENT * whole)


class UsageReporter:
    """Writes the GpuUsage after readings that are worth it."""

    def __init__(self, client: Client, findings: UsageFindings, *, node: str, clock: Clock) -> None:
        self._findings = findings
        self._client = client
        self._object = OwnObject(client, GPU_USAGES, node)
        self._node = node
        self._clock = clock
        self._queue: WorkQueue[str] = WorkQueue(clock=clock, base_s=1.0, cap_s=300.0)
        self._wanted: GpuUsageStatus | None = None
        self._written: GpuUsageStatus | None = None
        self._written_s = 0.0
        self._is_complete = False

    def read(self, reading: UsageReading) -> None:
        """Report a reading if it is worth it, with what was found in it."""
        self._wanted = status(reading, self._findings.unused.reported(reading), self._findings.held.reported())
        if self._is_due(self._wanted):
            self._queue.add(self._node)

    def _is_due(self, wanted: GpuUsageStatus) -> bool:
        before, ago_s = self._written, self._clock.monotonic() - self._written_s
        if before is None or ago_s >= FRESH_S or _cast(before) != _cast(wanted):
            return True
        return ago_s >= FIGURES_S and has_moved(before, wanted)

    async def restore(self) -> None:
        """Take over what the last agent reported as unused and as held, if that can be read now."""
        with suppress(KubeError):
            said = await self._object.read_or_create()
            if said is not None:
                self._findings.unused.restore(said.status, self._clock.now())
                self._take_over(said.status)

    def _take_over(self, said: GpuUsageStatus) -> None:
        """Add what was counted before. Nothing is written without it: a write replaces it."""
        self._findings.held.restore(said.held)
        self._is_complete = True

    async def run(self) -> None:
        """Report until cancelled."""
        await run_workers(self._queue, self._write, workers=1, log=log)

    async def _write(self, node: str) -> float | None:
        wanted = self._wanted
        if wanted is None or not self._is_due(wanted):
            return None
        said = await self._object.read_or_create()
        if said is None:
            self._written, self._written_s = wanted, self._clock.monotonic()  # asks again with the next change
            return None
        if not self._is_complete:
            self._take_over(said.status)
            wanted = msgspec.structs.replace(wanted, held=self._findings.held.reported())
        await self._client.apply(
            GPU_USAGES,
            ObjectKey("", node),
            {"status": msgspec.to_builtins(wanted)},
            manager=FIELD_MANAGER_AGENT,
            subresource="status",
        )
        self._written, self._written_s = wanted, self._clock.monotonic()
        return None
