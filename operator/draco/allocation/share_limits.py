"""Which devices one claim can have beside shares that are held to their memory: each way to hold them has its bounds.

A container's limit is in its environment, where NVIDIA's hook and HAMi-core read one amount for all its GPUs. HAMi-core limits
every GPU that the container sees. With MPS, a container is the client of one daemon, and sees no GPU but that daemon's.
kube-scheduler knows none of this. A share that leaves no room for another one has its GPU alone, so neither MPS nor a library
has to hold it: claims that know nothing of shares get such ones.

Owns these rules and their sentences: the agent asks before it prepares a claim, `explanation` before that. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.slices import Device
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, gpu_name, of_driver, read_partition_name
from draco.resources.quantity import Quantity
from draco.resources.texts import listed

NEEDLESS_ALONE: Final = frozenset({MemoryLimitBy.MPS, MemoryLimitBy.LIBRARY})
"""They are not given to a share that has its GPU alone."""
_MEMORY: Final = "memory"
ONE_DAEMON: Final = "a container can be the client of only one MPS daemon, whose GPU is then the only one that it sees"
ONE_CLAIM: Final = "or use several pods with a claim each"
OTHER_CONTAINER: Final = "ask for one of them in another claim, and give it to another container"
_OF_ALL: Final = {
    MemoryLimitBy.DRIVER: "NVIDIA's container toolkit sets one for all GPUs of a container",
    MemoryLimitBy.LIBRARY: "the library that holds them takes one for all GPUs of a container",
}


class LimitedDevice(NamedTuple):
    """A device of a claim: `by` whom its share is held to `mib` of memory, NONE if it is held to none."""

    device: str
    by: MemoryLimitBy = MemoryLimitBy.NONE
    mib: int = 0
    is_admin: bool = False

    @property
    def gpu(self) -> str:
        """The name of its GPU."""
        return gpu_name(self.device)


class RefusedShares(NamedTuple):
    """Why no container could use the devices of a claim together, as a clause, and what to do instead."""

    why: str
    remedy: str


def refused_shares(devices: Sequence[LimitedDevice]) -> RefusedShares | None:
    """Why the agent refuses these devices of one claim; None if it does not."""
    held = {by: _limits(devices, by) for by in MemoryLimitBy}
    for by, why in _OF_ALL.items():
        if len(amounts := {*held[by].values()}) > 1:
            said = listed(f"{each} MiB" for each in sorted(amounts))
            return RefusedShares(f"its memory limits differ ({said}), and {why}", f"ask for equal shares, {ONE_CLAIM}")
    if limits := held[MemoryLimitBy.LIBRARY]:
        others = {one.device for one in devices if one.gpu not in limits or read_partition_name(one.device)}
        if others:
            why = f"the library that holds its shares to their memory would limit {listed(sorted(others))}, too"
            return RefusedShares(why, OTHER_CONTAINER)
    if limits := held[MemoryLimitBy.MPS]:
        others = {one.device for one in devices if one.gpu not in limits and not one.is_admin}
        if len(limits) > 1 or others:
            beside = f" and {listed(sorted(others))} without" if others else ""
            why = f"it has {listed(sorted(limits))} with MPS{beside}, and {ONE_DAEMON}"
            return RefusedShares(why, f"ask for shares of one GPU, {ONE_CLAIM}")
    return None


def _limits(devices: Iterable[LimitedDevice], by: MemoryLimitBy) -> Mapping[str, int]:
    """The limits by GPU; shares of one GPU add up."""
    found: Counter[str] = Counter()
    for one in devices:
        if one.by is by and one.mib and not one.is_admin:
            found[one.gpu] += one.mib
    return found


class ShareRoom(NamedTuple):
    """The memory of a shared device in bytes, what a claim gets of it that asks for none, and the least that one can have."""

    memory: int
    default: int
    least: int

    @classmethod
    def of(cls, device: Device, driver: str) -> "ShareRoom | None":
        """That of a published device; None if it is not shared by memory."""
        memory = of_driver(device.capacity, _MEMORY, driver)
        policy = memory.request_policy if memory is not None else None
        if memory is None or policy is None or policy.valid_range is None or not device.allow_multiple_allocations:
            return None
        return cls(_bytes(memory.value), _bytes(policy.default or ""), _bytes(policy.valid_range.min))

    def is_all(self, taken: int) -> bool:
        """Whether beside a share of this size no other one fits."""
        return self.memory - taken < max(self.least, 1)


def allocated(
    claim: ResourceClaim, driver: str, published: Callable[[DeviceRequestAllocationResult], Device | None]
) -> list[LimitedDevice]:
    """The devices of an allocated claim. `published`: a device as its driver publishes it, None if it does not."""
    return [_of(result, driver, published(result)) for result in claim.results if result.driver == driver]


def _of(result: DeviceRequestAllocationResult, driver: str, device: Device | None) -> LimitedDevice:
    bare = LimitedDevice(result.device, is_admin=bool(result.admin_access))
    said = device.attributes.get(ATTRIBUTE_MEMORY_LIMIT) if device is not None else None
    level = said.string or "" if said is not None else ""
    if device is None or level not in {*MemoryLimitBy} or not result.share_id:
        return bare
    amounts = result.consumed_capacity
    taken, by = _bytes(of_driver(amounts, _MEMORY, driver) or ""), MemoryLimitBy(level)
    room = ShareRoom.of(device, driver)
    if by in NEEDLESS_ALONE and room is not None and room.is_all(taken):
        return bare
    return bare._replace(by=by, mib=max(1, taken >> 20))  # as the agent counts


def _bytes(text: str) -> int:
    found = Quantity.read(text) if text else None
    return found.value() if found is not None else 0
