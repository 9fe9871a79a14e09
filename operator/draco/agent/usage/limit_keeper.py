"""Checks that the driver holds containers to the memory limits of their claims, and sets a limit that is missing.

The hook in the claim's spec sets it before the container starts; the driver forgets it when it is loaded again, and the
container's environment proves nothing. So the driver is asked after every reading of who uses the GPUs. Where processes of one
pod may belong to several claims, all of their limits together count.

Owns this check, in a thread of its own: nobody waits for it. A limit that is too low is left alone.
"""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from draco.agent.claims.memory_limits import limits_mib
from draco.agent.hardware.nvml_errors import GpuUnknown, NvmlError
from draco.agent.hardware.nvml_limits import NvmlMemory
from draco.agent.hardware.nvml_memory import CGROUPS
from draco.agent.mig.holders import Holders
from draco.agent.threads import DaemonExecutor
from draco.agent.usage.attribution import ContainerUse
from draco.agent.usage.reading import UsageReading
from draco.kube.clock import Clock
from draco.resources.names import GpuUuid

log = structlog.get_logger()

REASON = "MemoryLimitMissing"


class Tell(Protocol):
    """Records an Event on the node; see `report.node_events`."""

    def __call__(self, reason: str, action: str, note: str, about: str = "") -> None:
        """Record it. `about` distinguishes series."""


class LimitKeeper:
    """The check. `cgroups` is where the node's cgroups are mounted."""

    def __init__(
        self, memory: NvmlMemory, holders: Holders, *, tell: Tell, clock: Clock, cgroups: Path = CGROUPS
    ) -> None:
        self._memory = memory
        self._holders = holders
        self._tell = tell
        self._clock = clock
        self._cgroups = cgroups
        self._woken = asyncio.Event()
        self._reading: UsageReading | None = None
        self._told: set[tuple[GpuUuid, str]] = set()

    def read(self, reading: UsageReading) -> None:
        """Who uses the GPUs was read."""
        self._reading = reading
        self._woken.set()

    async def run(self) -> None:
        """Check after every reading, until cancelled."""
        thread = DaemonExecutor("limits", monotonic=self._clock.monotonic)
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                await self.check(() if self._reading is None else self._reading.uses, thread)
        finally:
            thread.close()

    async def check(self, uses: Iterable[ContainerUse], thread: DaemonExecutor) -> None:
        """Check once, in the thread."""
        limited = [(use, mib) for use in uses if (mib := _limit_mib(use))]
        for use, mib in limited:
            await self._keep(thread, use, mib)
        self._told &= {(use.device.gpu, use.place.container) for use, _ in limited}

    async def _keep(self, thread: DaemonExecutor, use: ContainerUse, mib: int) -> None:
        where = (use.device.gpu, use.place.container)
        whose = f"container {use.place.name or use.place.container[:12]} of pod {use.namespace}/{use.pod}"
        try:
            problem = await thread.run(partial(self._set_if_missing, use, mib << 20))
        except NvmlError as error:
            problem = f"and it cannot be set: {error}"
        if not problem:
            self._told.discard(where)
        elif where not in self._told:
            self._told.add(where)
            log.warning("memory_limit.missing", gpu=use.device.gpu, container=use.place.container, outcome=problem)
            note = f"The driver did not hold {whose} to its {mib} MiB of GPU {use.device.gpu}, {problem}"
            self._tell(REASON, "SetLimit", note, f"{use.device.gpu}/{use.place.container}")

    def _set_if_missing(self, use: ContainerUse, limit: int) -> str:
        """Set the limit if the driver holds none, or a higher one; what was done, "" for nothing. Raises NvmlError."""
        for process in use.device.processes:
            if self._holders.place(process.pid).container != use.place.container:
                continue
            folders = list(_up_to(self._cgroups, self._holders.cgroup(process.pid), use.place.container))
            try:
                found = [self._memory.read(use.device.gpu, each).hard for each in folders]
                if folders and all(each is None or each > limit for each in found):
                    self._memory.limit(use.device.gpu, folders[-1], limit)
                    return "and does so now; what is above it stays until it is freed."
            except GpuUnknown:
                if folders[-1].is_dir():  # else the container has ended meanwhile
                    return "and keeps no account of its cgroup: is the kernel's controller dmem enabled for containers?"
        return ""


def _limit_mib(use: ContainerUse) -> int:
    """The limit of a container on a GPU; 0 without one, or for processes in no container."""
    if not use.place.container or use.device.instance is not None:
        return 0
    return sum(limits_mib(claim).get(use.device.gpu, 0) for claim in use.claims)


def _up_to(cgroups: Path, cgroup: str, container: str) -> Iterator[Path]:
    """The folders of a process's cgroup and of those above it, up to its container's."""
    parts = Path(cgroup.lstrip("/")).parts
    of_container = next((n for n, part in enumerate(parts) if container in part), None)
    if of_container is None or ".." in parts:
        return
    for length in range(len(parts), of_container, -1):
        yield cgroups.joinpath(*parts[:length])
