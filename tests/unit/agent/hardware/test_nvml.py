"""The agent's view of NVML, on simulated NVML: typed GPUs, isolation of faults, events, and messages for errors."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco.agent.hardware.faults import health
from draco.agent.hardware.gpus import EventKind, Gpu, GpuEvent, LinkEnds
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import (
    ARCHITECTURES,
    EVENT_KINDS,
    DriverError,
    DriverMismatched,
    DriverMissing,
    DriverReloaded,
    GpuUnknown,
)
from draco.health.ledger import GpuReading, LinkReading
from draco.health.table import HealthState
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import faults, hotplug
from draco_local.simulator.gpus.boards import BOARDS
from draco_local.simulator.gpus.state import RemappedRows, create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.doubles.judged import at_first_sight, told

LONG_MS = 30_000  # never reached


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    create(path, node_name="node-1")
    return path


@pytest.fixture
def nvml(path: Path) -> Nvml:
    nvml = Nvml(SimulatedNvml(path))
    nvml.open()
    return nvml


class Overriding:
    """Simulated NVML with some functions replaced."""

    def __init__(self, path: Path, **functions: Any) -> None:
        self._functions = functions
        self._simulated = SimulatedNvml(path)

    def __getattr__(self, name: str) -> Any:
        return self._functions.get(name) or getattr(self._simulated, name)


def _uuids(path: Path) -> list[GpuUuid]:
    return [GpuUuid(gpu.uuid) for gpu in load(path).gpus]


def test_a_gpu_is_read_with_everything_that_is_published(nvml: Nvml, path: Path) -> None:
    gpus = nvml.gpus()
    assert [gpu.uuid for gpu in gpus] == _uuids(path)
    assert gpus[4] == Gpu(
        uuid=_uuids(path)[4],
        index=4,
        minor=4,
        product_name="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        compute_major=9,
        compute_minor=0,
        memory_bytes=81559 << 20,
        pci_bus_id="0000:9d:00.0",
        numa_node=1,
        mig_capable=True,
        memory_limits=False,
        addressing_mode="None",
        links=LinkEnds(switched=True),
        seen=GpuReading(gpu=_uuids(path)[4], links=LinkReading(up=(1 << 18) - 1)),
    )
    assert gpus[4].cuda_compute_capability == "9.0.0"


@pytest.mark.parametrize(
    ("board", "architecture", "capability", "mig"),
    [
        ("A100-40GB", "Ampere", "8.0.0", True),
        ("B200", "Blackwell", "10.0.0", True),
        ("L40S", "Ada Lovelace", "8.9.0", False),
        ("T4", "Turing", "7.5.0", False),
    ],
)
def test_boards_are_named_as_nvidias_driver_names_them(
    tmp_path: Path, board: str, architecture: str, capability: str, mig: bool
) -> None:
    create(tmp_path / "state.json", board=board, gpus=1, node_name="n")
    nvml = Nvml(SimulatedNvml(tmp_path / "state.json"))
    nvml.open()
    [gpu] = nvml.gpus()
    assert (gpu.architecture, gpu.cuda_compute_capability, gpu.mig_capable) == (architecture, capability, mig)
    assert gpu.brand == "Nvidia"


def test_every_simulated_board_has_a_named_architecture() -> None:
    assert {int(board.architecture) for board in BOARDS.values()} <= set(ARCHITECTURES)


def test_the_minor_number_is_nvmls_and_not_the_index(nvml: Nvml, path: Path) -> None:
    with mutate(path) as state:
        for gpu in state.gpus:
            gpu.minor = 7 - gpu.minor
    assert [(gpu.index, gpu.minor) for gpu in nvml.gpus()] == [(index, 7 - index) for index in range(8)]


def test_on_an_ampere_server_minors_are_not_in_pci_order(tmp_path: Path) -> None:
    create(tmp_path / "state.json", board="A100-80GB", node_name="n")
    nvml = Nvml(SimulatedNvml(tmp_path / "state.json"))
    nvml.open()
    minors = [gpu.minor for gpu in nvml.gpus()]
    assert sorted(minors) == list(range(8))
    assert minors != list(range(8))


def test_mig_mode_is_the_current_one_and_not_the_pending(nvml: Nvml, path: Path) -> None:
    with mutate(path) as state:
        state.gpus[0].mig_pending = 1
        state.gpus[1].mig_current = 1
    assert [gpu.mig_enabled for gpu in nvml.gpus()[:3]] == [False, True, False]


def test_a_wide_machine_has_its_numa_node_in_a_later_word(path: Path) -> None:
    with mutate(path) as state:
        state.gpus[0].numa_node = 70
    nvml = Nvml(SimulatedNvml(path))
    nvml.open()
    assert nvml.gpus()[0].numa_node == 70


def test_versions_of_the_driver_are_read(nvml: Nvml) -> None:
    info = nvml.driver()
    assert (info.driver_version, info.cuda_driver_version, info.nvml_version) == ("580.95.05", "13.0", "13.580.95.05")


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (13000, "13.0"), (13020, "13.2")])
def test_the_cuda_version_is_major_and_minor(path: Path, number: int, text: str) -> None:
    with mutate(path) as state:
        state.driver.cuda_version = number
    nvml = Nvml(SimulatedNvml(path))
    nvml.open()
    assert nvml.driver().cuda_driver_version == text


def test_no_library_is_one_sentence_with_what_to_do() -> None:
    def without_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    library = type("Library", (), {"nvmlInit": staticmethod(without_library)})
    with pytest.raises(DriverMissing, match=r"NVML is not available.*libnvidia-ml.so.1 was not found; install the"):
        Nvml(library).open()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, DriverMissing, "modprobe nvidia"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, DriverMismatched, "different versions"),
    ],
)
def test_a_broken_driver_is_the_trouble_of_the_node(
    path: Path, nvml: Nvml, code: int, kind: type[DriverError], words: str
) -> None:
    faults.break_driver(path, code)
    for call in (nvml.gpus, nvml.driver, Nvml(SimulatedNvml(path)).open, lambda: nvml.where(_uuids(path)[0])):
        with pytest.raises(kind, match=words) as caught:
            call()
        assert caught.value.code == code


def test_after_a_driver_reload_the_session_can_be_opened_again(nvml: Nvml, path: Path) -> None:
    before = nvml.gpus()
    list(nvml.wait_events(0))
    faults.reload_driver(path)
    with pytest.raises(DriverReloaded):
        nvml.gpus()
    with pytest.raises(DriverReloaded):
        list(nvml.wait_events(0))
    nvml.close()
    nvml.open()
    assert nvml.gpus() == before
    list(nvml.wait_events(0))
    faults.xid(path, 0, 31)
    assert [event.data for event in nvml.wait_events(LONG_MS)] == [31]


def test_a_reload_half_way_through_reading_is_no_fault_of_a_gpu(path: Path) -> None:
    def count_then_reload() -> int:
        faults.reload_driver(path)
        return 8

    nvml = Nvml(Overriding(path, nvmlDeviceGetCount=count_then_reload))
    nvml.open()
    with pytest.raises(DriverReloaded):
        nvml.gpus()
    assert nvml.unidentified() == ()


def test_closing_twice_or_without_opening_is_fine(path: Path) -> None:
    nvml = Nvml(SimulatedNvml(path))
    nvml.close()
    nvml.open()
    nvml.open()
    nvml.close()
    nvml.close()
    with pytest.raises(DriverReloaded, match="must be opened again"):
        nvml.gpus()


def test_a_lost_gpu_keeps_its_identity_and_hides_no_other(nvml: Nvml, path: Path) -> None:
    healthy = at_first_sight(nvml.gpus())
    faults.lose(path, 3)
    now = at_first_sight(nvml.gpus())
    assert [gpu.uuid for gpu in now] == [gpu.uuid for gpu in healthy]
    assert health(now[3])[0] is HealthState.UNHEALTHY
    assert "fallen off the PCI bus; drain and reboot the node" in told(now[3])
    assert [gpu for gpu in now if gpu.index != 3] == [gpu for gpu in healthy if gpu.index != 3]
    assert nvml.unidentified() == ()


def test_what_cannot_be_read_is_unknown_and_never_healthy(nvml: Nvml, path: Path) -> None:
    nvml.gpus()
    faults.make_unreadable(path, 0)
    gpu = at_first_sight(nvml.gpus())[0]
    assert health(gpu)[0] is HealthState.UNKNOWN
    assert "Unknown Error (code 999); look for NVRM in the kernel log" in told(gpu)
    faults.heal(path, 0)
    assert health(at_first_sight(nvml.gpus())[0])[0] is HealthState.HEALTHY


def test_a_gpu_that_was_never_readable_is_counted_apart(path: Path) -> None:
    faults.lose(path, 0)
    nvml = Nvml(SimulatedNvml(path))
    nvml.open()
    assert [gpu.index for gpu in nvml.gpus()] == [1, 2, 3, 4, 5, 6, 7]
    [missing] = nvml.unidentified()
    assert missing.index == 0
    assert missing.message.startswith("The GPU is lost")
    hotplug.reseat(path, 0)
    nvml.close()
    nvml.open()
    assert len(nvml.gpus()) == 8
    assert nvml.unidentified() == ()


def test_a_function_the_driver_lacks_is_a_missing_feature_and_no_fault(path: Path) -> None:
    def missing(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    optional = (
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetAddressingMode",
    )
    nvml = Nvml(Overriding(path, **dict.fromkeys(optional, missing)))
    nvml.open()
    [gpu, *_] = at_first_sight(nvml.gpus())
    assert (gpu.mig_capable, gpu.numa_node, gpu.addressing_mode) == (False, None, None)
    assert health(gpu)[0] is HealthState.HEALTHY


@pytest.mark.parametrize("action", range(1, 8))
def test_every_recovery_action_makes_a_gpu_unhealthy_and_says_what_it_needs(
    nvml: Nvml, path: Path, action: int
) -> None:
    faults.recovery_action(path, 6, action)
    gpu = at_first_sight(nvml.gpus())[6]
    assert health(gpu)[0] is HealthState.UNHEALTHY
    assert str(action) not in told(gpu)
    faults.reset(path, 6)
    assert health(at_first_sight(nvml.gpus())[6])[0] is HealthState.HEALTHY


def test_a_recovery_action_of_a_newer_driver_is_unhealthy_too(nvml: Nvml, path: Path) -> None:
    faults.recovery_action(path, 0, 42)
    assert told(at_first_sight(nvml.gpus())[0]) == "The GPU needs recovery action 42."


def test_a_failed_row_remap_makes_a_gpu_unhealthy_and_a_pending_one_does_not(nvml: Nvml, path: Path) -> None:
    faults.remapped_rows(path, 0, RemappedRows(uncorrectable=1, pending=True))
    assert health(at_first_sight(nvml.gpus())[0])[0] is HealthState.HEALTHY
    faults.remapped_rows(path, 0, RemappedRows(uncorrectable=1, failed=True))
    assert "replace the GPU" in told(at_first_sight(nvml.gpus())[0])


def test_a_gpu_that_is_not_there_is_named(nvml: Nvml) -> None:
    gone = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(GpuUnknown) as caught:
        nvml.where(gone)
    assert str(caught.value) == (
        f"NVML knows no GPU {gone} (nvmlDeviceGetHandleByUUID): it was removed, or has fallen off the bus; look for it with "
        "`nvidia-smi -L`, and reboot the node if it should be there."
    )


def test_a_gpu_that_goes_while_its_handle_is_kept_is_named_too(nvml: Nvml, path: Path) -> None:
    uuid = nvml.gpus()[2].uuid
    faults.fail(path, "nvmlDeviceGetMigMode", pynvml.NVML_ERROR_NOT_FOUND)
    with pytest.raises(GpuUnknown, match=rf"NVML knows no GPU {uuid} \(nvmlDeviceGetMigMode\): it was removed"):
        nvml.call("nvmlDeviceGetMigMode", nvml.handle(uuid))
    faults.fail(path, "nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_NOT_FOUND)
    with pytest.raises(GpuUnknown, match=r"NVML's nvmlDeviceGetHandleByIndex did not find the GPU or instance"):
        nvml.call("nvmlDeviceGetHandleByIndex", 7)


def test_handles_are_looked_up_once(path: Path) -> None:
    faults.latency(path, 5.0, "nvmlDeviceGetHandleByUUID")
    slept: list[float] = []
    nvml = Nvml(SimulatedNvml(path, sleep=slept.append))
    nvml.open()
    for _ in range(3):
        nvml.where(_uuids(path)[0])
    assert slept == [5.0]


def test_an_xid_is_delivered_with_its_gpu_and_its_instance(nvml: Nvml, path: Path) -> None:
    assert list(nvml.wait_events(0)) == []
    faults.xid(path, 2, 94, gi=1, ci=0)
    faults.xid(path, 5, 31)
    uuids = _uuids(path)
    assert list(nvml.wait_events(LONG_MS)) == [
        GpuEvent(EventKind.XID, uuids[2], 94, 1, 0),
        GpuEvent(EventKind.XID, uuids[5], 31),
    ]
    assert list(nvml.wait_events(0)) == []


def test_every_kind_of_event_is_told_apart(nvml: Nvml, path: Path) -> None:
    list(nvml.wait_events(0))
    uuid = _uuids(path)[0]
    with mutate(path) as state:
        for number in EVENT_KINDS:
            state.add_event(uuid, number, 1)
    assert [event.kind for event in nvml.wait_events(0)] == list(EVENT_KINDS.values())


def test_waiting_in_a_second_thread_does_not_stop_the_first_from_reading(nvml: Nvml, path: Path) -> None:
    list(nvml.wait_events(0))
    found: list[GpuEvent] = []
    waiter = threading.Thread(target=lambda: found.extend(nvml.wait_events(LONG_MS)))
    waiter.start()
    assert len(nvml.gpus()) == 8
    faults.xid(path, 1, 48)
    waiter.join(timeout=60)
    assert [event.data for event in found] == [48]


def test_a_lost_gpu_is_one_event_naming_it_and_the_others_are_still_watched(nvml: Nvml, path: Path) -> None:
    list(nvml.wait_events(0))
    uuids = _uuids(path)
    faults.lose(path, 4)
    assert list(nvml.wait_events(LONG_MS)) == [
        GpuEvent(EventKind.XID, uuids[4], 79),  # identified although the GPU no longer reports its UUID
        GpuEvent(EventKind.LOST, uuids[4]),
    ]
    assert list(nvml.wait_events(0)) == []
    faults.xid(path, 0, 13)
    assert list(nvml.wait_events(LONG_MS)) == [GpuEvent(EventKind.XID, uuids[0], 13)]


def test_a_gpu_that_comes_back_is_watched_again(nvml: Nvml, path: Path) -> None:
    faults.make_unreadable(path, 4)
    list(nvml.wait_events(0))
    faults.heal(path, 4)
    list(nvml.wait_events(0))
    faults.xid(path, 4, 13)
    assert [event.gpu for event in nvml.wait_events(LONG_MS)] == [_uuids(path)[4]]


@pytest.mark.parametrize("change", [hotplug.replace, hotplug.reseat])
def test_a_board_that_is_put_in_is_watched_like_the_one_before(
    nvml: Nvml, path: Path, change: Callable[[Path, int], object]
) -> None:
    list(nvml.wait_events(0))
    change(path, 4)
    list(nvml.wait_events(0))
    faults.xid(path, 4, 95)
    assert [(event.gpu, event.data) for event in nvml.wait_events(LONG_MS)] == [(_uuids(path)[4], 95)]


def test_an_error_of_a_board_that_was_put_in_meanwhile_is_told_by_its_uuid(nvml: Nvml, path: Path) -> None:
    list(nvml.wait_events(0))
    hotplug.reseat(path, 4)
    faults.xid(path, 4, 95)
    assert [event.gpu for event in nvml.wait_events(LONG_MS)] == [_uuids(path)[4]]


def test_importing_the_agents_nvml_is_cheap_and_needs_no_driver() -> None:
    script = (
        "import draco.agent.hardware.nvml, sys; print([m for m in ('kopf', 'aiohttp', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_work_aside_that_ends_before_it_is_waited_for_holds_nobody_up(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for, waiting = threading.Condition.wait_for, threading.Event()

    def late(condition: threading.Condition, ended: Callable[[], bool], timeout: float | None = None) -> bool:
        waiting.set()
        give_up_s = time.monotonic() + 0.2
        while not ended() and time.monotonic() < give_up_s:
            pass
        return wait_for(condition, ended, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", late)
    answers: list[bool] = []

    def hold_and_ask() -> None:
        with nvml.lock:
            answers.append(nvml.aside(lambda: waiting.wait(60)))

    asking = threading.Thread(target=hold_and_ask, daemon=True)
    asking.start()
    asking.join(60)
    assert answers == [True]


def test_a_fault_of_work_aside_is_the_caller_s(nvml: Nvml) -> None:
    def fault() -> None:
        raise ZeroDivisionError

    with nvml.lock, pytest.raises(ZeroDivisionError):
        nvml.aside(fault)


def test_a_gpu_whose_name_is_no_text_is_unreadable_and_stays_what_it_is(path: Path) -> None:
    answers = iter([b"H100", b"\xff", b"H100", *[b"H100"] * 5])
    nvml = Nvml(Overriding(path, nvmlDeviceGetName=lambda _: next(answers).decode()))  # as pynvml does
    nvml.open()
    gpus = at_first_sight(nvml.gpus())
    assert [gpu.product_name for gpu in gpus] == ["H100", "", *["H100"] * 6]
    assert [gpu.index for gpu in gpus if health(gpu)[0] is HealthState.UNKNOWN] == [1]
    assert told(gpus[1]).startswith("NVML's nvmlDeviceGetName answered bytes that are not text")
