"""Claims that come and go at random, the same each time: the input on which the policies of MIG placement are compared.

Six mixes of profiles on the grid of seven slices. Arrivals are Poisson and durations exponential with mean 1. The generator is
the 64-bit Mersenne Twister, so that another program can make the same streams.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from draco.mig.board import Board, Profile
from draco.mig.known_boards import BOARDS

GRID = Board(tuple(profile for profile in BOARDS["H100-80GB"].profiles if "+" not in profile.name))
"""The grid without the variants that take media engines."""
ORDER = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
MIXES: Mapping[str, Sequence[float]] = MappingProxyType(
    {
        "uniform": (1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6),
        "small": (0.40, 0.15, 0.25, 0.12, 0.05, 0.03),
        "infer": (0.30, 0.15, 0.20, 0.20, 0.10, 0.05),
        "no7g": (0.30, 0.10, 0.25, 0.25, 0.10, 0.0),
        "bimodal": (0.40, 0.05, 0.05, 0.05, 0.05, 0.40),
        "big": (0.10, 0.05, 0.15, 0.25, 0.20, 0.25),
    }
)
"""Shares of the profiles in `ORDER`."""
PROFILES = tuple(profile for name in ORDER if (profile := GRID.profile(name)) is not None)


class MersenneTwister64:
    """MT19937-64 as the C++ standard has it (`std::mt19937_64`). Source: Nishimura and Matsumoto's recurrence."""

    _WORDS, _MIDDLE, _ALL = 312, 156, (1 << 64) - 1
    _LOW = (1 << 31) - 1

    def __init__(self, seed: int = 5489) -> None:
        self._state = [seed]
        for index in range(1, self._WORDS):
            last = self._state[-1]
            self._state.append((6364136223846793005 * (last ^ (last >> 62)) + index) & self._ALL)
        self._at = self._WORDS

    def next(self) -> int:
        """The next of the sequence, 64 bits."""
        if self._at == self._WORDS:
            self._renew()
        word = self._state[self._at]
        self._at += 1
        word ^= (word >> 29) & 0x5555555555555555
        word ^= (word << 17) & 0x71D67FFFEDA60000
        word ^= (word << 37) & 0xFFF7EEE000000000
        return word ^ (word >> 43)

    def real(self) -> float:
        """The next as a random float in [0, 1)."""
        return (self.next() >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        """The next as one of 0 … bound-1."""
        return self.next() * bound >> 64

    def exponential(self, mean: float) -> float:
        """The next as an exponential time."""
        return -math.log(1.0 - self.real()) * mean

    def _renew(self) -> None:
        state = self._state
        for index in range(self._WORDS):
            mixed = (state[index] & ~self._LOW) | (state[(index + 1) % self._WORDS] & self._LOW)
            twist = 0xB5026F5AA96619E9 if mixed & 1 else 0
            state[index] = state[(index + self._MIDDLE) % self._WORDS] ^ (mixed >> 1) ^ twist
        self._at = 0


class Arrival(NamedTuple):
    """One claim."""

    at: float
    until: float
    profile: Profile
    luck: float
    """Uniform in [0, 1): the claim's instance is movable if it is below the movable share."""


def arrivals(mix: str, seed: int, *, gpus: int, load: float, number: int) -> list[Arrival]:
    """A stream of claims whose wanted compute slices are `load` times what the GPUs have.

    Times are random, so the load of a stream would be a percent off. Durations are stretched to make it exact, so that a few
    streams are as precise as many.
    """
    chance = MersenneTwister64(seed)
    shares = list(accumulate(MIXES[mix]))
    possible = [index for index, share in enumerate(MIXES[mix]) if share]
    slices = sum(share * profile.slices for share, profile in zip(MIXES[mix], PROFILES, strict=True))
    capacity = GRID.whole.slices * gpus
    at, wanted, drawn = 0.0, 0.0, []
    for _ in range(number):
        at += chance.exponential(slices / (load * capacity))
        duration = chance.exponential(1.0)
        profile = PROFILES[min(bisect_right(shares, chance.real()), possible[-1])]
        wanted += duration * profile.slices
        drawn.append((at, duration, profile, chance.real()))
    stretch = load * capacity * at / wanted
    return [Arrival(at, at + duration * stretch, profile, luck) for at, duration, profile, luck in drawn]
