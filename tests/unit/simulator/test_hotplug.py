"""Boards that come and go: which recover, how they are numbered, and which handles stay valid."""

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from draco_local.simulator.accidents import faults, hotplug
from draco_local.simulator.gpus import procfs
from draco_local.simulator.gpus.state import GpuProcess, StateError, load
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.conftest import Mig, StateFile, opened


def _uuids(path: Path) -> list[str]:
    nvml = opened(path)
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return [nvml.nvmlDeviceGetUUID(handle) for handle in handles]


def _minors(path: Path) -> list[int]:
    return [gpu.minor for gpu in load(path).gpus]


def test_a_dead_gpu_stays_listed_and_lost_over_a_reset(path: Path) -> None:
    faults.lose(path, 0)
    faults.reset(path, 0)
    nvml = opened(path)
    assert nvml.nvmlDeviceGetCount() == 8
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(0)


@pytest.mark.parametrize("start_driver", [faults.reload_driver, faults.reboot])
def test_a_new_driver_does_not_find_a_dead_gpu_and_numbers_close_the_gap(
    path: Path, start_driver: Callable[[Path], None]
) -> None:
    before = _uuids(path)
    faults.lose(path, 2)
    for _ in range(2):
        start_driver(path)
        assert _uuids(path) == [*before[:2], *before[3:]]
        assert _minors(path) == list(range(7))
    assert [gpu.uuid for gpu in load(path).missing] == [before[2]]


def test_only_a_person_brings_a_dead_gpu_back(path: Path) -> None:
    before = _uuids(path)
    faults.lose(path, 2)
    faults.reboot(path)
    hotplug.reseat(path, before[2])
    assert _uuids(path) == before
    assert _minors(path) == [0, 1, 7, 2, 3, 4, 5, 6], "what is found later gets the lowest free number"
    faults.reboot(path)
    assert _minors(path) == list(range(8))


def test_a_gpu_that_is_still_listed_is_reseated_healthy(path: Path) -> None:
    before = _uuids(path)
    faults.lose(path, 2)
    hotplug.reseat(path, 2)
    assert (_uuids(path), _minors(path)) == (before, list(range(8)))


def test_another_board_has_another_uuid_at_the_same_address(path: Path) -> None:
    before = load(path)
    faults.lose(path, 2)
    faults.reboot(path)
    uuid = hotplug.replace(path, before.gpus[2].uuid)
    after = load(path)
    assert [gpu.bus_id for gpu in after.gpus] == [gpu.bus_id for gpu in before.gpus]
    assert after.gpus[2].uuid == uuid != before.gpus[2].uuid
    assert after.gpus[2].serial != before.gpus[2].serial
    assert after.missing == []
    assert hotplug.replace(path, 2) != uuid


def test_who_leaves_closes_indexes_at_once_and_minors_with_the_next_driver(path: Path) -> None:
    before = _uuids(path)
    hotplug.remove(path, 1)
    assert (_uuids(path), _minors(path)) == ([before[0], *before[2:]], [0, 2, 3, 4, 5, 6, 7])
    faults.reboot(path)
    assert (_uuids(path), _minors(path)) == ([before[0], *before[2:]], list(range(7)))


def test_handles_behind_a_gpu_that_leaves_are_invalid_and_those_before_it_good(nvml: SimulatedNvml, path: Path) -> None:
    before = _uuids(path)
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    hotplug.remove(path, 1)
    assert nvml.nvmlDeviceGetUUID(handles[0]) == before[0]
    for handle in handles[1:]:
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetUUID(handle)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1)) == before[2]
    hotplug.reseat(path, before[1])
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetUUID(handles[0])


@pytest.mark.parametrize(("board", "mode"), [("A100-40GB", 1), ("H100-80GB", 0)])
def test_a_board_comes_back_without_instances_and_in_mig_mode_only_where_it_keeps_that(
    a_state_file: StateFile, board: str, mode: int
) -> None:
    path = a_state_file(board, gpus=2)
    Mig(path).make(9, 0)
    uuid = load(path).gpus[0].uuid
    hotplug.remove(path, 0)
    hotplug.reseat(path, uuid)
    assert (load(path).gpus[0].instances, load(path).gpus[0].mig_current) == ([], mode)


def test_a_board_that_is_held_stays_in(path: Path) -> None:
    faults.hold(path, 0, GpuProcess(pid=4711))
    with pytest.raises(StateError, match="cannot be taken out: it is held by process 4711"):
        hotplug.remove(path, 0)


def test_minors_chosen_for_a_boot_are_those_of_the_gpus_it_finds(path: Path) -> None:
    faults.reboot(path, minors=[1, 0, 2, 3, 4, 5, 6, 7])
    faults.lose(path, 0)
    faults.reboot(path)
    assert _minors(path) == [0, 1, 2, 3, 4, 5, 6], "the order that was chosen holds for the boots that follow"
    with pytest.raises(StateError, match="needs 7 different minor numbers"):
        faults.reboot(path, minors=[1, 0, 2, 3, 4, 5, 6, 7])


def test_capabilities_may_have_other_numbers_after_a_boot(path: Path) -> None:
    proc = procfs.build(path, load(path))
    faults.reboot(path, first_capability=100)
    assert "\ngpu0/gi0/access 100\n" in (proc / "driver/nvidia-caps/mig-minors").read_text()
    Mig(path).make(9, 4)
    assert (proc / "driver/nvidia/capabilities/gpu0/mig/gi2/access").read_text().startswith("DeviceFileMinor: 118")


def test_a_node_with_fewer_gpus_than_slots_numbers_them_from_zero(a_state_file: StateFile) -> None:
    assert _minors(a_state_file("A100-40GB", gpus=3)) == [1, 2, 0]
