"""Faults: break a simulated GPU or its driver on purpose, from any process.

Owns the translation of a fault into state: which answers change and which NVML events are sent. A GPU is named by its
index or its UUID.
"""

from collections.abc import Callable
from pathlib import Path

import pynvml

from draco.simulator.boards import Architecture
from draco.simulator.nvml_session import board_of
from draco.simulator.state import EccCounts, GpuState, NodeState, RemappedRows, StateError, mutate

WHOLE_GPU = 0xFFFFFFFF  # NVML's instance id for "not one instance"
XID_FALLEN_OFF_THE_BUS = 79
XID_RECOVERY_ACTION_CHANGED = 154


def xid(path: Path, gpu: int | str, code: int, *, gi: int = WHOLE_GPU, ci: int = WHOLE_GPU) -> None:
    """Send an XID event, for the whole GPU or for one GPU and compute instance."""
    with mutate(path) as state:
        state.add_event(_gpu(state, gpu).uuid, pynvml.nvmlEventTypeXidCriticalError, code, gi=gi, ci=ci)


def ecc_errors(path: Path, gpu: int | str, *, corrected: int = 0, uncorrected: int = 0) -> None:
    """Count ECC errors, as volatile and as aggregate, and send their events."""
    with mutate(path) as state:
        target = _gpu(state, gpu)
        target.ecc.corrected_volatile += corrected
        target.ecc.corrected_aggregate += corrected
        target.ecc.uncorrected_volatile += uncorrected
        target.ecc.uncorrected_aggregate += uncorrected
        if corrected:
            state.add_event(target.uuid, pynvml.nvmlEventTypeSingleBitEccError, corrected)
        if uncorrected:
            state.add_event(target.uuid, pynvml.nvmlEventTypeDoubleBitEccError, uncorrected)


def sram_threshold_exceeded(path: Path, gpu: int | str) -> None:
    """Let NVML say that the GPU has had too many SRAM errors: it must be replaced."""
    with mutate(path) as state:
        _gpu(state, gpu).ecc.sram_threshold_exceeded = True


def remapped_rows(path: Path, gpu: int | str, rows: RemappedRows) -> None:
    """Set what NVML says about remapped rows."""
    with mutate(path) as state:
        _gpu(state, gpu).remapped = rows


def recovery_action(path: Path, gpu: int | str, action: int) -> None:
    """Set NVML's recovery action (0 takes it back) and send the events that announce it."""
    with mutate(path) as state:
        target = _gpu(state, gpu)
        target.recovery_action = action
        state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, XID_RECOVERY_ACTION_CHANGED)
        state.add_event(target.uuid, pynvml.nvmlEventTypeGpuRecoveryAction, action)


def temperature(path: Path, gpu: int | str, degrees_c: int) -> None:
    """Set the GPU's temperature; from the board's slowdown limit on NVML reports a thermal slowdown."""
    with mutate(path) as state:
        _gpu(state, gpu).temperature_c = degrees_c


def lose(path: Path, gpu: int | str) -> None:
    """Let the GPU fall off the bus: XID 79 first, then GPU_IS_LOST to everything."""
    with mutate(path) as state:
        target = _gpu(state, gpu)
        state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, XID_FALLEN_OFF_THE_BUS)
        target.error = pynvml.NVML_ERROR_GPU_IS_LOST


def make_unreadable(path: Path, gpu: int | str, code: int = pynvml.NVML_ERROR_UNKNOWN) -> None:
    """Let NVML answer `code` to everything about this GPU, without any event."""
    with mutate(path) as state:
        _gpu(state, gpu).error = code


def reset(path: Path, gpu: int | str) -> None:
    """Reset the GPU: its instances are gone, the pending MIG mode and row remaps take effect, faults end.

    A lost GPU stays lost: only a reboot of the node brings it back. StateError while processes hold the GPU.
    """
    with mutate(path) as state:
        target = _gpu(state, gpu)
        if target.processes:
            raise StateError(f"GPU {target.uuid} cannot be reset: process {target.processes[0].pid} holds it.")
        if target.error != pynvml.NVML_ERROR_GPU_IS_LOST:
            _fresh(target)


def reload_driver(path: Path, *, version: str | None = None) -> None:
    """Unload and load the driver: every session is UNINITIALIZED until it starts again, and all instances are gone."""
    with mutate(path) as state:
        state.driver.generation += 1
        state.driver.error = 0
        state.events.clear()
        if version is not None:
            state.driver.version = version
        for gpu in state.gpus:
            if gpu.error != pynvml.NVML_ERROR_GPU_IS_LOST:
                _fresh(gpu)


def reboot(path: Path) -> None:
    """Reboot the node: as a reload of the driver; lost GPUs are back, and processes are gone.

    MIG mode survives on Ampere, where it is stored on the board; on newer boards it ends.
    """
    with mutate(path) as state:
        for gpu in state.gpus:
            gpu.error = 0
            gpu.processes.clear()
            if _forgets_mig_mode(gpu):
                gpu.mig_current = gpu.mig_pending = 0
    reload_driver(path)


def break_driver(path: Path, code: int = pynvml.NVML_ERROR_DRIVER_NOT_LOADED) -> None:
    """Let nvmlInit, and every call of a running session, answer `code`; `reload_driver` repairs it."""
    with mutate(path) as state:
        state.driver.error = code


def latency(path: Path, seconds: float, function: str = "*") -> None:
    """Let an NVML function (or all of them) take that much longer; 0 ends it."""
    with mutate(path) as state:
        if seconds:
            state.latency_s[function] = seconds
        else:
            state.latency_s.pop(function, None)


def heal(path: Path, gpu: int | str) -> None:
    """End every fault of the GPU, also what a reset would not; events already sent stay sent."""
    with mutate(path) as state:
        target = _gpu(state, gpu)
        target.error = 0
        target.recovery_action = 0
        target.temperature_c = 32
        target.ecc = EccCounts()
        target.remapped = RemappedRows()


def change(path: Path, function: Callable[[NodeState], None]) -> None:
    """Anything else: change the state by hand, under its lock."""
    with mutate(path) as state:
        function(state)


def _fresh(gpu: GpuState) -> None:
    """What a reset does to a GPU that is still on the bus."""
    gpu.error = 0
    gpu.recovery_action = 0
    gpu.instances.clear()
    gpu.mig_current = gpu.mig_pending
    gpu.ecc.corrected_volatile = gpu.ecc.uncorrected_volatile = 0
    gpu.remapped.pending = False


def _forgets_mig_mode(gpu: GpuState) -> bool:
    return board_of(gpu).architecture >= Architecture.HOPPER


def _gpu(state: NodeState, gpu: int | str) -> GpuState:
    for index, candidate in enumerate(state.gpus):
        if gpu in (index, candidate.uuid):
            return candidate
    raise StateError(f"Node {state.node_name} has no GPU {gpu}; it has 0 to {len(state.gpus) - 1}.")
