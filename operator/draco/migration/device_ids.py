"""Product names of the boards with MIG, by PCI device ID, as NVML reports them.

Source: the list of supported GPUs in the README of NVIDIA's open kernel modules, version 595.45.04.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "20B0": ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PG509-200"),
        "20B2": ("NVIDIA A100-SXM4-80GB",),
        "20B3": ("NVIDIA A100-SXM-64GB",),
        "20B5": ("NVIDIA A100 80GB PCIe",),
        "20B6": ("NVIDIA PG506-232",),
        "20B7": ("NVIDIA A30",),
        "20BD": ("NVIDIA A800-SXM4-40GB",),
        "20F1": ("NVIDIA A100-PCIE-40GB",),
        "20F3": ("NVIDIA A800-SXM4-80GB",),
        "20F5": ("NVIDIA A800 80GB PCIe", "NVIDIA A800 80GB PCIe LC"),
        "20F6": ("NVIDIA A800 40GB Active",),
        "230E": ("NVIDIA H20 NVL16",),
        "2321": ("NVIDIA H100 NVL",),
        "2322": ("NVIDIA H800 PCIe",),
        "2324": ("NVIDIA H800",),
        "2329": ("NVIDIA H20",),
        "232C": ("NVIDIA H20-3e",),
        "2330": ("NVIDIA H100 80GB HBM3",),
        "2331": ("NVIDIA H100 PCIe",),
        "2335": ("NVIDIA H200",),
        "2339": ("NVIDIA H100",),
        "233A": ("NVIDIA H800 NVL",),
        "233B": ("NVIDIA H200 NVL",),
        "2342": ("NVIDIA GH200 120GB", "NVIDIA GH200 480GB"),
        "2348": ("NVIDIA GH200 144G HBM3e",),
        "2901": ("NVIDIA B200",),
        "2941": ("NVIDIA GB200",),
        "2BB1": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
        "2BB3": ("NVIDIA RTX PRO 5000 Blackwell",),
        "2BB4": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
        "2BB5": ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
        "3182": ("NVIDIA B300 SXM6 AC",),
        "31C2": ("NVIDIA GB300",),
    }
)
