"""The simulated libnvidia-ml.so.1, called as on hardware: by unmodified pynvml, through ctypes, from any process."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco.agent.hardware import nvml
from draco.agent.hardware.nvml import Nvml
from draco_local.simulator.accidents import faults
from draco_local.simulator.driver import library, service
from draco_local.simulator.driver.signatures import SIGNATURES
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.drivers import RELEASES
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.calls import arguments

NAMES = [name for name in dir(SimulatedNvml(Path("unused"))) if name.startswith("nvml")]
RANDOM = re.compile(r"MIG-[0-9a-f-]{36}")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.make(tmp_path_factory.mktemp("library"))


@pytest.fixture
def loaded(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pynvml with this library loaded."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(compiled)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


@pytest.fixture
def driver(loaded: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node with eight H100s and its driver; yields the state file."""
    with driving(path, monkeypatch):
        yield path


def driving(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # The path of a Unix socket must be short, and a test's folder is not.
    short = Path(f"/tmp/draco-test-{os.getpid()}.sock")
    monkeypatch.setenv(library.SOCKET_VARIABLE, str(short))
    return service.serving(path, short)


def plain(value: Any) -> Any:
    """An answer in a comparable form: structs field by field, pointers by their target."""
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, ctypes._Pointer):
        return ctypes.cast(value, ctypes.c_void_p).value
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return vars(value)
    if isinstance(value, bytes):
        value = value.decode()
    return RANDOM.sub("MIG", value) if isinstance(value, str) else getattr(value, "value", value)


def outcome(nvml: Any, name: str) -> Any:
    """What a function returns or raises, and what it writes through its pointer arguments."""
    given = arguments(nvml, name)
    try:
        answer = plain(getattr(nvml, name)(*given.values()))
    except pynvml.NVMLError as refusal:
        answer = refusal
    return answer, [plain(each._obj) for each in given.values() if hasattr(each, "_obj")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("board", "mig"), [("H100-80GB", 0), ("H100-80GB", 1), ("T4", 0)])
@pytest.mark.parametrize("name", NAMES)
def test_a_function_answers_over_ctypes_what_it_answers_in_process(
    name: str, board: str, mig: int, loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    state.create(first, board=board, gpus=2, node_name="n")
    with state.mutate(first) as node:
        node.gpus[0].mig_current = node.gpus[0].mig_pending = mig
        node.driver.version = RELEASES["615"]
        node.gpus[1].processes.append(state.GpuProcess(4711, memory_mib=300))
    shutil.copy(first, second)
    simulated = SimulatedNvml(first)
    simulated.nvmlInit()
    with driving(second, monkeypatch):
        pynvml.nvmlInit()
        assert str(outcome(pynvml, name)) == str(outcome(simulated, name))


def test_memory_limits_go_through_a_struct_with_a_path_in_it(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    faults.reload_driver(driver, version="615")
    pynvml.nvmlInit()
    gpu, name = pynvml.nvmlDeviceGetHandleByIndex(0), str(tmp_path).encode()
    pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, pynvml.c_nvmlSetMemoryLimits_v1_t(name, 1 << 33, 1 << 34))
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(name)
    pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, found)
    assert (found.softLimit, found.hardLimit, found.currentUsed) == (1 << 33, 1 << 34, 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, pynvml.c_nvmlGetMemoryLimits_v1_t(None))


def test_running_processes_are_told(driver: Path) -> None:
    with state.mutate(driver) as node:
        node.gpus[0].processes += [state.GpuProcess(4711, memory_mib=300), state.GpuProcess(4712, memory_mib=10)]
    pynvml.nvmlInit()
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert [(each.pid, each.usedGpuMemory >> 20) for each in running] == [(4711, 300), (4712, 10)]


def test_every_function_that_the_agent_calls_is_there(compiled: Path) -> None:
    calls = "".join(module.read_text() for module in Path(nvml.__file__ or "").parent.glob("nvml*.py"))
    wanted = set(re.findall(r'"(nvml[A-Z]\w+)"', calls)) - {"nvmlDevice", "nvmlGpuInstance", "nvmlComputeInstance"}
    assert len(wanted) > 30
    assert wanted <= set(NAMES)


def test_the_library_has_the_functions_of_the_table_and_no_other_symbol(compiled: Path) -> None:
    text = subprocess.run(["nm", "-D", "--defined-only", compiled], capture_output=True, text=True, check=True).stdout
    found = {line.split()[-1] for line in text.splitlines()}
    assert found == {"nvmlErrorString", *(each.symbol for each in SIGNATURES)}


def test_a_function_that_the_driver_lacks_is_not_found(driver: Path) -> None:
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_without_its_service_no_driver_is_loaded(loaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.SOCKET_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_a_null_pointer_is_an_invalid_argument(driver: Path, compiled: Path) -> None:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    raw = ctypes.CDLL(str(compiled))
    for name, given in (
        ("nvmlDeviceGetCount_v2", (None,)),
        ("nvmlDeviceGetName", (device, None, 96)),
        ("nvmlDeviceGetPciInfo_v3", (device, None)),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", (device, 0, None)),
        ("nvmlDeviceGetFieldValues", (device, 1, None)),
        ("nvmlEventSetWait_v2", (None, None, 0)),
    ):
        assert getattr(raw, name)(*given) == pynvml.NVML_ERROR_INVALID_ARGUMENT, name


def test_a_short_buffer_is_not_written_past_its_end(driver: Path, compiled: Path) -> None:
    pynvml.nvmlInit()
    buffer = ctypes.create_string_buffer(b"untouched", 16)
    name = ctypes.CDLL(str(compiled)).nvmlDeviceGetName
    assert name(pynvml.nvmlDeviceGetHandleByIndex(0), buffer, 8) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert buffer.value == b"untouched"


def test_a_struct_of_another_version_is_refused(driver: Path, compiled: Path) -> None:
    pynvml.nvmlInit()
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    info.version = 0x03000098
    profile = ctypes.CDLL(str(compiled)).nvmlDeviceGetGpuInstanceProfileInfoV
    refused = profile(pynvml.nvmlDeviceGetHandleByIndex(0), 0, ctypes.byref(info))
    assert refused == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_one_thread_waits_for_events_while_others_ask(driver: Path) -> None:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.append(pynvml.nvmlEventSetWait_v2(events, 20_000)))
    waiting.start()
    assert pynvml.nvmlDeviceGetMinorNumber(device) == 0
    faults.xid(driver, 0, 79)
    waiting.join(10)
    assert [(plain(each.device), each.eventData) for each in heard] == [(plain(device), 79)]


def test_a_reload_of_the_driver_ends_the_session(driver: Path) -> None:
    pynvml.nvmlInit()
    faults.reload_driver(driver)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 8


def test_a_session_ends_with_the_service(loaded: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the kernel module is unloaded and loaded again."""
    with driving(path, monkeypatch):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 8
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlDeviceGetCount()
    with driving(path, monkeypatch):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 8


PROGRAM = """
import os, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
child = os.fork()
if child == 0:
    try:
        pynvml.nvmlDeviceGetMinorNumber(handle)
    except pynvml.NVMLError_Uninitialized:
        os._exit(7)
    os._exit(1)
print(pynvml.nvmlSystemGetDriverVersion(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(pynvml.nvmlDeviceGetMinorNumber(handle))
"""


def test_another_process_finds_the_library_and_has_a_session_of_its_own(driver: Path, compiled: Path) -> None:
    """A forked child has none: NVML must be initialised in it."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(compiled.parent)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["580.95.05", "7", "0"], "")


def test_the_agent_reads_the_same_gpus(driver: Path) -> None:
    faults.lose(driver, 1)
    faults.recovery_action(driver, 2, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    on_library, in_process = Nvml(pynvml), Nvml(SimulatedNvml(driver))
    on_library.open()
    in_process.open()
    assert on_library.driver() == in_process.driver()
    assert on_library.gpus() == in_process.gpus()
    on_library.close()
