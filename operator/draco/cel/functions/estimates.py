"""Parts of cost estimates: ranges, paths into the device, and the arguments of a call.

Owns range arithmetic (unsigned 64-bit numbers that saturate, and factors that round up, as in Kubernetes) and a bug of paths that
estimates depend on: Kubernetes' estimator appends to a Go slice in place if it has spare capacity, so extending one path twice
also changes the first result. For example, the key of a two-variable loop over `device.attributes["d"]` gets the size of a value.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from draco.cel.syntax.ast import Expr, Literal
from draco.cel.values.types import Type

UNBOUNDED: Final = 2**64 - 1
"""No bound; sums and products saturate here."""


class Range(NamedTuple):
    """`least` to `most`, inclusive."""

    least: int
    most: int

    def __add__(self, other: "Range") -> "Range":  # type: ignore[override]  # a range is no sequence
        return Range(min(self.least + other.least, UNBOUNDED), min(self.most + other.most, UNBOUNDED))

    def __mul__(self, other: "Range") -> "Range":  # type: ignore[override]
        return Range(min(self.least * other.least, UNBOUNDED), min(self.most * other.most, UNBOUNDED))

    def union(self, other: "Range") -> "Range":
        """Return the smallest range that contains both."""
        return Range(min(self.least, other.least), max(self.most, other.most))

    def scaled(self, factor: float) -> "Range":
        """Return both ends times a factor, rounded up."""
        return Range(_scaled(self.least, factor), _scaled(self.most, factor))


def _scaled(number: int, factor: float) -> int:
    product = float(number) * factor
    return UNBOUNDED if product >= 2.0**64 else math.ceil(product)


def fixed(number: int) -> Range:
    """The range of exactly one number."""
    return Range(number, number)


NOTHING: Final = fixed(0)
ONE: Final = fixed(1)
UNKNOWN: Final = Range(0, UNBOUNDED)


class FieldPath:
    """Names from a variable down to a part of it. Extending gives a new path, which may share its last names with another."""

    __slots__ = ("_length", "_names", "_room")

    def __init__(self, names: list[str], length: int, room: int) -> None:
        self._names = names
        self._length = length
        self._room = room

    @property
    def names(self) -> tuple[str, ...]:
        """The path's current names."""
        return tuple(self._names[: self._length])

    def to(self, name: str) -> "FieldPath":
        """Return the path to a part of this one."""
        length = self._length + 1
        if length > self._room:
            return FieldPath([*self._names[: self._length], name], length, max(1, 2 * self._room))
        self._names[self._length : length] = [name]
        return FieldPath(self._names, length, self._room)


def from_variable(name: str) -> FieldPath:
    """Return the path of a variable."""
    return FieldPath([name], 1, 1)


def nowhere() -> FieldPath:
    """Return the path of a value that comes from no variable."""
    return FieldPath([], 0, 0)


PER_CHARACTER: Final = 0.1
"""Cost of reading one character."""


class Argument(NamedTuple):
    """A target or argument: its node, type, path in the device, and size if known."""

    node: Expr
    type: Type
    path: tuple[str, ...]
    known_size: Range | None
    declared: Callable[[tuple[str, ...]], Range | None]

    @property
    def size(self) -> Range:
        """The known or declared size, else UNKNOWN."""
        return self.known_size or self.declared(self.path) or UNKNOWN

    @property
    def traversal(self) -> Range:
        """The cost of reading it once as a text."""
        return self.size.scaled(PER_CHARACTER)

    @property
    def size_inside(self) -> Range:
        """The size of an element."""
        return (self.declared((*self.path, "@items")) if self.path else None) or UNKNOWN

    def number(self, otherwise: int) -> int:
        """Return the node's int literal, or `otherwise`."""
        node = self.node
        if isinstance(node, Literal) and node.kind == "int" and isinstance(node.value, int):
            return max(node.value, 0)
        return otherwise


class Estimate(NamedTuple):
    """The cost of a call without its arguments, and the size of its result if the rule knows it."""

    cost: Range
    size: Range | None = None


Estimator: TypeAlias = Callable[[Sequence[Argument]], Estimate]
