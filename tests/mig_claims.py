"""Pools of MIG-capable GPUs as an agent publishes them, and claims for their partitions."""

import msgspec

from draco.agent.hardware.gpus import DriverInfo, GpuMigView
from draco.agent.publish import partitions
from draco.agent.publish.partitions import Divisible
from draco.mig.known_boards import BOARDS
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import GpuUuid
from tests.builders import a_claim, a_device_class, a_gpu, a_gpu_uuid, a_slice

H100 = BOARDS["H100-80GB"]
MIG_CLASS = a_device_class(
    "mig.nvidia.com", selector="device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
)
IDS = {profile.name: profile.id for profile in H100.profiles}


def a_mig_pool(node: str, gpus: int) -> list[ResourceSlice]:
    """The pool that an agent publishes for this many H100s in mode Dynamic."""
    divisible = [
        Divisible(gpu=gpu, mig=GpuMigView(gpu=gpu.uuid, capable=True, enabled=True, board=H100), board=H100)
        for gpu in (a_gpu(minor, uuid=GpuUuid(a_gpu_uuid(node, minor))) for minor in range(gpus))
    ]
    driver = DriverInfo(driver_version="580.65.06", cuda_driver_version="13.0", nvml_version="13")
    devices = partitions.devices(divisible, driver, partitions.order(divisible))
    contents = [devices[start : start + 64] for start in range(0, len(devices), 64)]
    count = len(contents) + 1
    counters = a_slice(node, [], name=f"{node}-0", of=count, shared_counters=partitions.counters(divisible))
    return [counters, *(a_slice(node, chunk, name=f"{node}-{i + 1}", of=count) for i, chunk in enumerate(contents))]


def a_partition(text: str, node: str = "node-0") -> str:
    """The device name of "0:3g.40gb@4"."""
    gpu, placement = text.split(":")
    name, start = placement.split("@")
    return f"{node}/gpu-{gpu}-mig-{name.replace('.', '').replace('+', '-')}-{IDS[name]}-{start}"


def a_mig_claim(
    name: str, profile: str, on: str = "", *, used: bool = False, node: str = "node-0", namespace: str = "default"
) -> ResourceClaim:
    """A claim for one partition; allocated if `on` names it, reserved for a pod if it is used."""
    claim = a_claim(
        name,
        namespace=namespace,
        device_class="mig.nvidia.com",
        on=[a_partition(on, node)] if on else [],
        reserved_for=["user"] if used else [],
    )
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    expression = f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'
    exactly = msgspec.structs.replace(
        request.exactly, selectors=[DeviceSelector(cel=CelSelector(expression=expression))]
    )
    devices = msgspec.structs.replace(claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
