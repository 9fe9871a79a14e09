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
from typing import Literal

import msgspec

from draco.resources.errors import DracoError
from draco.simulator.boards import Board, BoardError, board_named
from draco.simulator.doorbell import ring

_NAMESPACE = uuid.UUID("6f0e3d0c-6f3a-5d0b-9a53-3c1d6b0f7a11")  # any constant: it makes UUIDs repeatable
_FORMAT = 2
_READABLE = frozenset({1, _FORMAT})  # 1: before instances could be made; what it lacks has a default
EVENTS_KEPT = 256  # NVML's own queue is bounded too


class StateError(DracoError):
    """The state file cannot be used; the message says which file and what to do."""


class Driver(msgspec.Struct, omit_defaults=False):
    """The node's NVIDIA driver. `generation` grows when it is reloaded; `error` is what nvmlInit answers (0: fine)."""

    version: str = "580.95.05"
    nvml_version: str = "13.580.95.05"
    cuda_version: int = 13000
    generation: int = 1
    error: int = 0


class EccCounts(msgspec.Struct):
    """ECC errors since the driver was loaded (volatile) and over the board's life (aggregate)."""

    corrected_volatile: int = 0
    uncorrected_volatile: int = 0
    corrected_aggregate: int = 0
    uncorrected_aggregate: int = 0
    sram_threshold_exceeded: bool = False


class RemappedRows(msgspec.Struct):
    """Row remapping of HBM and GDDR boards from Ampere on."""

    correctable: int = 0
    uncorrectable: int = 0
    pending: bool = False
    failed: bool = False


class ComputeInstance(msgspec.Struct):
    """One compute instance, in compute slices of its GPU instance; it is what a program sees as a MIG device."""

    id: int
    profile_id: int
    slices: int
    start: int
    uuid: str  # MIG-<uuid>, new at every creation
    slot: int = 0  # index of its MIG device; kept while it lives, so others leave holes
    serial: int = 0  # never used again on this node: handles carry it


class GpuInstance(msgspec.Struct):
    """One GPU instance that exists on the board, in memory units."""

    id: int
    profile_id: int
    start: int
    size: int
    compute: list[ComputeInstance] = []
    serial: int = 0


class Process(msgspec.Struct):
    """A process that holds the GPU, a GPU instance (no compute instance given), or a compute instance.

    One that is not `listed` keeps a handle without running anything, as monitoring programs do: NVML names it nowhere.
    """

    pid: int
    memory_mib: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None
    listed: bool = True
    name: str = ""


class Failure(msgspec.Struct):
    """Calls that fail: of one function, on one GPU and instance, so many times. Empty and None mean any, or always."""

    error: int  # what the call raises
    function: str = ""
    gpu_uuid: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    times: int | None = None
    effect: Literal["none", "done"] = "none"  # done: the call does its work, and fails nevertheless


class GpuState(msgspec.Struct, kw_only=True):
    """One GPU: who it is, how it is doing, and which faults it shows."""

    uuid: str
    board: str
    minor: int
    serial: str
    pci_domain: int = 0
    pci_bus: int
    pci_device: int = 0
    pcie_root_bus: int
    numa_node: int
    mig_current: int = 0
    mig_pending: int = 0
    instances: list[GpuInstance] = []
    processes: list[Process] = []
    ecc: EccCounts = msgspec.field(default_factory=EccCounts)
    remapped: RemappedRows = msgspec.field(default_factory=RemappedRows)
    temperature_c: int = 32
    recovery_action: int = 0
    passthrough: bool = False  # belongs to a virtual machine, which cannot reset it
    error: int = 0  # what every function answers for this GPU, e.g. 15 when it is lost, 999 when it is unreadable

    @property
    def bus_id(self) -> str:
        """PCI address as sysfs writes it: `0000:1b:00.0`."""
        return f"{self.pci_domain:04x}:{self.pci_bus:02x}:{self.pci_device:02x}.0"


class Event(msgspec.Struct, frozen=True):
    """One NVML event. `seq` orders all events of a node; instance ids are 0xFFFFFFFF for the whole GPU."""

    seq: int
    gpu_uuid: str
    type: int
    data: int
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


class NodeState(msgspec.Struct, kw_only=True):
    """Everything simulated NVML knows of one node."""

    format: int = _FORMAT
    node_name: str
    driver: Driver = msgspec.field(default_factory=Driver)
    gpus: list[GpuState] = []
    events: list[Event] = []
    next_event: int = 1
    latency_s: dict[str, float] = {}  # by NVML function name; "*" is every function
    failures: list[Failure] = []  # the first that matches a call fails it
    next_serial: int = 1
    boot: int = 1  # grows when the node is booted

    @property
    def boot_id(self) -> str:
        """As the kernel writes it: another one after every boot."""
        return str(uuid.uuid5(_NAMESPACE, f"{self.node_name} boot {self.boot}"))

    def add_event(self, gpu_uuid: str, kind: int, data: int, *, gi: int = 0xFFFFFFFF, ci: int = 0xFFFFFFFF) -> None:
        """Queue an event; the oldest one falls out when the queue is full."""
        self.events.append(Event(self.next_event, gpu_uuid, kind, data, gi, ci))
        self.next_event += 1
        del self.events[:-EVENTS_KEPT]

    def new_serial(self) -> int:
        """A number for a new instance that no other on this node has had."""
        self.next_serial += 1
        return self.next_serial - 1


def new_node(*, board: str = "H100-80GB", gpus: int = 8, node_name: str) -> NodeState:
    """State of a healthy node. The same name always gives the same UUIDs, serials and addresses.

    BoardError for an unknown board, or for more GPUs than such a server has slots.
    """
    model = board_named(board)
    if not 0 <= gpus <= len(model.slots):
        raise BoardError(f"A node has 0 to {len(model.slots)} GPUs of board {model.key}, not {gpus}.")
    return NodeState(node_name=node_name, gpus=[_new_gpu(model, node_name, index) for index in range(gpus)])


def _new_gpu(board: Board, node_name: str, index: int) -> GpuState:
    identity = uuid.uuid5(_NAMESPACE, f"{node_name}/{index}")
    slot = board.slots[index]
    return GpuState(
        uuid=f"GPU-{identity}",
        board=board.key,
        minor=slot.minor,
        serial=f"{identity.int % 10**13:013d}",
        pci_bus=slot.bus,
        pcie_root_bus=slot.root_bus,
        numa_node=slot.numa_node,
    )


def create(path: Path, *, board: str = "H100-80GB", gpus: int = 8, node_name: str) -> NodeState:
    """Write the state of a new, healthy node to `path`, and return it."""
    state = new_node(board=board, gpus=gpus, node_name=node_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        _replace(path, state)
    ring(path)
    return state


def load(path: Path) -> NodeState:
    """Read the state; StateError when the file is missing or not whole."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StateError(f"There is no simulated GPU state at {path}; create the simulated node first.") from None
    except OSError as error:
        raise StateError(f"The simulated GPU state {path} cannot be read: {error.strerror}.") from error
    return decode(content, path)


def decode(content: bytes, path: Path) -> NodeState:
    """State from a file's bytes; `path` only names the file in the error."""
    try:
        state = _DECODER.decode(content)
    except msgspec.DecodeError as error:
        raise StateError(
            f"The simulated GPU state {path} is damaged ({error}); delete it and create the simulated node again."
        ) from error
    if state.format not in _READABLE:
        raise StateError(
            f"The simulated GPU state {path} has format {state.format}, this version reads {_FORMAT}; "
            "delete it and create the simulated node again."
        )
    state.format = _FORMAT
    return state


@contextmanager
def mutate(path: Path) -> Iterator[NodeState]:
    """Change the state: what the block does to the yielded value is written at its end, unless it raises.

    Holds the file's lock meanwhile, so keep the block short. Every waiting reader is woken after the write.
    """
    with _locked(path):
        state = load(path)
        yield state
        _replace(path, state)
    ring(path)


_DECODER = msgspec.json.Decoder(NodeState)


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


def _replace(path: Path, state: NodeState) -> None:
    content = msgspec.json.format(msgspec.json.encode(state), indent=1)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise StateError(f"The simulated GPU state {path} cannot be written: {error.strerror}.") from error
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
