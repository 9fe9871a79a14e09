"""What simulated NVML knows of one node: its driver, its GPUs, their instances, who holds them, and what fails.

Owns the shapes. Where they are kept is `state`; what they make NVML answer is in `nvml`.
"""

import uuid
from typing import Literal

import msgspec
import pynvml

FORMAT = 2
EVENTS_KEPT = 256  # NVML's own queue is bounded too
NAMESPACE = uuid.UUID("6f0e3d0c-6f3a-5d0b-9a53-3c1d6b0f7a11")  # any constant: it makes UUIDs repeatable


class Driver(msgspec.Struct, omit_defaults=False):
    """The node's NVIDIA driver. `generation` grows when it is reloaded; `error` is what nvmlInit answers (0: fine)."""

    version: str = "580.95.05"
    nvml_version: str = "13.580.95.05"
    cuda_version: int = 13000
    generation: int = 1
    error: int = 0
    nvidia_smi: bool = True  # whether its program of that name is there
    memory_accounting: int = 3  # its option RmMemacctMode: 0 is off


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


class NvLinkFaults(msgspec.Struct):
    """What is wrong with one NVLink of a GPU, and its errors since its counters were last reset."""

    down: bool = False
    replay: int = 0
    recovery: int = 0
    crc: int = 0
    """Errors of flits; NVML counts those of data separately."""


class ComputeInstance(msgspec.Struct):
    """One compute instance, in compute slices of its GPU instance; it is what a program sees as a MIG device."""

    id: int
    profile_id: int
    slices: int
    start: int
    uuid: str  # MIG-<uuid>, new at every creation
    slot: int = 0  # index of its MIG device; kept while it lives, so others leave holes
    serial: int = 0  # never used again on this node: handles carry it
    compute_mode: int = 0


class GpuInstance(msgspec.Struct):
    """One GPU instance that exists on the board, in memory units."""

    id: int
    profile_id: int
    start: int
    size: int
    compute: list[ComputeInstance] = []
    serial: int = 0


class GpuProcess(msgspec.Struct):
    """A process that holds the GPU, a GPU instance (no compute instance given), or a compute instance.

    One that is not `listed` keeps a handle without running anything, as monitoring programs do: NVML names it nowhere.
    """

    pid: int
    memory_mib: int = 0
    utilization: int = 0  # percent of the time in which one of its kernels runs
    kind: Literal["computing", "mps", "drawing"] = "computing"  # mps: a client of an MPS server
    memory_told: bool = True  # whether the driver tells how much memory it uses
    gpu_instance: int | None = None
    compute_instance: int | None = None
    listed: bool = True
    name: str = ""
    cgroup: str = "/"  # as /proc shows it; says which pod and container it belongs to
    container: str = ""  # of a process in a pod: its container's name
    hostname: str = ""  # of a process in a pod: the pod's name
    variables: dict[str, str] = {}  # what else its environment has


class CgroupMemoryLimit(msgspec.Struct):
    """What a cgroup may have of a GPU's memory, in bytes; at first nothing is guaranteed and everything allowed."""

    soft: int = 0
    hard: int = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


class Failure(msgspec.Struct):
    """Calls that fail: of one function, on one GPU and instance, `times` times. Empty and None mean any, or always."""

    error: int  # what the call raises; of one that hangs, nothing
    function: str = ""
    gpu_uuid: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    times: int | None = None
    effect: Literal["none", "done", "hang"] = "none"
    """done: the call does its work and still fails; hang: it waits until this failure is removed, and then works."""


class GpuState(msgspec.Struct, kw_only=True):
    """One GPU: its identity, its state, and its faults."""

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
    compute_mode: int = 0  # NVML's number
    time_slice: int = 0  # 0 to 3: default, short, medium, long
    memory_limits: dict[str, CgroupMemoryLimit] = {}  # by the cgroup's folder
    instances: list[GpuInstance] = []
    processes: list[GpuProcess] = []
    ecc: EccCounts = msgspec.field(default_factory=EccCounts)
    remapped: RemappedRows = msgspec.field(default_factory=RemappedRows)
    links: dict[int, NvLinkFaults] = {}  # by the number of the link; one that is not here never had any
    bridged_to: str = ""  # UUID of the card at the other end of its NVLink bridge
    cluster: str = ""  # UUID of the NVLink fabric of several nodes that it is part of
    clique: int = 0
    joined: bool = True  # registered with the fabric manager; else it is still registering
    fabric_status: int = 0  # how that ended: a return code of NVML
    temperature_c: int = 32
    recovery_action: int = 0
    nvlink: bool = True  # off where the driver was told so, as in a virtual machine with one GPU of an NVSwitch server
    passthrough: bool = False  # belongs to a virtual machine, which cannot reset it
    error: int = 0  # what every function answers for this GPU, e.g. 15 when it is lost, 999 when it is unreadable
    probed: int = -1  # when the driver finds it, compared with the others: minor numbers follow this order
    seat: int = -1  # what its handles carry: a new one when NVML's enumeration changes before it

    @property
    def bus_id(self) -> str:
        """PCI address as sysfs writes it: `0000:1b:00.0`."""
        return f"{self.pci_domain:04x}:{self.pci_bus:02x}:{self.pci_device:02x}.0"


class NvmlEvent(msgspec.Struct, frozen=True):
    """One NVML event. `seq` orders all events of a node; instance ids are 0xFFFFFFFF for the whole GPU."""

    seq: int
    gpu_uuid: str
    type: int
    data: int
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


class SimulatedNodeState(msgspec.Struct, kw_only=True):
    """Everything simulated NVML knows of one node. `gpus` are those that the driver has, in PCI order; `missing` the others."""

    format: int = FORMAT
    node_name: str
    driver: Driver = msgspec.field(default_factory=Driver)
    gpus: list[GpuState] = []
    missing: list[GpuState] = []  # dead when the driver was loaded, or taken out: until `hotplug` puts them in
    events: list[NvmlEvent] = []
    next_event: int = 1
    latency_s: dict[str, float] = {}  # by NVML function name; "*" is every function
    failures: list[Failure] = []  # the first that matches a call fails it
    next_serial: int = 1
    boot: int = 1  # grows when the node is booted
    first_capability: int = 3  # device number of the first GPU's instance 0; no driver promises to keep it
    next_seat: int = 1 << 16

    @property
    def boot_id(self) -> str:
        """As the kernel writes it: a new one after every boot."""
        return str(uuid.uuid5(NAMESPACE, f"{self.node_name} boot {self.boot}"))

    def add_event(self, gpu_uuid: str, kind: int, data: int, *, gi: int = 0xFFFFFFFF, ci: int = 0xFFFFFFFF) -> None:
        """Queue an event; the oldest one falls out when the queue is full."""
        self.events.append(NvmlEvent(self.next_event, gpu_uuid, kind, data, gi, ci))
        self.next_event += 1
        del self.events[:-EVENTS_KEPT]

    def new_serial(self) -> int:
        """Draw a number for a new instance that no other on this node has had."""
        self.next_serial += 1
        return self.next_serial - 1
