"""The names of a device in metrics and reports."""

from draco.agent.hardware.gpus import Gpu, device_name
from draco.agent.hardware.nvml_usage import DeviceUse
from draco.agent.publish.partitions import partition_name
from draco.mig.board import Placement, Profile


def profile_of(gpu: Gpu, device: DeviceUse) -> Profile | None:
    """The profile of an instance; None for a whole GPU, and for one whose board is unknown."""
    return gpu.board.by_id(device.instance.profile_id) if gpu.board and device.instance else None


def profile_name(gpu: Gpu, device: DeviceUse) -> str:
    """The name of its profile; "" for a whole GPU."""
    if device.instance is None:
        return ""
    found = profile_of(gpu, device)
    return found.name if found else f"profile {device.instance.profile_id}"


def published_name(gpu: Gpu, device: DeviceUse) -> str:
    """The name in the ResourceSlices; "" for an instance that has none."""
    if device.instance is None:
        return device_name(gpu)
    found = profile_of(gpu, device)
    return partition_name(device_name(gpu), Placement(found, device.instance.start)) if found else ""


def resource_name(gpu: Gpu, device: DeviceUse) -> str:
    """What kind of device it is, as price lists name it: "NVIDIA H100 80GB HBM3", or "NVIDIA H100 80GB HBM3 MIG 1g.10gb"."""
    profile = profile_name(gpu, device)
    return f"{gpu.product_name} MIG {profile}" if profile else gpu.product_name
