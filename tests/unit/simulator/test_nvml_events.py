"""Events of simulated NVML: delivered across processes, once, in order, without busy waiting."""

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.doorbell import Doorbell, ring
from draco_local.simulator.gpus.state import load
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import opened

XID = pynvml.nvmlEventTypeXidCriticalError
LONG_MS = 30_000  # never reached: the awaited event comes first
INJECT = """
import sys, time
from pathlib import Path
from draco_local.simulator.accidents import faults
print("ready", flush=True)
sys.stdin.readline()
faults.xid(Path(sys.argv[1]), 3, 94, gi=2, ci=1)
"""


def _watching(nvml: SimulatedNvml, *gpus: int, types: int = XID) -> Any:
    events = nvml.nvmlEventSetCreate()
    for gpu in gpus:
        nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(gpu), types, events)
    return events


def _seen(nvml: SimulatedNvml, events: Any, timeout_ms: int = 0) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            event = nvml.nvmlEventSetWait_v2(events, timeout_ms)
        except pynvml.NVMLError_Timeout:
            return found
        found.append((nvml.nvmlDeviceGetIndex(event.device), event.eventData))
        timeout_ms = 0


class _Waiter(threading.Thread):
    """Waits in a thread; `error` or `event` is the result."""

    def __init__(self, nvml: SimulatedNvml, events: Any) -> None:
        super().__init__()
        self._nvml, self._events = nvml, events
        self.event: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.event = self._nvml.nvmlEventSetWait_v2(self._events, LONG_MS)
        except pynvml.NVMLError as error:
            self.error = error


@contextmanager
def _waiting(nvml: SimulatedNvml, events: Any) -> Iterator[_Waiter]:
    waiter = _Waiter(nvml, events)
    waiter.start()
    yield waiter
    waiter.join(timeout=60)
    assert not waiter.is_alive()


def test_an_event_from_another_process_ends_the_wait(nvml: SimulatedNvml, path: Path) -> None:
    events = _watching(nvml, *range(8))
    injector = subprocess.Popen(
        [sys.executable, "-c", INJECT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert injector.stdout is not None
    injector.stdout.readline()
    with _waiting(nvml, events) as waiter:
        injector.communicate("\n", timeout=60)
    event = waiter.event
    assert (event.eventType, event.eventData, event.gpuInstanceId, event.computeInstanceId) == (XID, 94, 2, 1)
    assert nvml.nvmlDeviceGetIndex(event.device) == 3


def test_every_session_gets_every_event_once_and_in_order(path: Path) -> None:
    sessions = [opened(path) for _ in range(2)]
    sets = [_watching(session, 0, 1) for session in sessions]
    for code in (31, 43, 45):
        faults.xid(path, code % 2, code)
    for session, events in zip(sessions, sets, strict=True):
        assert _seen(session, events) == [(1, 31), (1, 43), (1, 45)]
        assert _seen(session, events) == []


def test_what_happened_before_registration_is_not_delivered(nvml: SimulatedNvml, path: Path) -> None:
    faults.xid(path, 0, 31)
    events = _watching(nvml, 0)
    faults.xid(path, 0, 43)
    assert _seen(nvml, events) == [(0, 43)]


def test_only_registered_gpus_and_types_are_delivered(nvml: SimulatedNvml, path: Path) -> None:
    events = _watching(nvml, 0)
    faults.xid(path, 1, 79)
    faults.ecc_errors(path, 0, uncorrected=1)
    assert _seen(nvml, events) == []
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlEventTypeDoubleBitEccError, events)
    faults.ecc_errors(path, 0, uncorrected=2)
    faults.xid(path, 0, 48)
    assert _seen(nvml, events) == [(0, 1), (0, 2), (0, 48)]


def test_an_event_of_the_whole_gpu_says_so(nvml: SimulatedNvml, path: Path) -> None:
    events = _watching(nvml, 0)
    faults.xid(path, 0, 31)
    event = nvml.nvmlEventSetWait_v2(events, 0)
    assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)


def test_nothing_in_the_given_time_is_a_timeout(nvml: SimulatedNvml) -> None:
    events = _watching(nvml, 0)
    started = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 60)
    assert time.monotonic() - started >= 0.06


def test_waiting_costs_no_processor_time(nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _watching(nvml, 0)
    waits_s: list[float] = []
    wait = Doorbell.wait

    def counted(bell: Doorbell, timeout_s: float) -> bool:
        waits_s.append(timeout_s)
        return wait(bell, timeout_s)

    monkeypatch.setattr(Doorbell, "wait", counted)
    with pytest.raises(pynvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 300)
    assert len(waits_s) <= 3, "it sleeps until somebody rings or the time is over"
    assert 0 < waits_s[0] <= 0.3


def test_a_lost_gpu_sends_its_xid_first_and_ends_the_wait_then(nvml: SimulatedNvml, path: Path) -> None:
    events = _watching(nvml, 0, 1)
    faults.lose(path, 1)
    assert nvml.nvmlEventSetWait_v2(events, 0).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        nvml.nvmlEventSetWait_v2(events, LONG_MS)


def test_a_driver_reload_ends_the_wait(nvml: SimulatedNvml, path: Path) -> None:
    with _waiting(nvml, _watching(nvml, 0)) as waiter:
        faults.reload_driver(path)
    assert isinstance(waiter.error, pynvml.NVMLError_Uninitialized)


def test_a_shutdown_in_another_thread_ends_the_wait(nvml: SimulatedNvml) -> None:
    with _waiting(nvml, _watching(nvml, 0)) as waiter:
        nvml.nvmlShutdown()
    assert isinstance(waiter.error, pynvml.NVMLError_Uninitialized)


def test_freeing_the_set_ends_the_wait_and_the_set(nvml: SimulatedNvml) -> None:
    events = _watching(nvml, 0)
    with _waiting(nvml, events) as waiter:
        nvml.nvmlEventSetFree(events)
    assert isinstance(waiter.error, pynvml.NVMLError_InvalidArgument)
    for call in (nvml.nvmlEventSetFree, lambda gone: nvml.nvmlEventSetWait_v2(gone, 0)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(events)


def test_a_device_handle_is_no_event_set(nvml: SimulatedNvml) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlEventSetWait_v2(ctypes.cast(handle, pynvml.c_nvmlEventSet_t), 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetUUID(nvml.nvmlEventSetCreate())


def test_no_event_is_lost_between_looking_and_waiting(path: Path) -> None:
    nvml = opened(path)
    events = _watching(nvml, 0)
    codes = list(range(100))

    def inject() -> None:
        for code in codes:
            faults.xid(path, 0, code)

    injector = threading.Thread(target=inject)
    injector.start()
    received = [nvml.nvmlEventSetWait_v2(events, LONG_MS).eventData for _ in codes]
    injector.join()
    assert received == codes


def test_a_ring_before_the_wait_counts(path: Path) -> None:
    bell = Doorbell(path)
    ring(path)
    assert bell.wait(20), "it rang"
    assert not bell.wait(0), "once"


def test_pipes_of_dead_waiters_are_removed_by_the_next_ring(path: Path) -> None:
    waiters = path.with_name(path.name + ".waiters")
    alive = Doorbell(path)
    (waiters / "4711-dead").touch()
    (waiters / "4711-dead").unlink()
    script = "import os, sys; from pathlib import Path; from draco_local.simulator.gpus.doorbell import Doorbell\n"
    script += "bell = Doorbell(Path(sys.argv[1])); os._exit(0)"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    assert len(list(waiters.iterdir())) == 2
    ring(path)
    assert len(list(waiters.iterdir())) == 1
    del alive
    assert list(waiters.iterdir()) == []


def test_ringing_without_any_waiter_is_fine(path: Path) -> None:
    for _ in range(3):
        faults.temperature(path, 0, 50)
    assert load(path).gpus[0].temperature_c == 50
