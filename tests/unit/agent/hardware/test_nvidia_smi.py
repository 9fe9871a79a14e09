"""The node's nvidia-smi: found in the driver's root, run with the NVML that belongs to it, and its refusals as sentences."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.nvidia_smi import NvidiaSmi
from draco.agent.hardware.programs import ProgramFailed
from draco_local.simulator.accidents import faults
from draco_local.simulator.driver import root, service
from draco_local.simulator.gpus import state


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a simulated driver whose service answers."""
    folder = tmp_path_factory.mktemp("driver")
    state.create(folder / "gpus.json", gpus=1, node_name="node-0")
    root.install(folder, "580.95.05", cache=folder / "cache")
    (folder / "dev").mkdir()
    with service.serving(folder / "gpus.json", folder / "dev/nvidia-simulated"):
        yield folder


def slicing(folder: Path, value: int) -> list[str]:
    return ["compute-policy", "-i", state.load(folder / "gpus.json").gpus[0].uuid, "--set-timeslice", str(value)]


def test_it_runs_with_the_drivers_own_nvml(installed: Path) -> None:
    NvidiaSmi(DriverRoot(Path("/"), installed))(slicing(installed, 2))
    assert state.load(installed / "gpus.json").gpus[0].time_slice == 2


def test_a_refusal_has_its_exit_status_and_text(installed: Path) -> None:
    faults.fail(installed / "gpus.json", "nvidia-smi", pynvml.NVML_ERROR_NOT_SUPPORTED, times=1)
    with pytest.raises(ProgramFailed, match="nvidia-smi failed") as refused:
        NvidiaSmi(DriverRoot(Path("/"), installed))(slicing(installed, 1))
    assert refused.value.status == 3
    assert "Not Supported" in refused.value.said


def test_a_driver_without_it_is_named_with_the_fix(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.remove_nvidia_smi(installed)
    try:
        with pytest.raises(
            ProgramFailed, match=r"the driver below /somewhere has no nvidia-smi; install the driver's programs"
        ):
            NvidiaSmi(DriverRoot(Path("/somewhere"), installed))(slicing(installed, 1))
    finally:
        root.install_nvidia_smi(installed, cache=installed / "cache")
    monkeypatch.setenv("PATH", str(installed / "none"))
    with pytest.raises(ProgramFailed, match="there is no nvidia-smi on the agent's path"):
        NvidiaSmi(None)(slicing(installed, 1))
    monkeypatch.setenv("PATH", str(installed / "usr/bin"))
    with pytest.raises(ProgramFailed, match="nvidia-smi failed"):
        NvidiaSmi(None)(slicing(installed, 1))  # it is found, and finds no NVML
