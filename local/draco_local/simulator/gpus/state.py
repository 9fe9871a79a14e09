"""The state of one simulated node's GPUs, in one file that several processes share.

Owns the file: its shape, its lock, and that a reader sees either the old state or the new one. Knows nothing of
NVML's functions; what a fault does to them is in `nvml`.
"""

import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from draco.resources.errors import DracoError
from draco_local.simulator.gpus import procfs
from draco_local.simulator.gpus.boards import BoardError, SimulatedBoard, board_named
from draco_local.simulator.gpus.doorbell import ring
from draco_local.simulator.gpus.gpu_state import (
    EVENTS_KEPT,
    FORMAT,
    NAMESPACE,
    CgroupMemoryLimit,
    ComputeInstance,
    Driver,
    EccCounts,
    Failure,
    GpuInstance,
    GpuProcess,
    GpuState,
    NvLinkFaults,
    NvmlEvent,
    RemappedRows,
    SimulatedNodeState,
)

__all__ = [
    "EVENTS_KEPT",
    "ON_A_NODE",
    "CgroupMemoryLimit",
    "ComputeInstance",
    "Driver",
    "EccCounts",
    "Failure",
    "GpuInstance",
    "GpuProcess",
    "GpuState",
    "NvLinkFaults",
    "NvmlEvent",
    "RemappedRows",
    "SimulatedNodeState",
    "StateError",
    "create",
    "decode",
    "load",
    "mutate",
    "new_node",
]

ON_A_NODE: Final = Path("/var/lib/draco/gpus.json")
"""Where a node has the file that the agent on it reads."""

_READABLE = frozenset({1, FORMAT})  # 1: before instances could be made; what it lacks has a default


class StateError(DracoError):
    """The state file cannot be used; the message says which file and what to do."""


def new_node(*, board: str = "H100-80GB", gpus: int = 8, node_name: str) -> SimulatedNodeState:
    """State of a healthy node. The same name always gives the same UUIDs, serials and addresses.

    BoardError for an unknown board, or for more GPUs than such a server has slots.
    """
    model = board_named(board)
    if not 0 <= gpus <= len(model.slots):
        raise BoardError(f"A node has 0 to {len(model.slots)} GPUs of board {model.key}, not {gpus}.")
    state = SimulatedNodeState(node_name=node_name, gpus=[_new_gpu(model, node_name, index) for index in range(gpus)])
    for minor, gpu in enumerate(sorted(state.gpus, key=lambda gpu: gpu.probed)):
        gpu.minor = minor  # also where the server has more slots than GPUs
    return state


def _new_gpu(board: SimulatedBoard, node_name: str, index: int) -> GpuState:
    identity = uuid.uuid5(NAMESPACE, f"{node_name}/{index}")
    slot = board.slots[index]
    return GpuState(
        uuid=f"GPU-{identity}",
        board=board.key,
        minor=slot.minor,
        probed=slot.minor,
        seat=index,
        serial=f"{identity.int % 10**13:013d}",
        pci_bus=slot.bus,
        pcie_root_bus=slot.root_bus,
        numa_node=slot.numa_node,
    )


def create(path: Path, *, board: str = "H100-80GB", gpus: int = 8, node_name: str) -> SimulatedNodeState:
    """Write the state of a new, healthy node to `path`, and return it."""
    state = new_node(board=board, gpus=gpus, node_name=node_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        _replace(path, state)
    ring(path)
    return state


def load(path: Path) -> SimulatedNodeState:
    """Read the state; StateError when the file is missing or not whole."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StateError(f"There is no simulated GPU state at {path}; create the simulated node first.") from None
    except OSError as error:
        raise StateError(f"The simulated GPU state {path} cannot be read: {error.strerror}.") from error
    return decode(content, path)


def decode(content: bytes, path: Path) -> SimulatedNodeState:
    """State from a file's bytes; `path` only names the file in the error."""
    try:
        state = _DECODER.decode(content)
    except msgspec.DecodeError as error:
        raise StateError(
            f"The simulated GPU state {path} is damaged ({error}); delete it and create the simulated node again."
        ) from error
    if state.format not in _READABLE:
        raise StateError(
            f"The simulated GPU state {path} has format {state.format}, this version reads {FORMAT}; "
            "delete it and create the simulated node again."
        )
    state.format = FORMAT
    for index, gpu in enumerate(state.gpus):
        if gpu.seat < 0:  # from before boards could be taken out
            gpu.seat, gpu.probed = index, gpu.minor
    return state


@contextmanager
def mutate(path: Path) -> Iterator[SimulatedNodeState]:
    """Change the state: what the block does to the yielded value is written at its end, unless it raises.

    Holds the file's lock meanwhile, so keep the block short. Every waiting reader is woken after the write.
    """
    with _locked(path):
        state = load(path)
        yield state
        _replace(path, state)
    ring(path)


_DECODER = msgspec.json.Decoder(SimulatedNodeState)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is a file of its own: the state file is replaced on every write."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise StateError(f"There is no simulated GPU state at {path}; create the simulated node first.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, state: SimulatedNodeState) -> None:
    content = msgspec.json.format(msgspec.json.encode(state), indent=1)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)  # not synced to disk: it has to outlive processes, not this machine
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise StateError(f"The simulated GPU state {path} cannot be written: {error.strerror}.") from error
    procfs.refresh(path, state)
