"""Ranges: from the least to the most that a size or a cost can be.

Owns their arithmetic: unsigned 64-bit numbers that stop at their maximum, and factors that round up, as Kubernetes computes.
"""

import math
from typing import Final, NamedTuple

UNBOUNDED: Final = 2**64 - 1
"""No bound, and where every sum and product ends."""


class Range(NamedTuple):
    """`least` to `most`, both included."""

    least: int
    most: int

    def __add__(self, other: "Range") -> "Range":  # type: ignore[override]  # a range is no sequence
        return Range(min(self.least + other.least, UNBOUNDED), min(self.most + other.most, UNBOUNDED))

    def __mul__(self, other: "Range") -> "Range":  # type: ignore[override]
        return Range(min(self.least * other.least, UNBOUNDED), min(self.most * other.most, UNBOUNDED))

    def union(self, other: "Range") -> "Range":
        """The smallest range that holds both."""
        return Range(min(self.least, other.least), max(self.most, other.most))

    def scaled(self, factor: float) -> "Range":
        """Both ends times a factor, rounded up."""
        return Range(_scaled(self.least, factor), _scaled(self.most, factor))


def _scaled(number: int, factor: float) -> int:
    product = float(number) * factor
    return UNBOUNDED if product >= 2.0**64 else math.ceil(product)


def fixed(number: int) -> Range:
    """Exactly one number."""
    return Range(number, number)


NOTHING: Final = fixed(0)
ONE: Final = fixed(1)
UNKNOWN: Final = Range(0, UNBOUNDED)
