"""Names that drivers publish: NVIDIA's own, what people write instead, and those that a device has twice.

Owns the tables of attributes and capacities of gpu.nvidia.com and of the attributes that Kubernetes standardises, and the
search for the name that was meant; and what is said of names with their driver's domain and without it. Kubernetes stores both;
which of two values a selector meets is left to chance in releases up to 1.37 (kubernetes#142218), and is the one with the domain
by the open #142202. Draco takes that one.
"""

from types import MappingProxyType
from typing import Final

from draco.resources.api.slices import Device
from draco.resources.names import (
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_CLUSTER_UUID,
    NVIDIA_DRIVER,
    STANDARD_NUMA_NODE,
    STANDARD_PCI_BUS_ID,
    STANDARD_PCIE_ROOT,
)
from draco.resources.texts import plain, slip_of

STANDARD_DOMAIN: Final = "resource.kubernetes.io"
STANDARD: Final = frozenset(
    name.partition("/")[2] for name in (STANDARD_PCIE_ROOT, STANDARD_PCI_BUS_ID, STANDARD_NUMA_NODE)
)
VERSIONS: Final = frozenset({"cudaComputeCapability", "driverVersion", "cudaDriverVersion"})
"""Attributes of NVIDIA's that are versions: they compare with semver(), and an equality with text is an error."""
ATTRIBUTES: Final = VERSIONS | {
    "type",
    "uuid",
    "productName",
    "brand",
    "architecture",
    "addressingMode",
    "gpuModuleID",
    "partition1",
    "partition2",
    "partition4",
    "partition8",
    "profile",
    "parentUUID",
    "deviceID",
    "vendorID",
    "numa",
    "iommuFDEnabled",
    ATTRIBUTE_CLUSTER_UUID,
    ATTRIBUTE_CLIQUE_ID,
}
CAPACITIES: Final = frozenset(
    {
        "memory",
        "multiprocessors",
        "copyEngines",
        "decoders",
        "encoders",
        "jpegEngines",
        "ofaEngines",
        "addressableMemory",
        *(f"memorySlice{index}" for index in range(16)),
    }
)
CLASSES: Final = MappingProxyType(
    dict.fromkeys(("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"), NVIDIA_DRIVER)
)
"""The driver behind each of NVIDIA's classes."""
GONE: Final = MappingProxyType(
    dict.fromkeys(("index", "minor"), "`uuid`, or by `pciBusID` in the domain resource.kubernetes.io")
)
"""Attributes of older drivers, which changed with every boot, and what to choose by instead."""
_WRITTEN_INSTEAD: Final = {
    "productName": ("model", "name", "product", "gpumodel"),
    "architecture": ("arch",),
    "cudaComputeCapability": ("computecapability",),
    "cudaDriverVersion": ("cudaversion", "runtimeversion"),
    "uuid": ("id", "gpuuuid"),
    "parentUUID": ("parent",),
    "profile": ("migprofile",),
    "memory": ("vram", "memorysize", "gpumemory", "totalmemory", "framebuffer"),
    "multiprocessors": ("sm", "sms"),
    "numaNode": ("numanode",),
    "pcieRoot": ("pciroot",),
    "pciBusID": ("pciebusid", "pciaddress"),
}
_MEANT: Final = {slip: name for name, slips in _WRITTEN_INSTEAD.items() for slip in slips}


def meant(name: str) -> str | None:
    """Find the name of NVIDIA's or of the standard's that somebody probably meant by another one."""
    return _MEANT.get(plain(name)) or slip_of(name, (*ATTRIBUTES, *CAPACITIES, *STANDARD)) or None


def published_twice(driver: str, device: Device) -> list[str]:
    """The attributes and capacities that a device has with its driver's domain and without it, and not with the same value."""
    return [
        name
        for values in (device.attributes, device.capacity)
        for name in values
        if (other := values.get(f"{driver}/{name}")) is not None and other != values[name]
    ]


def twice_text(who: str, domain: str, name: str) -> str:
    """What is to be known of it, as a sentence without its end."""
    return (
        f"{who} published with {name} and with {domain}/{name}, whose values differ: up to Kubernetes 1.37 chance decides which "
        "of them a selector meets, and here it is the one with the domain"
    )
