"""Where a PCI device sits, read from the kernel's sysfs.

Owns the two facts that the standard device attributes need: the PCIe root complex and the NUMA node. NVML knows neither
the root nor, on most boards, the node.
"""

import re
from pathlib import Path
from typing import Protocol

_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


class PcieRoots(Protocol):
    """Asks where a device sits by its address, e.g. `0000:1b:00.0`."""

    def root(self, pci_bus_id: str) -> str | None:
        """Value of resource.kubernetes.io/pcieRoot, e.g. `pci0000:15`, or None when it is not known."""
        ...

    def numa_node(self, pci_bus_id: str) -> int | None:
        """NUMA node, or None when the machine has none or does not say."""
        ...


class SysfsPcieRoots:
    """Reads a sysfs tree; `sysfs_root` is what /sys is to the agent, which may be mounted elsewhere in a container."""

    def __init__(self, sysfs_root: Path = Path("/sys")) -> None:
        self._devices = sysfs_root / "bus" / "pci" / "devices"

    def root(self, pci_bus_id: str) -> str | None:
        """The first component of the device's real path that is a root complex."""
        try:
            place = (self._devices / pci_bus_id).resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        return next((part for part in place.parts if _ROOT.fullmatch(part)), None)

    def numa_node(self, pci_bus_id: str) -> int | None:
        """The device's `numa_node` file, in which the kernel writes -1 for "no node"."""
        try:
            node = int((self._devices / pci_bus_id / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None
