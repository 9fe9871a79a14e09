"""How a verification Job gets its GPU: the DeviceClass of its claim, and the taints that it tolerates.

Owns these two choices, and whether a pending claim still matches them. Both follow from the published GPU: its allocator
determines the class. Claims are immutable, so a claim is recreated if the GPU was handed over, or got another taint, after its
creation. The taints of maintenance and of faults are tolerated by name, since they are what is verified. A taint that a person
wrote, or that states a limit of the agent, keeps this claim off like every other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_operators
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.health import FaultFamily, is_of_fault
from draco.resources.api.slices import Device
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaint, DeviceToleration
from draco.resources.names import (
    ALLOCATED_BY_OPERATOR,
    ATTRIBUTE_ALLOCATOR,
    DRACO_DOMAIN,
    LABEL_ALLOCATOR,
    NVIDIA_DEVICE_CLASS,
    NVIDIA_MIG_DEVICE_CLASS,
    OPERATOR_DEVICE_CLASS,
    OPERATOR_MIG_DEVICE_CLASS,
    TAINT_FAMILIES,
    TAINT_MAINTENANCE,
    TAINT_OPERATOR_ALLOCATED,
    DeviceKey,
)

MOST_TOLERATIONS: Final = 16
"""The API server's limit for one request of a claim."""
_FAULTS: Final = tuple(f"{TAINT_FAMILIES}{family.value}" for family in FaultFamily)


class OfferedDevice(msgspec.Struct, frozen=True):
    """A published device, with its taints from slices and rules."""

    key: DeviceKey
    device: Device
    taints: tuple[DeviceTaint, ...] = ()


class ProbedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What can be claimed of the GPU that a Job verifies: one of `devices`, which are published now.

    `key` is the taint key of the Job's own request, `other_keys` are those of other requests, on any hardware. `selects`: whether
    a DeviceClass of this name exists and matches one of the devices, or may match.
    """

    devices: tuple[OfferedDevice, ...]
    key: str
    other_keys: frozenset[str] = frozenset()
    selects: Callable[[str], bool]

    @property
    def is_operators(self) -> bool:
        """Whether it was handed over, so that only Draco allocates it."""
        return any(each.device.text(ATTRIBUTE_ALLOCATOR, "") == ALLOCATED_BY_OPERATOR for each in self.devices)


def class_for(gpu: ProbedGpu, asked_for: Iterable[str], classes: Mapping[str, DeviceClass]) -> str:
    """The class for the claim, of the GPU's own allocator; "" if there is none. Those in `asked_for` are preferred."""
    names = [name for name in asked_for if name]
    if gpu.is_operators:
        names += [OPERATOR_DEVICE_CLASS, OPERATOR_MIG_DEVICE_CLASS]
        names += sorted(name for name, each in classes.items() if is_operators(each))
    else:
        names += [NVIDIA_DEVICE_CLASS, NVIDIA_MIG_DEVICE_CLASS]
    return next((name for name in names if _serves(name, gpu, classes)), "")


def no_class(gpu: ProbedGpu, cron_job: str) -> str:
    """Why there is no class, as a sentence."""
    name = _named(gpu)
    if gpu.is_operators:
        return (
            f"{name} is handed over to Draco, and no DeviceClass with the label {LABEL_ALLOCATOR}={ALLOCATED_BY_OPERATOR} "
            f"has it: create {OPERATOR_DEVICE_CLASS} and {OPERATOR_MIG_DEVICE_CLASS}, as the chart does."
        )
    return (
        f"No DeviceClass is known for {name}: name one that selects it in the annotation draco.dev/device-class of CronJob "
        f"{cron_job}."
    )


def tolerations_for(gpu: ProbedGpu) -> list[DeviceToleration]:
    """The claim's tolerations: each key by name, so no unexpected taint is tolerated."""
    standing = [taint.key for taint in _taints(gpu) if _is_tolerated(taint, gpu)]
    first = list(dict.fromkeys(key for key in (gpu.key, TAINT_MAINTENANCE, *standing) if _may_be_tolerated(key)))
    # A toleration without an effect lets the claim be allocated the device; keeping it needs the effect NoExecute.
    found = [
        DeviceToleration(key=key, operator="Exists", effect=effect) for key in first for effect in ("", "NoExecute")
    ]
    found += [DeviceToleration(key=key, operator="Exists") for key in _FAULTS if key not in first]
    return found[:MOST_TOLERATIONS]


def obstacle(gpu: ProbedGpu) -> str:
    """The taint that keeps the claim off all of the GPU, as a sentence; "" if none does."""
    hindered = [_hindrance(each, gpu) for each in gpu.devices]
    first = next(iter(hindered), None)
    if first is None or not all(hindered):
        return ""
    has = f"{_named(gpu)} has the taint {first.identity}"
    if first.key.startswith(f"{DRACO_DOMAIN}/"):
        return f"{has}, so no Job can use it yet; this goes on when that is over."
    return f"{has}, which belongs to no maintenance and no fault, so no Job can use it: remove the taint, or cancel this request."


def is_outdated(claim: ResourceClaim, gpu: ProbedGpu, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether a pending claim can never be allocated: the GPU was handed over since, or has another taint."""
    asked = next((each.exactly for each in claim.spec.devices.requests if each.exactly is not None), None)
    if asked is None or not gpu.devices:
        return False
    if not _serves(asked.device_class_name, gpu, classes):
        return bool(class_for(gpu, (), classes))  # without a better class, recreating the claim gains nothing
    taints = [taint for taint in _taints(gpu) if _is_tolerated(taint, gpu)]
    return not all(any(each.tolerates(taint) for each in asked.tolerations) for taint in taints)


def _serves(name: str, gpu: ProbedGpu, classes: Mapping[str, DeviceClass]) -> bool:
    known = classes.get(name)
    return known is not None and is_operators(known) is gpu.is_operators and gpu.selects(name)


def _taints(gpu: ProbedGpu) -> Iterable[DeviceTaint]:
    return (taint for each in gpu.devices for taint in each.taints if taint.effect in BLOCKING_EFFECTS)


def _may_be_tolerated(key: str) -> bool:
    return key != TAINT_OPERATOR_ALLOCATED


def _is_tolerated(taint: DeviceTaint, gpu: ProbedGpu) -> bool:
    is_known = taint.key in {gpu.key, TAINT_MAINTENANCE, *gpu.other_keys} or is_of_fault(taint.key)
    return is_known and _may_be_tolerated(taint.key)


def _hindrance(each: OfferedDevice, gpu: ProbedGpu) -> DeviceTaint | None:
    """What keeps the claim off this device. Being Draco's to allocate does not: the claim then asks by a class of Draco's."""
    return next((taint for taint in each.taints if taint.sets_aside and not _is_tolerated(taint, gpu)), None)


def _named(gpu: ProbedGpu) -> str:
    names: Sequence[DeviceKey] = sorted(each.key for each in gpu.devices)
    return f"{names[0].device} of {names[0].pool}"
