"""Faults: break a simulated GPU or its driver on purpose, from any process.

Owns the translation of a fault into state: which answers change and which NVML events are sent. A GPU is named by its
index or its UUID. What a person does to MIG without breaking anything is in `by_hand`, and to boards in `hotplug`.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pynvml

from draco_local.simulator.accidents import hotplug
from draco_local.simulator.accidents.hotplug import cure, fresh, gpu_named
from draco_local.simulator.gpus import drivers
from draco_local.simulator.gpus.boards import Architecture, NvLinkVersion
from draco_local.simulator.gpus.state import (
    Failure,
    GpuProcess,
    GpuState,
    NvLinkFaults,
    RemappedRows,
    SimulatedNodeState,
    StateError,
    mutate,
)
from draco_local.simulator.gpus.wiring import links_of
from draco_local.simulator.nvml.session import NEVER_FAIL, NVIDIA_SMI, board_of

WHOLE_GPU = 0xFFFFFFFF  # NVML's instance id for "not one instance"
XID_ROWS_REMAPPED = 63
XID_REMAP_FAILED = 64
XID_NVLINK = 74
XID_NVLINK_5 = 149  # one of 144 to 150, one for each part of a link; that a lost link sends this one is estimated
XID_FALLEN_OFF_THE_BUS = 79
XID_RECOVERY_ACTION_CHANGED = 154

FabricState = Literal["joining", "joined", "failed"]
ERRORS: Mapping[str, int] = MappingProxyType(
    {
        name.removeprefix("NVML_ERROR_"): code
        for name, code in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and code
    }
)
"""NVML's return codes by the names that people write: IN_USE, INSUFFICIENT_RESOURCES and so on."""
RECOVERY_ACTIONS: Mapping[str, int] = MappingProxyType(
    {
        "none": pynvml.NVML_GPU_RECOVERY_ACTION_NONE,
        "reset": pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET,
        "reboot": pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
        "drain-p2p": pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P,
        "drain-and-reset": pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET,
    }
)
"""NVML's recovery actions by the names that people write."""


def xid(path: Path, gpu: int | str, code: int, *, gi: int = WHOLE_GPU, ci: int = WHOLE_GPU) -> None:
    """Send an XID event, for the whole GPU or for one GPU and compute instance."""
    with mutate(path) as state:
        state.add_event(gpu_named(state, gpu).uuid, pynvml.nvmlEventTypeXidCriticalError, code, gi=gi, ci=ci)


def ecc_errors(path: Path, gpu: int | str, *, corrected: int = 0, uncorrected: int = 0) -> None:
    """Count ECC errors, as volatile and as aggregate, and send their events."""
    with mutate(path) as state:
        target = gpu_named(state, gpu)
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
        gpu_named(state, gpu).ecc.sram_threshold_exceeded = True


def remap(path: Path, gpu: int | str, *, correctable: int = 0, uncorrectable: int = 0, failed: bool = False) -> None:
    """Remap memory rows at the next reset, because of errors of each kind; `failed`: no spare row was left for one.

    Sends the XIDs of both. NVML does not report the counts while the GPU has GPU instances. StateError for a board that cannot
    remap rows.
    """
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        if board_of(target).architecture < Architecture.AMPERE:
            raise StateError(f"GPU {target.uuid} ({target.board}) remaps no rows: boards from Ampere on do.")
        if correctable or uncorrectable:
            target.remapped.correctable += correctable
            target.remapped.uncorrectable += uncorrectable
            target.remapped.pending = True
            state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, XID_ROWS_REMAPPED)
        if failed:
            target.remapped.failed = True
            state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, XID_REMAP_FAILED)


def nvlink(
    path: Path, gpu: int | str, link: int, *, down: bool | None = None, replay: int = 0, recovery: int = 0, crc: int = 0
) -> None:
    """Take an NVLink of the GPU down, which sends an XID, or up again, and count errors of it; None leaves it as it is.

    The other end reports nothing. StateError for a link that the board does not have.
    """
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        board = board_of(target)
        links = links_of(target)
        if not 0 <= link < links:
            there = f"its links are 0 to {links - 1}" if links else f"{target.board} has none"
            raise StateError(f"GPU {target.uuid} has no NVLink {link}; {there}.")
        faults = target.links.setdefault(link, NvLinkFaults())
        faults.replay += replay
        faults.recovery += recovery
        faults.crc += crc
        if down and not faults.down:
            xid = XID_NVLINK_5 if board.nvlink_version is NvLinkVersion.V5 else XID_NVLINK
            state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, xid)
        faults.down = faults.down if down is None else down


def fabric(path: Path, gpu: int | str, state: FabricState) -> None:
    """Set whether the GPU is joining its NVLink fabric, has joined it, or failed to. NVML sends no event for this.

    StateError for a board that is not behind NVSwitches of a fabric manager.
    """
    with mutate(path) as node:
        target = gpu_named(node, gpu)
        if not (board_of(target).fabric and target.nvlink):
            raise StateError(f"GPU {target.uuid} ({target.board}) is in no NVLink fabric.")
        target.joined = state != "joining"
        target.fabric_status = pynvml.NVML_ERROR_RESET_REQUIRED if state == "failed" else pynvml.NVML_SUCCESS


def remapped_rows(path: Path, gpu: int | str, rows: RemappedRows) -> None:
    """Set what NVML says about remapped rows."""
    with mutate(path) as state:
        gpu_named(state, gpu).remapped = rows


def recovery_action(path: Path, gpu: int | str, action: int) -> None:
    """Set NVML's recovery action (0 clears it) and send the events that announce it."""
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        target.recovery_action = action
        state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, XID_RECOVERY_ACTION_CHANGED)
        state.add_event(target.uuid, pynvml.nvmlEventTypeGpuRecoveryAction, action)


def temperature(path: Path, gpu: int | str, degrees_c: int) -> None:
    """Set the GPU's temperature; from the board's slowdown limit on NVML reports a thermal slowdown."""
    with mutate(path) as state:
        gpu_named(state, gpu).temperature_c = degrees_c


def lose(path: Path, gpu: int | str) -> None:
    """Let the GPU fall off the bus: XID 79 first, then GPU_IS_LOST to everything.

    No reset brings it back, and the driver does not find it when it is loaded again. A repair does (`heal`, `hotplug`).
    """
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        state.add_event(target.uuid, pynvml.nvmlEventTypeXidCriticalError, XID_FALLEN_OFF_THE_BUS)
        target.error = pynvml.NVML_ERROR_GPU_IS_LOST


def make_unreadable(path: Path, gpu: int | str, code: int = pynvml.NVML_ERROR_UNKNOWN) -> None:
    """Let NVML answer `code` to everything about this GPU, without any event."""
    with mutate(path) as state:
        gpu_named(state, gpu).error = code


def reset(path: Path, gpu: int | str) -> None:
    """Reset the GPU: its instances are gone, the pending MIG mode and row remaps take effect, faults end.

    A lost GPU stays lost: only a person brings it back (`hotplug`). StateError while anybody holds the GPU, and for one
    that is passed through to a virtual machine, where a guest cannot reset it.
    """
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        if target.passthrough:
            raise StateError(f"GPU {target.uuid} cannot be reset: it is passed through to this virtual machine.")
        if target.processes:
            pids = ", ".join(str(process.pid) for process in target.processes)
            held = f"process {pids} holds" if len(target.processes) == 1 else f"processes {pids} hold"
            raise StateError(f"GPU {target.uuid} cannot be reset: {held} it.")
        if target.error != pynvml.NVML_ERROR_GPU_IS_LOST:
            if target.instances or target.mig_current != target.mig_pending:
                state.add_event(target.uuid, pynvml.nvmlEventMigConfigChange, 0)
            fresh(target)


def reload_driver(path: Path, *, version: str | None = None) -> None:
    """Unload and load the driver: every session is UNINITIALIZED until it starts again. `version` may be a release, as "615".

    All instances are gone, and all processes that held a GPU: the driver cannot be unloaded before they end. MIG mode is kept
    on Ampere, where it is stored on the board; on newer boards it ends with the driver. A lost GPU is not found any more; the
    minor numbers of the others close the gap.
    """
    with mutate(path) as state:
        _start_driver(state, version, None)


def reboot(path: Path, *, minors: Sequence[int] | None = None, first_capability: int | None = None) -> None:
    """Reboot the node: reload the driver in a new boot.

    `minors` are the new minor numbers of the GPUs that are found, which no boot promises to keep; `first_capability` is the
    first minor number of their capabilities.
    """
    with mutate(path) as state:
        state.boot += 1
        state.first_capability = first_capability or state.first_capability
        _start_driver(state, None, minors)


def _start_driver(state: SimulatedNodeState, version: str | None, minors: Sequence[int] | None) -> None:
    state.driver.generation += 1
    state.driver.error = 0
    if version is not None:
        whole = drivers.whole_version(version)
        state.driver.version, state.driver.nvml_version = whole, drivers.nvml_of(whole)
        state.driver.cuda_version = drivers.cuda_of(whole)
    state.driver.nvidia_smi = state.driver.nvidia_smi or version is not None  # installed with that version
    state.events.clear()
    hotplug.probe(state, minors)
    for gpu in state.gpus:
        gpu.processes.clear()
        fresh(gpu)
        if board_of(gpu).architecture >= Architecture.HOPPER:
            gpu.mig_current = gpu.mig_pending = 0


def hold(path: Path, gpu: int | str, process: GpuProcess) -> None:
    """Let a process hold a GPU, a GPU instance, or a compute instance: what it holds cannot be destroyed.

    StateError for an instance that is not there.
    """
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        if process.gpu_instance is not None:
            _check_instance(target, process.gpu_instance, process.compute_instance)
        target.processes.append(process)


def release(path: Path, pid: int) -> None:
    """End a process on every GPU; StateError when it holds none."""
    with mutate(path) as state:
        held = [gpu for gpu in state.gpus if any(process.pid == pid for process in gpu.processes)]
        if not held:
            raise StateError(f"No process {pid} holds a GPU of node {state.node_name}.")
        for gpu in held:
            gpu.processes[:] = [process for process in gpu.processes if process.pid != pid]


def fail(
    path: Path,
    function: str,
    error: int,
    *,
    gpu: int | str | None = None,
    gpu_instance: int | None = None,
    compute_instance: int | None = None,
    times: int | None = None,
    effect: Literal["none", "done", "hang"] = "none",
) -> None:
    """Let calls of an NVML function ("" is any) fail with `error`: for one GPU, GPU instance or compute instance, or for all.

    Instances are recognised by the handle that the call gets. After `times` failures it works again; None means never. With
    effect "done" the call does its work and still fails, as if its answer were lost. "nvidia-smi" means its time slices.
    """
    if function not in ("", NVIDIA_SMI) and not hasattr(pynvml, function):
        near = get_close_matches(function, [each for each in dir(pynvml) if each.startswith("nvml")], n=1, cutoff=0.8)
        raise StateError(f"NVML has no function {function}" + (f"; did you mean {near[0]}?" if near else "."))
    if function in NEVER_FAIL:
        raise StateError(f"{function} never fails here.")
    with mutate(path) as state:
        uuid = "" if gpu is None else gpu_named(state, gpu).uuid
        state.failures.append(
            Failure(
                error,
                function=function,
                gpu_uuid=uuid,
                gpu_instance=gpu_instance,
                compute_instance=compute_instance,
                times=times,
                effect=effect,
            )
        )


def hang(path: Path, function: str, *, gpu: int | str | None = None) -> None:
    """Let calls of an NVML function ("" is any) never return, for one GPU or for all, until `stop_failing`."""
    fail(path, function, 0, gpu=gpu, effect="hang")


def stop_failing(path: Path, function: str = "") -> None:
    """End the chosen failures of a function, or all of them; hanging calls go on."""
    with mutate(path) as state:
        state.failures[:] = [failure for failure in state.failures if function and failure.function != function]


def break_driver(path: Path, code: int = pynvml.NVML_ERROR_DRIVER_NOT_LOADED) -> None:
    """Let nvmlInit, and every call of a running session, answer `code`; `reload_driver` repairs it."""
    with mutate(path) as state:
        state.driver.error = code


def nvidia_smi(path: Path, *, installed: bool) -> None:
    """Take the program nvidia-smi out of the driver, or put it back. Loading another version also puts it back."""
    with mutate(path) as state:
        state.driver.nvidia_smi = installed


def latency(path: Path, seconds: float, function: str = "*") -> None:
    """Delay an NVML function, or all of them; 0 ends the delay, and for all of them also those of single functions."""
    with mutate(path) as state:
        if seconds:
            state.latency_s[function] = seconds
        elif function == "*":
            state.latency_s.clear()
        else:
            state.latency_s.pop(function, None)


def heal(path: Path, gpu: int | str) -> None:
    """End every fault of a GPU that the driver has, as a repair does; events already sent remain."""
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        state.failures[:] = [failure for failure in state.failures if failure.gpu_uuid != target.uuid]
        cure(target)


def _check_instance(gpu: GpuState, gpu_instance: int, compute_instance: int | None) -> None:
    found = next((instance for instance in gpu.instances if instance.id == gpu_instance), None)
    if found is None:
        there = ", ".join(str(instance.id) for instance in gpu.instances) or "none"
        raise StateError(f"GPU {gpu.uuid} has no GPU instance {gpu_instance}; there are: {there}.")
    if compute_instance is not None and all(compute.id != compute_instance for compute in found.compute):
        there = ", ".join(str(compute.id) for compute in found.compute) or "none"
        raise StateError(f"GPU instance {gpu_instance} has no compute instance {compute_instance}; there are: {there}.")
