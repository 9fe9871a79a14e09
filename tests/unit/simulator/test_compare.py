"""The hardware check: it agrees with itself, finds a single wrong number, and says when there is nothing to compare."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.compare import compare, main
from draco_local.simulator.gpus.state import mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import Mig, StateFile, opened


class Hardware:
    """Stands for a real library: simulated NVML with some functions replaced."""

    def __init__(self, path: Path, **functions: Any) -> None:
        self._functions = functions
        self._simulated = SimulatedNvml(path)

    def __getattr__(self, name: str) -> Any:
        return self._functions.get(name) or getattr(self._simulated, name)


@pytest.mark.parametrize("board", ["A100-40GB", "H100-80GB", "RTX-PRO-6000", "T4"])
def test_hardware_like_the_table_has_no_difference(a_state_file: StateFile, board: str) -> None:
    outcome = compare(opened(a_state_file(board, gpus=2)))
    assert outcome.compared == {0: board, 1: board}
    assert outcome.differences == []


def test_one_wrong_number_in_a_table_is_found_and_told(
    a_state_file: StateFile, capsys: pytest.CaptureFixture[str]
) -> None:
    path = a_state_file("H100-80GB", gpus=1)

    def other_info(handle: Any, kind: int, version: int = 2) -> Any:
        info = hardware._simulated.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind, version)
        info.multiprocessorCount += (kind, version) == (pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE, 2)
        return info

    hardware = Hardware(path, nvmlDeviceGetGpuInstanceProfileInfo=other_info)
    assert main(hardware) == 1
    count, difference = capsys.readouterr().out.splitlines()
    assert count == "GPU 0: H100-80GB: 1 difference"
    assert difference == (
        'GPU 0: nvmlDeviceGetGpuInstanceProfileInfo 2, version 2: hardware {"multiprocessorCount": 61}, '
        'simulated {"multiprocessorCount": 60}'
    )


@pytest.mark.parametrize(
    ("code", "differs"), [(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, 0), (pynvml.NVML_ERROR_NOT_SUPPORTED, 1)]
)
def test_what_an_older_driver_does_not_have_is_not_compared(a_state_file: StateFile, code: int, differs: int) -> None:
    def refused(*_: object) -> None:
        raise pynvml.NVMLError(code)

    hardware = Hardware(a_state_file("H100-80GB", gpus=1), nvmlDeviceGetGpuInstancePossiblePlacements=refused)
    assert main(hardware) == differs


def test_a_board_is_compared_where_it_is(a_state_file: StateFile) -> None:
    path = a_state_file("H100-80GB", gpus=1)
    with mutate(path) as state:
        state.driver.version, state.gpus[0].passthrough, state.gpus[0].nvlink = "570.1", True, False
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    assert compare(opened(path)).differences == []


def test_a_board_without_table_is_named(a_state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_state_file("H100-80GB", gpus=1)

    def other_pci(handle: Any) -> Any:
        info = hardware._simulated.nvmlDeviceGetPciInfo(handle)
        info.pciDeviceId = 0x123410DE
        return info

    hardware = Hardware(path, nvmlDeviceGetPciInfo=other_pci)
    assert main(hardware) == 2
    assert "NVIDIA H100 80GB HBM3: the simulator does not have this board" in capsys.readouterr().out


def test_no_nvml_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def without_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    assert main(type("Library", (), {"nvmlInit": staticmethod(without_library)})) == 2
    assert "no NVML to compare with on this machine: NVML Shared Library Not Found" in capsys.readouterr().err


def test_instances_that_exist_are_compared_with_such_ones_made_in_simulation(a_state_file: StateFile) -> None:
    path = a_state_file("H100-80GB", gpus=2)
    mig = Mig(path, gpu=1)
    mig.made(9, 4)
    mig.make(14, 2)
    mig.nvml.nvmlGpuInstanceCreateComputeInstance(mig.make(14, 0), 0)

    def other_name(handle: Any) -> str:
        name: str = mig.nvml.nvmlDeviceGetName(handle)
        return name.replace("3g.40gb", "3g.39gb")

    assert compare(opened(path)).differences == []
    hardware = Hardware(path, nvmlDeviceGetName=other_name)
    hardware.nvmlInit()
    mig.nvml = hardware._simulated
    told = [str(each) for each in compare(hardware).differences]
    name = "NVIDIA H100 80GB HBM3 MIG 3g"
    assert told == [f"GPU 1: instance 9@4:4 compute 2@0:3 name: hardware {name}.39gb, simulated {name}.40gb"]


def test_an_instance_with_another_id_than_the_simulated_one_is_found(a_state_file: StateFile) -> None:
    path = a_state_file("H100-80GB", gpus=1)
    mig = Mig(path)
    mig.make(9, 4)
    with mutate(path) as state:
        state.gpus[0].instances[0].id = 1
    told = [str(each) for each in compare(opened(path)).differences]
    assert "GPU 0: instance 9@4:4 id: hardware 1, simulated 2" in told
