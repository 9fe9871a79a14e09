"""Which boards the driver of a simulated node has: taken out, put back, replaced, and found when it is loaded.

Owns the order in which GPUs are numbered. What is broken about a board is in `faults`. The numbers follow what NVIDIA's driver
does: indexes are in PCI order and close up at once when a GPU goes ("if GPU1 is removed, the new enumeration will be 0-2",
nvmlDeviceRemoveGpu), handles of the GPUs behind it become invalid, and a minor number is the lowest that is free when the driver
finds the board, so gaps close when the driver is loaded again.
"""

import uuid
from collections.abc import Sequence
from pathlib import Path

import pynvml

from draco_local.simulator.gpus.boards import BOARDS, Architecture
from draco_local.simulator.gpus.gpu_state import NAMESPACE, EccCounts, GpuState, RemappedRows, SimulatedNodeState
from draco_local.simulator.gpus.state import StateError, mutate


def remove(path: Path, gpu: int | str) -> None:
    """Take a board out. No driver finds it until somebody puts it back. StateError while anybody holds it."""
    with mutate(path) as state:
        target = gpu_named(state, gpu)
        if target.processes and target.error != pynvml.NVML_ERROR_GPU_IS_LOST:
            pids = ", ".join(str(process.pid) for process in target.processes)
            raise StateError(f"GPU {target.uuid} cannot be taken out: it is held by process {pids}.")
        _take_out(state, target)


def reseat(path: Path, gpu: int | str) -> None:
    """Take a board out, if it is in, and put the same one back, healthy."""
    with mutate(path) as state:
        target = board_named(state, gpu)
        _take_out(state, target)
        cure(target)
        _put_in(state, target)


def replace(path: Path, gpu: int | str) -> str:
    """Replace a board with another of the same kind: the same PCI address, and another UUID, which is returned."""
    with mutate(path) as state:
        old = board_named(state, gpu)
        _take_out(state, old)
        state.missing.remove(old)
        state.next_serial += 1
        identity = uuid.uuid5(NAMESPACE, f"{state.node_name}/{old.uuid}/{state.next_serial}")
        fresh_board = GpuState(
            uuid=f"GPU-{identity}",
            board=old.board,
            minor=old.minor,
            serial=f"{identity.int % 10**13:013d}",
            pci_domain=old.pci_domain,
            pci_bus=old.pci_bus,
            pci_device=old.pci_device,
            pcie_root_bus=old.pcie_root_bus,
            numa_node=old.numa_node,
            passthrough=old.passthrough,
            probed=old.probed,
        )
        _put_in(state, fresh_board)
        return fresh_board.uuid


def probe(state: SimulatedNodeState, minors: Sequence[int] | None) -> None:
    """Load the driver: it finds every board that is in and alive, and numbers them from 0 in the order it finds them.

    `minors` sets another order, for this load and those that follow.
    """
    for gpu in [gpu for gpu in state.gpus if gpu.error == pynvml.NVML_ERROR_GPU_IS_LOST]:
        _take_out(state, gpu)
    if minors is not None:
        if len(set(minors)) != len(state.gpus) or len(minors) != len(state.gpus):
            raise StateError(f"Node {state.node_name} needs {len(state.gpus)} different minor numbers.")
        places = sorted(gpu.probed for gpu in state.gpus)
        in_order = sorted(zip(minors, state.gpus, strict=True), key=lambda pair: pair[0])
        for place, (minor, gpu) in zip(places, in_order, strict=True):
            gpu.probed, gpu.minor = place, minor
        return
    for minor, gpu in enumerate(sorted(state.gpus, key=lambda gpu: gpu.probed)):
        gpu.minor = minor


def fresh(gpu: GpuState) -> None:
    """Do what a reset does to a GPU that is still on the bus."""
    gpu.error = 0
    gpu.recovery_action = 0
    gpu.instances.clear()
    gpu.mig_current = gpu.mig_pending
    gpu.compute_mode = gpu.time_slice = 0
    gpu.memory_limits.clear()
    gpu.ecc.corrected_volatile = gpu.ecc.uncorrected_volatile = 0
    gpu.remapped.pending = False
    gpu.links.clear()  # a reset trains them again, and counts from 0
    gpu.joined, gpu.fabric_status = True, 0


def cure(gpu: GpuState) -> None:
    """Do to a GPU what a repair does, which is more than a reset."""
    gpu.error = 0
    gpu.recovery_action = 0
    gpu.temperature_c = 32
    gpu.joined, gpu.fabric_status = True, 0
    gpu.links.clear()
    gpu.ecc = EccCounts()
    gpu.remapped = RemappedRows()


def gpu_named(state: SimulatedNodeState, gpu: int | str) -> GpuState:
    """Return a GPU that the driver has, by its index or its UUID. StateError without it."""
    for index, candidate in enumerate(state.gpus):
        if gpu in (index, candidate.uuid):
            return candidate
    out = f" (missing: {', '.join(each.uuid for each in state.missing)})" if state.missing else ""
    raise StateError(f"Node {state.node_name} has no GPU {gpu}; it has 0 to {len(state.gpus) - 1}{out}.")


def board_named(state: SimulatedNodeState, gpu: int | str) -> GpuState:
    """Return a GPU like `gpu_named`, or a board that the driver does not have, by its UUID."""
    found = next((each for each in state.missing if each.uuid == gpu), None)
    return gpu_named(state, gpu) if found is None else found


def _take_out(state: SimulatedNodeState, gpu: GpuState) -> None:
    """Take a board out. Its instances are gone, and on boards from Hopper on its MIG mode."""
    if gpu not in state.gpus:
        return
    behind = state.gpus.index(gpu) + 1
    _reseated(state, state.gpus[behind:])
    state.gpus.remove(gpu)
    gpu.processes.clear()
    gpu.instances.clear()
    gpu.compute_mode = gpu.time_slice = 0
    on_board = BOARDS[gpu.board].architecture < Architecture.HOPPER  # where the mode is kept
    gpu.mig_current = gpu.mig_pending = gpu.mig_pending if on_board else 0
    state.missing.append(gpu)
    state.events[:] = [event for event in state.events if event.gpu_uuid != gpu.uuid]


def _put_in(state: SimulatedNodeState, gpu: GpuState) -> None:
    """Put a board in; the driver finds it at once.

    "All device handles are no longer guaranteed to be valid" (nvmlDeviceDiscoverGpus).
    """
    if gpu in state.missing:
        state.missing.remove(gpu)
    taken = {each.minor for each in state.gpus}
    gpu.minor = next(number for number in range(len(taken) + 1) if number not in taken)
    state.gpus.append(gpu)
    state.gpus.sort(key=lambda each: each.bus_id)
    _reseated(state, state.gpus)


def _reseated(state: SimulatedNodeState, gpus: Sequence[GpuState]) -> None:
    for gpu in gpus:
        gpu.seat = state.next_seat
        state.next_seat += 1
