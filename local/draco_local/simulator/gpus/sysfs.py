"""What the agent reads of a simulated node's sysfs: a folder in place of /sys.

Owns the tree's shape, which is the kernel's: devices live below their root complex, `bus/pci/devices` links to them.
"""

from pathlib import Path

from draco_local.simulator.gpus.boards import BOARDS
from draco_local.simulator.gpus.state import GpuState, SimulatedNodeState


def tree(state_file: Path) -> Path:
    """Return where the tree is that belongs to a state file."""
    return state_file.with_name(state_file.name + ".sysfs")


def build(sysfs_root: Path, state: SimulatedNodeState) -> None:
    """Write the tree for all GPUs of a node; writing it again changes only which load of the driver it is."""
    links = sysfs_root / "bus" / "pci" / "devices"
    links.mkdir(parents=True, exist_ok=True)
    for gpu in state.gpus:
        device = _place(sysfs_root / "devices", gpu)
        device.mkdir(parents=True, exist_ok=True)
        ids = BOARDS[gpu.board].pci_device_id
        (device / "numa_node").write_text(f"{gpu.numa_node}\n")
        (device / "vendor").write_text(f"0x{ids & 0xFFFF:04x}\n")
        (device / "device").write_text(f"0x{ids >> 16:04x}\n")
        (device / "class").write_text("0x030200\n")
        link = links / gpu.bus_id
        if not link.is_symlink():
            link.symlink_to(Path("../../..") / device.relative_to(sysfs_root))
    _load_module(sysfs_root / "module", state.driver.generation)


def _load_module(modules: Path, generation: int) -> None:
    """The kernel module's folder: each load of it has one of its own, whose inode number no other has had."""
    folder = modules / f".nvidia-{generation}"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = modules / ".nvidia"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder.name)
    fresh.replace(modules / "nvidia")


def _place(devices: Path, gpu: GpuState) -> Path:
    root = f"{gpu.pci_domain:04x}:{gpu.pcie_root_bus:02x}"
    return devices / f"pci{root}" / f"{root}:01.0" / gpu.bus_id
