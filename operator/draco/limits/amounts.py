"""How much a claim holds, in the amounts that a DeviceLimit can limit.

Owns what a GPU, a partition and a share of a device count as. Amounts are integers in billionths, so that sums are exact. Sizes
come from what is published; a device without published memory counts 0. An unpublished partition counts as another of its profile
in the pool; any other unpublished device counts as one whole GPU without memory.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from draco.allocation.fleet.hardware import PoolHardware, amount_of
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.slices import Device
from draco.resources.names import PoolKey, of_driver, read_partition_name

ONE: Final = 10**9
"""One, in billionths."""
_SLICE: Final = re.compile(r"memory-?slice-?[0-9]+", re.IGNORECASE)
"""A counter or capacity of one memory slice: memory-slice-0, or memorySlice0 in NVIDIA's driver."""
_PROFILE: Final = re.compile(r"([0-9]+)g\.")
_COMPUTE_SLICES: Final = 7
_SLICES_OF_PROFILE: Final[Mapping[int, int]] = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slices by compute slices, for partitions without counters."""


class LimitedAmount(StrEnum):
    """What can be limited, by the field names of a DeviceLimit."""

    DEVICES = "devices"
    MEMORY = "memory"
    MEMORY_SLICES = "memorySlices"
    GPU_SHARE = "gpuShare"


class DeviceOrigin(NamedTuple):
    """The DeviceClass that a device was requested with, and its driver; "" before a device is chosen."""

    device_class: str
    driver: str


Amounts: TypeAlias = Mapping[LimitedAmount, int]
Holdings: TypeAlias = Mapping[DeviceOrigin, Amounts]
HardwareOf: TypeAlias = Callable[[PoolKey], PoolHardware]


class ClaimHoldings(msgspec.Struct, frozen=True):
    """What a claim holds; `unknown` are devices of unknown size, `unsized` those published without memory."""

    holdings: Holdings
    unknown: tuple[str, ...] = ()
    unsized: tuple[str, ...] = ()


def holdings_of(claim: ResourceClaim, hardware: HardwareOf) -> ClaimHoldings:
    """What an allocated claim holds. Administrative access holds nothing."""
    found: dict[DeviceOrigin, Counter[LimitedAmount]] = {}
    unknown, unsized = [], []
    for result in claim.results:
        if result.admin_access:
            continue
        pool = hardware(result.key.pool_key)
        device = pool.published_as(result.device) or pool.published_like(result.device)
        if device is None:
            unknown.append(result.device)
        elif not _capacity(device, "memory", result.driver):
            unsized.append(result.device)
        origin = DeviceOrigin(claim.class_of(result.request), result.driver)
        found.setdefault(origin, Counter()).update(_amounts(result, device, pool))
    return ClaimHoldings(found, tuple(unknown), tuple(unsized))


def least_of(claim: ResourceClaim) -> Holdings:
    """The minimum that the claim will hold, whatever devices it gets: those requested by number."""
    found: dict[DeviceOrigin, Counter[LimitedAmount]] = {}
    for request in claim.spec.devices.requests:
        asked = request.exactly
        if asked is not None and not asked.admin_access and asked.allocation_mode == "ExactCount":
            origin = DeviceOrigin(asked.device_class_name, "")
            found.setdefault(origin, Counter())[LimitedAmount.DEVICES] += asked.count * ONE
    return found


def added(several: Iterable[Holdings]) -> Holdings:
    """The sum of several holdings."""
    found: dict[DeviceOrigin, Counter[LimitedAmount]] = {}
    for holdings in several:
        for origin, amounts in holdings.items():
            found.setdefault(origin, Counter()).update(amounts)
    return found


def _amounts(
    result: DeviceRequestAllocationResult, device: Device | None, pool: PoolHardware
) -> Counter[LimitedAmount]:
    memory = _capacity(device, "memory", result.driver)
    slices, share = _parts(device, pool) if device is not None else (0, ONE)
    if result.share_id is not None:
        part = _part(result, device)
        memory = _named(result.consumed_capacity, "memory", result.driver) or memory * part // ONE
        slices, share = slices * part // ONE, share * part // ONE
    return Counter(
        {
            LimitedAmount.DEVICES: ONE,
            LimitedAmount.MEMORY: memory,
            LimitedAmount.MEMORY_SLICES: slices,
            LimitedAmount.GPU_SHARE: share,
        }
    )


def _part(result: DeviceRequestAllocationResult, device: Device | None) -> int:
    """How much of its device a share is, by memory, else by their number; all of it if it takes neither."""
    for name in ("memory", "shares"):
        taken, total = _named(result.consumed_capacity, name, result.driver), _capacity(device, name, result.driver)
        if taken and total:
            return min(ONE, taken * ONE // total)
    return ONE


def _parts(device: Device, pool: PoolHardware) -> tuple[int, int]:
    """Memory slices, and the share of the whole GPU; both rounded down to billionths."""
    draws, totals = pool.counters_of(device.name)
    slices = sum(ONE for _ in _slices(name for counters in draws.values() for name in counters))
    ratios = {
        name: taken * ONE // total
        for counter_set, counters in draws.items()
        for name, taken in _with_slices(counters).items()
        if (total := _with_slices(totals[counter_set]).get(name, 0))
    }
    if ratios:
        counted = [ratios[name] for name in ("memory-slices", "multiprocessors") if name in ratios]
        return slices, min(ONE, max(counted or ratios.values()))
    if "parentUUID" not in device.attributes and read_partition_name(device.name) is None:
        return sum(ONE for _ in _slices(device.capacity)), ONE
    profile = device.attributes.get("profile")
    named = _PROFILE.match(profile.string or "") if profile else None
    compute = int(named[1]) if named else _COMPUTE_SLICES
    own = sum(ONE for _ in _slices(device.capacity))
    return own or _SLICES_OF_PROFILE.get(compute, compute) * ONE, min(ONE, compute * ONE // _COMPUTE_SLICES)


def _with_slices(counters: Mapping[str, int]) -> Mapping[str, int]:
    """The counters, with all memory slices as one."""
    slices = sum(counters[name] for name in _slices(counters))
    return {**counters, "memory-slices": slices} if slices else counters


def _slices(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if _SLICE.fullmatch(name))


def _capacity(device: Device | None, capacity: str, driver: str) -> int:
    if device is None:
        return 0
    return _named({name: each.value for name, each in device.capacity.items()}, capacity, driver)


def _named(amounts: Mapping[str, str], name: str, driver: str) -> int:
    text = of_driver(amounts, name, driver)
    return amount_of(text) if text else 0
