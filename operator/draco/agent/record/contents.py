"""The structs of this node's record: claims, their devices, our instances, time slices and compute modes.

`checkpoint` decides when to write.
"""

from enum import StrEnum

import msgspec

from draco.agent.hardware.gpus import PlacementKey
from draco.allocation.configurations import TimeSlice
from draco.mig.board import unit_mask
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.names import ClaimUid, GpuUuid


class PreparationState(StrEnum):
    """The state of a claim on record."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RELEASING = "releasing"  # kubelet unprepared it; its instances are still being destroyed


class InstanceState(StrEnum):
    """The state of our instance on record."""

    CREATING = "creating"
    MADE = "made"
    DESTROYING = "destroying"


class OwnedInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU instance of ours: its placement, and how to recognise it. `boot_id` is the boot in which it was made.

    `gi` is recorded when the GPU instance exists and before its compute instance is made. So an instance with a compute instance
    but no recorded `gi` is not ours.
    """

    gpu: GpuUuid
    profile_id: int
    start: int
    size: int
    state: InstanceState
    boot_id: str
    gi: int | None = None
    ci: int | None = None
    uuid: str = ""

    @property
    def key(self) -> PlacementKey:
        """Its placement."""
        return PlacementKey(self.gpu, self.profile_id, self.start)


class GpuTimeSlice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a GPU's time slice: whether a version of the driver can set it, and what we set or were about to set.

    `supported` is None while it was never tried. A time slice other than DEFAULT is on record before it is set and until it is
    back at DEFAULT. `load` identifies the load of the driver in which it was set; "" before that is certain.
    """

    gpu: GpuUuid
    driver_version: str = ""
    supported: bool | None = None
    time_slice: TimeSlice = TimeSlice.DEFAULT
    load: str = ""


class GpuComputeMode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That we made a GPU exclusive for an MPS daemon, or were about to: `before` is the mode to give back.

    On record before it is set, and until it is given back. `load` identifies the load of the driver in which it was set, and with
    which it ends; "" before that is certain. `ours` False takes it off the record.
    """

    gpu: GpuUuid
    daemon: str
    before: int = 0
    load: str = ""
    ours: bool = True


class DeviceMps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The MPS daemon of a device: its name, its GPUs, and what it is asked for. `folder` has its pipe and shared memory."""

    daemon: str
    folder: str
    gpus: tuple[GpuUuid, ...] = ()
    percentage: int | None = None
    limit_mib: int | None = None
    multi_user: bool = False


class Partition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The partition of a GPU that a device stands for. `uuid`, `gi` and `ci` are the instance's, once it is made."""

    profile_id: int
    start: int
    size: int
    gi: int = -1
    ci: int = -1
    uuid: str = ""
    profile: str = ""

    @property
    def mask(self) -> int:
        """The memory units it takes, one bit each."""
        return unit_mask(self.start, self.size)


class ShareLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit on the memory of a share; `library` is the node's path of the library that holds it.

    Agents that do not know this leave the claim's spec as it is.
    """

    by: MemoryLimitBy
    mib: int
    library: str = ""


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a claim. `gpu` identifies the hardware; `device` is its name at allocation.

    `partition` is None for a whole GPU. `share_id` is "" unless the claim has a share, of which `consumed` are the amounts.
    `memory_limit_mib` is what the driver is to hold its containers to, 0 for no limit; `soft_limit` is what something else is to.
    The claim's spec was written with `minor`, `pci_bus_id`, `capabilities` (the device numbers that open the instance) and the
    instance's numbers.
    """

    request: str
    pool: str
    device: str
    gpu: GpuUuid
    minor: int
    admin: bool = False
    share_id: str = ""
    consumed: dict[str, str] = {}
    partition: Partition | None = None
    time_slice: TimeSlice = TimeSlice.DEFAULT
    mps: DeviceMps | None = None
    memory_limit_mib: int = 0
    soft_limit: ShareLimit | None = None
    pci_bus_id: str = ""
    capabilities: tuple[int, ...] = ()

    @property
    def limit(self) -> ShareLimit | None:
        """What its containers are held to, and by whom."""
        mib = self.memory_limit_mib
        return ShareLimit(by=MemoryLimitBy.DRIVER, mib=mib) if mib else self.soft_limit

    @property
    def key(self) -> PlacementKey | None:
        """The placement of its instance; None for a whole GPU."""
        part = self.partition
        return None if part is None else PlacementKey(self.gpu, part.profile_id, part.start)


class ClaimPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod for which a claim was reserved when it was prepared."""

    name: str
    uid: str


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim and its devices. `pods` may be on any node; pods that share the claim later are missing.

    `waits`: it is being prepared and has its instances, but not its MPS daemons yet.
    """

    uid: ClaimUid
    namespace: str
    name: str
    state: PreparationState
    devices: list[PreparedDevice]
    pods: tuple[ClaimPod, ...] = ()
    waits: bool = False

    @property
    def has_instances(self) -> bool:
        """Whether its instances must stay."""
        return self.state is PreparationState.PREPARED or (self.state is PreparationState.PREPARING and self.waits)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
