"""A session with simulated NVML: from nvmlInit to nvmlShutdown, its handles, and its view of the state file.

Owns initialisation, handles and cached reads. Handles are pointers as pynvml's are, so that they fit into pynvml's
structs; they carry the session and the driver's generation, and are void when either is over.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from draco.simulator.boards import BOARDS, Board
from draco.simulator.state import GpuState, NodeState, StateError, decode, mutate

_MARK = 0x5D << 40  # what no heap address of a real process looks like


class Session:
    """What all functions of one SimulatedNvml share."""

    def __init__(self, state_file: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.state_file = state_file
        self._sleep = sleep
        self._lock = threading.Lock()
        self._cached: _Snapshot | None = None
        self._inits = 0
        self._sessions = 0
        self._generation = 0
        self._stopped: list[Callable[[], None]] = []

    def when_stopped(self, function: Callable[[], None]) -> None:
        """Call a function after the last nvmlShutdown."""
        self._stopped.append(function)

    def start(self) -> None:
        """Count one nvmlInit; raises what the driver answers."""
        state = self.state()
        with self._lock:
            if state.driver.error:
                if not self._inits:
                    self._cached = None
                raise pynvml.NVMLError(state.driver.error)
            if not self._inits or self._generation != state.driver.generation:
                self._sessions += 1
                self._inits = 0
                self._generation = state.driver.generation
            self._inits += 1

    def stop(self) -> None:
        """Count one nvmlShutdown; the last one voids all handles."""
        with self._lock:
            if not self._inits:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            self._inits -= 1
            if self._inits:
                return
            self._cached = None
        for function in self._stopped:
            function()

    def enter(self, function: str) -> None:
        """What happens before every function: injected latency, and the checks of a live session."""
        state = self.live_state()
        delay = state.latency_s.get(function, state.latency_s.get("*", 0.0))
        if delay > 0:
            self._sleep(delay)

    def live_state(self) -> NodeState:
        """The current state; raises unless initialised, with the driver still the one it was initialised with."""
        if not self._inits:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        state = self.state()
        if self._generation != state.driver.generation:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if state.driver.error:
            raise pynvml.NVMLError(state.driver.error)
        return state

    def state(self) -> NodeState:
        """The current state. It is shared between calls: read it, never change it."""
        with self._lock:
            if self._cached is None or not self._cached.is_current():
                self._cached = _Snapshot(self.state_file)
            return self._cached.state

    def change(self, function: Callable[[NodeState], None]) -> None:
        """Change the state file under its lock."""
        with mutate(self.state_file) as state:
            function(state)

    def handle(self, index: int) -> Any:
        """A device handle for the GPU at `index`, as pynvml's c_nvmlDevice_t."""
        token = _MARK | (self._sessions & 0xFFFF) << 16 | (index + 1)
        return ctypes.cast(ctypes.c_void_p(token), pynvml.c_nvmlDevice_t)

    def gpu(self, handle: Any) -> GpuState:
        """The GPU behind a handle; raises what a faulty GPU answers to everything."""
        return self.indexed(handle)[1]

    def indexed(self, handle: Any) -> tuple[int, GpuState]:
        """Index and state of the GPU behind a handle."""
        state = self.state()
        index = self.index_of(handle)
        if index >= len(state.gpus):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = state.gpus[index]
        check(gpu)
        return index, gpu

    def index_of(self, handle: Any) -> int:
        """Index that a handle names, whatever the state of that GPU."""
        try:
            token = ctypes.cast(handle, ctypes.c_void_p).value or 0
        except (ctypes.ArgumentError, TypeError):
            token = 0
        if token >> 16 != (_MARK >> 16 | self._sessions & 0xFFFF) or not token & 0xFFFF:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return (token & 0xFFFF) - 1


class _Snapshot:
    """One version of the state file, kept open: until it is closed, no newer file can take its inode number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1
            raise StateError(f"There is no simulated GPU state at {path}; create the simulated node first.") from None
        found = os.fstat(self._descriptor)
        self._version = (found.st_ino, found.st_mtime_ns, found.st_size)
        self.state = decode(os.pread(self._descriptor, found.st_size, 0), path)

    def is_current(self) -> bool:
        """Whether the path still leads to this file, unchanged."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - runs before every NVML function
        except OSError:
            return False
        return (found.st_ino, found.st_mtime_ns, found.st_size) == self._version

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def check(gpu: GpuState) -> None:
    """Raise what this GPU answers to everything, if a fault says so."""
    if gpu.error:
        raise pynvml.NVMLError(gpu.error)


def board_of(gpu: GpuState) -> Board:
    """The board's table."""
    return BOARDS[gpu.board]


def not_supported() -> Exception:
    """NVML's answer for what a board does not have."""
    error: Exception = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return error


def invalid_argument() -> Exception:
    """NVML's answer for a value that no board knows."""
    error: Exception = pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return error


def pointed(reference: Any) -> Any:
    """The object behind ctypes' byref() or pointer(); INVALID_ARGUMENT where C would crash."""
    if hasattr(reference, "_obj"):
        return reference._obj
    if hasattr(reference, "contents"):
        return reference.contents
    raise invalid_argument()
