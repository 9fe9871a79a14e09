"""The PCIe location of a GPU, read from a simulated sysfs."""

from pathlib import Path

import pytest

from draco.agent.hardware.monitor import SysfsPcieRoots
from draco_local.simulator.gpus.state import new_node
from draco_local.simulator.gpus.sysfs import build


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    build(tmp_path / "sys", new_node(gpus=8, node_name="n"))
    return tmp_path / "sys"


def test_root_and_numa_node_of_every_gpu_are_found(sysfs: Path) -> None:
    roots = SysfsPcieRoots(sysfs)
    gpus = new_node(gpus=8, node_name="n").gpus
    assert [roots.root(gpu.bus_id) for gpu in gpus] == [f"pci0000:{gpu.pcie_root_bus:02x}" for gpu in gpus]
    assert [roots.numa_node(gpu.bus_id) for gpu in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_gpus_behind_one_root_share_it(tmp_path: Path) -> None:
    state = new_node(board="A100-80GB", gpus=8, node_name="n")
    build(tmp_path, state)
    roots = SysfsPcieRoots(tmp_path)
    assert [roots.root(gpu.bus_id) for gpu in state.gpus] == [
        "pci0000:00", "pci0000:00", "pci0000:40", "pci0000:40", "pci0000:80", "pci0000:80", "pci0000:b0", "pci0000:b0",
    ]  # fmt: skip


def test_the_tree_is_laid_out_as_the_kernel_does_it(sysfs: Path) -> None:
    link = sysfs / "bus/pci/devices/0000:1b:00.0"
    assert str(link.readlink()) == "../../../devices/pci0000:15/0000:15:01.0/0000:1b:00.0"
    assert (link / "vendor").read_text() == "0x10de\n"
    assert (link / "device").read_text() == "0x2330\n"


def test_building_the_tree_again_changes_nothing(sysfs: Path) -> None:
    before = sorted(path for path in sysfs.rglob("*"))
    build(sysfs, new_node(gpus=8, node_name="n"))
    assert sorted(path for path in sysfs.rglob("*")) == before


def test_a_device_that_is_not_there_has_no_place(sysfs: Path) -> None:
    roots = SysfsPcieRoots(sysfs)
    assert (roots.root("0000:ff:00.0"), roots.numa_node("0000:ff:00.0")) == (None, None)
    assert SysfsPcieRoots(sysfs / "nowhere").root("0000:1b:00.0") is None


def test_a_link_in_a_circle_has_no_place(sysfs: Path) -> None:
    link = sysfs / "bus/pci/devices/0000:01:00.0"
    link.symlink_to(link)
    assert SysfsPcieRoots(sysfs).root("0000:01:00.0") is None


@pytest.mark.parametrize("content", ["-1\n", "", "none\n"])
def test_the_kernels_no_node_is_none(sysfs: Path, content: str) -> None:
    (sysfs / "bus/pci/devices/0000:1b:00.0/numa_node").write_text(content)
    assert SysfsPcieRoots(sysfs).numa_node("0000:1b:00.0") is None
