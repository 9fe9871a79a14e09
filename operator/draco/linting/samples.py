"""Devices as Draco's agents publish them, for rules that must evaluate a selector where there is no cluster.

Owns these samples: a GPU of each board that is known, whole, and a partition of each of its profiles. What is one device's own,
such as its UUID, is made up.
"""

from collections.abc import Iterator

from draco.mig.board import Profile
from draco.mig.known_boards import BOARDS
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity

_UUID = "GPU-00000000-0000-0000-0000-000000000000"
_PRODUCTS = {
    "A100-40GB": ("NVIDIA A100-SXM4-40GB", "Ampere", "8.0.0", 40960),
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", 81920),
    "A30": ("NVIDIA A30", "Ampere", "8.0.0", 24576),
    "H100-80GB": ("NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", 81559),
    "H200-141GB": ("NVIDIA H200", "Hopper", "9.0.0", 143771),
    "B200": ("NVIDIA B200", "Blackwell", "10.0.0", 183359),
    "RTX-PRO-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell", "12.0.0", 97887),
    "L40S": ("NVIDIA L40S", "Ada Lovelace", "8.9.0", 46068),
    "T4": ("Tesla T4", "Turing", "7.5.0", 15360),
}
"""Product, architecture, compute capability and MiB, by the board's name."""


def sample_devices() -> Iterator[Device]:
    """One device of each form."""
    for board, (product, architecture, capability, memory_mib) in _PRODUCTS.items():
        of_board = {
            "productName": DeviceAttribute(string=product),
            "brand": DeviceAttribute(string="Tesla" if board == "T4" else "Nvidia"),
            "architecture": DeviceAttribute(string=architecture),
            "cudaComputeCapability": DeviceAttribute(version=capability),
            "driverVersion": DeviceAttribute(version="580.95.5"),
            "cudaDriverVersion": DeviceAttribute(version="13.0.0"),
        }
        own = {"type": DeviceAttribute(string="gpu"), "uuid": DeviceAttribute(string=_UUID)}
        yield Device(
            name="gpu-0", attributes=of_board | own, capacity={"memory": DeviceCapacity(value=f"{memory_mib}Mi")}
        )
        for profile in BOARDS[board].profiles if board in BOARDS else ():
            yield _partition(profile, of_board)


def _partition(profile: Profile, of_board: dict[str, DeviceAttribute]) -> Device:
    strings = {"type": "mig", "profile": profile.name, "parentUUID": _UUID}
    amounts = {"memory": f"{profile.memory_mib}Mi", "multiprocessors": str(profile.multiprocessors)}
    return Device(
        name=f"gpu-0-mig-{profile.id}",
        attributes=of_board | {name: DeviceAttribute(string=text) for name, text in strings.items()},
        capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
    )
