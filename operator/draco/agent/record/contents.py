"""What stands in the record of this node: the claims promised to kubelet, their devices, and the GPU instances that are ours.

Owns the structs. When each is written, and that the file tells it, is `checkpoint`'s.
"""

from enum import StrEnum

import msgspec

from draco.agent.hardware.gpus import PlacementKey
from draco.mig.board import unit_mask
from draco.resources.names import ClaimUid, GpuUuid


class PreparationState(StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RELEASING = "releasing"  # kubelet gave it up; its instances are still being destroyed


class InstanceState(StrEnum):
    """How far an instance of ours has come."""

    CREATING = "creating"
    MADE = "made"
    DESTROYING = "destroying"


class OwnedInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU instance of ours: where it stands, and how to recognise it. `boot_id` is the boot in which it was made.

    `gi` is on record as soon as the GPU instance exists and before its compute instance is made, so an instance that has one
    and whose `gi` is not on record is not ours.
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
        """Where it stands."""
        return PlacementKey(self.gpu, self.profile_id, self.start)


class Partition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a GPU that a device is. `uuid`, `gi` and `ci` are those of the instance, once it is made."""

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


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a claim. `gpu` says which hardware it is; `device` is only the name it had when it was allocated.

    `partition` is the part of that GPU, None for all of it. `minor`, `pci_bus_id`, `capabilities` (the device numbers that open
    the instance) and the numbers of the instance are those with which the claim's spec was written.
    """

    request: str
    pool: str
    device: str
    gpu: GpuUuid
    minor: int
    admin: bool = False
    share_id: str = ""
    partition: Partition | None = None
    pci_bus_id: str = ""
    capabilities: tuple[int, ...] = ()

    @property
    def key(self) -> PlacementKey | None:
        """Where its instance stands; None for a whole GPU."""
        part = self.partition
        return None if part is None else PlacementKey(self.gpu, part.profile_id, part.start)


class ClaimPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod for which a claim was reserved when it was prepared."""

    name: str
    uid: str


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim and what it got. `pods` may run anywhere, and pods that share the claim later are not among them."""

    uid: ClaimUid
    namespace: str
    name: str
    state: PreparationState
    devices: list[PreparedDevice]
    pods: tuple[ClaimPod, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
