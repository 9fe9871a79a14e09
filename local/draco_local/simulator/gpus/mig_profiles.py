"""What simulated NVML does with a board's MIG profiles: its enumerations, room left, and compute instances inside.

Owns these rules; the tables are `draco.mig.known_boards`'s. Sources: NVIDIA's MIG user guide; what no listing shows says
"estimated".
"""

import re
from collections.abc import Collection
from enum import IntEnum
from types import MappingProxyType

import msgspec

from draco.mig.board import Board, Placement, Profile

_ENGINES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


class GiProfileEnum(IntEnum):
    """NVML_GPU_INSTANCE_PROFILE_*: what the profile-info call takes. The id it answers with is another number."""

    SLICE_1 = 0x0
    SLICE_2 = 0x1
    SLICE_3 = 0x2
    SLICE_4 = 0x3
    SLICE_7 = 0x4
    SLICE_1_REV1 = 0x7
    SLICE_2_REV1 = 0x8
    SLICE_1_REV2 = 0x9
    SLICE_1_GFX = 0xA
    SLICE_2_GFX = 0xB
    SLICE_4_GFX = 0xC
    SLICE_1_NO_ME = 0xD
    SLICE_2_NO_ME = 0xE
    SLICE_1_ALL_ME = 0xF
    SLICE_2_ALL_ME = 0x10


_BY_SUFFIX = MappingProxyType({"": "", "+me": "_REV1", "+gfx": "_GFX", "-me": "_NO_ME", "+me.all": "_ALL_ME"})


def kind_of(profile: Profile, board: Board) -> GiProfileEnum:
    """NVML's enumeration value of a profile: by its slices, what its name ends in, and whether it has memory to spare."""
    suffix = _BY_SUFFIX[re.sub(r"^.*?gb", "", profile.name)]
    least = min(each.size for each in board.profiles if each.slices == profile.slices)
    return GiProfileEnum[f"SLICE_{profile.slices}{suffix or ('_REV2' if profile.size > least else '')}"]


def by_kind(board: Board, kind: int) -> Profile | None:
    """The profile of an NVML enumeration value, if the board has it."""
    return next((profile for profile in board.profiles if kind_of(profile, board) == kind), None)


def free_starts(board: Board, profile: Profile, existing: Collection[Placement]) -> list[int]:
    """Where one more instance of a profile could be made: free units, and enough engines left."""
    for engine in _ENGINES:
        own, used = getattr(profile, engine), sum(getattr(each.profile, engine) for each in existing)
        if own and getattr(board.whole, engine) - used < own:
            return []
    taken = {unit for each in existing for unit in each.units}
    return [start for start in profile.starts if taken.isdisjoint(Placement(profile, start).units)]


def room_for(board: Board, profile: Profile, existing: Collection[Placement]) -> int:
    """How many more instances of a profile could be made beside those that exist."""
    beside = list(existing)
    while starts := free_starts(board, profile, beside):
        beside.append(Placement(profile, starts[0]))
    return len(beside) - len(existing)


class CiProfile(msgspec.Struct, frozen=True):
    """One compute instance profile inside a GPU instance; engines are shared with its siblings."""

    kind: int  # NVML_COMPUTE_INSTANCE_PROFILE_*
    id: int
    slices: int
    max_instances: int
    multiprocessors: int

    def name(self, around: Profile) -> str:
        """As NVML writes it: `MIG 3g.40gb` when it takes the whole GPU instance, else `MIG 1c.3g.40gb`."""
        return f"MIG {around.name}" if self.slices == around.slices else f"MIG {self.slices}c.{around.name}"


_CI_KINDS = MappingProxyType({1: 0, 2: 1, 3: 2, 4: 3, 7: 4})  # slices -> NVML_COMPUTE_INSTANCE_PROFILE_<n>_SLICE


def ci_profiles(profile: Profile) -> tuple[CiProfile, ...]:
    """Compute instances that fit into a GPU instance: every slice count up to its own, as the user guide lists them.

    Multiprocessors of the parts are estimated as an equal, even share; only the whole is known. Id equals the
    enumeration value, as `nvidia-smi mig -lcip` prints it.
    """
    return tuple(
        CiProfile(
            kind, kind, slices, profile.slices // slices, profile.multiprocessors * slices // profile.slices // 2 * 2
        )
        for slices, kind in _CI_KINDS.items()
        if slices <= profile.slices
    )


def compute_profile_of(profile: Profile, profile_id: int) -> CiProfile:
    """The compute instance profile of an id; KeyError for one that does not fit into the GPU instance."""
    return {each.id: each for each in ci_profiles(profile)}[profile_id]


def ci_starts(profile: CiProfile, around: Profile) -> tuple[int, ...]:
    """Where a compute instance may start, in compute slices. Estimated: on the grid of the GPU instances of that size."""
    step = 4 if profile.slices == 3 else profile.slices
    return tuple(range(0, around.slices - profile.slices + 1, step))
