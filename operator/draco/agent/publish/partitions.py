"""The devices of a GPU that can be divided: the whole, its partitions, and the counters that they consume.

Owns NVIDIA's names for partitions, their capacities and counters, the order in which the scheduler meets them, and when that
order is bad enough to be published again. Pure: reads nothing, writes nothing. The scheduler takes the first device that fits, in
the order of the slices and of their devices. So the order steers it: each profile's placements are sorted by capability loss.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

import msgspec

from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView, Use, device_name, position
from draco.agent.publish import slices
from draco.agent.publish.taints import as_many_as_fit, isolation_taints, joining_taints
from draco.health import judgement
from draco.mig.board import ENGINE_CAPACITIES, Board, Placement, Profile
from draco.mig.geometry import Geometry, State, geometry
from draco.resources.api.draco import IsolatedGpu, MigState
from draco.resources.api.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
)
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import TAINT_FOREIGN_INSTANCE, TAINT_UNSETTLED, UNSETTLED_MIG_MODE, GpuUuid
from draco.resources.quantity import Format, Quantity

_UNSETTLED = frozenset({MigState.DIRTY, MigState.NEEDS_RESET})
_PARENTS_ONLY = frozenset({"uuid", "addressingMode"})
"""Attributes of a whole GPU that its partitions lack."""


class Divisible(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose partitions are published, before they exist.

    `profiles` are the names of offered profiles, empty for all. `layout` are the only placements; None means that every placement
    is possible. `beside` are published in any case: claims hold them. `whole`: the undivided GPU is offered too. `isolated` are
    its maintenance entries. `resets`: it is reset as soon as nobody uses it.
    """

    gpu: Gpu
    mig: GpuMigView
    board: Board
    isolated: tuple[IsolatedGpu, ...] = ()
    resets: bool = False
    profiles: frozenset[str] = frozenset()
    layout: tuple[Placement, ...] | None = None
    beside: tuple[Placement, ...] = ()
    whole: bool = True

    @property
    def uuid(self) -> GpuUuid:
        """The GPU's UUID."""
        return self.gpu.uuid

    @property
    def space(self) -> Geometry:
        """The geometry of the board, with the offered profiles."""
        return geometry(self.board, self.profiles)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The published placements."""
        offered = self.layout
        if offered is None:
            allowed = self.profiles
            offered = tuple(one for one in self.board.placements if not allowed or one.profile.name in allowed)
        return offered + tuple(one for one in self.beside if one not in offered)

    @property
    def state(self) -> State:
        """What is unavailable: all held instances, except idle ones, which would give way."""
        return self.space.state_of(self._held(warm=False))

    @property
    def warm(self) -> frozenset[Placement]:
        """Existing idle instances."""
        return frozenset(self._held(warm=True))

    def _held(self, *, warm: bool) -> Iterator[Placement]:
        for held in self.mig.held:
            if (held.use is Use.WARM) is warm and (profile := self.board.by_id(held.instance.profile_id)):
                yield Placement(profile, held.instance.start)


class Place(msgspec.Struct, frozen=True):
    """One partition of one GPU."""

    gpu: GpuUuid
    placement: Placement


def partition_name(parent: str, placement: Placement) -> str:
    """The name of a partition: gpu-0-mig-1g10gb-19-4. NVML's profile id distinguishes profiles that differ only in signs."""
    profile = placement.profile.name.replace(".", "").replace("+", "-")
    return f"{parent}-mig-{profile}-{placement.profile.id}-{placement.start}"


def devices(gpus: Sequence[Divisible], driver: DriverInfo, order: Sequence[Place]) -> list[Device]:
    """The GPUs as devices: whole ones first, then the partitions in the given order."""
    ascending = sorted(gpus, key=lambda each: position(each.gpu))
    by_uuid = {each.uuid: _Maker(each, driver) for each in ascending}
    whole = [by_uuid[each.uuid].whole() for each in ascending if each.whole]
    return whole + [by_uuid[place.gpu].partition(place.placement) for place in order if place.gpu in by_uuid]


def counters(gpus: Sequence[Divisible]) -> list[CounterSet]:
    """One set per GPU, in the order of their names."""
    return [
        CounterSet(name=_counter_set(each), counters=_counted(_most(each), range(each.board.units)))
        for each in sorted(gpus, key=lambda each: position(each.gpu))
    ]


def order(gpus: Sequence[Divisible]) -> list[Place]:
    """Every partition, small profiles before large ones, each profile's best placement first.

    Next comes the one that is best once the first is taken, and so on: several claims within one publication do not spread over
    equal GPUs. Placements that fit come before those that do not.
    """
    ascending = sorted(gpus, key=lambda each: position(each.gpu))
    profiles = {(each.profile.size, each.profile.id) for gpu in gpus for each in gpu.placements}
    places: list[Place] = []
    for wanted in sorted(profiles):
        rows = []
        for gpu in ascending:
            offered = tuple(one for one in gpu.placements if (one.profile.size, one.profile.id) == wanted)
            rows.append((gpu, _row(gpu.space, gpu.state, offered, gpu.warm.intersection(offered))))
        places += _merged(rows)
    return places


class _Ranked(NamedTuple):
    """A placement and its rank at its turn; smaller is better."""

    cost: tuple[int, ...]
    cold: bool
    minus_start: int
    placement: Placement


@lru_cache(maxsize=4096)
def _row(
    space: Geometry, state: State, offered: tuple[Placement, ...], warm: frozenset[Placement]
) -> tuple[_Ranked, ...]:
    """One profile's placements on one GPU in the order in which claims should take them, then those without room.

    Among equals an existing idle instance comes before one to be created.
    """
    now, taken, left = state, [], list(offered)
    while left:
        best = min(_Ranked(_cost(space, now, one), one not in warm, -one.start, one) for one in left)
        if best.cost[0]:
            break
        taken.append(best)
        left.remove(best.placement)
        now = space.add(now, best.placement)
    later = (_Ranked((1, *_cost(space, state, one)), one not in warm, -one.start, one) for one in left)
    return (*taken, *sorted(later))


def _merged(rows: Sequence[tuple[Divisible, Sequence[_Ranked]]]) -> Iterator[Place]:
    heads = [(row[0][:3], index, 0) for index, (_, row) in enumerate(rows) if row]
    heapq.heapify(heads)
    while heads:
        _, index, turn = heads[0]
        gpu, row = rows[index]
        yield Place(gpu.uuid, row[turn].placement)
        if turn + 1 < len(row):
            heapq.heapreplace(heads, (row[turn + 1][:3], index, turn + 1))
        else:
            heapq.heappop(heads)


def better(published: Sequence[Place], gpus: Sequence[Divisible]) -> list[Place] | None:
    """The order if a first-fit scheduler would now choose better by it for some profile; None if the published one is as good.

    An order of other partitions is always replaced. A stale one is legal: it only loses more capability.
    """
    fresh = order(gpus)
    if set(published) != set(fresh):
        return fresh
    costs = {
        Place(each.uuid, placement): _cost(each.space, each.state, placement)
        for each in gpus
        for placement in each.placements
    }
    now, then = _first_fitting(published, costs), _first_fitting(fresh, costs)
    return fresh if any(costs[now[profile]] > costs[best] for profile, best in then.items()) else None


def _cost(space: Geometry, state: State, placement: Placement) -> tuple[int, ...]:
    """Smaller is better: first whether it does not fit, then the planner's rank, without the start."""
    if not space.fits_at(state, placement):
        return (1,)
    ranked = space.rank(state, placement)
    return (0, ranked.loss, ranked.minus_instances, ranked.units_left)


def _first_fitting(places: Sequence[Place], costs: Mapping[Place, tuple[int, ...]]) -> dict[Profile, Place]:
    first: dict[Profile, Place] = {}
    for place in places:
        if not costs[place][0]:
            first.setdefault(place.placement.profile, place)
    return first


class _Maker:
    def __init__(self, divided: Divisible, driver: DriverInfo) -> None:
        self._divided = divided
        self._plain = slices.device(divided.gpu, driver)
        self._inherited = {name: value for name, value in self._plain.attributes.items() if name not in _PARENTS_ONLY}
        self._set = _counter_set(divided)
        self._foreign = reduce(or_, (held.instance.mask for held in divided.mig.foreign), 0)

    def whole(self) -> Device:
        most = _most(self._divided)
        everything = _counted(most, range(self._divided.board.units))
        capacity = {name: DeviceCapacity(value=value) for name, value in most.items()}
        return msgspec.structs.replace(
            self._plain,
            capacity=capacity | self._plain.capacity,
            consumes_counters=[DeviceCounterConsumption(counter_set=self._set, counters=everything)],
            taints=self._taints(None),
        )

    def partition(self, placement: Placement) -> Device:
        profile = placement.profile
        amounts = _amounts(profile)
        own = {"type": "mig", "profile": profile.name, "parentUUID": self._divided.uuid}
        attributes = self._inherited | {name: DeviceAttribute(string=value) for name, value in own.items()}
        drawn = DeviceCounterConsumption(counter_set=self._set, counters=_counted(amounts, placement.units))
        return Device(
            name=partition_name(device_name(self._divided.gpu), placement),
            attributes=attributes,
            capacity={name: DeviceCapacity(value=value) for name, value in amounts.items()},
            consumes_counters=[drawn],
            taints=self._taints(placement),
        )

    def _taints(self, placement: Placement | None) -> list[DeviceTaint]:
        """The most important first: not all may fit. A sick GPU stays published; without it, it would look lost."""
        mask = -1 if placement is None else placement.mask
        taints = isolation_taints(self._divided.isolated, self._divided.board, placement)
        taints += judgement.taints(self._divided.gpu.faults, None if placement is None else placement.mask)
        if self._foreign & mask:
            taints.append(DeviceTaint(key=TAINT_FOREIGN_INSTANCE, effect="NoSchedule"))
        if placement is None:
            taints += joining_taints(self._divided.gpu)
        if unsettled := self._unsettled(placement):
            taints.append(DeviceTaint(key=TAINT_UNSETTLED, value=unsettled, effect="NoSchedule"))
        return as_many_as_fit(taints)

    def _unsettled(self, placement: Placement | None) -> str:
        state = self._divided.mig.state
        if state in _UNSETTLED:
            return state.value
        if self._divided.resets:
            return MigState.NEEDS_RESET.value
        whole_in_mig_mode = placement is None and self._divided.mig.enabled and self._divided.gpu.mig_needs_reset
        return UNSETTLED_MIG_MODE if whole_in_mig_mode else ""


def _amounts(profile: Profile) -> dict[str, str]:
    engines = {name: str(getattr(profile, field)) for name, field in ENGINE_CAPACITIES.items()}
    return engines | {"memory": _memory(profile)}


def _most(gpu: Divisible) -> dict[str, str]:
    profiles = gpu.board.profiles
    engines = {name: str(max(getattr(each, field) for each in profiles)) for name, field in ENGINE_CAPACITIES.items()}
    return engines | {"memory": _memory(max(profiles, key=lambda each: each.memory_mib))}


def _memory(profile: Profile) -> str:
    return str(Quantity.of(profile.memory_mib << 20, Format.BINARY_SI))


def _counter_set(divided: Divisible) -> str:
    return f"{device_name(divided.gpu)}-counter-set"


def _counted(amounts: Mapping[str, str], units: Iterable[int]) -> dict[str, Counter]:
    counted = {
        ENGINE_CAPACITIES.get(name, name).replace("_", "-"): Counter(value=value) for name, value in amounts.items()
    }
    return counted | {f"memory-slice-{unit}": Counter(value="1") for unit in units}
