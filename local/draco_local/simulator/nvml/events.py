"""Simulated NVML: event sets, and waiting for events that another process causes."""
# ruff: noqa: N802, N803 - the names are pynvml's

import ctypes
import itertools
import threading
import time
from typing import Any

import msgspec
import pynvml

from draco_local.simulator.gpus.doorbell import Doorbell
from draco_local.simulator.gpus.drivers import EVENTS
from draco_local.simulator.gpus.state import NvmlEvent, SimulatedNodeState
from draco_local.simulator.nvml.session import Session, invalid_argument

_MARK = 0x5E << 40  # tells an event set from a device handle
_LONGEST_WAIT_S = 3600.0


class _EventSet(msgspec.Struct):
    """What one set listens to: event types and first sequence number by GPU, and how far it has been read."""

    bell: Doorbell
    registered: dict[str, tuple[int, int]]
    read_up_to: int = 0
    freed: bool = False


class EventCalls:
    """nvmlEventSet* and nvmlDeviceRegisterEvents."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._tokens = itertools.count(1)
        self._sets: dict[int, _EventSet] = {}
        session.when_stopped(self._free_all)

    def nvmlEventSetCreate(self) -> Any:
        """An empty set."""
        with self._lock:
            token = _MARK | next(self._tokens)
            self._sets[token] = _EventSet(Doorbell(self._session.state_file), {})
        return ctypes.cast(ctypes.c_void_p(token), pynvml.c_nvmlEventSet_t)

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:
        """Every type that the driver's release has."""
        self._session.gpu(handle)
        return self._types()

    def _types(self) -> int:
        release = self._session.release()
        return int(pynvml.nvmlEventTypeAll) & ~sum(kind for kind, first in EVENTS.items() if first > release)

    def nvmlDeviceRegisterEvents(self, handle: Any, eventTypes: int, eventSet: Any) -> None:
        """Listen to a GPU's events from now on; registering again adds types."""
        gpu = self._session.gpu(handle)
        if eventTypes & ~self._types():
            raise invalid_argument()
        events = self._set(eventSet)
        types, since = events.registered.get(gpu.uuid, (0, self._session.state().next_event))
        events.registered[gpu.uuid] = (types | eventTypes, since)

    def nvmlEventSetWait(self, eventSet: Any, timeoutms: int) -> Any:
        """The same as version 2."""
        return self.nvmlEventSetWait_v2(eventSet, timeoutms)

    def nvmlEventSetWait_v2(self, eventSet: Any, timeoutms: int) -> Any:
        """The next event, oldest first; TIMEOUT when none comes, GPU_IS_LOST when a registered GPU is gone."""
        events = self._set(eventSet)
        deadline = time.monotonic() + timeoutms / 1000
        while True:
            freed = events.freed  # looked at first: if it was the shutdown, the next line says so
            state = self._session.live_state()
            if freed:
                raise invalid_argument()
            event = _next(events, state)
            if event is not None:
                events.read_up_to = event.seq
                return self._data(event, state)
            if any(gpu.error == pynvml.NVML_ERROR_GPU_IS_LOST and gpu.uuid in events.registered for gpu in state.gpus):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            left = deadline - time.monotonic()
            if left <= 0:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            events.bell.wait(min(left, _LONGEST_WAIT_S))

    def nvmlEventSetFree(self, eventSet: Any) -> None:
        """Forget the set; a thread that waits on it gets INVALID_ARGUMENT."""
        with self._lock:
            events = self._sets.pop(_token(eventSet), None)
        if events is None:
            raise invalid_argument()
        events.freed = True
        events.bell.ring_own()

    def _set(self, handle: Any) -> _EventSet:
        with self._lock:
            events = self._sets.get(_token(handle))
        if events is None:
            self._session.live_state()  # UNINITIALIZED if a shutdown in another thread freed the set
            raise invalid_argument()
        return events

    def _free_all(self) -> None:
        with self._lock:
            freed, self._sets = list(self._sets.values()), {}
        for events in freed:
            events.freed = True
            events.bell.ring_own()

    def _data(self, event: NvmlEvent, state: SimulatedNodeState) -> Any:
        data = pynvml.c_nvmlEventData_t()
        data.device = self._session.handle(next(gpu for gpu in state.gpus if gpu.uuid == event.gpu_uuid))
        data.eventType, data.eventData = event.type, event.data
        data.gpuInstanceId, data.computeInstanceId = event.gpu_instance, event.compute_instance
        return data


def _next(events: _EventSet, state: SimulatedNodeState) -> NvmlEvent | None:
    for event in state.events:
        types, since = events.registered.get(event.gpu_uuid, (0, 0))
        if event.seq > events.read_up_to and event.seq >= since and event.type & types:
            return event
    return None


def _token(handle: Any) -> int:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0
