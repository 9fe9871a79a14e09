"""Decides whether a claim on record may have a CDI spec: only while every device of it is present as recorded.

A container opens its devices by numbers: the minor number of the GPU, and those of the capabilities that open an instance. They
name hardware only as long as nothing moved. So a spec exists only while each device of its claim is there, under the UUID, the
minor number, the PCI address and the capability numbers that are on record for it, with which the spec was written. Where one is
gone there is no spec; where one has moved the record is put right first and the spec is written from it.

Owns that rule. Pure: it takes what is there as arguments, and every caller that writes or keeps a spec asks here: prepare,
prepare asked again, recovery, and whatever looks again after a reset, a reload of the driver or any other reading.
"""

from collections.abc import Callable, Mapping

import msgspec

from draco.agent.errors import DeviceMissing
from draco.agent.hardware.faults import LOST, NOT_FOUND
from draco.agent.hardware.gpus import ABSENT, Gpu, Instance, PlacementKey
from draco.agent.record.contents import PreparedClaim, PreparedDevice
from draco.resources.names import GpuUuid

GONE = frozenset({ABSENT, LOST, NOT_FOUND})
"""Faults of GPUs that cannot be asked who they are."""


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """What is there now. `instances` are ours that were seen in the last look; what could not be looked at is not in it.

    `numbers` tells which capability nodes open an instance, by the minor number of its GPU; it raises CapabilityUnknown.
    """

    gpus: Mapping[GpuUuid, Gpu]
    instances: Mapping[PlacementKey, Instance]
    numbers: Callable[[int, int, int | None], tuple[int, ...]]


def gone(gpu: Gpu | None) -> bool:
    """Whether a GPU is one that nobody can be given, not even who has it already."""
    return gpu is None or gpu.minor < 0 or (gpu.fault is not None and gpu.fault.name in GONE)


def gpus_of(claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> dict[GpuUuid, Gpu]:
    """The GPUs of a claim. DeviceMissing when one of them is gone."""
    found: dict[GpuUuid, Gpu] = {}
    for device in claim.devices:
        gpu = gpus.get(device.gpu)
        if gpu is None or gone(gpu):
            fault = gpu.fault if gpu is not None else None
            why = f"{fault.name}: {fault.message}" if fault else f"this node has no GPU {device.gpu} any more."
            raise DeviceMissing(
                f"Claim {claim} has {device.device}, which is not there: {why} Delete the pod so that it is allocated again."
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
    """The claim with the numbers that its devices have now: it may have a spec, made from them, and no other.

    DeviceMissing when it may have none, CapabilityUnknown when the driver does not say how an instance is opened.
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
    """Which GPU of a claim has another minor number or PCI address than on record, as a sentence; "" when none has."""
    for old, new in zip(before.devices, now.devices, strict=True):
        if old.minor != new.minor:
            return f"GPU {old.gpu} has moved from /dev/nvidia{old.minor} to /dev/nvidia{new.minor}."
        if old.pci_bus_id != new.pci_bus_id:
            return f"GPU {old.gpu} has moved from PCI address {old.pci_bus_id} to {new.pci_bus_id}."
    return ""


def located(claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> PreparedClaim:
    """The claim with the numbers of those of its GPUs that are there, whatever else of it is gone."""
    devices = [
        device
        if gone(gpu := gpus.get(device.gpu)) or gpu is None
        else msgspec.structs.replace(device, minor=gpu.minor, pci_bus_id=gpu.pci_bus_id)
        for device in claim.devices
    ]
    return claim if devices == claim.devices else msgspec.structs.replace(claim, devices=devices)
