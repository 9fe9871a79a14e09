"""Which rows each node has: the rows of the devices that are published for it alone.

Owns that grouping, slice by slice, and the reading of a column node by node. Devices that several nodes may reach (all nodes, or
those that a node selector finds) are of no node; their rows stand under the name "".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

from draco.allocation.pools import Entry
from draco.allocation.rowwise import Column
from draco.resources.slices import Device, ResourceSliceSpec

SHARED = ""
"""Instead of a node's name: devices of no one node."""
Profile = tuple[int, ...]
"""What a column has for the devices of one node, in ascending order."""


class NodeRows:
    """The rows of each node."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Sequence[int]]] = {}
        self._readers: dict[str, Callable[[Column], Profile]] = {}

    def put(self, entry: Entry) -> None:
        """Take the rows of a slice."""
        for node, rows in _split(entry).items():
            self._rows.setdefault(node, {})[entry.name] = rows
            self._readers.pop(node, None)

    def remove(self, entry: Entry) -> None:
        """Forget the rows of a slice, which must be as it was when put."""
        for node in _split(entry):
            slices = self._rows[node]
            del slices[entry.name]
            if not slices:
                del self._rows[node]
            self._readers.pop(node, None)

    def __getitem__(self, node: str) -> list[int]:
        """The rows of a node; none, if nothing is published for it alone."""
        return [row for rows in self._rows.get(node, {}).values() for row in rows]

    def read(self, node: str, column: Column) -> Profile:
        """What a column has for the devices of one node, in no particular order."""
        reader = self._readers.get(node)
        if reader is None:
            reader = self._readers[node] = _reader(self[node])
        return reader(column)

    def profiles(self, column: Column, nodes: Iterable[str]) -> Mapping[Profile, list[str]]:
        """The nodes by what a column has for their devices: milliseconds for ten thousand nodes.

        Few nodes differ in what matters, so what takes long needs to be done once for each profile.
        """
        as_read: dict[Profile, list[str]] = {}
        for node in nodes:
            profile = self.read(node, column)
            known = as_read.get(profile)
            if known is None:
                as_read[profile] = [node]
            else:
                known.append(node)
        found: dict[Profile, list[str]] = {}
        for profile, alike in as_read.items():
            found.setdefault(tuple(sorted(profile)), []).extend(alike)
        return found


def node_of(spec: ResourceSliceSpec, device: Device) -> str:
    """The one node that the device is for, or SHARED."""
    return spec.node_name or (device.node_name if spec.per_device_node_selection else None) or SHARED


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
