"""The node's current GPUs: one thread that reads NVML, and the latest view for everybody else.

Owns the NVML session, its thread, and when it reads: at start, at intervals, and when NVML reports an event; and a GPU's place
from sysfs, because NVML knows neither its PCIe root complex nor, on most boards, its NUMA node. Decides nothing: it tells its
subscribers that the view is new. Claims change instances in another thread; the session's lock keeps the two apart. A call of the
driver may never return. So the thread is watched: if it is late, the view says which call hangs and since when, the GPU concerned
takes no new work, and the knowledge about the others is kept.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec
import structlog

from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.faults import DRIVER_HANGS, DRIVER_MISMATCH, UNREADABLE, only_sign, with_fault, with_sign
from draco.agent.hardware.gpus import DriverInfo, EventKind, Gpu, GpuEvent, UnidentifiedGpu, device_name
from draco.agent.hardware.nvml import Nvml, NvmlCall
from draco.agent.hardware.nvml_errors import CallError, DriverReloaded, NotSupported, NvmlError
from draco.agent.threads import DaemonExecutor
from draco.health.ledger import InstancePlace, Sign
from draco.kube.clock import Clock

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class SysfsPcieRoots:
    """Reads a device's place by its PCI address, e.g. `0000:1b:00.0`, from the sysfs mounted at `sysfs_root`."""

    def __init__(self, sysfs_root: Path = Path("/sys")) -> None:
        self._devices = sysfs_root / "bus" / "pci" / "devices"

    def root(self, pci_bus_id: str) -> str | None:
        """resource.kubernetes.io/pcieRoot, e.g. `pci0000:15`: the first root complex in the device's path. None if unknown."""
        try:
            place = (self._devices / pci_bus_id).resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        return next((part for part in place.parts if _ROOT.fullmatch(part)), None)

    def numa_node(self, pci_bus_id: str) -> int | None:
        """The NUMA node; None if the machine has none (the kernel's -1), or it is unknown."""
        try:
            node = int((self._devices / pci_bus_id / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


log = structlog.get_logger()

T = TypeVar("T")


_CLOSING_S = 5.0
"""How long to wait for a session to end; a hanging call is left behind."""


class HardwareView(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs at one moment, absent ones included. `fault` says why they could not be read; the rest is older then."""

    driver: DriverInfo | None = None
    gpus: tuple[Gpu, ...] = ()
    unidentified: tuple[UnidentifiedGpu, ...] = ()
    fault: str = ""
    read_at: datetime | None = None
    hang: NvmlCall | None = None
    """The call that hangs; `fault` has the sentence."""
    mismatch: str = ""
    """Why no container could use a GPU though NVML answers: the driver's files and loaded modules have different versions."""
    deaf: str = ""
    """Why NVML reports no events: the GPUs are read at intervals only, and XIDs are missed."""

    @property
    def driver_version(self) -> str:
        """The version of the loaded driver, "" if unknown."""
        return self.driver.driver_version if self.driver is not None else ""

    @property
    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs by their published names."""
        return MappingProxyType({device_name(gpu): gpu for gpu in self.gpus})

    @property
    def present(self) -> tuple[Gpu, ...]:
        """The GPUs that NVML lists."""
        return tuple(gpu for gpu in self.gpus if not gpu.absent)


class HardwareMonitor:
    """Reads the GPUs of one node. `view` is the latest; `ready` is set after the first attempt.

    `divided` adds each GPU's board and instances; `named` gives all of them their names. `faults` persists what NVML reports
    once. `mismatch` says why the driver's files do not match the loaded version.
    """

    def __init__(
        self,
        nvml: Nvml,
        pcie: SysfsPcieRoots,
        *,
        faults: FaultRecord,
        divided: Callable[[Sequence[Gpu]], Sequence[Gpu]],
        named: Callable[[HardwareView], Awaitable[HardwareView]],
        mismatch: Callable[[str], str] = lambda _: "",
        clock: Clock,
        rescan_s: float,
        retry_s: float,
        event_wait_s: float,
        limit_s: float = 30.0,
        probe_s: float = 2.0,
    ) -> None:
        self.view = HardwareView(fault="The GPUs have not been read yet.")
        self.ready = asyncio.Event()
        self._nvml = nvml
        self._pcie = pcie
        self._faults = faults
        self._divided = divided
        self._named = named
        self._mismatch = mismatch
        self._last: HardwareView | None = None
        self._clock = clock
        self._rescan_s = rescan_s
        self._retry_s = retry_s
        self._event_wait_s = event_wait_s
        self._limit_s = limit_s
        self._probe_s = min(probe_s, rescan_s)
        self._subscribers: list[Callable[[HardwareView], None]] = []
        self._executor = DaemonExecutor("nvml", monotonic=clock.monotonic)
        self._calm = self.view  # the view without the hang
        self._due_s = clock.monotonic()  # when the thread is expected, or was expected, to report
        self._read_s = clock.monotonic()
        self._hang: NvmlCall | None = None
        self._said = ""
        self._deaf = ""
        self._hanging = asyncio.Event()  # set while NVML hangs

    def subscribe(self, callback: Callable[[HardwareView], None]) -> None:
        """Call `callback` after every reading, also when nothing changed."""
        self._subscribers.append(callback)

    async def show_again(self) -> None:
        """Show the last reading again: its GPUs may have other names."""
        if self._last is not None:
            self._show(await self._named_last(self._last))

    def judge_again(self) -> None:
        """Judge the known faults again: policies have changed."""
        self._condemn()

    @property
    def reading_age_s(self) -> float:
        """Seconds since the last reading, or since the start."""
        return self._clock.monotonic() - self._read_s

    async def unless_hanging(self, task: "asyncio.Task[None]") -> None:
        """Return when the task has ended, or NVML hangs."""
        hanging = asyncio.create_task(self._hanging.wait())
        try:
            await asyncio.wait({task, hanging}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hanging.cancel()

    async def run(self) -> None:
        """Read until cancelled; then end the session. A missing or reloaded driver is tried again."""
        watching = asyncio.create_task(self._watch(), name="nvml watch")
        try:
            while True:
                try:
                    await self._read_once()
                    await self._until_next()
                except NvmlError as error:
                    if self._calm.fault != str(error):
                        log.warning("nvml.unreadable", error=str(error), again_in_s=self._retry_s)
                    # Show first: a call that hung may be over, and nothing else would say that there is no reading.
                    self._show(msgspec.structs.replace(self._calm, fault=str(error)))
                    await self._heard_by(0.0, partial(self._count_failure, error))
                    self._condemn()
                    await self._heard_by(0.0, self._close)
                    self._due_s = self._clock.monotonic() + self._retry_s
                    await self._clock.sleep(self._retry_s)
        finally:
            watching.cancel()
            closing = self._executor.submit(self._close)
            await asyncio.wait({closing}, timeout=self._event_wait_s + _CLOSING_S)
            self._executor.close()

    async def _read_once(self) -> None:
        before = self._calm
        reading = await self._heard_by(0.0, self._read)
        # The reading was judged by the policies at its beginning, and they may have changed.
        self._last = self._judged(reading)
        if self._last.mismatch not in ("", before.mismatch):
            log.error("driver.mismatch", error=self._last.mismatch)
        if self._last.deaf not in ("", before.deaf):
            log.warning("nvml.no_events", error=self._last.deaf)
        for one in self._last.unidentified:
            if one not in before.unidentified:
                log.warning("gpu.unidentified", index=one.index, gpu=one.uuid, error=one.message)
        self._read_s = self._clock.monotonic()
        self._calm = await self._named_last(self._last)
        self._mark(None)
        self._show(self._calm)

    async def _named_last(self, last: HardwareView) -> HardwareView:
        """The latest reading with its GPUs' names. A newer one may replace `last` while names are assigned."""
        while True:
            named = await self._named(last)
            if self._last is last or self._last is None:
                return named
            last = self._last

    async def _heard_by(self, seconds: float, work: Callable[[], T]) -> T:
        """Run work in the thread, which must report within so many seconds."""
        self._due_s = self._clock.monotonic() + seconds
        return await self._executor.run(work)

    async def _watch(self) -> None:
        """Notice when the thread is late, and when it is back."""
        while True:
            await self._clock.sleep(max(0.1, min(1.0, self._limit_s / 10)))
            late = self._clock.monotonic() - self._due_s > self._limit_s
            if late or self._hang is not None:
                self._mark(self._late_for() if late else None)

    def _late_for(self) -> NvmlCall:
        """The call that the thread waits for: the longest one, its own or another thread's."""
        call = self._nvml.calling
        if call is None or self._clock.monotonic() - call.since_s < self._limit_s / 2:
            return NvmlCall("", "", self._due_s)  # NVML answers; something else holds the thread
        return call

    def _mark(self, hang: NvmlCall | None) -> None:
        if hang == self._hang:
            return
        self._hang = hang
        if hang is None:
            log.info("nvml.answers")
            self._hanging.clear()
        else:
            self._said = self._sentence(hang)
            log.error("nvml.hangs", call=hang.function, gpu=hang.gpu, error=self._said)
            self._hanging.set()
        self._show(self._calm)

    def _sentence(self, hang: NvmlCall) -> str:
        since = self._clock.now() - timedelta(seconds=self._clock.monotonic() - hang.since_s)
        what = f"{hang} has not answered" if hang.function else "The GPUs have not been read"
        return f"{what} since {since:%H:%M:%S} UTC; look for NVRM in the node's kernel log, and reboot the node if it continues."

    def _read(self) -> HardwareView:
        with self._nvml.lock:
            self._nvml.open()
            deaf = self._deaf
            if self._event_wait_s > 0:
                try:
                    self._nvml.watch()  # before the reading, so that no later event is missed
                except CallError as error:
                    deaf = str(error)
                except NvmlError:
                    pass  # the reading raises it again
            driver = self._nvml.driver()
            mismatch = self._mismatch(driver.driver_version)
            seen = self._nvml.gpus()
            if mismatch:
                seen = [with_sign(gpu, Sign(DRIVER_MISMATCH, mismatch)) for gpu in seen]
            gpus = self._divided(self._faults.look(seen))
            return HardwareView(
                driver=driver,
                gpus=tuple(map(self._locate, gpus)),
                unidentified=self._nvml.unidentified(),
                read_at=self._clock.now(),
                mismatch=mismatch,
                deaf=deaf,
            )

    def _count_failure(self, error: NvmlError) -> None:
        """Record that no GPU could be read: known facts stay, and the state is Unknown."""
        if isinstance(error, DriverReloaded):
            self._faults.reloaded()
        unread = Sign(UNREADABLE, str(error))
        self._faults.look([only_sign(gpu, unread) for gpu in self._calm.present])

    def _close(self) -> None:
        with self._nvml.lock:
            self._nvml.close()

    def _locate(self, gpu: Gpu) -> Gpu:
        address = gpu.pci_bus_id
        # sysfs has -1 for "no node" and NVML has no such answer, so sysfs is read first.
        numa_node = gpu.numa_node if (told := self._pcie.numa_node(address)) is None else told
        return msgspec.structs.replace(gpu, pcie_root=self._pcie.root(address), numa_node=numa_node)

    async def _until_next(self) -> None:
        if self._event_wait_s <= 0:
            self._due_s = self._clock.monotonic() + self._pause_s
            await self._clock.sleep(self._pause_s)
            return
        due = self._clock.monotonic() + self._pause_s
        while (left_s := due - self._clock.monotonic()) > 0:
            wait_s = min(left_s, self._event_wait_s)
            try:
                events = await self._heard_by(wait_s, partial(self._wait, wait_s))
                self._deaf = ""
            except CallError as error:
                # Not every driver has events. The GPUs are still read at intervals.
                self._deaf = str(error)
                pause_s = left_s if isinstance(error, NotSupported) else min(left_s, self._retry_s)
                self._due_s = self._clock.monotonic() + pause_s
                await self._clock.sleep(pause_s)
                continue
            for event in events:
                if event.kind is EventKind.MIG_CHANGED:  # mostly our own changes
                    log.debug("gpu.event", kind=event.kind, gpu=event.gpu, data=event.data)
                else:
                    log.warning("gpu.event", kind=event.kind, gpu=event.gpu, data=event.data)
            if events:
                self._condemn()
                return

    @property
    def _pause_s(self) -> float:
        """Seconds to the next reading: few while a fault ends or a GPU joins its fabric, for which NVML sends no event."""
        joining = self._last is not None and any(gpu.joining for gpu in self._last.gpus)
        return self._probe_s if joining or self._faults.ending else self._rescan_s

    def _place(self, event: GpuEvent) -> InstancePlace | None:
        if event.gpu_instance is None:
            return None
        instances = [one for gpu in self._calm.gpus if gpu.uuid == event.gpu for one in gpu.instances]
        found = [one for one in instances if one.gi == event.gpu_instance]
        return InstancePlace(event.gpu_instance, event.compute_instance, found[0].mask if found else None)

    def _wait(self, seconds: float) -> list[GpuEvent]:
        found = []
        for event in self._nvml.wait_events(max(1, int(seconds * 1000))):
            self._faults.happened(
                event, self._place(event)
            )  # one by one: an error that ends the wait loses no event before it
            found.append(event)
        return found

    def _condemn(self) -> None:
        """Show what the events mean immediately. The next reading may be slow, since a GPU has just failed."""
        if self._last is not None:
            self._last = self._judged(self._last)
        fresh = self._judged(self._calm)
        if fresh != self._calm:
            self._show(fresh)

    def _judged(self, view: HardwareView) -> HardwareView:
        return msgspec.structs.replace(view, gpus=tuple(self._faults.judge(view.gpus)))

    def _show(self, view: HardwareView) -> None:
        self._calm = view
        self.view = view if self._hang is None else self._with_hang(view, self._hang)
        self.ready.set()
        for callback in self._subscribers:
            callback(self.view)

    def _with_hang(self, view: HardwareView, hang: NvmlCall) -> HardwareView:
        """The view while a call hangs: the GPU concerned, or all if that is unknown, has an unknown state."""
        hit = {gpu.uuid for gpu in view.gpus if hang.function and hang.gpu in ("", gpu.uuid)}
        gpus = tuple(
            with_fault(gpu, DRIVER_HANGS, self._said) if gpu.uuid in hit and gpu.fault is None else gpu
            for gpu in view.gpus
        )
        return msgspec.structs.replace(view, gpus=gpus, fault=self._said, hang=hang)
