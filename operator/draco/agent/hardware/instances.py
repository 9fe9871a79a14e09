"""GPU instances as the agent speaks of them: what NVML shows, and who holds it.

Owns the shapes only. `nvml_instances` fills in what is observed, `mig.ownership` decides whose it is; everything else reads.
"""

from typing import NamedTuple

import msgspec

from draco.mig.board import Board, PlacementId, unit_mask
from draco.resources.api.draco import InstanceUse as Use
from draco.resources.api.draco import MigState
from draco.resources.names import GpuUuid

__all__ = [
    "GpuMigView",
    "HeldInstance",
    "Instance",
    "MigState",
    "PlacementKey",
    "Use",
]


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
