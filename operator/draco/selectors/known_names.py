"""Names of attributes and capacities: NVIDIA's, the standard ones, common mistakes, and names that a device publishes twice.

A name may be published with its driver's domain and without it. Kubernetes stores both; up to 1.37 a selector sees one of the two
values at random (kubernetes#142218), and with the open #142202 the one with the domain. Draco uses that one.
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
"""NVIDIA's version attributes: compare them with semver(); equality with text is an error."""
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
GONE: Final = MappingProxyType(
    dict.fromkeys(("index", "minor"), "`uuid`, or by `pciBusID` in the domain resource.kubernetes.io")
)
"""Attributes of older drivers, which changed with every boot, and their replacements."""
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
    """Find the name of NVIDIA or the standard that a wrong name probably means."""
    return _MEANT.get(plain(name)) or slip_of(name, (*ATTRIBUTES, *CAPACITIES, *STANDARD)) or None


def published_twice(driver: str, device: Device) -> list[str]:
    """Attributes and capacities that a device has with its driver's domain and without it, with different values."""
    return [
        name
        for values in (device.attributes, device.capacity)
        for name in values
        if (other := values.get(f"{driver}/{name}")) is not None and other != values[name]
    ]


def twice_text(who: str, domain: str, name: str) -> str:
    """The text about such a name, as a sentence without its end."""
    return (
        f"{who} published with different values of {name} and {domain}/{name}: up to Kubernetes 1.37 a selector reads either at "
        "random, and Draco reads the one with the domain"
    )
