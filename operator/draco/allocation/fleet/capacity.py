"""How much of a device's capacities a request consumes.

Owns rounding requested amounts by a capacity's policy, and whether the device has enough left. Amounts are compared exactly, in
billionths; rounding by steps uses 64-bit integers, as Kubernetes does.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.state import amount
from draco.resources.api.claims import CapacityRequirements
from draco.resources.api.slices import CapacityRange, CapacityRequestPolicy, Device, DeviceCapacity
from draco.resources.quantity import Quantity

_MAX_INT64: Final = 2**63 - 1
_NONE: Final[Mapping[str, int]] = {}


def taken(request: CapacityRequirements | None, device: Device) -> dict[str, Quantity] | None:
    """What a request consumes of each capacity; None if the device lacks a requested one or a policy forbids the amount.

    Raises AllocationError for an amount that cannot be rounded, which no other device could satisfy either.
    """
    wanted = request.requests if request is not None else {}
    if any(name not in device.capacity for name in wanted):
        return None
    amounts = {name: _amount(name, wanted.get(name), capacity) for name, capacity in device.capacity.items()}
    if any(_is_forbidden(amounts[name], capacity.request_policy) for name, capacity in device.capacity.items()):
        return None
    return amounts


class Arithmetic(IntEnum):
    """What may go wrong in `taken` with a device's capacities."""

    SAFE = 0
    STEPS = 1
    """A requested amount may be too large to be rounded up."""
    NEGATIVE = 2
    """An amount is negative, so the consumed amount may be negative for any request."""


def arithmetic(device: Device) -> Arithmetic:
    """What may go wrong with the device. May report too much, never too little."""
    worst = Arithmetic.SAFE
    for capacity in device.capacity.values():
        if capacity.value.startswith("-"):
            return Arithmetic.NEGATIVE
        policy = capacity.request_policy
        if policy is None:
            continue
        allowed = policy.valid_range
        if any(
            text is not None and text.startswith("-") for text in (policy.default, allowed.min if allowed else None)
        ):
            return Arithmetic.NEGATIVE
        if allowed is not None and allowed.step is not None:
            worst = Arithmetic.STEPS
    return worst


def is_left(
    amounts: Mapping[str, Quantity],
    device: Device,
    consumed: Mapping[str, int] = _NONE,
    being_taken: Mapping[str, int] = _NONE,
) -> bool:
    """Whether the device has these amounts left, after what is consumed and what this search takes."""
    return all(
        amounts[name].nanos + consumed.get(name, 0) + being_taken.get(name, 0) <= amount(capacity.value)
        for name, capacity in device.capacity.items()
    )


def most(capacity: DeviceCapacity) -> Quantity:
    """The most that one request can ask of a capacity: what is more is rounded up to an amount that the device has not."""
    whole, policy = _parse(capacity.value), capacity.request_policy
    if policy is None or (policy.valid_range is None and not policy.valid_values):
        return whole
    if (allowed := policy.valid_range) is None:
        return max((each for each in map(_parse, policy.valid_values) if each <= whole), default=Quantity.of(0))
    limit, least = whole if allowed.max is None else min(whole, _parse(allowed.max)), _parse(allowed.min)
    if limit < least or allowed.step is None or (size := _parse(allowed.step).value()) <= 0:
        return limit
    start = least.value()
    # Down to a whole amount: `value` rounds up.
    return Quantity.of(start + (limit.nanos // 10**9 - start) // size * size, _parse(allowed.step).format)


def _amount(name: str, wanted: str | None, capacity: DeviceCapacity) -> Quantity:
    policy = capacity.request_policy
    try:
        if wanted is None:
            taken = _parse(policy.default if policy is not None and policy.default is not None else capacity.value)
        else:
            taken = _round_up(_parse(wanted), policy)
    except _NotRepresentable as error:
        raise AllocationError(
            f'capacity "{name}": capacity request cannot be represented in the device\'s range arithmetic: {error}'
        ) from None
    if taken.sign() < 0:
        raise AllocationError(f'capacity "{name}": capacity value is negative')
    return taken


class _NotRepresentable(ValueError):
    """An amount exceeds the arithmetic of its policy."""


def _round_up(wanted: Quantity, policy: CapacityRequestPolicy | None) -> Quantity:
    if policy is None:
        return wanted
    if policy.valid_range is not None:
        return _round_up_to_step(wanted, policy.valid_range)
    return next((each for each in map(_parse, policy.valid_values) if wanted <= each), wanted)


def _round_up_to_step(wanted: Quantity, allowed: CapacityRange) -> Quantity:
    least = _parse(allowed.min)
    if wanted < least:
        return least
    if allowed.step is None:
        return wanted
    if wanted > Quantity.of(_MAX_INT64):
        raise _NotRepresentable(f"request {wanted} exceeds MaxInt64")
    step, start = _parse(allowed.step), least.value()
    size = step.value()
    if size <= 0:
        raise _NotRepresentable(f"the step {step} is not positive")
    steps = -(-(wanted.value() - start) // size)
    if start >= 0 and start + steps * size > _MAX_INT64:
        raise _NotRepresentable(f"rounding request {wanted} up to the next step passes MaxInt64")
    return Quantity.of(start + steps * size, step.format)


def _is_forbidden(amount_: Quantity, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and _is_same(amount_, _parse(policy.default))):
        return False
    allowed = policy.valid_range
    if allowed is None:
        return bool(policy.valid_values) and all(amount_ != _parse(value) for value in policy.valid_values)
    if allowed.max is not None and amount_ > _parse(allowed.max):
        return True
    if allowed.step is None:
        return False
    size = _parse(allowed.step).value()
    return size != 0 and (amount_.value() - _parse(allowed.min).value()) % size != 0


def _is_same(one: Quantity, other: Quantity) -> bool:
    """Whether two quantities are written the same. Kubernetes accepts the default only in this form, not an equal amount."""
    if one.wide or other.wide:
        return False
    return (one.mantissa, one.exponent, one.format, one.text) == (
        other.mantissa, other.exponent, other.format, other.text,
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _parse(text: str) -> Quantity:
    return Quantity.parse(text)
