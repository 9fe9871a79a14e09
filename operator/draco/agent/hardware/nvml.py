"""NVML for the agent: typed reads of the node's GPUs, and one sentence for every error.

Owns the session, its events, and which GPUs there are; `nvml_facts` reads one GPU, `nvml_instances` its instances. Decides
nothing. All calls block. A caller that makes several related calls holds `lock`; a thread may wait for events without it, and
must have stopped before the session is closed.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pynvml

from draco.agent.hardware.faults import UNREADABLE, only_sign
from draco.agent.hardware.gpus import DriverInfo, EventKind, Gpu, GpuEvent, GpuLocation, UnidentifiedGpu, UnreadFact
from draco.agent.hardware.nvml_errors import (
    EVENT_KINDS,
    WATCHED,
    CallError,
    GpuLost,
    NoEvent,
    NotSupported,
    not_text,
    optional,
    translated,
)
from draco.agent.hardware.nvml_facts import GpuReader
from draco.health.ledger import Sign
from draco.resources.names import GpuUuid

T = TypeVar("T")


class NvmlCall(NamedTuple):
    """A call in progress, the GPU that it concerns ("" for none or unknown), and its start in monotonic seconds."""

    function: str
    gpu: str
    since_s: float

    def __str__(self) -> str:
        return f"NVML's {self.function}" + (f" for GPU {self.gpu}" if self.gpu else "")


class Nvml:
    """A session with NVML. `library` is the module pynvml, or any object with its functions.

    `load` is called before a session is opened: it may give pynvml the library; otherwise pynvml finds it. `own_cgroup` is the
    agent's, None if unknown.
    """

    def __init__(
        self,
        library: Any = pynvml,
        *,
        load: Callable[[], None] = lambda: None,
        own_cgroup: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._monotonic = monotonic
        self._calls: dict[int, NvmlCall] = {}  # by thread
        self._subjects: dict[int, str] = {}  # by thread: the last GPU that it asked about
        self.lock = threading.RLock()
        self._given_up = threading.Condition(self.lock)
        self.sessions = 0
        self._library = library
        self._open = False
        self._seen: dict[int, Gpu] = {}
        self._counted = 0
        self._unidentified: tuple[UnidentifiedGpu, ...] = ()
        self._handles: dict[GpuUuid, Any] = {}
        self._events: _Subscription | None = None
        self._unheard: dict[GpuUuid, UnreadFact] = {}
        self._driver: DriverInfo | None = None
        self._reader = GpuReader(self.call, own_cgroup=own_cgroup)

    def open(self) -> None:
        """Start the session. Raises DriverMissing without a working driver."""
        if self._open:
            return
        self._load()
        self.call("nvmlInit")
        self._open = True
        self.sessions += 1
        self._seen, self._handles, self._unidentified = {}, {}, ()
        self._unheard, self._driver = {}, None
        self._reader.forget()

    def close(self) -> None:
        """End the session, even if the driver is gone. Nobody may be waiting for events."""
        if not self._open:
            return
        self._open = False
        try:
            with self._going_on("nvmlShutdown", ()):
                self._library.nvmlShutdown()
        except pynvml.NVMLError:
            return  # a reloaded driver does not know this session

    def aside(self, work: Callable[[], T]) -> T:
        """Run slow work that does not call NVML, and return its result. This thread releases the lock, however often it holds it.

        Others may read meanwhile, or end the session.
        """
        finished = False

        def doing() -> T:
            nonlocal finished
            try:
                return work()
            finally:
                # Set under the lock, so only after this thread's wait has released it: joining the other thread while it waits
                # for the lock would deadlock.
                with self._given_up:
                    finished = True
                    self._given_up.notify_all()

        with ThreadPoolExecutor(1, thread_name_prefix="aside") as other:
            done = other.submit(doing)
            with self._given_up:
                self._given_up.wait_for(lambda: finished)
        return done.result()

    def driver(self) -> DriverInfo:
        """The driver's versions; an unreadable one is as before in this session, else "", and harmless. Raises DriverError."""
        unread: list[UnreadFact] = []

        def told(name: str, function: str, before: str, read: Callable[[Any], str] = str) -> str:
            try:
                return read(self.call(function))
            except CallError as error:
                lacking = isinstance(error, NotSupported)
                why = f"published without {name}" if lacking or not before else f"{name} cannot be read"
                unread.append(UnreadFact(name, f"{why}: {error}", lacking))
                return "" if lacking else before

        before = self._driver or DriverInfo("", "", "")
        self._driver = DriverInfo(
            driver_version=told("driverVersion", "nvmlSystemGetDriverVersion", before.driver_version),
            cuda_driver_version=told(
                "cudaDriverVersion",
                "nvmlSystemGetCudaDriverVersion_v2",
                before.cuda_driver_version,
                lambda cuda: f"{cuda // 1000}.{cuda % 1000 // 10}",
            ),
            nvml_version=told("the version of NVML", "nvmlSystemGetNVMLVersion", before.nvml_version),
            unread=tuple(one for one in unread if one.name != "the version of NVML"),  # not published
        )
        return self._driver

    def gpus(self) -> list[Gpu]:
        """All identified GPUs, in PCI order.

        A GPU that cannot be read now keeps what was read before, with a sign that says so; so do its unreadable facts. One that
        was never identified in this session is in `unidentified`. Raises DriverError if no GPU can be read.
        """
        unidentified = []
        seen: dict[int, Gpu] = {}
        told: dict[int, GpuUuid] = {}
        count = self.call("nvmlDeviceGetCount")
        if self._seen and count != self._counted:  # indexes have moved, so handles belong to other GPUs
            self._seen, self._handles, self._events = {}, {}, None
        for index in range(count):
            try:
                seen[index] = self._read(index, told)
            except CallError as error:
                known = self._seen.get(index)
                if known is None or told.get(index, known.uuid) != known.uuid:
                    unidentified.append(UnidentifiedGpu(index, str(error), told.get(index, "")))
                else:
                    seen[index] = _troubled(known, error)
        self._seen, self._counted = seen, count
        self._unidentified = tuple(unidentified)
        return [gpu for _, gpu in sorted(seen.items())]

    def unidentified(self) -> tuple[UnidentifiedGpu, ...]:
        """GPUs that the last `gpus` counted but could not identify."""
        return self._unidentified

    def watch(self) -> None:
        """Subscribe to every GPU's events for `wait_events`, which retries those that cannot be watched now."""
        self._watch_all(self._subscription())

    def wait_events(self, timeout_ms: int) -> Iterator[GpuEvent]:
        """Wait up to `timeout_ms` for the first event, then yield all available ones.

        Raises DriverReloaded if the session is over, CallError if events cannot be waited for. GPUs that cannot be watched now
        are retried at the next call.
        """
        events = self._subscription()
        self._watch_all(events)
        while True:
            try:
                data = self.call("nvmlEventSetWait_v2", events.handle, timeout_ms)
            except NoEvent:
                return
            except GpuLost:
                lost = list(self._drop_lost(events))
                yield from lost
                if not lost:  # the next wait would raise it again immediately
                    raise
                return
            except CallError:
                self._events = None  # the next wait uses a new set
                raise
            event = self._event(data, events)
            if event is not None:
                yield event
            timeout_ms = 0

    def _read(self, index: int, told: dict[int, GpuUuid]) -> Gpu:
        handle = self.call("nvmlDeviceGetHandleByIndex", index)
        uuid = told[index] = GpuUuid(self.call("nvmlDeviceGetUUID", handle))
        self._handles[uuid] = handle
        known = self._seen.get(index)
        gpu = self._reader.read(uuid, index, handle, before=known if known is not None and known.uuid == uuid else None)
        silent = self._unheard.get(uuid)
        return gpu if silent is None else msgspec.structs.replace(gpu, unread=(*gpu.unread, silent))

    def where(self, uuid: GpuUuid) -> GpuLocation:
        """A GPU's current place, asked of NVML, not cached."""
        return self._reader.location(self.handle(uuid))

    def handle(self, uuid: GpuUuid) -> Any:
        """A GPU's handle, cached: looking one up by UUID can take NVML seconds."""
        if uuid not in self._handles:
            self._handles[uuid] = self.call("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def cached_handle(self, uuid: GpuUuid) -> Any | None:
        """A GPU's handle without a call; None before the first reading of a session."""
        return self._handles.get(uuid)

    def _subscription(self) -> "_Subscription":
        if self._events is None or self._events.session != self.sessions:
            self._events = _Subscription(self.call("nvmlEventSetCreate"), self.sessions)
        return self._events

    def _watch_all(self, events: "_Subscription") -> None:
        for index in range(self.call("nvmlDeviceGetCount")):
            try:
                handle = self.call("nvmlDeviceGetHandleByIndex", index)
                uuid = GpuUuid(self.call("nvmlDeviceGetUUID", handle))
            except CallError:
                continue
            try:
                if events.watched.get(index) == uuid == events.by_address.get(_address(handle)):
                    continue  # else another board has its place, or it was removed in between
                types = self.call("nvmlDeviceGetSupportedEventTypes", handle) & WATCHED
                self.call("nvmlDeviceRegisterEvents", handle, types, events.handle)
                self._unheard.pop(uuid, None)
            except CallError as error:
                self._unheard[uuid] = UnreadFact("events", f"its XIDs cannot be received: {error}")
                if error.blames_gpu:
                    continue  # retried at the next wait; other errors last until another driver is loaded
            events.watched[index] = uuid
            events.by_address[_address(handle)] = uuid

    def _event(self, data: Any, events: "_Subscription") -> GpuEvent | None:
        kind = EVENT_KINDS.get(int(data.eventType))
        if kind is None:
            return None
        return GpuEvent(
            kind=kind,
            # By its handle's address: a lost GPU no longer reports its UUID.
            gpu=events.by_address.get(_address(data.device)) or self._uuid(data.device),
            data=int(data.eventData),
            gpu_instance=_instance(data.gpuInstanceId),
            compute_instance=_instance(data.computeInstanceId),
        )

    def _uuid(self, handle: Any) -> GpuUuid | None:
        try:
            return GpuUuid(self.call("nvmlDeviceGetUUID", handle))
        except CallError:
            return None

    def _drop_lost(self, events: "_Subscription") -> Iterator[GpuEvent]:
        """Continue with a new set without lost GPUs, which would end every further wait immediately."""
        self._events = None
        self.optional("nvmlEventSetFree", events.handle)
        for index, uuid in sorted(events.watched.items()):
            try:
                self.call("nvmlDeviceGetHandleByIndex", index)
            except GpuLost:
                yield GpuEvent(EventKind.LOST, uuid)
            except CallError:
                continue

    def optional(self, function: str, *args: Any) -> Any:
        """The answer, or None where the board or the driver does not have this."""
        return optional(self.call, function, *args)

    def call(self, function: str, *args: Any, **options: Any) -> Any:
        """The function's answer. Raises an NvmlError with one sentence if NVML refuses."""
        try:
            with self._going_on(function, args):
                return getattr(self._library, function)(*args, **options)
        except pynvml.NVMLError as error:
            raise translated(error, function, gpu=self._meant(args)) from error
        except UnicodeDecodeError as error:
            raise not_text(function) from error

    def call_apart(self, function: str, *args: Any) -> Any:
        """`call` for readings that nothing waits for: one that hangs does not count as `calling`, so other work goes on."""
        try:
            return getattr(self._library, function)(*args)
        except pynvml.NVMLError as error:
            raise translated(error, function, gpu=self._meant(args)) from error

    @property
    def calling(self) -> NvmlCall | None:
        """The longest call in progress, in any thread."""
        return min(tuple(self._calls.values()), key=lambda one: one.since_s, default=None)

    @contextmanager
    def _going_on(self, function: str, args: tuple[Any, ...]) -> Iterator[None]:
        thread = threading.get_ident()
        # A wait for events may take its whole timeout.
        waits_s = args[1] / 1000 if function == "nvmlEventSetWait_v2" else 0.0
        self._calls[thread] = NvmlCall(function, self._about(thread, function, args), self._monotonic() + waits_s)
        try:
            yield
        finally:
            del self._calls[thread]

    def _about(self, thread: int, function: str, args: tuple[Any, ...]) -> str:
        """The UUID of the GPU that a call concerns. An instance's handle belongs to the GPU that the thread asked about last."""
        if function == "nvmlDeviceGetHandleByIndex":
            known = self._seen.get(int(args[0]))
            self._subjects[thread] = known.uuid if known else ""
        elif not function.startswith(("nvmlDevice", "nvmlGpuInstance", "nvmlComputeInstance")) or not args:
            self._subjects[thread] = ""
        else:
            self._subjects[thread] = self._meant(args) or self._subjects.get(thread, "")
        return self._subjects[thread]

    def _meant(self, args: tuple[Any, ...]) -> str:
        """The UUID of the GPU of a call's handle; "" if it is none, or an instance's."""
        about = args[0] if args else None
        handles = tuple(self._handles.items())  # another thread may add one
        return about if isinstance(about, str) else next((uuid for uuid, one in handles if one is about), "")


class _Subscription:
    """An event set and the GPUs it watches; used by the waiting thread only."""

    def __init__(self, handle: Any, session: int) -> None:
        self.handle = handle
        self.session = session
        self.watched: dict[int, GpuUuid] = {}
        self.by_address: dict[int, GpuUuid] = {}


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _instance(number: int) -> int | None:
    return None if number == pynvml.NVML_GPU_INSTANCE_ID_ANY else int(number)


def _troubled(known: Gpu, error: CallError) -> Gpu:
    """A GPU that answers with an error: its fault if the error says one, else unreadable."""
    return only_sign(known, Sign(error.fault or UNREADABLE, str(error)))
