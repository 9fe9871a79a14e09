"""The form in which a device is published for several claims: what may be asked of each of its capacities.

Owns NVIDIA's names for shares (`memory`, `shares`), the attribute that says who holds a share to its memory, and the rules of
Kubernetes for request policies: a default is the minimum plus a multiple of the step, and none is above the capacity. A capacity
of a shareable device without a policy would be consumed whole by the first share, so each has one; what a share does not bound
has the default 0. What a claim does not ask for, it gets by default. Pure.
"""

from collections.abc import Iterable, Mapping

import msgspec

from draco.resources.api.sharing import Enforcement, SharedGpu, SharingMode, SharingSettings
from draco.resources.api.slices import CapacityRange, CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, ATTRIBUTE_UUID, GpuUuid, of_driver, read_partition_name
from draco.resources.quantity import Format, Quantity
from draco.sharing.enforcement import HELD_BY

MEMORY = "memory"
SHARES = "shares"
_MEBI = 1 << 20
_FREE = CapacityRequestPolicy(default="0", valid_range=CapacityRange(min="0", step="1"))
"""For a capacity that no share is bound to."""
_FREE_MEMORY = CapacityRequestPolicy(default="0", valid_range=CapacityRange(min="0", step="1Mi"))
"""The same for memory, as NVIDIA's driver publishes it."""


class TermsError(ValueError):
    """Why a device cannot be shared on these terms, as the end of a sentence."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which claims share one device; amounts are bytes of memory, for mode Memory, or a number of shares."""

    mode: SharingMode
    step: int = 0
    minimum: int = 0
    default: int = 0
    count: int = 0
    enforcement: Enforcement = Enforcement.NONE


def terms_for(wanted: SharingSettings, device: Device, driver: str = "") -> Terms:
    """The terms for a device of this size. Raises TermsError."""
    if wanted.enforcement is not Enforcement.NONE and wanted.mode is not SharingMode.MEMORY:
        raise TermsError(
            f"spec.enforcement {wanted.enforcement} needs spec.mode Memory, in which each share has an amount"
        )
    if wanted.mode is SharingMode.UNLIMITED:
        return Terms(mode=wanted.mode, enforcement=wanted.enforcement)
    if wanted.mode is SharingMode.COUNT:
        return Terms(mode=wanted.mode, count=wanted.count or 1, enforcement=wanted.enforcement)
    memory = memory_of(device, driver)
    if memory is None:
        raise TermsError("its memory is unknown")
    step, minimum = _bytes(wanted.step) or _MEBI, least_share(wanted)
    default = _bytes(wanted.default) or minimum + max(memory - minimum, 0) // step * step
    for name, amount in (("minimum", minimum), ("default", default)):
        if amount > memory:
            raise TermsError(f"spec.{name} {in_words(amount)} is more than its memory, {in_words(memory)}")
    if default < minimum or (default - minimum) % step:
        raise TermsError(
            f"spec.default {in_words(default)} is not spec.minimum {in_words(minimum)} plus a multiple of spec.step "
            f"{in_words(step)}"
        )
    return Terms(mode=wanted.mode, step=step, minimum=minimum, default=default, enforcement=wanted.enforcement)


def least_share(wanted: SharingSettings) -> int:
    """The least memory of a share in bytes, in mode Memory."""
    return _bytes(wanted.minimum) or _bytes(wanted.step) or _MEBI


def as_shareable(device: Device, terms: Terms) -> Device:
    """The device as several claims may have it."""
    capacity: dict[str, DeviceCapacity] = {}
    for name, each in device.capacity.items():
        policy = _FREE if name != MEMORY else _memory_policy(terms)
        capacity[name] = msgspec.structs.replace(each, request_policy=policy)
    if terms.mode is SharingMode.COUNT:
        one = CapacityRequestPolicy(default="1", valid_range=CapacityRange(min="1", step="1"))
        capacity[SHARES] = DeviceCapacity(value=str(terms.count), request_policy=one)
    held = DeviceAttribute(string=HELD_BY[terms.enforcement].value)
    attributes = device.attributes | {ATTRIBUTE_MEMORY_LIMIT: held}
    return msgspec.structs.replace(device, attributes=attributes, capacity=capacity, allow_multiple_allocations=True)


def _memory_policy(terms: Terms) -> CapacityRequestPolicy:
    if terms.mode is not SharingMode.MEMORY:
        return _FREE_MEMORY
    within = CapacityRange(min=in_words(terms.minimum), step=in_words(terms.step))
    return CapacityRequestPolicy(default=in_words(terms.default), valid_range=within)


def terms_of(device: Device, driver: str = "") -> Terms | None:
    """The terms on which a published device is shared; None if one claim has it alone, or nobody of ours published it."""
    if not device.allow_multiple_allocations:
        return None
    level = device.text(ATTRIBUTE_MEMORY_LIMIT, driver)
    enforcement = next((each for each, by in HELD_BY.items() if by == level), Enforcement.NONE)
    if (counted := _capacity(device, SHARES, driver)) is not None:
        return Terms(mode=SharingMode.COUNT, count=_bytes(counted.value), enforcement=enforcement)
    memory = _capacity(device, MEMORY, driver)
    policy = memory.request_policy if memory is not None else None
    if policy is None or policy.valid_range is None or not (default := _bytes(policy.default or "")):
        return Terms(mode=SharingMode.UNLIMITED, enforcement=enforcement)
    within = policy.valid_range
    return Terms(
        mode=SharingMode.MEMORY,
        step=_bytes(within.step or ""),
        minimum=_bytes(within.min),
        default=default,
        enforcement=enforcement,
    )


def published_forms(devices: Iterable[Device], driver: str = "") -> dict[GpuUuid, SharedGpu | None]:
    """How each GPU of one pool is shared, by UUID, from its published devices; None for one claim alone."""
    by_gpu: dict[str, list[Device]] = {}
    for device in devices:
        if uuid := device.gpu_uuid(driver):
            by_gpu.setdefault(uuid, []).append(device)
    return {GpuUuid(uuid): shared_gpu_of(uuid, found, driver) for uuid, found in by_gpu.items()}


def published_memory(devices: Iterable[Device], driver: str = "") -> dict[GpuUuid, int]:
    """The memory of each whole GPU of one pool in bytes, by UUID, as far as published."""
    whole = (each for each in devices if read_partition_name(each.name) is None)
    read = ((each.text(ATTRIBUTE_UUID, driver), memory_of(each, driver)) for each in whole)
    return {GpuUuid(uuid): memory for uuid, memory in read if uuid and memory is not None}


def shared_gpu_of(uuid: str, devices: Iterable[Device], driver: str = "") -> SharedGpu | None:
    """How a GPU is shared, from its published devices; None if it is not."""
    shareable = [each for each in devices if each.allow_multiple_allocations]
    of_parts = any(read_partition_name(each.name) is not None for each in shareable)
    whole = [each for each in shareable if read_partition_name(each.name) is None]
    device = next(iter(whole or shareable), None)
    terms = terms_of(device, driver) if device is not None else None
    if device is None or terms is None:
        return None
    bare = SharedGpu(
        uuid=uuid,
        policy="",
        mode=terms.mode,
        step=in_words(terms.step) if terms.step else "",
        minimum=in_words(terms.minimum) if terms.minimum else "",
        count=terms.count or None,
        mig_devices=of_parts,
        enforcement=terms.enforcement,
    )
    if terms.mode is not SharingMode.MEMORY or terms_for(bare, device, driver) == terms:
        return bare
    return msgspec.structs.replace(bare, default=in_words(terms.default))


def alike(before: SharedGpu | None, after: SharedGpu | None) -> bool:
    """Whether claims that hold a GPU in one form are counted in the other."""
    if before is None or after is None:
        return before is after
    same = before.mode is after.mode and before.enforcement is after.enforcement
    return same and before.mig_devices is after.mig_devices


def continues(before: SharedGpu | None, after: SharedGpu | None) -> bool:
    """Whether the form may change without notice: what is allocated meanwhile is counted, and there is room for it."""
    fewer = before is not None and after is not None and (after.count or 1) < (before.count or 1)
    return alike(before, after) and not fewer


def form_of(form: SharedGpu | None, device: str) -> SharedGpu | None:
    """The form of one device of a GPU: its MIG devices are shared only where that is asked."""
    return form if form is not None and (form.mig_devices or read_partition_name(device) is None) else None


def memory_of(device: Device, driver: str = "") -> int | None:
    """The memory of a device in bytes; None if it publishes none."""
    found = _capacity(device, MEMORY, driver)
    return _bytes(found.value) if found is not None else None


def consumed(amounts: Mapping[str, str], name: str, driver: str = "") -> int | None:
    """What a share consumes of a capacity; None if its result does not say."""
    text = of_driver(amounts, name, driver)
    return _bytes(text) if text is not None else None


def in_words(amount: int) -> str:
    """An amount of memory as a quantity, such as 10Gi."""
    return str(Quantity.of(amount, Format.BINARY_SI))


def _capacity(device: Device, name: str, driver: str) -> DeviceCapacity | None:
    return of_driver(device.capacity, name, driver)


def _bytes(text: str) -> int:
    found = Quantity.read(text) if text else None
    return found.value() if found is not None else 0
