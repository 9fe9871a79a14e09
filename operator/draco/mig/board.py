"""What a board can be divided into: profiles and their possible starts, in NVML's units.

Owns the tables as values, made from NVML's report. Must not hold numbers of any known board: unknown boards are planned the same
way.
"""

from functools import cached_property
from typing import Final, NamedTuple

import msgspec

_ENGINES = ("decoders", "encoders", "jpeg_engines", "ofa_engines")

ENGINE_CAPACITIES: Final = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg_engines",
    "ofaEngines": "ofa_engines",
}
"""Capacities of a partition, and the profile's fields for them. Their counters have the fields' names, with hyphens."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """One GPU instance profile of a board."""

    id: int
    """NVML's argument for creating one; not the number of its enumeration."""
    name: str
    """NVIDIA's name without "MIG ": `1g.10gb`, `1g.10gb+me`."""
    slices: int
    """Compute slices."""
    size: int
    """Contiguous memory units that it takes."""
    starts: tuple[int, ...]
    """Memory units at which it may start."""
    max_instances: int
    memory_mib: int = 0
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class PlacementId(NamedTuple):
    """The place of an instance on a GPU, by NVML's numbers. Two instances never share one."""

    profile_id: int
    start: int


class Placement(msgspec.Struct, frozen=True, cache_hash=True):
    """A profile at one of its starts."""

    profile: Profile
    start: int

    @property
    def id(self) -> PlacementId:
        """NVML's numbers for it."""
        return PlacementId(self.profile.id, self.start)

    @property
    def mask(self) -> int:
        """The units it takes, one bit each."""
        return unit_mask(self.start, self.profile.size)

    @property
    def units(self) -> range:
        """The units it takes."""
        return range(self.start, self.start + self.profile.size)

    def __str__(self) -> str:
        return f"{self.profile.name}@{self.start}"


def unit_mask(start: int, size: int) -> int:
    """Contiguous memory units, one bit each."""
    return ((1 << size) - 1) << start


class Board(msgspec.Struct, frozen=True, cache_hash=True, dict=True):
    """All profiles of a board. Two GPUs with equal tables have equal boards, whatever they are called."""

    profiles: tuple[Profile, ...]

    @cached_property
    def units(self) -> int:
        """The number of memory units."""
        return max((start + profile.size for profile in self.profiles for start in profile.starts), default=0)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Every legal placement, profiles in the board's order and starts ascending."""
        return tuple(Placement(profile, start) for profile in self.profiles for start in sorted(profile.starts))

    @cached_property
    def whole(self) -> Profile:
        """The largest profile; of several, one with all engines."""
        return max(self.profiles, key=lambda each: (each.size, sum(getattr(each, engine) for engine in _ENGINES)))

    def profile(self, name: str) -> Profile | None:
        """The profile of that name; None if the board lacks it."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def by_id(self, profile_id: int) -> Profile | None:
        """The profile with that NVML id; None if the board lacks it."""
        return next((profile for profile in self.profiles if profile.id == profile_id), None)
