"""MIG profiles and placements of NVIDIA's boards, as NVML reports them.

Owns the tables only: for capacity planned without having the GPUs (`draco simulate mig`), and for simulated GPUs. Nothing that
runs in a cluster plans from them: it reads NVML, and `draco_local.simulator.compare` holds these tables against it. Sources:
NVIDIA's MIG user guide for names, counts and placements; listings of `nvidia-smi mig -lgip` and `-lgipp` that people published
for ids, memory, multiprocessors and engines. What neither shows is marked "estimated".
"""

from collections.abc import Collection, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from draco.mig.board import Board


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


class GiProfile(msgspec.Struct, frozen=True):
    """One GPU instance profile. `starts` and `size` are in memory units of the board."""

    kind: GiProfileEnum
    id: int
    name: str  # as NVML's version 2 call writes it after "MIG "
    slices: int
    max_instances: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    starts: tuple[int, ...]
    size: int


class CiProfile(msgspec.Struct, frozen=True):
    """One compute instance profile inside a GPU instance; engines are shared with its siblings."""

    kind: int  # NVML_COMPUTE_INSTANCE_PROFILE_*
    id: int
    slices: int
    max_instances: int
    multiprocessors: int

    def name(self, around: GiProfile) -> str:
        """As NVML writes it: `MIG 3g.40gb` when it takes the whole GPU instance, else `MIG 1c.3g.40gb`."""
        return f"MIG {around.name}" if self.slices == around.slices else f"MIG {self.slices}c.{around.name}"


_ENGINES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


class PlacedProfile(NamedTuple):
    """A GPU instance that exists: what it is and where it starts, in memory units."""

    profile: GiProfile
    start: int

    @property
    def units(self) -> range:
        """The memory units it takes."""
        return range(self.start, self.start + self.profile.size)


class MigTable(msgspec.Struct, frozen=True, kw_only=True):
    """All GPU instance profiles of one board."""

    units: int  # memory units; placements are start:size in these
    profiles: tuple[GiProfile, ...]

    @property
    def whole(self) -> GiProfile:
        """The profile that takes the whole board; it has all its engines."""
        return max(self.profiles, key=lambda profile: (profile.size, profile.ofa_engines))

    def free_starts(self, profile: GiProfile, existing: Collection[PlacedProfile]) -> list[int]:
        """Where one more instance of a profile could be made: free units, and enough engines left."""
        limits = ((getattr(self.whole, name), getattr(profile, name), name) for name in _ENGINES)
        if any(own and total - sum(getattr(p.profile, name) for p in existing) < own for total, own, name in limits):
            return []
        taken = {unit for instance in existing for unit in instance.units}
        return [start for start in profile.starts if taken.isdisjoint(PlacedProfile(profile, start).units)]

    def room_for(self, profile: GiProfile, existing: Collection[PlacedProfile]) -> int:
        """How many more instances of a profile could be made beside those that exist."""
        beside = list(existing)
        while starts := self.free_starts(profile, beside):
            beside.append(PlacedProfile(profile, starts[0]))
        return len(beside) - len(existing)

    def by_kind(self, kind: int) -> GiProfile | None:
        """The profile of an NVML enumeration value, if this board has it."""
        return next((profile for profile in self.profiles if profile.kind == kind), None)

    def by_id(self, profile_id: int) -> GiProfile | None:
        """The profile of an id, if this board has it."""
        return next((profile for profile in self.profiles if profile.id == profile_id), None)


_CI_KINDS = MappingProxyType({1: 0, 2: 1, 3: 2, 4: 3, 7: 4})  # slices -> NVML_COMPUTE_INSTANCE_PROFILE_<n>_SLICE


def ci_profiles(profile: GiProfile) -> tuple[CiProfile, ...]:
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


def compute_profile_of(profile: GiProfile, profile_id: int) -> CiProfile:
    """The compute instance profile of an id; KeyError for one that does not fit into the GPU instance."""
    return {each.id: each for each in ci_profiles(profile)}[profile_id]


def ci_starts(profile: CiProfile, around: GiProfile) -> tuple[int, ...]:
    """Where a compute instance may start, in compute slices. Estimated: on the grid of the GPU instances of that size."""
    step = 4 if profile.slices == 3 else profile.slices
    return tuple(range(0, around.slices - profile.slices + 1, step))


def _seven_slices(
    names: str, memory_mib: tuple[int, ...], engines: tuple[tuple[int, int, int, int, int], ...]
) -> MigTable:
    """The common grid of eight memory units and seven compute slices.

    All follow the order 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g; a row of `engines` is multiprocessors, copy engines,
    decoders, JPEG decoders, optical flow accelerators.
    """
    grid = (
        (GiProfileEnum.SLICE_1, 19, 1, (0, 1, 2, 3, 4, 5, 6), 1, 7),
        (GiProfileEnum.SLICE_1_REV1, 20, 1, (0, 1, 2, 3, 4, 5, 6), 1, 1),
        (GiProfileEnum.SLICE_1_REV2, 15, 1, (0, 2, 4, 6), 2, 4),
        (GiProfileEnum.SLICE_2, 14, 2, (0, 2, 4), 2, 3),
        (GiProfileEnum.SLICE_3, 9, 3, (0, 4), 4, 2),
        (GiProfileEnum.SLICE_4, 5, 4, (0,), 4, 1),
        (GiProfileEnum.SLICE_7, 0, 7, (0,), 8, 1),
    )
    profiles = []
    for row, name, memory, shared in zip(grid, names.split(), memory_mib, engines, strict=True):
        kind, profile_id, slices, starts, size, most = row
        sms, copies, decoders, jpegs, ofas = shared
        profiles.append(
            GiProfile(kind, profile_id, name, slices, most, memory, sms, copies, decoders, 0, jpegs, ofas, starts, size)
        )
    return MigTable(units=8, profiles=tuple(profiles))


_A100 = (
    (14, 1, 0, 0, 0),
    (14, 1, 1, 1, 1),
    (14, 1, 1, 0, 0),
    (28, 2, 1, 0, 0),
    (42, 3, 2, 0, 0),
    (56, 4, 2, 0, 0),
    (98, 7, 5, 1, 1),
)
_HOPPER = (
    (16, 1, 1, 1, 0),
    (16, 1, 1, 1, 1),
    (26, 1, 1, 1, 0),
    (32, 2, 2, 2, 0),
    (60, 3, 3, 3, 0),
    (64, 4, 4, 4, 0),
    (132, 8, 7, 7, 1),
)
_B200 = (
    (18, 2, 1, 1, 0),
    (18, 2, 1, 1, 1),
    (30, 2, 1, 1, 0),
    (36, 4, 2, 2, 0),
    (70, 6, 3, 3, 0),  # multiprocessors and decoders of the last three rows are estimated
    (72, 8, 4, 4, 0),
    (148, 16, 7, 7, 1),
)
_QUARTERS, _HALVES = (0, 3, 6, 9), (0, 6)
_RTX_PRO_6000 = MigTable(
    units=12,
    profiles=(
        GiProfile(GiProfileEnum.SLICE_1, 14, "1g.24gb", 1, 4, 24192, 46, 1, 1, 1, 1, 0, _QUARTERS, 3),
        GiProfile(GiProfileEnum.SLICE_1_REV1, 21, "1g.24gb+me", 1, 1, 24192, 46, 1, 1, 1, 1, 1, _QUARTERS, 3),
        GiProfile(GiProfileEnum.SLICE_1_GFX, 47, "1g.24gb+gfx", 1, 4, 24192, 46, 1, 1, 1, 1, 0, _QUARTERS, 3),
        GiProfile(GiProfileEnum.SLICE_1_ALL_ME, 65, "1g.24gb+me.all", 1, 1, 24192, 46, 1, 4, 4, 4, 1, _QUARTERS, 3),
        GiProfile(GiProfileEnum.SLICE_1_NO_ME, 67, "1g.24gb-me", 1, 4, 24192, 46, 1, 0, 0, 0, 0, _QUARTERS, 3),
        GiProfile(GiProfileEnum.SLICE_2, 5, "2g.48gb", 2, 2, 48512, 94, 2, 2, 2, 2, 0, _HALVES, 6),
        GiProfile(GiProfileEnum.SLICE_2_GFX, 35, "2g.48gb+gfx", 2, 2, 48512, 94, 2, 2, 2, 2, 0, _HALVES, 6),
        GiProfile(GiProfileEnum.SLICE_2_ALL_ME, 64, "2g.48gb+me.all", 2, 1, 48512, 94, 2, 4, 4, 4, 1, _HALVES, 6),
        GiProfile(GiProfileEnum.SLICE_2_NO_ME, 66, "2g.48gb-me", 2, 2, 48512, 94, 2, 0, 0, 0, 0, _HALVES, 6),
        GiProfile(GiProfileEnum.SLICE_4, 0, "4g.96gb", 4, 1, 97280, 188, 4, 4, 4, 4, 1, (0,), 12),
        GiProfile(GiProfileEnum.SLICE_4_GFX, 32, "4g.96gb+gfx", 4, 1, 97280, 188, 4, 4, 4, 4, 1, (0,), 12),
    ),
)

# The starts of H200 and B200 are those of the common grid; no listing of theirs is published.
MIG_BY_BOARD: Mapping[str, MigTable] = MappingProxyType(
    {
        "A100-40GB": _seven_slices(
            "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
            (4864, 4864, 9856, 9856, 19968, 19968, 40192),
            _A100,
        ),
        "A100-80GB": _seven_slices(
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
            (9728, 9728, 19968, 19968, 40192, 40192, 80896),
            _A100,
        ),
        "H100-80GB": _seven_slices(
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
            (9984, 9984, 20096, 20096, 40448, 40448, 81152),
            _HOPPER,
        ),
        "H200-141GB": _seven_slices(
            "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
            (16384, 16384, 33024, 33024, 71168, 71168, 143104),
            _HOPPER,
        ),
        "B200": _seven_slices(
            "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
            # The last three are estimated; another listing says 20992 for the first.
            (22528, 22528, 45312, 45312, 91136, 91136, 182784),
            _B200,
        ),
        "A30": MigTable(
            units=4,
            profiles=(
                GiProfile(GiProfileEnum.SLICE_1, 14, "1g.6gb", 1, 4, 5952, 14, 1, 1, 0, 0, 0, (0, 1, 2, 3), 1),
                GiProfile(GiProfileEnum.SLICE_1_REV1, 21, "1g.6gb+me", 1, 1, 5952, 14, 1, 1, 0, 1, 1, (0, 1, 2, 3), 1),
                GiProfile(GiProfileEnum.SLICE_2, 5, "2g.12gb", 2, 2, 11968, 28, 2, 2, 0, 0, 0, (0, 2), 2),
                GiProfile(GiProfileEnum.SLICE_2_REV1, 6, "2g.12gb+me", 2, 1, 11968, 28, 2, 2, 0, 1, 1, (0, 2), 2),
                GiProfile(GiProfileEnum.SLICE_4, 0, "4g.24gb", 4, 1, 24000, 56, 4, 4, 0, 1, 1, (0,), 4),
            ),
        ),
        "RTX-PRO-6000": _RTX_PRO_6000,
    }
)


def board_of(table: MigTable) -> Board:
    """The same table as NVML would report it to the planner."""
    return msgspec.convert(table, Board, from_attributes=True)


BOARDS: Mapping[str, Board] = MappingProxyType({name: board_of(table) for name, table in MIG_BY_BOARD.items()})
"""The boards by name."""
