"""What GPUs can still host, computed from what is published: for partitions, from their counters.

Reads a board's placement table from devices and counters (`mig.geometry` evaluates it), and its use. Without a table, it counts
the devices that could still be allocated. Knows nothing of requests.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.fleet.state import amount as nanos
from draco.mig.board import ENGINE_CAPACITIES, Board, Placement, Profile, unit_mask
from draco.mig.geometry import Geometry, State, geometry
from draco.resources.api.slices import Device
from draco.resources.names import TAINT_FOREIGN_INSTANCE, gpu_name, read_partition_name

_SLICE: Final = re.compile(r"memory-slice-([0-9]+)")
_COMPUTE: Final = re.compile(r"([0-9]+)g")
_ONE: Final = 10**9
_MAX_UNIT: Final = 63
_NOTHING: Final = State(-1, (), 0)
"""State of a GPU that is used as a whole."""


class RoomTaken(msgspec.Struct, frozen=True):
    """What some devices of one GPU take together; fields as in `PlacementScore`."""

    loss: int
    gpus: int = 1
    instances: int = 0
    units_left: int = 0
    starts: int = 0


class GpuTable(msgspec.Struct, frozen=True):
    """A GPU that can be partitioned: its geometry, and the placement of each device in its list; None for the whole GPU."""

    geometry: Geometry
    units: int
    placements: tuple[Placement | None, ...]
    taken: "dict[tuple[State, tuple[int, ...]], RoomTaken]"
    """Cache by use and taken devices."""


class GpuDevices:
    """The published devices of one GPU."""

    def __init__(self, view: PoolView, candidates: Sequence[Candidate]) -> None:
        self.view = view
        self.candidates = candidates
        self.table = _table(view, candidates) if candidates[0].charges else None
        self.place = {each.row: place for place, each in enumerate(candidates)}
        self.foreign = 0 if self.table is None else _foreign(candidates, self.table)


class PublishedGpus:
    """A cache of the GPUs of pools."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[PoolView, list[GpuDevices]]] = {}

    def rooms(self, view: PoolView, state: AllocatedState) -> "dict[int, GpuRoom]":
        """The current GPU of each device of a pool, by row."""
        known = self._known.get(id(view))
        if known is None:
            known = self._known[id(view)] = (view, _grouped(view))
        found = {}
        for gpu in known[1]:
            room = GpuRoom(gpu, state)
            for row in gpu.place:
                found[row] = room
        return found


class GpuRoom:
    """One GPU in its current use: the devices that share its hardware."""

    def __init__(self, gpu: GpuDevices, state: AllocatedState) -> None:
        self.candidates = candidates = gpu.candidates
        self.table = gpu.table
        self.used = [state.uses(each.key) for each in candidates]
        self.in_use = True in self.used
        self._place = gpu.place
        self._left: dict[int, int] = {}
        if self.table is not None:
            self.state = self._state(self.table, gpu.foreign)
        elif candidates[0].charges:
            self._left = {place: gpu.view.counters[place] for each in candidates for place, _ in each.charges}
            for each, used in zip(candidates, self.used, strict=True):
                if used:
                    _draw(self._left, each)
        self.solid = self.table is None and not candidates[0].charges

    def is_whole(self, candidate: Candidate) -> bool:
        """Whether the device is the whole GPU."""
        return self.solid or (self.table is not None and self.table.placements[self._place[candidate.row]] is None)

    @property
    def instances(self) -> int:
        """Number of its devices in use."""
        return self.state.instances if self.table is not None else sum(self.used)

    def placement(self, candidate: Candidate) -> Placement | None:
        """The placement of a partition, if known."""
        return None if self.table is None else self.table.placements[self._place[candidate.row]]

    def taken(self, candidates: Sequence[Candidate]) -> RoomTaken:
        """What the devices take together. Must not include devices shared by capacity."""
        if self.table is not None:
            places = tuple([self._place[each.row] for each in candidates])
            known = self.table.taken.get((self.state, places))
            if known is None:
                known = self._taken_of_table(self.table, places)
                if len(self.table.taken) < _MAX_TAKEN:
                    self.table.taken[self.state, places] = known
            return known
        if self.solid:
            return RoomTaken(loss=len(candidates))
        left = dict(self._left)
        for each in candidates:
            _draw(left, each)
        return RoomTaken(loss=self._fitting(self._left) - self._fitting(left), instances=sum(self.used))

    def _taken_of_table(self, table: GpuTable, places: Sequence[int]) -> RoomTaken:
        before = after = self.state
        starts = 0
        for place in places:
            placement = table.placements[place]
            if placement is None or after is _NOTHING:
                after = _NOTHING
            else:
                after = table.geometry.add(after, placement)
                starts += placement.start
        left = 0 if after is _NOTHING else table.units - after.mask.bit_count()
        loss = _capability(table.geometry, before) - _capability(table.geometry, after)
        return RoomTaken(loss=loss, instances=before.instances, units_left=left, starts=starts)

    def _state(self, table: GpuTable, foreign: int) -> State:
        state = table.geometry.empty
        if self.in_use:
            for placement, used in zip(table.placements, self.used, strict=True):
                if used and placement is None:
                    return _NOTHING
                if used and placement is not None:
                    state = table.geometry.add(state, placement)
        return table.geometry.block(state, foreign) if foreign else state

    def _fitting(self, left: dict[int, int]) -> int:
        return sum(all(amount <= left[place] for place, amount in each.charges) for each in self.candidates)


def _grouped(view: PoolView) -> list[GpuDevices]:
    groups: dict[str, list[Candidate]] = {}
    for candidate in view.candidates:
        device = candidate.device
        name = device.consumes_counters[0].counter_set if candidate.charges else f"/{device.name}"
        groups.setdefault(name, []).append(candidate)
    return [GpuDevices(view, group) for group in groups.values()]


def _foreign(candidates: Sequence[Candidate], table: GpuTable) -> int:
    """The units of an instance that Draco did not make: every partition that needs them has its taint."""
    tainted = open_ = 0
    for candidate, placement in zip(candidates, table.placements, strict=True):
        if placement is not None:
            if any(taint.key == TAINT_FOREIGN_INSTANCE for taint in candidate.taints):
                tainted |= placement.mask
            else:
                open_ |= placement.mask
    return tainted & ~open_


def _draw(left: dict[int, int], candidate: Candidate) -> None:
    for place, amount in candidate.charges:
        left[place] -= amount


def _capability(space: Geometry, state: State) -> int:
    return 0 if state is _NOTHING else space.capability(state)


def _table(view: PoolView, candidates: Sequence[Candidate]) -> GpuTable | None:
    base = min(place for each in candidates for place, _ in each.charges)
    top = max(place for each in candidates for place, _ in each.charges)
    prefix = len(gpu_name(candidates[0].device.name))
    alike = (
        tuple([each.device.name[prefix:] for each in candidates]),
        tuple([tuple([(place - base, amount) for place, amount in each.charges]) for each in candidates]),
        tuple(view.counters[base : top + 1]),
    )
    known = _tables.get(alike)
    if known is None:
        if len(_tables) >= _MAX_TABLES:
            _tables.clear()
        known = _tables[alike] = (_read_table(view, candidates),)
    return known[0]


_MAX_TAKEN: Final = 8192
_MAX_TABLES: Final = 4096
_tables: Final[dict[object, tuple[GpuTable | None]]] = {}
"""By what is published of a GPU; thousands are equal."""


def _read_table(view: PoolView, candidates: Sequence[Candidate]) -> GpuTable | None:
    rows: dict[tuple[str, int], list[tuple[Candidate, int]]] = {}
    masks: list[int] = []
    for candidate in candidates:
        mask = _mask(candidate.device)
        if not mask or len(candidate.device.consumes_counters) != 1:
            return None
        masks.append(mask)
        if not _is_partition(candidate.device):
            continue
        start = (mask & -mask).bit_length() - 1
        size = mask.bit_count()
        if mask != unit_mask(start, size):
            return None
        rows.setdefault((_profile_name(candidate.device, size), size), []).append((candidate, start))
    units = max(masks).bit_length()
    profiles = {}
    for number, ((name, size), found) in enumerate(rows.items()):
        profiles[name, size] = _profile(view, name, size, found, number)
    ascending = sorted(profiles.values(), key=lambda each: (each.size, each.slices, each.id, each.name))
    space = geometry(Board(tuple(ascending)))
    placements = tuple(
        Placement(
            profiles[_profile_name(each.device, mask.bit_count()), mask.bit_count()], (mask & -mask).bit_length() - 1
        )
        if _is_partition(each.device)
        else None
        for each, mask in zip(candidates, masks, strict=True)
    )
    return GpuTable(space, units, placements, {})


def _profile(view: PoolView, name: str, size: int, found: Sequence[tuple[Candidate, int]], number: int) -> Profile:
    candidate = found[0][0]
    starts = tuple(sorted({start for _, start in found}))
    compute = _COMPUTE.match(name)
    part = read_partition_name(candidate.device.name)
    names = candidate.device.consumes_counters[0].counters
    shared = [
        view.counters[place] // amount
        for counter, (place, amount) in zip(names, candidate.charges, strict=True)
        if amount and not _SLICE.fullmatch(counter)
    ]
    engines = {field: _engine(candidate.device, key) for key, field in ENGINE_CAPACITIES.items()}
    return Profile(
        id=part.profile_id if part is not None else number,
        name=name,
        slices=int(compute[1]) if compute else size,
        size=size,
        starts=starts,
        max_instances=max(1, min([*shared, _side_by_side(starts, size)])),
        **engines,
    )


def _side_by_side(starts: Sequence[int], size: int) -> int:
    """How many instances with these starts do not overlap."""
    number, end = 0, 0
    for start in starts:
        if start >= end:
            number, end = number + 1, start + size
    return number


def _is_partition(device: Device) -> bool:
    return "profile" in device.attributes or read_partition_name(device.name) is not None


def _profile_name(device: Device, size: int) -> str:
    profile = device.attributes.get("profile")
    return (profile.string if profile is not None else None) or f"{size} units"


def _engine(device: Device, name: str) -> int:
    found = device.capacity.get(name)
    return max(0, nanos(found.value) // _ONE) if found is not None else 0


def _mask(device: Device) -> int:
    """The memory units of a device, one bit each; 0 if it has none."""
    mask = 0
    for consumed in device.consumes_counters:
        for name in consumed.counters:
            if (found := _SLICE.fullmatch(name)) and int(found[1]) <= _MAX_UNIT:
                mask |= 1 << int(found[1])
    return mask
