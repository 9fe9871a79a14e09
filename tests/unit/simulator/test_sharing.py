"""Compute mode and time slice of a simulated GPU, and the program nvidia-smi that sets them."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest

from draco_local.simulator.accidents import faults, hotplug
from draco_local.simulator.driver import root, service
from draco_local.simulator.gpus.state import create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import SmiAnswer, nvidia_smi
from tests.unit.simulator.conftest import Mig, StateFile

EXCLUSIVE, PROHIBITED = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, pynvml.NVML_COMPUTEMODE_PROHIBITED
UNSUPPORTED = (
    "Failed to set timeslice policy with value Short for GPU 0 : Not Supported\n"
    "Failed to set timeslice for requested devices : Not Supported\n"
)


def uuid(path: Path, gpu: int = 0) -> str:
    return load(path).gpus[gpu].uuid


def sharing(path: Path) -> list[tuple[int, int]]:
    """Compute mode and time slice of each GPU."""
    return [(gpu.compute_mode, gpu.time_slice) for gpu in load(path).gpus]


def run(path: Path, line: str) -> SmiAnswer:
    return nvidia_smi(SimulatedNvml(path), line.split())


def sliced(path: Path, value: int | str, gpu: int = 0) -> SmiAnswer:
    return run(path, f"compute-policy -i {uuid(path, gpu)} --set-timeslice {value}")


def test_a_gpu_has_the_compute_mode_that_was_set(nvml: SimulatedNvml, path: Path) -> None:
    first, second = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    nvml.nvmlDeviceSetComputeMode(second, EXCLUSIVE)
    assert [nvml.nvmlDeviceGetComputeMode(each) for each in (first, second)] == [0, EXCLUSIVE]
    assert sharing(path)[:2] == [(0, 0), (EXCLUSIVE, 0)]


@pytest.mark.parametrize(
    ("mode", "error"),
    [(-1, pynvml.NVMLError_InvalidArgument), (4, pynvml.NVMLError_InvalidArgument), (1, pynvml.NVMLError_NotSupported)],
)
def test_a_wrong_compute_mode_is_refused(nvml: SimulatedNvml, path: Path, mode: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(0), mode)
    assert sharing(path)[0] == (0, 0)


def test_in_mig_mode_a_mig_device_has_a_compute_mode_and_its_gpu_only_the_default(mig: Mig, path: Path) -> None:
    _, compute = mig.made(9, 0)
    device = mig.nvml.nvmlComputeInstanceGetInfo(compute).device
    with pytest.raises(pynvml.NVMLError_NotSupported):
        mig.nvml.nvmlDeviceSetComputeMode(mig.device, EXCLUSIVE)
    mig.nvml.nvmlDeviceSetComputeMode(device, EXCLUSIVE)
    assert mig.nvml.nvmlDeviceGetComputeMode(device) == EXCLUSIVE
    assert mig.nvml.nvmlDeviceGetComputeMode(mig.device) == 0
    assert sliced(path, 1) == (3, UNSUPPORTED)


def test_a_switch_to_mig_mode_ends_both(nvml: SimulatedNvml, path: Path) -> None:
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetComputeMode(device, PROHIBITED)
    sliced(path, 2)
    nvml.nvmlDeviceSetMigMode(device, pynvml.NVML_DEVICE_MIG_ENABLE)
    assert sharing(path)[0] == (0, 0)


@pytest.mark.parametrize(
    "accident",
    [faults.reboot, faults.reload_driver, lambda path: faults.reset(path, 0), lambda path: hotplug.reseat(path, 0)],
)
def test_both_are_lost_with_the_drivers_state(path: Path, accident: Callable[[Path], None]) -> None:
    with mutate(path) as state:
        state.gpus[0].compute_mode, state.gpus[0].time_slice = EXCLUSIVE, 3
    accident(path)
    assert sharing(path)[0] == (0, 0)


@pytest.mark.parametrize(("value", "name"), [(0, "Default"), (1, "Short"), (2, "Medium"), (3, "Long")])
def test_a_time_slice_is_set_for_the_named_gpu_only(path: Path, value: int, name: str) -> None:
    with mutate(path) as state:
        state.gpus[1].time_slice = 1
    assert sliced(path, value, gpu=1) == (0, f"Set timeslice policy with value {name} for GPU 1\n")
    assert [each for _, each in sharing(path)] == [0, value, *[0] * 6]


def test_time_slices_are_set_for_several_gpus_and_listed(path: Path) -> None:
    assert run(path, f"compute-policy -i {uuid(path)},{uuid(path, 2)} --set-timeslice=3").exit_code == 0
    assert run(path, f"compute-policy -i {uuid(path)} -l").text.splitlines()[-1].split() == ["0", "Timeslice", "Long"]
    listed = [line.split() for line in run(path, "compute-policy -l").text.splitlines()[2:]]
    assert [value for _, _, value in listed] == ["Long", "Default", "Long", *["Default"] * 5]


def test_a_board_without_compute_preemption_takes_no_time_slice(a_state_file: StateFile) -> None:
    path = a_state_file("P4", gpus=1)
    assert sliced(path, 1) == (3, UNSUPPORTED)
    assert run(path, "compute-policy -l").text.split()[-1] == "N/A"
    assert run(path, f"-i {uuid(path)} -c EXCLUSIVE_PROCESS").exit_code == 0
    assert sharing(path) == [(EXCLUSIVE, 0)]


def test_an_old_driver_does_not_know_compute_policies(path: Path) -> None:
    faults.reload_driver(path, version="450.80.02")
    assert sliced(path, 1) == (2, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
    assert sharing(path)[0] == (0, 0)


@pytest.mark.parametrize("options", ["--set-timeslice 4", "--set-timeslice Long", "--set-timeslice", "", "-l --what"])
def test_wrong_arguments_end_with_the_usage(path: Path, options: str) -> None:
    code, text = run(path, f"compute-policy -i {uuid(path)} {options}")
    assert (code, "usage: nvidia-smi compute-policy" in text) == (2, True)


@pytest.mark.parametrize("name", ["GPU-6f0e3d0c-6f3a-5d0b-9a53-3c1d6b0f7a11", "8"])
def test_an_unknown_gpu_is_no_device_and_nothing_is_changed(path: Path, name: str) -> None:
    given = f"compute-policy -i {uuid(path)},{name} --set-timeslice 3"
    assert run(path, given) == (6, "No devices were found\n")
    assert sharing(path)[0] == (0, 0)


@pytest.mark.parametrize(("mode", "number"), [("3", 3), ("EXCLUSIVE_PROCESS", 3), ("PROHIBITED", 2), ("2", 2)])
def test_nvidia_smi_sets_the_compute_mode(path: Path, mode: str, number: int) -> None:
    name = "EXCLUSIVE_PROCESS" if number == EXCLUSIVE else "PROHIBITED"
    given = f"-i {uuid(path)} -c {mode}"
    assert run(path, given) == (0, f"Set compute mode to {name} for GPU 00000000:1B:00.0.\nAll done.\n")
    assert run(path, given).text.startswith(f"Compute mode is already set to {name} for GPU")
    assert sharing(path)[:2] == [(number, 0), (0, 0)]
    assert run(path, f"-i {uuid(path)} -c DEFAULT").exit_code == 0
    assert sharing(path)[0] == (0, 0)


def test_a_compute_mode_that_a_gpu_cannot_have_is_a_warning(mig: Mig, path: Path) -> None:
    code, text = run(path, "-i 0 -c 3")
    assert (code, text.splitlines()[1:]) == (0, ["Treating as warning and moving on.", "All done."])
    assert run(path, "-i 0 -c 1").exit_code == 2


def test_a_driver_or_a_gpu_that_fails_sets_the_exit_code(path: Path) -> None:
    gpu = uuid(path)
    faults.lose(path, 0)
    assert run(path, f"compute-policy -i {gpu} --set-timeslice 1") == (15, "GPU is lost\n")
    faults.break_driver(path)
    assert sliced(path, 1).exit_code == 9
    faults.break_driver(path, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert sliced(path, 1) == (18, "Failed to initialize NVML: Driver/library version mismatch\n")


def test_nvidia_smi_fails_on_one_gpu_so_many_times(path: Path) -> None:
    faults.fail(path, "nvidia-smi", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=0, times=1)
    assert sliced(path, 1, gpu=1).exit_code == 0
    assert sliced(path, 1) == (3, UNSUPPORTED)
    faults.fail(path, "nvidia-smi", pynvml.NVML_ERROR_UNKNOWN, times=1, effect="done")
    assert sliced(path, 3).exit_code == 255
    assert sharing(path)[0] == (0, 3)
    assert sliced(path, 0).exit_code == 0


def test_nvidia_smi_is_slow_and_its_steps_are_told(path: Path) -> None:
    faults.latency(path, 8.0, "nvidia-smi")
    slept: list[float] = []
    steps: list[str] = []
    library = SimulatedNvml(path, sleep=slept.append, step=steps.append)
    assert nvidia_smi(library, ["compute-policy", "-i", uuid(path), "--set-timeslice", "1"]).exit_code == 0
    assert slept == [8.0]
    assert [each for each in steps if "smi" in each] == ["before nvidia-smi", "after nvidia-smi"]


def test_nvidia_smi_is_missing_until_it_is_put_back_or_another_driver_is_loaded(path: Path) -> None:
    for repair in (
        lambda: faults.nvidia_smi(path, installed=True),
        lambda: faults.reload_driver(path, version="595.58.03"),
    ):
        faults.nvidia_smi(path, installed=False)
        faults.reload_driver(path)
        with pytest.raises(FileNotFoundError):
            sliced(path, 1)
        repair()
        assert sliced(path, 1).exit_code == 0


class Installed:
    """A node's driver root, whose service answers; `run` runs its nvidia-smi with no variable but LD_PRELOAD."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "gpus.json"
        self.library = folder / root.LIBRARIES / "libnvidia-ml.so.1"
        create(self.state, gpus=2, node_name="node-1")

    def run(self, line: str, **variables: str) -> tuple[int, str]:
        program = [str(self.folder / root.NVIDIA_SMI), *line.split()]
        environment = variables or {"LD_PRELOAD": str(self.library)}
        done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment, timeout=60)
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    node = Installed(tmp_path_factory.mktemp("root"))
    root.install(node.folder, "580.95.05", cache=node.folder / "cache")
    (node.folder / "dev").mkdir()
    with service.serving(node.state, node.folder / "dev/nvidia-simulated"):
        yield node


def test_the_program_in_the_driver_root_changes_the_same_gpus_as_nvml(installed: Installed) -> None:
    gpu = uuid(installed.state, 1)
    said = "Set timeslice policy with value Long for GPU 1\n"
    assert installed.run(f"compute-policy -i {gpu} --set-timeslice 3") == (0, said)
    assert installed.run(f"-i {gpu} -c 3")[0] == 0
    assert sharing(installed.state) == [(0, 0), (EXCLUSIVE, 3)]
    nvml = SimulatedNvml(installed.state)
    nvml.nvmlInit()
    nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(1), 0)
    assert sharing(installed.state) == [(0, 0), (0, 3)]
    assert installed.run("compute-policy -l")[1].split()[-1] == "Long"


def test_the_programs_exit_code_is_that_of_its_answer(installed: Installed) -> None:
    assert installed.run("compute-policy -i GPU-0 --set-timeslice 1") == (6, "No devices were found\n")
    faults.fail(installed.state, "nvidia-smi", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=0, times=1)
    assert installed.run("compute-policy -i 0 --set-timeslice 1") == (3, UNSUPPORTED)


def test_the_program_needs_nvml_and_a_driver(installed: Installed) -> None:
    line = f"compute-policy -i {uuid(installed.state)} --set-timeslice 1"
    assert installed.run(line, LD_PRELOAD="/none/libnvidia-ml.so.1")[0] == 12
    preloaded = {"LD_PRELOAD": str(installed.library), "DRACO_SIMULATED_DRIVER": str(installed.folder / "none")}
    assert installed.run(line, **preloaded)[0] == 9
    assert installed.run("", LD_PRELOAD="") == (0, "NVIDIA-SMI: these GPUs are simulated\n")


def test_the_program_is_static_so_that_every_container_can_run_it(installed: Installed) -> None:
    program = installed.folder / root.NVIDIA_SMI
    headers = subprocess.run(["readelf", "--program-headers", program], capture_output=True, text=True, check=True)
    assert "INTERP" not in headers.stdout


def _is_connected(process: int) -> bool:
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if str(file.readlink()).startswith("socket:"):
                return True
    return False


def test_the_program_can_be_taken_out_and_put_back_while_it_runs(installed: Installed) -> None:
    root.remove_nvidia_smi(installed.folder)
    with pytest.raises(FileNotFoundError):
        installed.run("compute-policy -l")
    root.install_nvidia_smi(installed.folder, cache=installed.folder / "cache")
    faults.hang(installed.state, "nvidia-smi")
    line = f"compute-policy -i {uuid(installed.state)} --set-timeslice 1"  # a list would not hang
    program = [str(installed.folder / root.NVIDIA_SMI), *line.split()]
    running = subprocess.Popen(program, env={"LD_PRELOAD": str(installed.library)})
    try:
        until_s = time.monotonic() + 60
        while not _is_connected(running.pid):  # it finds its driver by the place of its own file
            assert running.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.01)
        root.install_nvidia_smi(installed.folder, cache=installed.folder / "cache")
        assert running.poll() is None
    finally:
        faults.stop_failing(installed.state)
        running.wait(timeout=60)
