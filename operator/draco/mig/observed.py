"""A GPU as plans are made from: its instances, whose they are, and what claims have lost.

Owns the shapes only. The agent fills them in from NVML and its record, the operator from what agents report. Pure.
"""

import msgspec

from draco.mig.board import Board, PlacementId, unit_mask
from draco.resources.api.draco import InstanceUse
from draco.resources.names import GpuUuid

IDLE = frozenset({InstanceUse.WARM, InstanceUse.LAYOUT})
"""Uses of instances that no claim has."""
IN_PLACE = IDLE | {InstanceUse.CLAIM}
"""Uses of instances that are ours and whole."""


class ObservedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of a GPU. `use` None: there is none yet, and its place is kept for a claim.

    `claims` ("namespace/name") have it. `stuck`: it is going, and cannot be destroyed now; `holder` is who keeps it, if that is
    known. `number` is NVML's for the GPU instance, None where it is not known. `doubtful`: it may be ours or somebody else's.
    Instances of ours that were made earlier have a smaller `age`.
    """

    profile: str
    profile_id: int
    start: int
    size: int
    use: InstanceUse | None
    claims: tuple[str, ...] = ()
    stuck: bool = False
    holder: str = ""
    number: int | None = None
    doubtful: bool = False
    age: int = 0

    @property
    def id(self) -> PlacementId:
        """Where it stands."""
        return PlacementId(self.profile_id, self.start)

    @property
    def foreign(self) -> bool:
        """Whether somebody else made it, or may have made it."""
        return self.use is InstanceUse.FOREIGN or self.doubtful

    @property
    def mask(self) -> int:
        """The memory units it takes, one bit each."""
        return unit_mask(self.start, self.size)

    def __str__(self) -> str:
        return f"{self.profile} at {self.start}"


class ObservedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as it is. `instances` are its instances, `whole` the claims that have it undivided.

    `capable`: it has a MIG mode. `pending`: another mode comes with the next reset. `board` is None where NVML says nothing of
    what can be made. `missing` are places whose instance a prepared claim has lost, with that claim. `settled`: what is there is
    known for sure; else nothing is made.
    """

    uuid: GpuUuid
    board: Board | None
    capable: bool = True
    enabled: bool = True
    pending: bool = False
    switched_by_reset: bool = False
    instances: tuple[ObservedInstance, ...] = ()
    missing: dict[PlacementId, str] = {}
    whole: tuple[str, ...] = ()
    settled: bool = True
