"""Which devices of a pool are the same hardware: a whole GPU and its partitions, and partitions that overlap.

Owns that relation and which devices lack counters, for any driver. Two devices overlap if they consume from one counter set that
does not suffice for both. Without published counters (a cluster without partitionable devices, static layouts), a partition
belongs to the GPU that its `parentUUID` or name gives, and partitions of one GPU that are published together do not overlap,
because otherwise the scheduler would give away the same memory twice. Knows no claims and decides nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType

from draco.resources.api.slices import Device, ResourceSlice, current_slices, publications, strangers
from draco.resources.names import ATTRIBUTE_PARENT_UUID, ATTRIBUTE_UUID, read_partition_name
from draco.resources.quantity import Quantity

Draws = Mapping[str, Mapping[str, int]]
"""A device's consumption in billionths, by counter set and counter."""
_NONE: Draws = MappingProxyType({})


class PoolHardware:
    """One pool's devices and how they overlap. Computed per device on demand and cached.

    Includes slices of older generations: while a driver replaces a pool slice by slice, devices not yet republished are known
    only from these. `published` has the devices of current slices. A node's own slices take precedence over newer ones that
    others publish under its name. `complete`: no slice of the newest generation is missing.
    """

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        found = list(slices)
        foreign = {id(item) for item in strangers(found)}
        self._slices = sorted(
            found, key=lambda item: (id(item) in foreign, -item.spec.pool.generation, item.metadata.name)
        )
        self._devices: dict[str, Device] = {}
        for item in self._slices:
            for device in item.spec.devices:
                self._devices.setdefault(device.name, device)
        self.published = frozenset(
            device.name for parts in current_slices(found).values() for item in parts for device in item.spec.devices
        )
        own = [item for item in found if id(item) not in foreign]
        self.complete = all(each.complete for parts in publications(own).values() for each in parts)
        self._by_parent: dict[str, list[str]] = {}
        for name in self._devices:
            if part := read_partition_name(name):
                self._by_parent.setdefault(part.parent, []).append(name)
        self._overlapping: dict[str, frozenset[str]] = {}
        self._drawn: dict[str, Draws] = {}

    @property
    def expected(self) -> frozenset[str]:
        """The published devices; until the newest generation is complete, also those of older ones."""
        return self.published if self.complete else frozenset(self._devices)

    @property
    def implied(self) -> frozenset[str]:
        """Whole GPUs that are not published, but whose partitions are."""
        return frozenset(parent for parent in self._by_parent if parent not in self._devices)

    def published_as(self, device: str) -> Device | None:
        """The device from the slices; None if it is in none."""
        return self._devices.get(device)

    def published_like(self, device: str) -> Device | None:
        """Another partition with the profile of this one, which is no longer published; None if the pool has none."""
        part = read_partition_name(device)
        if part is None:
            return None
        for name, known in self._devices.items():
            other = read_partition_name(name)
            if other is not None and other.profile_id == part.profile_id:
                return known
        return None

    def counters_of(self, device: str) -> tuple[Draws, Draws]:
        """What the device consumes of its counter sets, and their totals."""
        draws = self._draws(device)
        return draws, {name: self._totals.get(name, {}) for name in draws}

    def short(self, held: Collection[str]) -> set[str]:
        """The other published devices that need more of a counter than all these together leave."""
        used: dict[str, Counter[str]] = defaultdict(Counter)
        for device in self.published.intersection(held):
            for counter_set, counters in self._draws(device).items():
                used[counter_set].update(counters)
        return {
            device
            for device in self.published.difference(held)
            for counter_set, counters in self._draws(device).items()
            for name, amount in counters.items()
            if (taken := used[counter_set][name]) and amount + taken > self._totals.get(counter_set, {}).get(name, 0)
        }

    def board(self, device: str) -> str:
        """UUID of the physical GPU of the device or partition; "" if unknown."""
        if device in self._devices:
            return self._parent_uuid(device) or self._uuid(device)
        boards = {self._parent_uuid(part) for part in self._by_parent.get(device, ())}
        return boards.pop() if len(boards) == 1 else ""

    def of_board(self, uuid: str) -> Sequence[str]:
        """The devices of that physical GPU."""
        return self._by_board.get(uuid, ())

    def overlapping(self, device: str) -> frozenset[str]:
        """The other known or implied devices that share hardware with this one, which may be unknown."""
        if device not in self._overlapping:
            found = {other for other in self._candidates(device) if other != device and self.overlap(device, other)}
            self._overlapping[device] = frozenset(found)
        return self._overlapping[device]

    def parts(self, device: str) -> frozenset[str]:
        """The overlapping devices whose hardware is all in this one: the partitions of a whole GPU."""
        return frozenset(
            other
            for other in self.overlapping(device)
            if self._contains(device, other) and (self._is_whole_of(device, other) or not self._contains(other, device))
        )

    def overlap(self, one: str, other: str) -> bool:
        """Whether two different devices certainly share hardware."""
        if self._compete(self._draws(one), self._draws(other)):
            return True
        return self._is_whole_of(one, other) or self._is_whole_of(other, one)

    def may_overlap(self, one: str, other: str) -> bool:
        """Whether they overlap, or may: partitions of one GPU, one of which is no longer published and has an unknown size."""
        if self.overlap(one, other):
            return True
        if one in self._devices and other in self._devices:
            return False
        first, second = read_partition_name(one), read_partition_name(other)
        return first is not None and second is not None and first.parent == second.parent

    def _candidates(self, device: str) -> set[str]:
        found: set[str] = set(self._by_parent.get(device, ()))
        if part := read_partition_name(device):
            found.add(part.parent)
        if known := self._devices.get(device):
            found.update(self._by_board.get(self.board(device), ()))
            for consumed in known.consumes_counters:
                found.update(self._by_set[consumed.counter_set])
        return found

    def _compete(self, one: Draws, other: Draws) -> bool:
        """Whether some counter does not suffice for both; one without a published total suffices for neither."""
        for counter_set in one.keys() & other.keys():
            totals = self._totals.get(counter_set, {})
            mine, others = one[counter_set], other[counter_set]
            if any(mine[name] + others[name] > totals.get(name, 0) for name in mine.keys() & others.keys()):
                return True
        return False

    def _is_whole_of(self, whole: str, part: str) -> bool:
        if self._parent_uuid(whole):
            return False  # `uuid` of a partition is the partition's own
        uuid, parent_uuid = self._uuid(whole), self._parent_uuid(part)
        if uuid and parent_uuid:
            return uuid == parent_uuid
        named = read_partition_name(part)
        return named is not None and named.parent == whole

    def _contains(self, one: str, other: str) -> bool:
        mine, others = self._draws(one), self._draws(other)
        if mine and others:
            return all(
                amount <= mine.get(counter_set, {}).get(name, 0)
                for counter_set, counters in others.items()
                for name, amount in counters.items()
            )
        return self._is_whole_of(one, other)

    def _uuid(self, device: str) -> str:
        return self._text(device, ATTRIBUTE_UUID)

    def _parent_uuid(self, device: str) -> str:
        return self._text(device, ATTRIBUTE_PARENT_UUID)

    def _text(self, device: str, name: str) -> str:
        known = self._devices.get(device)
        return (
            known.text(name, self._slices[0].spec.driver) if known is not None else ""
        )  # all slices are of one driver

    def _draws(self, device: str) -> Draws:
        known = self._devices.get(device)
        if known is None or not known.consumes_counters:
            return _NONE
        if device not in self._drawn:
            self._drawn[device] = _draws_of(known)
        return self._drawn[device]

    @cached_property
    def _totals(self) -> Draws:
        totals: dict[str, Mapping[str, int]] = {}
        for item in self._slices:
            for each in item.spec.shared_counters:
                totals.setdefault(
                    each.name, {name: amount_of(counter.value) for name, counter in each.counters.items()}
                )
        return totals

    @cached_property
    def _by_set(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name, device in self._devices.items():
            for consumed in device.consumes_counters:
                found[consumed.counter_set].append(name)
        return found

    @cached_property
    def _by_board(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name in self._devices:
            if board := self.board(name):
                found[board].append(name)
        return found


def beside_partitions(devices: Iterable[Device]) -> Iterator[tuple[str, list[str]]]:
    """Whole GPUs, each with those of its published partitions with which it shares no counter set: both can be allocated."""
    found = list(devices)
    parts: dict[str, list[Device]] = defaultdict(list)
    for device in found:
        if (parent := device.attributes.get(ATTRIBUTE_PARENT_UUID)) is not None:
            parts[str(parent.value)].append(device)
    for device in found if parts else ():
        uuid = device.attributes.get(ATTRIBUTE_UUID)
        if uuid is None or ATTRIBUTE_PARENT_UUID in device.attributes:
            continue
        own = {each.counter_set for each in device.consumes_counters}
        apart = [
            part
            for part in parts[str(uuid.value)]
            if own.isdisjoint(each.counter_set for each in part.consumes_counters)
        ]
        if apart:
            yield device.name, [part.name for part in apart]


def _draws_of(device: Device) -> Draws:
    draws: dict[str, dict[str, int]] = {}
    for consumed in device.consumes_counters:
        counters = draws.setdefault(consumed.counter_set, {})
        for name, counter in consumed.counters.items():
            if amount := amount_of(counter.value):
                counters[name] = counters.get(name, 0) + amount
    return draws


@lru_cache(maxsize=8192)
def amount_of(text: str) -> int:
    """A quantity in billionths; 0 if the API server would not accept it."""
    amount = Quantity.read(text)
    return amount.nanos if amount is not None else 0
