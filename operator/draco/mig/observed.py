"""A GPU as the input of plans: its instances, their owners, and what claims have lost.

Owns the structs only. The agent fills them from NVML and its record, the operator from agents' reports. Pure.
"""

import msgspec

from draco.mig.board import Board, PlacementId, unit_mask
from draco.resources.api.draco import InstanceUse
from draco.resources.names import GpuUuid

IDLE = frozenset({InstanceUse.WARM, InstanceUse.LAYOUT})
"""Uses of instances without a claim."""
IN_PLACE = IDLE | {InstanceUse.CLAIM}
"""Uses of complete instances of ours."""


class ObservedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of a GPU. `use` None: it does not exist yet, and its place is kept for a claim.

    `claims` ("namespace/name") have it. `stuck`: it is being destroyed but cannot be now; `holder` keeps it, if known. `number`
    is NVML's number of the GPU instance, None if unknown. `doubtful`: ours or somebody else's. Older instances of ours have a
    smaller `age`.
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
        """Its place."""
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
    """A GPU's current state. `instances` are its instances, `whole` the claims that have it undivided.

    `capable`: it has a MIG mode. `pending`: another mode takes effect with the next reset. `board` is None if NVML does not
    report it. `missing` are places whose instance a prepared claim has lost, with that claim. `settled`: the instances are known
    for certain; otherwise none are created.
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
