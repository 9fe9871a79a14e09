"""Decides whether a recorded claim may have a CDI spec: only while every device of it is present as recorded.

Containers open devices by number: the GPU's minor number and the capability numbers of an instance. Numbers name other hardware
after a move. So a spec may exist only while each device of its claim is there with the recorded UUID, minor number, PCI address
and capability numbers, from which the spec was written. If a device is gone, the spec is removed; if one has moved, the record is
corrected first and the spec is written from it.

Owns that rule. Pure. Every caller that writes or keeps a spec asks here.
"""

from collections.abc import Callable, Mapping

import msgspec

from draco.agent.errors import DeviceMissing
from draco.agent.hardware.faults import LOST, NOT_FOUND
from draco.agent.hardware.gpus import ABSENT, Gpu, Instance, PlacementKey
from draco.agent.record.contents import PreparedClaim, PreparedDevice
from draco.resources.names import GpuUuid

GONE = frozenset({ABSENT, LOST, NOT_FOUND})
"""Faults of GPUs that no longer report who they are."""


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """What exists now. `instances` are ours as last read, without those that could not be read.

    `numbers` returns the capability numbers of an instance, by its GPU's minor number; it raises CapabilityUnknown.
    """

    gpus: Mapping[GpuUuid, Gpu]
    instances: Mapping[PlacementKey, Instance]
    numbers: Callable[[int, int, int | None], tuple[int, ...]]


def gone(gpu: Gpu | None) -> bool:
    """Whether a GPU is gone for everybody, even for claims that have it."""
    return gpu is None or gpu.minor < 0 or (gpu.fault is not None and gpu.fault.status.name in GONE)


def gpus_of(claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> dict[GpuUuid, Gpu]:
    """The GPUs of a claim. Raises DeviceMissing if one is gone."""
    found: dict[GpuUuid, Gpu] = {}
    for device in claim.devices:
        gpu = gpus.get(device.gpu)
        if gpu is None or gone(gpu):
            fault = gpu.fault.status if gpu is not None and gpu.fault is not None else None
            why = f"{fault.name}: {fault.message}" if fault else f"this node has no GPU {device.gpu} any more."
            raise DeviceMissing(
                f"Claim {claim} has {device.device}, which is not there: {why} Delete all pods that use the "
                "claim, so that it is allocated again."
            )
        found[gpu.uuid] = gpu
    minors = {gpu.minor: gpu for gpu in gpus.values() if not gone(gpu)}
    for gpu in found.values():
        other = minors[gpu.minor].uuid
        if other != gpu.uuid:
            raise DeviceMissing(
                f"Claim {claim} has GPU {gpu.uuid}, but NVML reports /dev/nvidia{gpu.minor} for GPU {other} too."
            )
    return found


def as_it_is(claim: PreparedClaim, hardware: NodeHardware) -> PreparedClaim:
    """The claim with its devices' current numbers, from which alone its spec may be written.

    Raises DeviceMissing if it may have no spec, CapabilityUnknown if the driver does not report an instance's numbers.
    """
    gpus = gpus_of(claim, hardware.gpus)
    devices = [_as_it_is(claim, device, gpus[device.gpu], hardware) for device in claim.devices]
    return claim if devices == claim.devices else msgspec.structs.replace(claim, devices=devices)


def _as_it_is(claim: PreparedClaim, device: PreparedDevice, gpu: Gpu, hardware: NodeHardware) -> PreparedDevice:
    if device.key is None or device.partition is None:
        return msgspec.structs.replace(device, minor=gpu.minor, pci_bus_id=gpu.pci_bus_id)
    one = hardware.instances.get(device.key)
    if one is None:
        raise DeviceMissing(
            f"Claim {claim} has lost the GPU instance of {device.device}: it is gone, or NVML does not list it now."
        )
    profile = gpu.board.by_id(one.profile_id) if gpu.board else None
    part = msgspec.structs.replace(
        device.partition,
        gi=one.gi,
        ci=-1 if one.ci is None else one.ci,
        uuid=one.uuid or "",
        profile=profile.name if profile else device.partition.profile,
    )
    numbers = hardware.numbers(gpu.minor, one.gi, one.ci)
    return msgspec.structs.replace(
        device, minor=gpu.minor, pci_bus_id=gpu.pci_bus_id, capabilities=numbers, partition=part
    )


def moved(before: PreparedClaim, now: PreparedClaim) -> str:
    """Which GPU of a claim has a new minor number or PCI address, as a sentence; "" if none has."""
    for old, new in zip(before.devices, now.devices, strict=True):
        if old.minor != new.minor:
            return f"GPU {old.gpu} has moved from /dev/nvidia{old.minor} to /dev/nvidia{new.minor}."
        if old.pci_bus_id != new.pci_bus_id:
            return f"GPU {old.gpu} has moved from PCI address {old.pci_bus_id} to {new.pci_bus_id}."
    return ""
