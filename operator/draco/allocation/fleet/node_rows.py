"""The rows of each node: of the devices that are published for it alone.

Owns that grouping, and reading a column node by node. Rows of devices that several nodes may reach are grouped under "".
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from functools import cache
from itertools import compress
from operator import itemgetter
from typing import TypeAlias

from draco.allocation.fleet.pools import SliceEntry
from draco.allocation.fleet.rowwise import Codes
from draco.resources.api.slices import Device, ResourceSliceSpec
from draco.resources.names import PoolKey

SHARED = ""
"""The group of devices that do not belong to one node."""
_NOWHERE = slice(0, 0)
NodeProfile: TypeAlias = bytes | tuple[int, ...]
"""The values of a column for the devices of one node; bytes for a byte column."""
Likeness: TypeAlias = tuple[int, ...]
"""Numbers that are equal where the values are, in order of first occurrence; 0 for absent values."""
_Span: TypeAlias = slice | Callable[[Codes], Sequence[int]]
"""A node's rows, nearly always contiguous: a slice of them avoids reading scattered memory, which a fork would copy."""


class NodeRows:
    """The rows of each node."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[tuple[PoolKey, str], Sequence[int]]] = {}
        """By node, and by pool and name of the slice."""
        self._spans: dict[str, _Span] = {}
        """Of nodes that were read since their last change."""
        self._of_rows: list[str] = []
        """The node of each row, or SHARED."""

    def put(self, entry: SliceEntry) -> None:
        """Add the rows of a slice."""
        for node, rows in _split(entry).items():
            self._rows.setdefault(node, {})[_place(entry)] = rows
            self._spans.pop(node, None)
            self._of_rows += [SHARED] * (max(rows, default=-1) + 1 - len(self._of_rows))
            for row in rows:
                self._of_rows[row] = node

    def remove(self, entry: SliceEntry) -> None:
        """Remove the rows of a slice, which must be unchanged since `put`."""
        for node, rows in _split(entry).items():
            slices = self._rows[node]
            del slices[_place(entry)]
            if not slices:
                del self._rows[node]
            self._spans.pop(node, None)
            for row in rows:
                self._of_rows[row] = SHARED

    @property
    def names(self) -> KeysView[str]:
        """All nodes for which something is published, and SHARED if something is for several."""
        return self._rows.keys()

    def of_row(self, row: int) -> str:
        """The one node of a row's device, or SHARED."""
        return self._of_rows[row]

    def of(self, marks: bytes) -> Iterator[str]:
        """The node of each marked row, or SHARED."""
        return compress(self._of_rows, memoryview(marks))

    def pools(self, node: str) -> set[PoolKey]:
        """The pools with slices or devices for this node alone; for SHARED, those for several nodes."""
        return {pool for pool, _ in self._rows.get(node, ())}

    def __getitem__(self, node: str) -> list[int]:
        """The rows of a node in the order of allocation; empty if nothing is published for it alone."""
        return [row for _, rows in sorted(self._rows.get(node, {}).items()) for row in rows]

    def read(self, node: str, column: Codes) -> NodeProfile:
        """The values of a column for the devices of one node, in the order of its rows."""
        span = self._spans.get(node)
        if span is None:
            span = self._look_up(node)
        cells = column[span] if isinstance(span, slice) else span(column)
        return tuple(cells) if isinstance(column, array) else bytes(cells)

    def profiles(self, column: Codes, nodes: Iterable[str]) -> dict[NodeProfile, list[str]]:
        """Group nodes by a column's values, to do expensive work once per group; milliseconds for ten thousand nodes."""
        found: dict[NodeProfile, list[str]] = defaultdict(list)
        cells, spans = (column, self._spans) if isinstance(column, bytes) else (b"", {})
        for node in nodes:
            span = spans.get(node)
            found[cells[span] if isinstance(span, slice) else self.read(node, column)].append(node)
        return dict(found)

    def likenesses(self, column: Codes, nodes: Iterable[str]) -> dict[Likeness, list[str]]:
        """Group nodes by which of their devices have equal values, whatever these are. One pass over ten thousand nodes."""
        found: dict[Likeness, list[str]] = defaultdict(list)
        spans = self._spans
        for node in nodes:
            span = spans.get(node)
            cells = column[span] if isinstance(span, slice) else self.read(node, column)
            found[likeness(cells)].append(node)
        return dict(found)

    def settle(self) -> None:
        """Prepare reading every node that changed since it was read."""
        for node in self._rows.keys() - self._spans.keys():
            self._look_up(node)

    def _look_up(self, node: str) -> _Span:
        span = _span(self[node])
        if node in self._rows:  # queries for other names must not fill the memory
            self._spans[node] = span
        return span


def _span(rows: Sequence[int]) -> _Span:
    if not rows:
        return _NOWHERE
    follow = rows == list(range(rows[0], rows[0] + len(rows)))
    return slice(rows[0], rows[0] + len(rows)) if follow else itemgetter(*rows)


def node_of(spec: ResourceSliceSpec, device: Device) -> str:
    """The one node of the device, or SHARED."""
    return spec.node_name or (device.node_name if spec.per_device_node_selection else None) or SHARED


def _place(entry: SliceEntry) -> tuple[PoolKey, str]:
    return PoolKey(entry.spec.driver, entry.spec.pool.name), entry.name


def _split(entry: SliceEntry) -> Mapping[str, Sequence[int]]:
    spec = entry.spec
    if not spec.per_device_node_selection or spec.node_name:
        return {spec.node_name or SHARED: entry.rows}
    split: dict[str, list[int]] = {}
    for row, device in zip(entry.rows, spec.devices, strict=True):
        split.setdefault(node_of(spec, device), []).append(row)
    return split


def likeness(values: Sequence[int]) -> Likeness:
    """Which of these values are equal; 0 means absent."""
    size, different = len(values), set(values)
    if len(different) == size and 0 not in different:
        return _all_different(size)
    numbers = {0: 0}
    return tuple([numbers.setdefault(value, len(numbers)) for value in values])


@cache
def _all_different(size: int) -> Likeness:
    return tuple(range(1, size + 1))
