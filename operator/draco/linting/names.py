"""Names that drivers publish: NVIDIA's own, and what people write instead.

Owns the tables of attributes and capacities of gpu.nvidia.com and of the attributes that Kubernetes standardises, and the
search for the name that was meant.
"""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from draco.resources.names import (
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_CLUSTER_UUID,
    NVIDIA_DRIVER,
    STANDARD_NUMA_NODE,
    STANDARD_PCI_BUS_ID,
    STANDARD_PCIE_ROOT,
)

STANDARD_DOMAIN: Final = "resource.kubernetes.io"
STANDARD: Final = frozenset(
    name.partition("/")[2] for name in (STANDARD_PCIE_ROOT, STANDARD_PCI_BUS_ID, STANDARD_NUMA_NODE)
)
ALIKE: Final = 0.75
"""From here on a name is like another: it is told as the nearest. Only of a slip it is certain enough to be put in its place."""
_SAME_FIELD: Final = {
    "deviceclass": "deviceClassName",
    "resourceclaim": "resourceClaimName",
    "resourceclaimtemplate": "resourceClaimTemplateName",
}
"""Fields without their last word."""
_SHORTEST: Final = 3
"""Letters of a word in which one letter more or less is taken for a slip."""
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


def slip_of(written: str, names: Iterable[str]) -> str:
    """The one of the names of which another is a slip of the keyboard; "" if it may be another word, or a slip of several.

    A slip is in the case of letters, in separators, or in one letter: too many, missing, or swapped with its neighbour. Numbers
    tell things apart, so none of it is in a digit.
    """
    plain = _plain(written)
    found = {each for each in names if _is_slip(plain, _plain(each)) or _SAME_FIELD.get(plain) == each}
    return found.pop() if len(found) == 1 else ""


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _is_slip(one: str, other: str) -> bool:
    if one == other:
        return True
    shorter, longer = sorted((one, other), key=len)
    start = next((at for at, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    if len(shorter) == len(longer):
        swapped = longer[:start] + longer[start : start + 2][::-1] + longer[start + 2 :]
        return swapped == shorter and longer[start : start + 2].isalpha()
    without = longer[:start] + longer[start + 1 :]
    return without == shorter and longer[start].isalpha() and len(shorter) >= _SHORTEST


def meant(name: str) -> str | None:
    """Find the name of NVIDIA's or of the standard's that somebody probably meant by another one."""
    known = {one.lower(): one for one in (*ATTRIBUTES, *CAPACITIES, *STANDARD)}
    plain = _plain(name)
    if plain in _MEANT:
        return _MEANT[plain]
    return slip_of(plain, known.values()) or None
