"""A pool of devices, as one node sees it; depends on slices and rules only, not on claims.

Owns which slices of a pool count for a node, whether these are complete and valid, and the order of their devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache

import msgspec

from draco.allocation.fleet.node_selection import targets
from draco.allocation.fleet.state import amount
from draco.resources.api.core import Node
from draco.resources.api.slices import Device, ResourceSliceSpec, taken_together
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import DeviceKey, PoolKey

Charges = tuple[tuple[int, int], ...]
"""What a device consumes of its pool's counters: index of the counter, and billionths."""


class SliceState(IntEnum):
    """The state of a slice within its pool, over all nodes."""

    CURRENT = 0
    OBSOLETE = 1
    """The pool has a newer generation, and no node has all of this one."""
    INCOMPLETE = 2
    """Slices of the pool's newest generation are missing."""
    INVALID = 3
    """The pool has a duplicate device or counter set, or a device consumes a missing counter."""


class SliceEntry(msgspec.Struct, frozen=True):
    """A slice with the rows of its devices."""

    name: str
    spec: ResourceSliceSpec
    rows: list[int]
    taints: list[tuple[DeviceTaint, ...]]
    """The blocking taints of each device, from the slice and from rules."""


class Candidate(msgspec.Struct, frozen=True):
    """A device that a node may reach. With per-device node selection in `spec`, the device's own selection is not yet checked."""

    key: DeviceKey
    device: Device
    row: int
    spec: ResourceSliceSpec
    taints: tuple[DeviceTaint, ...]
    charges: Charges


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool on one node. Nothing is allocated from an incomplete or invalid one."""

    key: PoolKey
    incomplete: bool = False
    invalid: str = ""
    candidates: Sequence[Candidate] = ()
    """Devices of the node's slices, in the order of allocation."""
    others: Sequence[tuple[DeviceKey, Charges]] = ()
    """Devices of the pool's other slices that consume its counters."""
    counters: Sequence[int] = ()
    """The counters of all sets, in billionths."""

    @property
    def has_binding_conditions(self) -> bool:
        """Whether it comes after the pools without any."""
        return any(candidate.device.binding_conditions for candidate in self.candidates)


class Pool:
    """All slices of one pool, of all generations and nodes."""

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self._entries: dict[str, SliceEntry] = {}
        self._views: dict[str, PoolView | None] = {}
        self._named: frozenset[str] = frozenset()
        self._kept = True
        self._index: dict[str, list[int]] | None = None
        self._plain: Sequence[SliceEntry] | None = None

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def entries(self) -> Iterable[SliceEntry]:
        """The slices, in no particular order."""
        return self._entries.values()

    def get(self, name: str) -> SliceEntry | None:
        """The slice of that name, or None."""
        return self._entries.get(name)

    def put(self, entry: SliceEntry) -> None:
        """Add or replace a slice."""
        self._entries[entry.name] = entry
        self._changed()

    def remove(self, name: str) -> SliceEntry:
        """Remove a slice and return it."""
        entry = self._entries.pop(name)
        self._changed()
        return entry

    def rows(self, device: str) -> Sequence[int]:
        """The rows of all devices with that name: several if slices of several generations have it."""
        if self._index is None:
            self._index = {}
            for entry in self._entries.values():
                for row, each in zip(entry.rows, entry.spec.devices, strict=True):
                    self._index.setdefault(each.name, []).append(row)
        return self._index.get(device, ())

    def slice_states(self) -> Iterable[tuple[SliceEntry, SliceState]]:
        """The state of each slice, over all nodes."""
        if not self._entries:
            return
        if self.plain:
            yield from ((entry, SliceState.CURRENT) for entry in self.plain)
            return
        entries = sorted(self._entries.values(), key=lambda entry: entry.name)
        slice_states = [SliceState.OBSOLETE] * len(entries)
        for places, complete in taken_together([entry.spec for entry in entries]):
            lot = [entries[place] for place in places]
            valid = self._valid(lot) if complete else ()
            for place in places:
                if entries[place].name in valid:
                    slice_states[place] = SliceState.CURRENT
                elif slice_states[place] is not SliceState.CURRENT:
                    slice_states[place] = SliceState.INVALID if complete else SliceState.INCOMPLETE
        yield from zip(entries, slice_states, strict=True)

    def _valid(self, lot: list[SliceEntry]) -> set[str]:
        """The slices that are valid for their node, which sees only the devices it can reach."""
        if not self._is_invalid(lot):
            return {entry.name for entry in lot}
        valid: set[str] = set()
        for node in {entry.spec.node_name for entry in lot}:
            here = [entry for entry in lot if entry.spec.node_name in (node, None)]
            if len(here) < len(lot) and not self._is_invalid(here, [entry for entry in lot if entry not in here]):
                valid.update(entry.name for entry in here)
        return valid

    def _is_invalid(self, here: list[SliceEntry], rest: Sequence[SliceEntry] = ()) -> bool:
        try:
            index, _ = _check(here, rest)
            for entry in _with_devices([*here, *rest]):
                for device in entry.spec.devices:
                    if device.consumes_counters:
                        _charges(device, index)
        except _InvalidPool:
            return True
        return False

    @property
    def has_counters(self) -> bool:
        """Whether its devices can consume shared counters."""
        return any(entry.spec.shared_counters for entry in self._entries.values())

    @property
    def only_node(self) -> str | None:
        """The node of all its slices; None if they are for several."""
        named = {entry.spec.node_name for entry in self._entries.values()}
        return named.pop() if len(named) == 1 else None

    @property
    def plain(self) -> Sequence[SliceEntry]:
        """Its slices by name if they have one generation and one node and are complete and valid; else none."""
        if self._plain is None:
            entries = sorted(self._entries.values(), key=lambda entry: entry.name)
            self._plain = entries if self._is_plain(entries) else ()
        return self._plain

    def _is_plain(self, entries: list[SliceEntry]) -> bool:
        specs = [entry.spec for entry in entries]
        return (
            len({(spec.node_name, spec.pool.generation) for spec in specs}) == 1
            and bool(specs[0].node_name)
            and all(spec.pool.resource_slice_count == len(specs) for spec in specs)
            and not any(spec.per_device_node_selection or _uses_compatibility_groups(spec) for spec in specs)
            and not any(spec.shared_counters and spec.devices for spec in specs)
            and not self._is_invalid(entries)
        )

    def _changed(self) -> None:
        self._views.clear()
        self._index = None
        self._plain = None
        specs = [entry.spec for entry in self._entries.values()]
        self._kept = not any(_depends_on_labels(spec) for spec in specs)
        self._named = frozenset(
            name for spec in specs for name in (spec.node_name, *(each.node_name for each in spec.devices)) if name
        )

    def view(self, node: Node) -> PoolView | None:
        """The pool on a node (cached unless it depends on labels); None if it has nothing there. Raises AllocationError."""
        if not self._kept:
            return self._view(node)
        name = self._name_of(node)
        if name not in self._views:
            self._views[name] = self._view(node)
        return self._views[name]

    def glance(self, node: Node) -> PoolView | None:
        """Like `view`, but does not add to the cache: for callers that visit thousands of pools once."""
        name = self._name_of(node)
        return self._views[name] if self._kept and name in self._views else self._view(node)

    def _name_of(self, node: Node) -> str:
        return node.metadata.name if node.metadata.name in self._named else ""

    def _view(self, node: Node) -> PoolView | None:
        name = node.metadata.name
        current: list[SliceEntry] = []
        for entry in self._entries.values():
            if entry.spec.node_name and entry.spec.node_name != name:
                continue
            if _uses_compatibility_groups(entry.spec) or not _is_for(entry.spec, node):
                continue
            newer = entry.spec.pool.generation - current[0].spec.pool.generation if current else 1
            if newer > 0:
                current = [entry]
            elif newer == 0:
                current.append(entry)
        if not current:
            return None
        current.sort(key=lambda entry: entry.name)
        generation, count = current[0].spec.pool.generation, current[0].spec.pool.resource_slice_count
        if len(current) == count:
            return _build(self.key, current, [])
        if any(entry.spec.pool.generation > generation for entry in self._entries.values()):
            return None
        whole = [
            entry
            for entry in self._entries.values()
            if entry.spec.pool.generation == generation and not _uses_compatibility_groups(entry.spec)
        ]
        if len(whole) != count:
            return PoolView(key=self.key, incomplete=True)
        here = {entry.name for entry in current}
        rest = sorted((entry for entry in whole if entry.name not in here), key=lambda entry: entry.name)
        return _build(self.key, current, rest)


def _depends_on_labels(spec: ResourceSliceSpec) -> bool:
    return spec.node_selector is not None or any(device.node_selector is not None for device in spec.devices)


def _is_for(spec: ResourceSliceSpec, node: Node) -> bool:
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return targets(node, node_name=spec.node_name, all_nodes=spec.all_nodes, node_selector=spec.node_selector)
    return bool(spec.per_device_node_selection) and any(is_device_for(device, node) for device in spec.devices)


def is_device_for(device: Device, node: Node) -> bool:
    """Whether a device with its own node selection is for the node. Raises AllocationError."""
    return targets(node, node_name=device.node_name, all_nodes=device.all_nodes, node_selector=device.node_selector)


def _uses_compatibility_groups(spec: ResourceSliceSpec) -> bool:
    """Allocators without that feature (off by default) ignore such slices, which leaves their pool incomplete."""
    return any(consumed.compatibility_groups for device in spec.devices for consumed in device.consumes_counters)


def _build(key: PoolKey, here: list[SliceEntry], rest: list[SliceEntry]) -> PoolView:
    try:
        index, counters = _check(here, rest)
        candidates = [
            Candidate(DeviceKey(*key, device.name), device, row, entry.spec, taints, _charges(device, index))
            for entry in _with_devices(here)
            for device, row, taints in zip(entry.spec.devices, entry.rows, entry.taints, strict=True)
        ]
        charged = [
            (DeviceKey(*key, device.name), _charges(device, index))
            for entry in _with_devices(rest)
            for device in entry.spec.devices
            if device.consumes_counters
        ]
    except _InvalidPool as invalid:
        return PoolView(key=key, invalid=str(invalid))
    return PoolView(key=key, candidates=candidates, others=charged, counters=counters)


def _with_devices(entries: Iterable[SliceEntry]) -> list[SliceEntry]:
    return [entry for entry in entries if not entry.spec.shared_counters]


_CounterIndex = dict[str, dict[str, int]]


def _check(here: Sequence[SliceEntry], rest: Sequence[SliceEntry]) -> tuple[_CounterIndex, list[int]]:
    """The index of each counter, and all counters in billionths. Raises _InvalidPool."""
    names = [device.name for entry in _with_devices(here) for device in entry.spec.devices]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise _InvalidPool(f"duplicate device name {twice}")
    index: _CounterIndex = {}
    counters: list[int] = []
    for entry in (*here, *rest):
        for counter_set in entry.spec.shared_counters:
            if counter_set.name in index:
                raise _InvalidPool(f"duplicate counter set name {counter_set.name}")
            index[counter_set.name] = {name: len(counters) + offset for offset, name in enumerate(counter_set.counters)}
            counters += [amount(counter.value) for counter in counter_set.counters.values()]
    return index, counters


class _InvalidPool(ValueError):
    """Slices of a pool contradict each other."""


def _charges(device: Device, index: Mapping[str, Mapping[str, int]]) -> Charges:
    if not device.consumes_counters:
        return ()
    charged: dict[int, int] = {}
    for consumed in device.consumes_counters:
        of_set = index.get(consumed.counter_set)
        if of_set is None:
            raise _InvalidPool(f"counter set {consumed.counter_set} not found")
        for name, counter in consumed.counters.items():
            place = of_set.get(name)
            if place is None:
                raise _InvalidPool(f"counter {name} not found in counter set {consumed.counter_set}")
            charged[place] = charged.get(place, 0) + amount(counter.value)
    return _once(tuple(charged.items()))


@lru_cache(maxsize=8192)
def _once(charges: Charges) -> Charges:
    """Intern equal charges of all pools: otherwise they take more memory than the rest of a view."""
    return charges
