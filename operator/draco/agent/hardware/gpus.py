"""What the agent knows about one GPU: identity, health, and events, as plain structs.

Owns the shapes only. `nvml` fills them; everything else in the agent reads them without knowing NVML.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from draco.agent.hardware.instances import Instance
from draco.mig.board import Board
from draco.resources.names import GpuUuid

_HOPPER = 9
"""Compute capability, first number."""


class HealthState(StrEnum):
    """The three answers of a health check; what cannot be read is Unknown, never Healthy."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


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


class DriverInfo(msgspec.Struct, frozen=True):
    """Versions of the node's driver, as NVML writes them; `cuda_driver_version` is `major.minor`."""

    driver_version: str
    cuda_driver_version: str
    nvml_version: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One whole GPU, with what is published about it.

    `board` is what it can be divided into, None where it cannot be; `instances` are those that it had when it was read.
    `device` is the name it is published under, which stays with its UUID (`device_names`); "" for one that has none yet.
    """

    uuid: GpuUuid
    device: str = ""
    index: int
    minor: int  # the device node is /dev/nvidia<minor>; it can change over a reboot
    product_name: str
    brand: str
    architecture: str
    compute_major: int
    compute_minor: int
    memory_bytes: int
    pci_bus_id: str  # as sysfs writes it: 0000:3b:00.0
    numa_node: int | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    board: Board | None = None
    instances: tuple[Instance, ...] = ()
    addressing_mode: str | None = None  # None: the driver does not say; "None": it says that there is none
    health: GpuHealth = HEALTHY
    fault: GpuFault | None = None  # it takes no new work while there is one; claims that have it keep it

    @property
    def absent(self) -> bool:
        """Whether NVML no longer lists it: its fields are those that were read last."""
        return self.fault is not None and self.fault.name == ABSENT

    @property
    def memory_mib(self) -> int:
        """Frame buffer in MiB, rounded down."""
        return self.memory_bytes >> 20

    @property
    def mig_needs_reset(self) -> bool:
        """Whether MIG mode changes only by a reset of the GPU: so it is before Hopper. Source: NVIDIA's MIG user guide."""
        return self.compute_major < _HOPPER

    @property
    def cuda_compute_capability(self) -> str:
        """As a semantic version, e.g. `9.0.0`."""
        return f"{self.compute_major}.{self.compute_minor}.0"


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
    """A GPU whose UUID NVML has not returned since the session was opened, and why."""

    index: int
    message: str


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
