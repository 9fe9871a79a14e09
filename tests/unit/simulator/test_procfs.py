"""A simulated node's /proc: capability files, the boot id, and which process has which device open."""

from pathlib import Path

import pynvml
import pytest

from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.driver_root import loaded_version
from draco.agent.mig.holders import Holders
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import procfs
from draco_local.simulator.gpus.state import GpuProcess, load, mutate
from tests.unit.simulator.conftest import Mig

POD = "0b3f6f4e-1c2d-4e5f-8a9b-0c1d2e3f4a5b"
CGROUP = f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'ab' * 32}.scope"


@pytest.fixture
def proc(path: Path) -> Path:
    """The /proc of a node with eight H100s."""
    return procfs.build(path, load(path))


def test_a_node_has_no_such_folder_until_somebody_wants_it(mig: Mig, path: Path) -> None:
    mig.make(9, 4)
    assert not procfs.tree(path).exists()


def test_the_loaded_driver_tells_its_version_until_it_is_unloaded(path: Path, proc: Path) -> None:
    assert loaded_version(proc) == "580.95.05"
    with mutate(path) as node:
        node.driver.version = "595.58.03"
    assert loaded_version(proc) == "595.58.03"
    with mutate(path) as node:
        node.driver.error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert loaded_version(proc) == ""


def test_the_agent_finds_the_device_nodes_of_instances(proc: Path) -> None:
    capabilities = Capabilities(proc)
    assert capabilities.paths(0, 1, 0) == ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    assert capabilities.paths(1, 0, 7) == ("/dev/nvidia-caps/nvidia-cap138", "/dev/nvidia-caps/nvidia-cap146")


def test_capability_files_come_and_go_with_their_instances(mig: Mig, proc: Path) -> None:
    folder = proc / "driver/nvidia/capabilities/gpu0/mig"
    instance, compute = mig.made(9, 4)
    assert (folder / "gi2/access").read_text().splitlines()[0] == "DeviceFileMinor: 21"
    assert (folder / "gi2/ci0/access").read_text().splitlines()[0] == "DeviceFileMinor: 22"
    table = (proc / "driver/nvidia-caps/mig-minors").read_text()
    assert "gpu0/gi2/access 21\n" in table
    assert "gpu0/gi2/ci0/access 22\n" in table
    mig.nvml.nvmlComputeInstanceDestroy(compute)
    assert [each.name for each in (folder / "gi2").iterdir()] == ["access"]
    mig.nvml.nvmlGpuInstanceDestroy(instance)
    assert not folder.exists()
    assert (proc / "driver/nvidia/capabilities/mig/config").exists()


def test_the_agent_finds_who_holds_an_instance(mig: Mig, path: Path, proc: Path) -> None:
    mig.made(9, 4)
    mig.made(9, 0)
    faults.hold(
        path, 0, GpuProcess(4711, gpu_instance=2, listed=False, name="nv-hostengine", cgroup=CGROUP, hostname="dcgm-x")
    )
    faults.hold(path, 0, GpuProcess(4712, gpu_instance=1, compute_instance=0))
    holders = Holders(proc)
    assert [str(one) for one in holders.having_open("/dev/nvidia-caps/nvidia-cap21")] == [
        f"process 4711 (nv-hostengine) in container abababababab of pod dcgm-x ({POD})"
    ]
    assert [one.pid for one in holders.having_open("/dev/nvidia0")] == [4711, 4712]
    assert [one.pid for one in holders.having_open("/dev/nvidia-caps/nvidia-cap13")] == [4712]
    faults.release(path, 4711)
    assert holders.having_open("/dev/nvidia-caps/nvidia-cap21") == []
    assert not (proc / "4711").exists()


def test_a_process_that_holds_less_has_fewer_files_open(mig: Mig, path: Path, proc: Path) -> None:
    for start in (0, 4):
        mig.made(9, start)
        faults.hold(path, 0, GpuProcess(7, gpu_instance=1 + start // 4, compute_instance=0))
    assert len(list((proc / "7/fd").iterdir())) == 6
    with mutate(path) as state:
        del state.gpus[0].processes[0]
    assert sorted(str(link.readlink()) for link in (proc / "7/fd").iterdir()) == [
        "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia0", "/dev/nvidiactl",
    ]  # fmt: skip


def test_every_boot_has_its_id(path: Path, proc: Path) -> None:
    def boot_id() -> str:
        return (proc / "sys/kernel/random/boot_id").read_text()

    first = boot_id()
    faults.reload_driver(path)
    assert boot_id() == first
    faults.reboot(path, minors=[1, 0, 2, 3, 4, 5, 6, 7])
    assert boot_id() != first


def test_numbers_follow_the_minor_not_the_index(mig: Mig, path: Path, proc: Path) -> None:
    faults.reboot(path, minors=[1, 0, 2, 3, 4, 5, 6, 7])
    Mig(path).make(9, 4)
    assert (proc / "driver/nvidia/capabilities/gpu1/mig/gi2/access").read_text().startswith("DeviceFileMinor: 156")
