"""Boards: what NVML says about each GPU model that the simulator knows.

Owns identity, memory, PCI, power, NVLink and the usual slots of a server; the MIG profiles of each board are in
`draco.mig.known_boards`. Knows nothing of nodes, state files or NVML's functions. A value that no public source confirms says so
beside it.
"""

import difflib
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import msgspec

from draco.mig import known_boards
from draco.mig.board import Board
from draco.resources.errors import DracoError


class BoardError(DracoError):
    """A board or a number of GPUs that the simulator does not have."""


class Architecture(IntEnum):
    """NVML's nvmlDeviceArchitecture_t."""

    PASCAL = 4
    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10


class Brand(IntEnum):
    """NVML's nvmlBrandType_t, as far as these boards need it."""

    NVIDIA = 14


class NvLinkVersion(IntEnum):
    """NVML's nvmlNvlinkVersion_t: an enumeration, not the version itself."""

    NONE = 0
    V3 = 4
    V4 = 6
    V5 = 7


class Slot(msgspec.Struct, frozen=True):
    """Where one GPU sits in a server: PCI bus, the bus of its PCIe root, that root's NUMA node, and its device node."""

    bus: int
    root_bus: int
    numa_node: int
    minor: int


class SimulatedBoard(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU model."""

    key: str
    product_name: str
    brand: Brand = Brand.NVIDIA
    architecture: Architecture
    compute_capability: tuple[int, int]
    memory_mib: int  # nvmlDeviceGetMemoryInfo().total
    reserved_mib: float  # what the driver keeps: version 2 of the same call
    pci_device_id: int  # device id in the upper half, vendor 0x10DE in the lower
    pci_subsystem_id: int
    part_number: str
    bar1_mib: int
    pcie_generation: int
    pcie_width: int = 16
    power_limit_w: int
    max_clocks_mhz: tuple[int, int]  # multiprocessors and memory
    nvlinks: int = 0
    nvlink_version: NvLinkVersion = NvLinkVersion.NONE
    nvswitch_buses: tuple[int, ...] = ()
    bridge_links: int = 0  # NVLinks of a card when a bridge joins it to another one; without, it has none
    thermal_limits_c: tuple[int, int, int] = (89, 92, 85)  # slowdown, shutdown, highest for operation
    memory_limit_c: int = 0  # of the memory, for operation; 0 where NVML does not say
    video_clock_mhz: int = 0  # highest; 0 where NVML does not say
    remap_banks: int = 640  # memory banks whose rows can be remapped
    fabric: bool = False  # registers with a fabric manager, as NVSwitch systems from Hopper on do
    slots: tuple[Slot, ...]
    mig: Board | None = None

    @property
    def mig_capable(self) -> bool:
        """Whether the board can be partitioned at all."""
        return self.mig is not None


def _slots(*places: tuple[int, int, int], minors: tuple[int, ...] = tuple(range(8))) -> tuple[Slot, ...]:
    return tuple(Slot(*place, minor) for place, minor in zip(places, minors, strict=True))


# The slots are those of common servers, as their sysfs shows them; NVML reports the bus, never the root.
_HGX_HOPPER = _slots(
    (0x1B, 0x15, 0), (0x43, 0x37, 0), (0x52, 0x48, 0), (0x61, 0x59, 0),
    (0x9D, 0x97, 1), (0xC3, 0xB7, 1), (0xD1, 0xC7, 1), (0xDF, 0xD7, 1),
)  # fmt: skip
_HGX_AMPERE = _slots(
    (0x07, 0x00, 0), (0x0F, 0x00, 0), (0x47, 0x40, 0), (0x4E, 0x40, 0),
    (0x87, 0x80, 1), (0x90, 0x80, 1), (0xB7, 0xB0, 1), (0xBD, 0xB0, 1),
    minors=(2, 3, 0, 1, 6, 7, 4, 5),  # on such servers minors are not in PCI order; seen for the first GPU
)  # fmt: skip
_PCIE_SERVER = _slots(
    (0x16, 0x15, 0), (0x27, 0x26, 0), (0x38, 0x37, 0), (0x49, 0x48, 0),
    (0x9A, 0x99, 1), (0xAB, 0xAA, 1), (0xBC, 0xBB, 1), (0xCD, 0xCC, 1),
)  # fmt: skip

# H100-80GB and H200-141GB answer as the boards of tests/unit/simulator/surveys did. Published `nvidia-smi -q` output shows
# everything said here of A100-40GB, A100-80GB and T4, except their NVSwitches' buses. Of the other boards it shows name, memory,
# power and device id; the rest of their numbers is not confirmed.
_BOARDS = (
    SimulatedBoard(
        key="A100-40GB",
        product_name="NVIDIA A100-SXM4-40GB",
        architecture=Architecture.AMPERE,
        compute_capability=(8, 0),
        memory_mib=40960,
        reserved_mib=620,
        pci_device_id=0x20B010DE,
        pci_subsystem_id=0x134F10DE,
        part_number="692-2G506-0200-002",
        bar1_mib=65536,
        pcie_generation=4,
        power_limit_w=400,
        max_clocks_mhz=(1410, 1215),
        nvlinks=12,
        nvlink_version=NvLinkVersion.V3,
        nvswitch_buses=(0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9),
        slots=_HGX_AMPERE,
        mig=known_boards.BOARDS["A100-40GB"],
    ),
    SimulatedBoard(
        key="A100-80GB",
        product_name="NVIDIA A100-SXM4-80GB",
        architecture=Architecture.AMPERE,
        compute_capability=(8, 0),
        memory_mib=81920,
        reserved_mib=834,
        pci_device_id=0x20B210DE,
        pci_subsystem_id=0x146310DE,
        part_number="692-2G506-0210-002",
        bar1_mib=131072,
        pcie_generation=4,
        power_limit_w=400,
        max_clocks_mhz=(1410, 1593),
        nvlinks=12,
        nvlink_version=NvLinkVersion.V3,
        nvswitch_buses=(0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9),
        slots=_HGX_AMPERE,
        mig=known_boards.BOARDS["A100-80GB"],
    ),
    SimulatedBoard(
        key="H100-80GB",
        product_name="NVIDIA H100 80GB HBM3",
        architecture=Architecture.HOPPER,
        compute_capability=(9, 0),
        memory_mib=81559,
        reserved_mib=480,
        pci_device_id=0x233010DE,
        pci_subsystem_id=0x16C110DE,
        part_number="695-2G520-0200-000",
        bar1_mib=131072,
        pcie_generation=5,
        power_limit_w=700,
        max_clocks_mhz=(1980, 2619),
        nvlinks=18,
        nvlink_version=NvLinkVersion.V4,
        nvswitch_buses=(0x07, 0x08, 0x09, 0x0A),
        fabric=True,
        thermal_limits_c=(89, 95, 87),
        memory_limit_c=95,
        video_clock_mhz=1545,
        remap_banks=2560,
        slots=_HGX_HOPPER,
        mig=known_boards.BOARDS["H100-80GB"],
    ),
    SimulatedBoard(
        key="H200-141GB",
        product_name="NVIDIA H200",
        architecture=Architecture.HOPPER,
        compute_capability=(9, 0),
        memory_mib=143771,
        reserved_mib=615.0625,
        pci_device_id=0x233510DE,
        pci_subsystem_id=0x18BF10DE,
        part_number="692-2G520-0282-001",
        bar1_mib=262144,
        pcie_generation=5,
        power_limit_w=700,
        max_clocks_mhz=(1980, 3201),
        nvlinks=18,
        nvlink_version=NvLinkVersion.V4,
        nvswitch_buses=(0x07, 0x08, 0x09, 0x0A),
        fabric=True,
        thermal_limits_c=(89, 95, 87),
        memory_limit_c=95,
        video_clock_mhz=1545,
        remap_banks=3072,
        slots=_HGX_HOPPER,
        mig=known_boards.BOARDS["H200-141GB"],
    ),
    SimulatedBoard(
        key="B200",
        product_name="NVIDIA B200",
        architecture=Architecture.BLACKWELL,
        compute_capability=(10, 0),
        memory_mib=183359,
        reserved_mib=717,
        pci_device_id=0x290110DE,
        pci_subsystem_id=0x199910DE,
        part_number="692-2G525-0220-001",
        bar1_mib=262144,
        pcie_generation=5,
        power_limit_w=1000,
        max_clocks_mhz=(1965, 3996),
        nvlinks=18,
        nvlink_version=NvLinkVersion.V5,
        nvswitch_buses=(0x05, 0x06),
        fabric=True,
        slots=_HGX_HOPPER,
        mig=known_boards.BOARDS["B200"],
    ),
    SimulatedBoard(
        key="A30",
        product_name="NVIDIA A30",
        architecture=Architecture.AMPERE,
        compute_capability=(8, 0),
        memory_mib=24576,
        reserved_mib=332,
        pci_device_id=0x20B710DE,
        pci_subsystem_id=0x153210DE,
        part_number="900-21001-0040-000",
        bar1_mib=32768,
        pcie_generation=4,
        power_limit_w=165,
        max_clocks_mhz=(1440, 1215),
        nvlink_version=NvLinkVersion.V3,
        bridge_links=4,
        slots=_PCIE_SERVER,
        mig=known_boards.BOARDS["A30"],
    ),
    SimulatedBoard(
        key="RTX-PRO-6000",
        product_name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        architecture=Architecture.BLACKWELL,
        compute_capability=(12, 0),
        memory_mib=97887,
        reserved_mib=638,
        pci_device_id=0x2BB510DE,
        pci_subsystem_id=0x204E10DE,
        part_number="900-2G153-0000-000",
        bar1_mib=131072,
        pcie_generation=5,
        power_limit_w=600,
        max_clocks_mhz=(2430, 12481),
        slots=_PCIE_SERVER,
        mig=known_boards.BOARDS["RTX-PRO-6000"],
    ),
    SimulatedBoard(
        key="L40S",
        product_name="NVIDIA L40S",
        architecture=Architecture.ADA,
        compute_capability=(8, 9),
        memory_mib=46068,
        reserved_mib=598,
        pci_device_id=0x26B910DE,
        pci_subsystem_id=0x185110DE,
        part_number="900-2G133-0080-000",
        bar1_mib=65536,
        pcie_generation=4,
        power_limit_w=350,
        max_clocks_mhz=(2520, 9001),
        slots=_PCIE_SERVER,
    ),
    SimulatedBoard(
        key="T4",
        product_name="Tesla T4",
        architecture=Architecture.TURING,
        compute_capability=(7, 5),
        memory_mib=15360,
        reserved_mib=393,
        pci_device_id=0x1EB810DE,
        pci_subsystem_id=0x12A210DE,
        part_number="900-2G183-0000-001",
        bar1_mib=256,
        pcie_generation=3,
        power_limit_w=70,
        max_clocks_mhz=(1590, 5001),
        thermal_limits_c=(93, 96, 85),
        slots=_PCIE_SERVER,
    ),
    SimulatedBoard(
        key="P4",
        product_name="Tesla P4",
        architecture=Architecture.PASCAL,
        compute_capability=(6, 1),
        memory_mib=7680,
        reserved_mib=76,
        pci_device_id=0x1BB310DE,
        pci_subsystem_id=0x11D810DE,
        part_number="900-2G414-0000-000",
        bar1_mib=256,
        pcie_generation=3,
        power_limit_w=75,
        max_clocks_mhz=(1531, 3003),
        slots=_PCIE_SERVER,
    ),
)

BOARDS: Mapping[str, SimulatedBoard] = MappingProxyType({board.key: board for board in _BOARDS})


def board_named(key: str) -> SimulatedBoard:
    """Return the board of that name, whatever the case; BoardError names the known ones and the nearest."""
    by_folded = {known.casefold(): board for known, board in BOARDS.items()}
    board = by_folded.get(key.casefold())
    if board is not None:
        return board
    near = difflib.get_close_matches(key.casefold(), by_folded, n=1, cutoff=0.4)
    hint = f" Did you mean {by_folded[near[0]].key}?" if near else ""
    raise BoardError(f"There is no board {key!r} in the simulator; it knows {', '.join(BOARDS)}.{hint}")
