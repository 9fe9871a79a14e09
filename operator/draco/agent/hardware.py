"""The node's GPUs as they are now: one thread that reads NVML, and the latest view for everybody else.

Owns the NVML session, its thread, and when it is read: at start, at intervals, and when NVML reports an event. Decides nothing:
it tells its subscribers that the view is new. Claims change instances in a thread of their own; the session's lock keeps the two
apart.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import MappingProxyType

import msgspec
import structlog

from draco.agent.fault_record import FaultRecord
from draco.agent.gpus import DriverInfo, EventKind, Gpu, GpuEvent, UnidentifiedGpu
from draco.agent.nvml import Nvml
from draco.agent.nvml_errors import DriverReloaded, NvmlError
from draco.agent.pcie import PcieRoots
from draco.agent.slices import Located, device_name
from draco.kube.clock import Clock
from draco.resources.names import GpuUuid

log = structlog.get_logger()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs at one moment, absent ones included. `fault` says why they could not be read; the rest is from before."""

    driver: DriverInfo | None = None
    gpus: tuple[Located, ...] = ()
    unidentified: tuple[UnidentifiedGpu, ...] = ()
    fault: str = ""
    read_at: datetime | None = None

    @property
    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs by the names they are published under."""
        return MappingProxyType({device_name(located.gpu): located.gpu for located in self.gpus})

    @property
    def by_uuid(self) -> Mapping[GpuUuid, Gpu]:
        """GPUs by what they are. Whoever asks about a GPU, and not about a name, looks here."""
        return MappingProxyType({located.gpu.uuid: located.gpu for located in self.gpus})

    @property
    def present(self) -> tuple[Gpu, ...]:
        """Those that NVML lists."""
        return tuple(located.gpu for located in self.gpus if not located.gpu.absent)


class Hardware:
    """Reads the GPUs of one node. `view` is the latest; `ready` is set when there has been a first attempt.

    `divided` adds to each GPU what it can be divided into and what it is divided into; `named` gives all of them their names.
    `faults` remembers what NVML tells once.
    """

    def __init__(
        self,
        nvml: Nvml,
        pcie: PcieRoots,
        *,
        faults: FaultRecord,
        divided: Callable[[Sequence[Gpu]], Sequence[Gpu]],
        named: Callable[[View], Awaitable[View]],
        clock: Clock,
        rescan_s: float,
        retry_s: float,
        event_wait_s: float,
    ) -> None:
        self.view = View(fault="The GPUs have not been read yet.")
        self.ready = asyncio.Event()
        self._nvml = nvml
        self._pcie = pcie
        self._faults = faults
        self._divided = divided
        self._named = named
        self._last: View | None = None
        self._clock = clock
        self._rescan_s = rescan_s
        self._retry_s = retry_s
        self._event_wait_s = event_wait_s
        self._subscribers: list[Callable[[View], None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")

    def subscribe(self, callback: Callable[[View], None]) -> None:
        """Call `callback` after every reading, also when nothing changed."""
        self._subscribers.append(callback)

    async def show_again(self) -> None:
        """Show the last reading once more: its GPUs may have other names."""
        if self._last is not None:
            self._show(await self._named(self._last))

    async def run(self) -> None:
        """Read until cancelled; then end the session. A driver that is missing or reloaded is tried again."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    self._last = await loop.run_in_executor(self._thread, self._read)
                    self._show(await self._named(self._last))
                    await self._until_next()
                except NvmlError as error:
                    if isinstance(error, DriverReloaded):
                        await loop.run_in_executor(self._thread, self._faults.reloaded)
                    await loop.run_in_executor(self._thread, self._close)
                    if self.view.fault != str(error):
                        log.warning("nvml.unreadable", error=str(error), again_in_s=self._retry_s)
                    self._show(msgspec.structs.replace(self.view, fault=str(error)))
                    await self._clock.sleep(self._retry_s)
        finally:
            await loop.run_in_executor(self._thread, self._close)
            self._thread.shutdown(wait=False)

    def _read(self) -> View:
        with self._nvml.lock:
            self._nvml.open()
            driver = self._nvml.driver()
            located = tuple(self._locate(gpu) for gpu in self._divided(self._faults.look(self._nvml.gpus())))
            return View(driver=driver, gpus=located, unidentified=self._nvml.unidentified(), read_at=self._clock.now())

    def _close(self) -> None:
        with self._nvml.lock:
            self._nvml.close()

    def _locate(self, gpu: Gpu) -> Located:
        address = gpu.pci_bus_id
        # sysfs says -1 for "no node" and NVML has no such answer, so the kernel is asked first.
        numa_node = self._pcie.numa_node(address)
        return Located(gpu, self._pcie.root(address), gpu.numa_node if numa_node is None else numa_node)

    async def _until_next(self) -> None:
        """Return when it is time to read again, or when NVML has reported something."""
        if self._event_wait_s <= 0:
            await self._clock.sleep(self._rescan_s)
            return
        loop = asyncio.get_running_loop()
        due = self._clock.monotonic() + self._rescan_s
        while (left_s := due - self._clock.monotonic()) > 0:
            events = await loop.run_in_executor(self._thread, self._wait, min(left_s, self._event_wait_s))
            for event in events:
                if event.kind is EventKind.MIG_CHANGED:  # most of these changes are our own
                    log.debug("gpu.event", kind=event.kind, gpu=event.gpu, data=event.data)
                else:
                    log.warning("gpu.event", kind=event.kind, gpu=event.gpu, data=event.data)
            if events:
                self._condemn()
                return

    def _wait(self, seconds: float) -> list[GpuEvent]:
        found = []
        for event in self._nvml.wait_events(max(1, int(seconds * 1000))):
            self._faults.happened(event)  # one by one: an error that ends the wait takes no event along
            found.append(event)
        return found

    def _condemn(self) -> None:
        """Show at once what the events mean. The next reading may take its time: it is of a GPU that has just failed."""
        if self._last is not None:
            self._last = self._judged(self._last)
        fresh = self._judged(self.view)
        if fresh != self.view:
            self._show(fresh)

    def _judged(self, view: View) -> View:
        gpus = self._faults.judge(located.gpu for located in view.gpus)
        judged = zip(view.gpus, gpus, strict=True)
        return msgspec.structs.replace(
            view, gpus=tuple(msgspec.structs.replace(located, gpu=gpu) for located, gpu in judged)
        )

    def _show(self, view: View) -> None:
        self.view = view
        self.ready.set()
        for callback in self._subscribers:
            callback(view)
