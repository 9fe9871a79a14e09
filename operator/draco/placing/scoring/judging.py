"""Scores devices of one node that claims may get together. Searches nothing.

Combines the criteria: capability lost on the GPUs, distance of the devices to each other and to the pod's other devices (NVLink,
PCIe roots, NUMA nodes, of any driver), and use of the node. Without the attributes, distance is the maximum.
"""

from collections.abc import Sequence
from itertools import combinations

import msgspec

from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.fleet.state import AllocatedState, amount
from draco.allocation.search.attempt import TakenDevice
from draco.placing.scoring.gpu_room import GpuRoom, PublishedGpus
from draco.placing.scoring.score import PlacementScore
from draco.resources.api.draco import PlacementStrategy
from draco.resources.api.slices import Device, fabric_of
from draco.resources.names import (
    ATTRIBUTE_NVLINK_PEERS,
    NVIDIA_DRIVER,
    STANDARD_NUMA_NODE,
    STANDARD_PCIE_ROOT,
    gpu_name,
)

SAME_ROOT, SAME_NUMA, FAR = 0, 1, 2


class DevicePosition(msgspec.Struct, frozen=True):
    """The position of a device."""

    driver: str
    pool: str
    name: str
    root: object = None
    numa: object = None
    fabric: tuple[str, str] | None = None
    peers: frozenset[str] = frozenset()

    def distance(self, other: "DevicePosition") -> int:
        """SAME_ROOT, SAME_NUMA or FAR."""
        if self.root is not None and self.root == other.root:
            return SAME_ROOT
        return SAME_NUMA if self.numa is not None and self.numa == other.numa else FAR

    def is_linked(self, other: "DevicePosition") -> bool:
        """Whether an NVLink connects them."""
        if self.fabric is not None and self.fabric == other.fabric:
            return True
        return (self.driver, self.pool) == (other.driver, other.pool) and (
            other.name in self.peers or self.name in other.peers
        )


def position_of(driver: str, pool: str, name: str, device: Device) -> DevicePosition:
    """The position of a device. `name` is that of the whole GPU, which NVLink peers refer to."""
    peers = _value(device, driver, ATTRIBUTE_NVLINK_PEERS)
    return DevicePosition(
        driver=driver,
        pool=pool,
        name=name,
        root=_value(device, driver, STANDARD_PCIE_ROOT),
        numa=_value(device, driver, STANDARD_NUMA_NODE),
        fabric=fabric_of(driver, device),
        peers=frozenset(f"gpu-{number}" for number in (peers or "").split()),
    )


def _value(device: Device, driver: str, name: str) -> str | None:
    """An attribute as text, by its full name or, in the driver's or NVIDIA's domain, without domain."""
    return device.text(name, driver) or device.text(name, NVIDIA_DRIVER) or None


class NodeJudge:
    """Scores devices of a node. `usable` devices suit some request; `beside` are positions of the pod's other devices."""

    def __init__(
        self,
        views: Sequence[PoolView],
        state: AllocatedState,
        usable: Sequence[Candidate],
        *,
        gpus: PublishedGpus,
        beside: Sequence[DevicePosition],
        strategy: PlacementStrategy,
    ) -> None:
        self._state = state
        self._beside = beside
        self.room_of: dict[int, GpuRoom] = {}
        pools = {each.key.pool_key for each in usable}
        for view in views:
            if view.key in pools:
                self.room_of.update(gpus.rooms(view, state))
        rooms = {id(room): room for room in (self.room_of[each.row] for each in usable)}
        self._idle = sum(not room.in_use for room in rooms.values())
        self._busy = len(rooms) - self._idle
        self._packs = strategy is PlacementStrategy.PACK
        self._positions: dict[int, DevicePosition] = {}
        self._free = [
            self.position(each)
            for each in usable
            if self.room_of[each.row].is_whole(each) and not self.room_of[each.row].in_use
        ]
        self._has_links = any(each.peers for each in self._free)
        self.most_instances = max((0 if room.solid else room.instances for room in rooms.values()), default=0)
        self.most_start = max(
            (placement.start for each in usable if (placement := self.room_of[each.row].placement(each))), default=0
        )
        self.all_solid = all(
            self.room_of[each.row].is_whole(each) and not each.device.allow_multiple_allocations for each in usable
        )
        self.least_loss = (
            min((self.room_of[each.row].taken([each]).loss for each in usable), default=0) if self.all_solid else 0
        )

    def score(self, taken: Sequence[TakenDevice], alternatives: tuple[int, ...]) -> PlacementScore:
        """The score of devices."""
        loss = gpus = instances = left = starts = 0
        own: list[Candidate] = []
        by_room: dict[int, list[Candidate]] = {}
        opened: set[int] = set()
        for each in taken:
            if each.request.admin_access:
                continue
            own.append(each.candidate)
            if each.amounts is not None:
                opened.add(each.candidate.row)
                left += self._shares_left(each)
            else:
                by_room.setdefault(id(self.room_of[each.candidate.row]), []).append(each.candidate)
        loss += sum(not self.room_of[row].in_use for row in opened)
        for candidates in by_room.values():
            part = self.room_of[candidates[0].row].taken(candidates)
            loss += part.loss
            gpus += part.gpus
            instances += part.instances
            left += part.units_left
            starts += part.starts
        unlinked, distance, misalignment = self._distances(own)
        crowding = 0
        if own:
            newly = sum(not self.room_of[candidates[0].row].in_use for candidates in by_room.values())
            crowding = self._idle - newly if self._packs else self._busy
        return PlacementScore(
            alternatives, loss, gpus, -instances, left, -starts, unlinked, distance, misalignment, crowding,
            self._cut_links(own) if self._has_links else 0,
        )  # fmt: skip

    def bound(
        self, taken: Sequence[TakenDevice], alternatives: tuple[int, ...], missing: int, most: int
    ) -> PlacementScore:
        """Lower bound for sets of these devices, at least `missing` others, and `most` in all."""
        now = self.score(taken, alternatives)
        return PlacementScore(
            alternatives,
            now.loss + missing * self.least_loss,
            now.gpus,
            now.minus_instances - missing * self.most_instances,
            now.units_left if self.all_solid else 0,
            now.minus_start - missing * self.most_start,
            now.unlinked,
            now.distance,
            now.misalignment,
            self._idle - most if self._packs else min(self._busy, now.crowding),
        )

    def alone(self, candidate: Candidate) -> tuple[int, int, int, int]:
        """The cost of a single device, which gives the order of attempts."""
        part = self.room_of[candidate.row].taken([candidate])
        return part.loss, -part.instances, part.units_left, -part.starts

    def position(self, candidate: Candidate) -> DevicePosition:
        """The position of the device."""
        known = self._positions.get(candidate.row)
        if known is None:
            key = candidate.key
            known = position_of(key.driver, key.pool, gpu_name(key.device), candidate.device)
            self._positions[candidate.row] = known
        return known

    def _shares_left(self, taken: TakenDevice) -> int:
        """What remains of the scarcest capacity, in thousandths."""
        consumed = self._state.consumed(taken.candidate.key)
        amounts = taken.amounts or {}
        return min(
            (
                1000 * max(0, total - consumed.get(name, 0) - amounts[name].nanos) // total
                for name, total in _totals(taken.candidate).items()
                if name in amounts
            ),
            default=0,
        )

    def _distances(self, own: Sequence[Candidate]) -> tuple[int, int, int]:
        unlinked = distance = misalignment = 0
        positions = [self.position(each) for each in own]
        for (one, at), (other, there) in combinations(zip(own, positions, strict=True), 2):
            if self.room_of[one.row] is self.room_of[other.row]:
                continue
            if at.driver == there.driver:
                unlinked += not at.is_linked(there)
                distance += at.distance(there)
            else:
                misalignment += at.distance(there)
        for at in positions:
            misalignment += sum(at.distance(there) for there in self._beside if there.driver != at.driver)
        return unlinked, distance, misalignment

    def _cut_links(self, own: Sequence[Candidate]) -> int:
        names = {self.position(each).name for each in own}
        return sum(
            free.name not in names and at.is_linked(free)
            for at in (self.position(each) for each in own)
            for free in self._free
        )


def _totals(candidate: Candidate) -> dict[str, int]:
    return {
        name: total for name, capacity in candidate.device.capacity.items() if (total := amount(capacity.value)) > 0
    }
