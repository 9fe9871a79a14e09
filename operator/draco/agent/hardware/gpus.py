"""What the agent knows about one GPU: identity, health, events, instances and their holders, as plain structs.

Owns the structs only. `nvml` and `nvml_instances` fill them; `mig.ownership` decides whose an instance is.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from draco.health.judgement import JudgedFault, whole_blocking
from draco.health.ledger import GpuReading
from draco.mig.board import Board, PlacementId, unit_mask
from draco.resources.api.draco import InstanceUse, MemoryLimitBy, MigState
from draco.resources.names import GpuUuid

Use = InstanceUse
_HOPPER = 9
"""First number of the compute capability."""


class PlacementKey(NamedTuple):
    """A placement on a GPU. Two instances never share one."""

    gpu: GpuUuid
    profile_id: int
    start: int

    @property
    def place(self) -> PlacementId:
        """The placement without its GPU."""
        return PlacementId(self.profile_id, self.start)

    def __str__(self) -> str:
        return f"profile {self.profile_id} at {self.start} of {self.gpu}"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that exists now, with its compute instance.

    `ci` and `uuid` are None without a compute instance: it is no MIG device then and no tool lists it, but it takes its units.
    `parts` counts its compute instances; ours have one that spans them.
    """

    gpu: GpuUuid
    gi: int
    profile_id: int
    start: int
    size: int
    ci: int | None = None
    uuid: str | None = None
    parts: int = 0

    @property
    def key(self) -> PlacementKey:
        """Its placement."""
        return PlacementKey(self.gpu, self.profile_id, self.start)

    @property
    def mask(self) -> int:
        """The memory units it takes, one bit each."""
        return unit_mask(self.start, self.size)


class HeldInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance and its owner. `claims` are "namespace/name"; `holder` is what keeps it from being destroyed."""

    instance: Instance
    use: Use
    claims: tuple[str, ...] = ()
    holder: str = ""


class GpuMigView(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU is divided, with owners. `message` says why it is not Ready, or what has no room.

    `missing` are places where a prepared claim needs an instance and has none.
    """

    gpu: GpuUuid
    capable: bool = False
    enabled: bool = False
    pending: bool = False
    board: Board | None = None
    state: MigState = MigState.READY
    message: str = ""
    held: tuple[HeldInstance, ...] = ()
    missing: tuple[PlacementKey, ...] = ()

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All existing instances."""
        return tuple(one.instance for one in self.held)

    @property
    def foreign(self) -> tuple[HeldInstance, ...]:
        """Instances that somebody else made: they are never touched, and overlapping placements are unavailable."""
        return tuple(one for one in self.held if one.use is Use.FOREIGN)

    @property
    def dirty(self) -> bool:
        """Whether nothing new may be placed here until a clean reading."""
        return self.state is MigState.DIRTY


ABSENT = "Absent"
"""The fault of a GPU that was here and that NVML no longer lists."""


class FabricPlace(msgspec.Struct, frozen=True):
    """A GPU's place in a multi-node NVLink fabric: GPUs of one cluster and clique reach each other."""

    cluster: str
    clique: int


class LinkEnds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a GPU's NVLinks lead: to switches, and to GPUs, by PCI address as in sysfs."""

    switched: bool = False
    gpus: tuple[str, ...] = ()


class UnreadFact(msgspec.Struct, frozen=True):
    """What NVML does not report of a GPU or of the driver, by its published name, and why, as a sentence.

    `lacking`: this board or driver does not have it. Otherwise it is only unknown now.
    """

    name: str
    message: str
    lacking: bool = False


class DriverInfo(msgspec.Struct, frozen=True):
    """The driver's versions as NVML writes them, "" if not reported; `cuda_driver_version` is `major.minor`."""

    driver_version: str
    cuda_driver_version: str
    nvml_version: str
    unread: tuple[UnreadFact, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One whole GPU, with what is published about it.

    `board` is what it can be divided into, None if it cannot be; `instances` are those of the last reading. `faults` are those of
    its ledger, the worst first, after one that outranks them. `seen` is the last reading, before the ledger was updated. `device`
    is its published name, which stays with its UUID (`device_names`); "" for one without a name yet. `links` is None while it is
    unknown where its NVLinks lead: a divided GPU does not report that. For optional fields, None and "" mean that the GPU lacks
    it or that it is unknown; `unread` says which. `joining`: it is being registered with its NVLink fabric; until then CUDA fails
    on it.
    """

    uuid: GpuUuid
    device: str = ""
    index: int
    minor: int  # the device node is /dev/nvidia<minor>; may change over a reboot. -1: unknown now
    product_name: str
    brand: str
    architecture: str
    compute_major: int | None
    compute_minor: int | None
    memory_bytes: int | None
    pci_bus_id: str  # as in sysfs: 0000:3b:00.0
    pcie_root: str | None = None  # from sysfs, as numa_node where it has one
    numa_node: int | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    board: Board | None = None
    instances: tuple[Instance, ...] = ()
    fabric: FabricPlace | None = None
    joining: bool = False
    links: LinkEnds | None = None
    memory_limits: bool | None = None  # whether the driver holds those of containers while the GPU is not divided
    addressing_mode: str | None = None  # None: not reported; "None": the driver says that there is none
    faults: tuple[JudgedFault, ...] = ()
    seen: GpuReading | None = None
    unread: tuple[UnreadFact, ...] = ()

    @property
    def reading(self) -> GpuReading:
        """The health of the last reading; without one, nothing is wrong."""
        return self.seen or GpuReading(gpu=self.uuid)

    @property
    def fault(self) -> JudgedFault | None:
        """The worst fault that keeps new work from all of it; claims that have it keep it."""
        return whole_blocking(self.faults)

    @property
    def absent(self) -> bool:
        """Whether NVML no longer lists it: its fields are from the last reading."""
        return self.fault is not None and self.fault.status.name == ABSENT

    @property
    def mig_needs_reset(self) -> bool:
        """Whether MIG mode changes only with a reset: before Hopper, or unknown. Source: NVIDIA's MIG user guide."""
        return self.compute_major is None or self.compute_major < _HOPPER

    @property
    def memory_limit(self) -> MemoryLimitBy | None:
        """Who holds limits on its memory; None if unknown."""
        held = self.memory_limits
        return None if held is None else MemoryLimitBy.DRIVER if held else MemoryLimitBy.NONE

    @property
    def cuda_compute_capability(self) -> str:
        """As a semantic version, e.g. `9.0.0`; "" if unknown."""
        return "" if self.compute_major is None else f"{self.compute_major}.{self.compute_minor or 0}.0"


class GpuLocation(NamedTuple):
    """A GPU's minor number, and its PCI address as in sysfs."""

    minor: int
    pci_bus_id: str


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that this node has or had, with its permanent name. `last` is None if only the name is known."""

    uuid: GpuUuid
    device: str
    last: Gpu | None = None


class UnidentifiedGpu(msgspec.Struct, frozen=True):
    """A GPU that cannot be identified in this session, and why. `uuid` is "" if unknown too."""

    index: int
    message: str
    uuid: str = ""


_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "productName": ("product_name",),
        "brand": ("brand",),
        "architecture": ("architecture",),
        "cudaComputeCapability": ("compute_major", "compute_minor"),
        "memory": ("memory_bytes",),
        "numaNode": ("numa_node",),
        "addressingMode": ("addressing_mode",),
        "mig": ("mig_capable", "mig_enabled"),
        "fabric": ("fabric", "joining"),
        "links": ("links",),
        "memoryLimit": ("memory_limits",),
    }
)
"""The fields of a GPU by the name of the fact."""


def as_told_before(gpu: Gpu, before: Gpu | None) -> Gpu:
    """The GPU with facts that are unknown now taken from `before`. Facts that the board lacks stay out."""
    if before is None:
        return gpu
    fields = [field for one in gpu.unread if not one.lacking for field in _FIELDS.get(one.name, ())]
    return msgspec.structs.replace(gpu, **{field: getattr(before, field) for field in fields}) if fields else gpu


class EventKind(StrEnum):
    """The kind of an event."""

    XID = "Xid"  # data: the XID
    CORRECTED_ECC = "CorrectedEcc"
    UNCORRECTED_ECC = "UncorrectedEcc"
    RECOVERY_ACTION = "RecoveryAction"  # data: NVML's recovery action
    MIG_CHANGED = "MigChanged"
    POISON = "Poison"
    UNAVAILABLE = "Unavailable"
    LOST = "Lost"  # found while waiting: the GPU no longer answers


class GpuEvent(msgspec.Struct, frozen=True):
    """An event of a GPU, or of one of its instances. `gpu` is None if NVML did not report which."""

    kind: EventKind
    gpu: GpuUuid | None
    data: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None


def device_name(gpu: Gpu) -> str:
    """The published name of a whole GPU: its own, or the one that it gets if no other GPU has it."""
    return gpu.device or f"gpu-{gpu.minor}"


def position(gpu: Gpu) -> tuple[int, str]:
    """Sort key of a GPU among those of its node: the number in its name."""
    name = device_name(gpu)
    number = name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, name)
