"""A session with simulated NVML: from nvmlInit to nvmlShutdown, its handles, and its view of the state file.

Owns initialisation, handles and cached reads. Handles are pointers as pynvml's are, so that they fit into pynvml's
structs; they carry the session and the driver's generation, and are void when either is over.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from draco_local.simulator.gpus.boards import BOARDS, SimulatedBoard
from draco_local.simulator.gpus.doorbell import Doorbell
from draco_local.simulator.gpus.drivers import release_of
from draco_local.simulator.gpus.state import (
    ComputeInstance,
    Failure,
    GpuInstance,
    GpuState,
    SimulatedNodeState,
    StateError,
    decode,
    mutate,
)
from draco_local.simulator.nvml.handles import Handle, HandleKind, handle_of, pointer, same_session

NEVER_FAIL = frozenset({"nvmlShutdown", "nvmlErrorString"})
"""What needs no session and looks at no state."""
NVIDIA_SMI = "nvidia-smi"
"""Stands for its time slices, which are no function of NVML, where a failure, a latency or a step names a function."""
_LOOK_AGAIN_S = 1.0  # a call that hangs is woken when the state changes


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

    def delay(self, function: str) -> None:
        """Wait for the latency that was chosen for a function."""
        latency_s = self.state().latency_s
        seconds = latency_s.get(function, latency_s.get("*", 0.0))
        if seconds > 0:
            self._sleep(seconds)

    def hang(self, function: str, given: Any, hangs: Callable[[], None]) -> None:
        """Wait while a chosen failure lets such a call hang; if one does, call `hangs` first."""
        handle = handle_of(given)
        if _failure_of(self.state(), function, handle, hangs=True) is None:
            return
        hangs()
        bell = Doorbell(self.state_file)
        while _failure_of(self.state(), function, handle, hangs=True) is not None:
            bell.wait(_LOOK_AGAIN_S)

    def take_failure(self, function: str, given: Any) -> Failure | None:
        """Take the first failure chosen for such a call, and count it; `given` is the call's handle, if it has one."""
        state = self.state()
        if not state.failures:
            return None
        handle = handle_of(given)
        position = _failure_of(state, function, handle)
        if position is None or state.failures[position].times is None:
            return None if position is None else state.failures[position]
        with mutate(self.state_file) as changed:
            # Looked up again: between then and now another process may have taken the last one.
            position = _failure_of(changed, function, handle)
            if position is None:
                return None
            failure = changed.failures[position]
            if failure.times is not None:
                failure.times -= 1
                if failure.times <= 0:
                    del changed.failures[position]
            return failure

    def live_state(self) -> SimulatedNodeState:
        """The current state; raises NVMLError unless initialised since the driver was last loaded, and the driver works."""
        if not self._inits:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        state = self.state()
        if self._generation != state.driver.generation:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if state.driver.error:
            raise pynvml.NVMLError(state.driver.error)
        return state

    def state(self) -> SimulatedNodeState:
        """The current state. It is shared between calls: read it, never change it."""
        with self._lock:
            if self._cached is None or not self._cached.is_current():
                self._cached = _Snapshot(self.state_file)
            return self._cached.state

    def release(self) -> int:
        """The number of the driver's release."""
        return release_of(self.state().driver.version)

    def change(self, function: Callable[[SimulatedNodeState], None]) -> None:
        """Change the state file under its lock; nothing is changed if the function raises.

        UNINITIALIZED when the driver was reloaded since the call began.
        """
        with mutate(self.state_file) as state:
            if state.driver.generation != self._generation:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            function(state)

    def handle(self, gpu: GpuState) -> Any:
        """A device handle for a GPU, as pynvml's c_nvmlDevice_t."""
        return pointer(HandleKind.GPU, self._sessions, gpu.seat)

    def handle_of_instance(self, instance: GpuInstance) -> Any:
        """A handle of a GPU instance, as pynvml's c_nvmlGpuInstance_t."""
        return pointer(HandleKind.GPU_INSTANCE, self._sessions, instance.serial)

    def handle_of_compute(self, compute: ComputeInstance) -> Any:
        """A handle of a compute instance, as pynvml's c_nvmlComputeInstance_t."""
        return pointer(HandleKind.COMPUTE_INSTANCE, self._sessions, compute.serial)

    def handle_of_mig_device(self, compute: ComputeInstance) -> Any:
        """A handle of the MIG device that a compute instance is, as pynvml's c_nvmlDevice_t."""
        return pointer(HandleKind.MIG_DEVICE, self._sessions, compute.serial)

    def gpu(self, handle: Any) -> GpuState:
        """The whole GPU behind a handle; NOT_SUPPORTED for a MIG device, which few functions take.

        Raises what a faulty GPU answers to everything.
        """
        found = self.device(handle)
        if found.compute is not None:
            raise not_supported()
        return found.gpu

    def check_gpu(self, handle: Any) -> None:
        """INVALID_ARGUMENT for anything but a handle of a GPU, whatever the state of that GPU."""
        self._checked(handle, HandleKind.GPU)

    def device(self, handle: Any, state: SimulatedNodeState | None = None) -> "HandleTarget":
        """A GPU or a MIG device; raises what a faulty GPU answers to everything."""
        return self._located(self._checked(handle, HandleKind.GPU, HandleKind.MIG_DEVICE), state)

    def instance(self, handle: Any, state: SimulatedNodeState | None = None) -> "HandleTarget":
        """A GPU instance: NOT_FOUND when it was destroyed."""
        return self._located(self._checked(handle, HandleKind.GPU_INSTANCE), state)

    def compute(self, handle: Any, state: SimulatedNodeState | None = None) -> "HandleTarget":
        """A compute instance: NOT_FOUND when it was destroyed."""
        return self._located(self._checked(handle, HandleKind.COMPUTE_INSTANCE), state)

    def _checked(self, given: Any, *kinds: HandleKind) -> Handle:
        handle = handle_of(given)
        if handle is None or handle.kind not in kinds or not same_session(handle, self._sessions):
            raise invalid_argument()
        return handle

    def _located(self, handle: Handle, state: SimulatedNodeState | None) -> "HandleTarget":
        found = located(handle, self.state() if state is None else state)
        check(found.gpu)
        return found


class HandleTarget(msgspec.Struct, frozen=True):
    """What a handle leads to. A MIG device and a compute instance have all of it, a GPU instance all but `compute`."""

    index: int
    gpu: GpuState
    instance: GpuInstance | None = None
    compute: ComputeInstance | None = None


def located(handle: Handle, state: SimulatedNodeState) -> HandleTarget:
    """What a handle leads to, even on a faulty GPU. INVALID_ARGUMENT if the GPU is gone, NOT_FOUND if the instance is."""
    if handle.kind == HandleKind.GPU:
        for index, gpu in enumerate(state.gpus):
            if gpu.seat == handle.number:
                return HandleTarget(index, gpu)
        raise invalid_argument()
    for index, gpu in enumerate(state.gpus):
        for instance in gpu.instances:
            if handle.kind == HandleKind.GPU_INSTANCE and instance.serial == handle.number:
                return HandleTarget(index, gpu, instance)
            for compute in instance.compute:
                if handle.kind != HandleKind.GPU_INSTANCE and compute.serial == handle.number:
                    return HandleTarget(index, gpu, instance, compute)
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _failure_of(state: SimulatedNodeState, function: str, handle: Handle | None, *, hangs: bool = False) -> int | None:
    """Position of the first failure, or hang, chosen for a call. One chosen for a GPU matches no call without a GPU."""
    try:
        target = None if handle is None else located(handle, state)
    except pynvml.NVMLError:
        target = None
    for position, failure in enumerate(state.failures):
        if failure.function not in ("", function) or (failure.effect == "hang") is not hangs:
            continue
        if failure.gpu_uuid and (target is None or target.gpu.uuid != failure.gpu_uuid):
            continue
        instance = None if target is None or target.instance is None else target.instance.id
        compute = None if target is None or target.compute is None else target.compute.id
        if failure.gpu_instance in (None, instance) and failure.compute_instance in (None, compute):
            return position
    return None


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


def board_of(gpu: GpuState) -> SimulatedBoard:
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
