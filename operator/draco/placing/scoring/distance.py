"""How near devices of one node are to each other: NVLink, PCIe roots, NUMA nodes.

Owns the reading of the attributes that say so, no matter which driver publishes them. Where an attribute is
not there, two devices are as far from each other as can be.
"""

import msgspec

from draco.resources.api.slices import Device, fabric_of
from draco.resources.names import ATTRIBUTE_NVLINK_PEERS, NVIDIA_DRIVER, STANDARD_NUMA_NODE, STANDARD_PCIE_ROOT

SAME_ROOT, SAME_NUMA, FAR = 0, 1, 2


class DevicePosition(msgspec.Struct, frozen=True):
    """Where a device is."""

    driver: str
    pool: str
    name: str
    root: object = None
    numa: object = None
    fabric: tuple[str, str] | None = None
    peers: frozenset[str] = frozenset()

    def distance(self, other: "DevicePosition") -> int:
        """SAME_ROOT, SAME_NUMA or FAR."""
        if self.root is not None and self.root == other.root:
            return SAME_ROOT
        return SAME_NUMA if self.numa is not None and self.numa == other.numa else FAR

    def is_linked(self, other: "DevicePosition") -> bool:
        """Whether there is an NVLink between them."""
        if self.fabric is not None and self.fabric == other.fabric:
            return True
        return (self.driver, self.pool) == (other.driver, other.pool) and (
            other.name in self.peers or self.name in other.peers
        )


def position_of(driver: str, pool: str, name: str, device: Device) -> DevicePosition:
    """Where a device is. `name` is that of the whole GPU, which links are said by."""
    peers = _value(device, driver, ATTRIBUTE_NVLINK_PEERS)
    return DevicePosition(
        driver=driver,
        pool=pool,
        name=name,
        root=_value(device, driver, STANDARD_PCIE_ROOT),
        numa=_value(device, driver, STANDARD_NUMA_NODE),
        fabric=fabric_of(driver, device),
        peers=frozenset(f"gpu-{number}" for number in (peers or "").split()),
    )


def _value(device: Device, driver: str, name: str) -> str | None:
    """An attribute as text, by its full name or, in the driver's or NVIDIA's own domain, without it."""
    return device.text(name, driver) or device.text(name, NVIDIA_DRIVER) or None
