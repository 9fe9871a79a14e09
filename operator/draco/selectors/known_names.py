"""Names of attributes and capacities: NVIDIA's, the standard ones, common mistakes, and names that a device publishes twice.

A name may be published with its driver's domain and without it. Kubernetes stores both; up to 1.37 a selector sees one of the two
values at random (kubernetes#142218), and with the open #142202 the one with the domain. Draco uses that one.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

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


class Instead(NamedTuple):
    """What to do instead of reading a name, and since when the driver does not publish it, if it did."""

    advice: str
    since: str = ""


INSTEAD: Final = MappingProxyType(
    {
        **dict.fromkeys(
            ("index", "minor"),
            Instead(
                "choose by `uuid`, or by `pciBusID` in the domain resource.kubernetes.io",
                " since release 25.8, as it changed with every boot",
            ),
        ),
        **dict.fromkeys(
            ("memorygb", "memorygib", "memorymb", "memorymib", "vramgb"),
            Instead(
                "compare the capacity `memory` with a unit, as in "
                '`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`'
            ),
        ),
        **dict.fromkeys(
            ("migcapable", "migenabled"),
            Instead("ask for the class gpu.nvidia.com for whole GPUs, mig.nvidia.com for MIG"),
        ),
    }
)
"""By the name, as `plain` writes it."""
ARCHITECTURES: Final = (
    "Kepler",
    "Maxwell",
    "Pascal",
    "Volta",
    "Turing",
    "Ampere",
    "Ada Lovelace",
    "Hopper",
    "Blackwell",
)
_BRANDS: Final = ("NVIDIA", "Tesla", "Quadro", "GeForce", "GRID", "TITAN")
"""How product names begin."""
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


class PublishedPlace(NamedTuple):
    """Where NVIDIA's driver publishes a value."""

    kind: str
    domain: str
    name: str


def published_as(kind: str, name: str) -> PublishedPlace:
    """The place of what a name of NVIDIA or the standard means, right or not; its own kind if nothing is known."""
    known = name if name in ATTRIBUTES | CAPACITIES | STANDARD else meant(name) or name
    if known in STANDARD:
        return PublishedPlace("attributes", STANDARD_DOMAIN, known)
    if (known in CAPACITIES) != (known in ATTRIBUTES):
        kind = "capacity" if known in CAPACITIES else "attributes"
    return PublishedPlace(kind, NVIDIA_DRIVER, known)


def wrong_value(name: str, test: str, value: str) -> tuple[str, str] | None:
    """Why no NVIDIA GPU passes a test ("==" or a function) of an attribute with a value, and the advice; None if one may pass."""
    return _CHECKS[name](test, value) if name in _CHECKS and value else None


def _on_architecture(test: str, value: str) -> tuple[str, str] | None:
    near = [each for each in ARCHITECTURES if plain(each).startswith(plain(value))]
    likely = slip_of(value, ARCHITECTURES) or (near[0] if len(near) == 1 else "")
    is_wrong = test == "==" and value not in ARCHITECTURES and likely
    return (f'no architecture is "{value}"', f'the nearest is "{likely}"') if is_wrong else None


def _on_type(test: str, value: str) -> tuple[str, str] | None:
    is_wrong = test == "==" and value not in _TYPES and value.lower() in _TYPES
    return (f'no type is "{value}"', f'the nearest is "{value.lower()}"') if is_wrong else None


def _on_profile(test: str, value: str) -> tuple[str, str] | None:
    if test != "==" or _PROFILE.fullmatch(value):
        return None
    parts = _PROFILE_PARTS.search(value.lower())
    example = f"{parts[1]}g.{parts[2]}gb" if parts else "1g.10gb"
    return f'no MIG profile is "{value}"', f'write it as in "{example}"'


def _on_product(test: str, value: str) -> tuple[str, str] | None:
    if test == "==":
        cause = f'"{value}" is no full product name, such as "NVIDIA H100 80GB HBM3"'
        return None if " " in value else (cause, f'write the full one, or contains("{value}")')
    if test == "startsWith" and not any(each.startswith(value) or value.startswith(each) for each in _BRANDS):
        return f'no product name begins with "{value}", but with NVIDIA or Tesla', f'write contains("{value}")'
    code = _LOWER_MODEL.search(value)
    return (f'product names write "{code[0]}" as "{code[0].upper()}", and case matters', "") if code else None


_TYPES: Final = frozenset({"gpu", "mig", "vfio"})
_PROFILE: Final = re.compile(r"(\d+c\.)?\d+g\.\d+gb(\+[a-z.]+|-[a-z]+)*")
_PROFILE_PARTS: Final = re.compile(r"(\d+)g\W?(\d+)\s?gb?\b")
_LOWER_MODEL: Final = re.compile(r"\b[a-z]{1,3}\d{1,4}\b")
"""A model such as a100 in lower case."""
_CHECKS: Final[Mapping[str, Callable[[str, str], tuple[str, str] | None]]] = MappingProxyType(
    {"architecture": _on_architecture, "type": _on_type, "profile": _on_profile, "productName": _on_product}
)


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
