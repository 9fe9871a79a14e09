"""What the agent knows about one GPU: identity, health, events, its instances and who holds them, as plain structs.

Owns the shapes only. `nvml` and `nvml_instances` fill them, `mig.ownership` decides whose an instance is; everything else in the
agent reads them without knowing NVML.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from draco.health.judgement import JudgedFault
from draco.health.ledger import GpuReading
from draco.health.table import HealthState
from draco.mig.board import Board, PlacementId, unit_mask
from draco.resources.api.draco import InstanceUse, MigState
from draco.resources.names import GpuUuid

Use = InstanceUse
_HOPPER = 9
"""Compute capability, first number."""


class PlacementKey(NamedTuple):
    """A place on a GPU, and what would stand there. Two instances never have the same one at one time."""

    gpu: GpuUuid
    profile_id: int
    start: int

    @property
    def place(self) -> PlacementId:
        """The same on any GPU."""
        return PlacementId(self.profile_id, self.start)

    def __str__(self) -> str:
        return f"profile {self.profile_id} at {self.start} of {self.gpu}"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that exists now, with the compute instance in it.

    `ci` and `uuid` are None when it has no compute instance: then it is no MIG device and no tool lists it, but it takes its
    units. `parts` counts its compute instances; ours have one that spans them.
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
        """Where it stands."""
        return PlacementKey(self.gpu, self.profile_id, self.start)

    @property
    def mask(self) -> int:
        """The memory units it takes, one bit each."""
        return unit_mask(self.start, self.size)


class HeldInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance and whose it is. `claims` are "namespace/name"; `holder` says who keeps it from being destroyed."""

    instance: Instance
    use: Use
    claims: tuple[str, ...] = ()
    holder: str = ""


class GpuMigView(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU is divided, and whose each part is. `message` says why it is not Ready, or what it has no room for.

    `missing` are places whose instance a prepared claim needs and that do not have it.
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
        """Everything that exists."""
        return tuple(one.instance for one in self.held)

    @property
    def foreign(self) -> tuple[HeldInstance, ...]:
        """What somebody else made: it is never touched, and what overlaps it cannot be had."""
        return tuple(one for one in self.held if one.use is Use.FOREIGN)

    @property
    def dirty(self) -> bool:
        """Whether nothing new may be placed here until a clean look."""
        return self.state is MigState.DIRTY


class GpuHealth(msgspec.Struct, frozen=True):
    """How a GPU is; `message` is one sentence, empty when it is healthy."""

    state: HealthState
    message: str = ""


HEALTHY = GpuHealth(HealthState.HEALTHY)


ABSENT = "Absent"
"""The fault of a GPU that was here and that NVML no longer lists."""


class GpuFault(msgspec.Struct, frozen=True):
    """What keeps a GPU from new work. `name` is one word for machines, such as Lost, Absent or Xid79; `message` a sentence."""

    name: str
    message: str


class FabricPlace(msgspec.Struct, frozen=True):
    """Where a GPU is in an NVLink fabric of several nodes: GPUs of one cluster and one clique reach each other."""

    cluster: str
    clique: int


class LinkEnds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a GPU's NVLinks lead: to switches, and to GPUs, by PCI address as sysfs writes it."""

    switched: bool = False
    gpus: tuple[str, ...] = ()


class UnreadFact(msgspec.Struct, frozen=True):
    """What NVML does not tell of a GPU or of the driver, by the name under which it is published, and why, as a sentence.

    `lacking`: there is no such thing on this board or with this driver. Else it is only not known now.
    """

    name: str
    message: str
    lacking: bool = False


class DriverInfo(msgspec.Struct, frozen=True):
    """Versions of the node's driver as NVML writes them, "" for what it does not tell; `cuda_driver_version` is `major.minor`."""

    driver_version: str
    cuda_driver_version: str
    nvml_version: str
    unread: tuple[UnreadFact, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One whole GPU, with what is published about it.

    `board` is what it can be divided into, None where it cannot be; `instances` are those that it had when it was read.
    `faults` is its ledger, the worst first, and `fault` the worst of those that keep new work away from all of it. `seen`
    is what the last reading said, before the ledger was asked.
    `device` is the name it is published under, which stays with its UUID (`device_names`); "" for one that has none yet.
    `links` is None while it is not known where its NVLinks lead: a GPU that is divided does not say.
    Of the fields without which it is still a GPU, None and "" mean that there is nothing to know, or that it is not known;
    `unread` says which. `joining`: it is still being registered with its NVLink fabric; until then CUDA fails on it.
    """

    uuid: GpuUuid
    device: str = ""
    index: int
    minor: int  # the device node is /dev/nvidia<minor>; it can change over a reboot. -1: not known now
    product_name: str
    brand: str
    architecture: str
    compute_major: int | None
    compute_minor: int | None
    memory_bytes: int | None
    pci_bus_id: str  # as sysfs writes it: 0000:3b:00.0
    numa_node: int | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    board: Board | None = None
    instances: tuple[Instance, ...] = ()
    fabric: FabricPlace | None = None
    joining: bool = False
    links: LinkEnds | None = None
    addressing_mode: str | None = None  # None: the driver does not say; "None": it says that there is none
    health: GpuHealth = HEALTHY
    fault: GpuFault | None = None  # it takes no new work while there is one; claims that have it keep it
    faults: tuple[JudgedFault, ...] = ()
    seen: GpuReading | None = None
    unread: tuple[UnreadFact, ...] = ()

    @property
    def reading(self) -> GpuReading:
        """What the last reading said of its health: nothing is wrong, where it said nothing."""
        return self.seen or GpuReading(gpu=self.uuid)

    @property
    def absent(self) -> bool:
        """Whether NVML no longer lists it: its fields are those that were read last."""
        return self.fault is not None and self.fault.name == ABSENT

    @property
    def mig_needs_reset(self) -> bool:
        """Whether MIG mode changes only by a reset of the GPU: so it is before Hopper. Source: NVIDIA's MIG user guide.

        Of a GPU that does not tell its generation nothing is promised.
        """
        return self.compute_major is None or self.compute_major < _HOPPER

    @property
    def cuda_compute_capability(self) -> str:
        """As a semantic version, e.g. `9.0.0`; "" if it is not known."""
        return "" if self.compute_major is None else f"{self.compute_major}.{self.compute_minor or 0}.0"


class GpuLocation(NamedTuple):
    """Where a GPU is: its minor number, and its PCI address as sysfs writes it."""

    minor: int
    pci_bus_id: str


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that this node has, or had: the name that stays with it, and how it was when it was last read.

    `last` is None when nothing but the name is known. `pcie_root` and `numa_node` are as they are published.
    """

    uuid: GpuUuid
    device: str
    last: Gpu | None = None
    pcie_root: str | None = None
    numa_node: int | None = None


class UnidentifiedGpu(msgspec.Struct, frozen=True):
    """A GPU of which NVML has not told, since the session was opened, what it takes to give it to anybody; and why.

    `uuid` is "" where not even that is known.
    """

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
    }
)
"""The fields of a GPU by the fact that they are."""


def as_told_before(gpu: Gpu, before: Gpu | None) -> Gpu:
    """The GPU with what is only not known now as it was before. What the board does not have stays out."""
    if before is None:
        return gpu
    fields = [field for one in gpu.unread if not one.lacking for field in _FIELDS.get(one.name, ())]
    return msgspec.structs.replace(gpu, **{field: getattr(before, field) for field in fields}) if fields else gpu


class EventKind(StrEnum):
    """What an event is about."""

    XID = "Xid"  # data: the XID
    CORRECTED_ECC = "CorrectedEcc"
    UNCORRECTED_ECC = "UncorrectedEcc"
    RECOVERY_ACTION = "RecoveryAction"  # data: NVML's recovery action
    MIG_CHANGED = "MigChanged"
    POISON = "Poison"
    UNAVAILABLE = "Unavailable"
    LOST = "Lost"  # found while waiting: the GPU does not answer any more


class GpuEvent(msgspec.Struct, frozen=True):
    """Something happened to a GPU, or to one of its instances. `gpu` is None when NVML could not say which."""

    kind: EventKind
    gpu: GpuUuid | None
    data: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None


class LocatedGpu(msgspec.Struct, frozen=True):
    """A GPU and where it sits in the machine; None is unknown."""

    gpu: Gpu
    pcie_root: str | None = None
    numa_node: int | None = None


def device_name(gpu: Gpu) -> str:
    """The name a whole GPU is published under: its own, or the one it is given if nobody else has it."""
    return gpu.device or f"gpu-{gpu.minor}"


def position(gpu: Gpu) -> tuple[int, str]:
    """Where a GPU stands among those of its node, in all lists: by the number in its name."""
    name = device_name(gpu)
    number = name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, name)
