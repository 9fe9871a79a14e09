"""The simulated driver as it is installed on a node."""

import ctypes
from pathlib import Path

from draco.agent.hardware.driver_root import DriverRoot
from draco_local.simulator.driver import root


def test_the_agent_finds_it_and_an_upgrade_leaves_nothing_of_the_old_version(tmp_path: Path) -> None:
    node, cache = tmp_path / "node", tmp_path / "cache"
    for version in ("580.95.05", "595.58.03"):
        root.install(node / "run/nvidia/driver", version, cache=cache)
        [found] = DriverRoot(Path("/"), node).installed()
        assert found.host == Path("/run/nvidia/driver")
        assert found.nvml.name == f"libnvidia-ml.so.{version}"
    assert not [path for path in node.rglob("*") if "580.95.05" in path.name]


def test_cuda_can_be_loaded_and_says_that_there_is_no_device(tmp_path: Path) -> None:
    root.install(tmp_path / "node", "580.95.05", cache=tmp_path / "cache")
    cuda = ctypes.CDLL(str(tmp_path / "node/usr/lib/x86_64-linux-gnu/libcuda.so"))
    assert cuda.cuInit(0) == 100
