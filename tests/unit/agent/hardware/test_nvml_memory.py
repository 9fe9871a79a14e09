"""Whether a driver holds limits on a GPU's memory, and what is published of it, on drivers of several releases."""

from pathlib import Path

import pytest

from draco.agent.hardware.faults import health
from draco.agent.hardware.gpus import DriverInfo, Gpu
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_memory import MARK, own_cgroup
from draco.agent.publish.slices import device
from draco.health.table import HealthState
from draco.resources.api.draco import MemoryLimitBy
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import create, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.doubles.judged import at_first_sight

DRIVER = DriverInfo("615.71.09", "13.4", "13.615.71.09")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    create(path, node_name="node-1", gpus=1)
    faults.reload_driver(path, version="615")
    return path


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    (tmp_path / MARK).touch()
    return tmp_path


def read(path: Path, cgroup: Path | None) -> Gpu:
    nvml = Nvml(SimulatedNvml(path), own_cgroup=cgroup)
    nvml.open()
    [gpu] = at_first_sight(nvml.gpus())
    return gpu


@pytest.mark.parametrize("release", ["535", "570", "580", "615"])
def test_limits_hold_from_driver_615_on_and_older_ones_are_not_at_fault(path: Path, cgroup: Path, release: str) -> None:
    faults.reload_driver(path, version=release)
    gpu = read(path, cgroup)
    assert gpu.memory_limit is (MemoryLimitBy.DRIVER if release == "615" else MemoryLimitBy.NONE)
    assert (health(gpu)[0], gpu.unread) == (HealthState.HEALTHY, ())
    assert device(gpu, DRIVER).attributes["draco.dev/memoryLimit"].string == gpu.memory_limit


def test_none_hold_without_cgroups_of_version_2_nor_where_the_driver_keeps_no_account(path: Path, cgroup: Path) -> None:
    assert read(path, None).memory_limit is MemoryLimitBy.NONE
    assert read(path, cgroup / "without-dmem").memory_limit is MemoryLimitBy.NONE
    with mutate(path) as state:
        state.driver.memory_accounting = 0
    assert read(path, cgroup).memory_limit is MemoryLimitBy.NONE


def test_in_mig_mode_it_stays_what_it_was_before(path: Path, cgroup: Path) -> None:
    nvml = Nvml(SimulatedNvml(path), own_cgroup=cgroup)
    nvml.open()
    assert [gpu.memory_limit for gpu in nvml.gpus()] == [MemoryLimitBy.DRIVER]
    with mutate(path) as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    assert [gpu.memory_limit for gpu in nvml.gpus()] == [MemoryLimitBy.DRIVER]
    assert read(path, cgroup).memory_limit is None
    assert "draco.dev/memoryLimit" not in device(read(path, cgroup), DRIVER).attributes


@pytest.mark.parametrize(
    ("membership", "folder"),
    [
        ("0::/\n", ""),
        ("0::/kubepods.slice/pod\n", "kubepods.slice/pod"),
        ("0::/elsewhere\n", None),
        ("4:memory:/kubepods\n1:name=systemd:/kubepods\n", None),
        ("", None),
    ],
)
def test_the_agent_finds_its_own_cgroup(tmp_path: Path, membership: str, folder: str | None) -> None:
    groups = tmp_path / "cgroup"
    for each in (groups, groups / "kubepods.slice" / "pod"):
        each.mkdir(parents=True, exist_ok=True)
        (each / MARK).touch()
    (tmp_path / "self").write_text(membership)
    assert own_cgroup(groups, tmp_path / "self") == (None if folder is None else groups / folder)
    assert own_cgroup(groups, tmp_path / "missing") is None
