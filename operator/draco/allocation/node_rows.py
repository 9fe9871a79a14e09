"""Which rows each node has: the rows of the devices that are published for it alone.

Owns that grouping, slice by slice, and the reading of a column node by node. Devices that several nodes may reach (all nodes, or
those that a node selector finds) are of no node; their rows stand under the name "".
"""

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from operator import itemgetter

from draco.allocation.pools import Entry
from draco.allocation.rowwise import Column
from draco.resources.slices import Device, ResourceSliceSpec

SHARED = ""
"""Instead of a node's name: devices of no one node."""
Profile = tuple[int, ...]
"""What a column has for the devices of one node."""


class NodeRows:
    """The rows of each node."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[tuple[str, str, str], Sequence[int]]] = {}
        """By the node, and by driver, pool and name of the slice."""
        self._readers: dict[str, Callable[[Column], Profile]] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        """Of nodes that were read and whose rows follow one another: the first row, and the one after the last."""

    def put(self, entry: Entry) -> None:
        """Take the rows of a slice."""
        for node, rows in _split(entry).items():
            self._rows.setdefault(node, {})[_place(entry)] = rows
            self._changed(node)

    def remove(self, entry: Entry) -> None:
        """Forget the rows of a slice, which must be as it was when put."""
        for node in _split(entry):
            slices = self._rows[node]
            del slices[_place(entry)]
            if not slices:
                del self._rows[node]
            self._changed(node)

    @property
    def names(self) -> KeysView[str]:
        """All nodes for which something is published, and SHARED if something is for several."""
        return self._rows.keys()

    def __getitem__(self, node: str) -> list[int]:
        """The rows of a node, pool by pool and slice by slice as they are tried; none, if nothing is published for it alone."""
        return [row for _, rows in sorted(self._rows.get(node, {}).items()) for row in rows]

    def read(self, node: str, column: Column) -> Profile:
        """What a column has for the devices of one node, in the order of its rows."""
        reader = self._readers.get(node) or self._reader_of(node)
        return reader(column)

    def profiles(self, column: Column, nodes: Iterable[str]) -> dict[Profile, list[str]]:
        """The nodes by what a column has for their devices: milliseconds for ten thousand nodes.

        Few nodes differ in what matters, so what takes long needs to be done once for each profile.
        """
        found: dict[Profile, list[str]] = {}
        readers = self._readers
        for node in nodes:
            reader = readers.get(node) or self._reader_of(node)
            profile = reader(column)
            known = found.get(profile)
            if known is None:
                found[profile] = [node]
            else:
                known.append(node)
        return found

    def counts(self, marks: bytes, nodes: Iterable[str]) -> dict[str, int]:
        """How many of the marked rows each node has; nodes that have none are left out."""
        found = {}
        spans, count = self._spans, marks.count
        for node in nodes:
            span = spans.get(node)
            there = count(1, *span) if span is not None else sum(self.read(node, marks))
            if there:
                found[node] = there
        return found

    def settle(self) -> None:
        """Prepare the reading of every node that was not read since it changed."""
        for node in self._rows.keys() - self._readers.keys():
            self._reader_of(node)

    def _reader_of(self, node: str) -> Callable[[Column], Profile]:
        rows = self[node]
        if rows and rows == list(range(rows[0], rows[0] + len(rows))):
            self._spans[node] = (rows[0], rows[0] + len(rows))
        reader = self._readers[node] = _reader(rows)
        return reader

    def _changed(self, node: str) -> None:
        self._readers.pop(node, None)
        self._spans.pop(node, None)


def node_of(spec: ResourceSliceSpec, device: Device) -> str:
    """The one node that the device is for, or SHARED."""
    return spec.node_name or (device.node_name if spec.per_device_node_selection else None) or SHARED


def _place(entry: Entry) -> tuple[str, str, str]:
    return entry.spec.driver, entry.spec.pool.name, entry.name


def _split(entry: Entry) -> Mapping[str, Sequence[int]]:
    spec = entry.spec
    if not spec.per_device_node_selection or spec.node_name:
        return {spec.node_name or SHARED: entry.rows}
    split: dict[str, list[int]] = {}
    for row, device in zip(entry.rows, spec.devices, strict=True):
        split.setdefault(node_of(spec, device), []).append(row)
    return split


def _reader(rows: Sequence[int]) -> Callable[[Column], Profile]:
    if len(rows) > 1:
        return itemgetter(*rows)
    return lambda column: tuple(column[row] for row in rows)
