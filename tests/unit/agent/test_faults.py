"""Which XIDs end a GPU, until when that counts, and that a restart of the agent forgets none."""

from pathlib import Path

import msgspec
import pynvml
import pytest
from structlog.testing import capture_logs

from draco.agent.files import LocalFiles
from draco.agent.hardware.fault_record import FaultRecord, driver_load
from draco.agent.hardware.faults import FATAL, REBOOTS, TABLE, FaultEnd, judged, latched
from draco.agent.hardware.gpus import EventKind, Gpu, GpuEvent, GpuFault, HealthState
from draco.agent.hardware.nvml import Nvml
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import sysfs
from draco_local.simulator.gpus.state import RemappedRows, create, load
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.builders import a_gpu

GPU = GpuUuid("GPU-0")


def an_xid(code: int, *, gi: int | None = None) -> GpuEvent:
    return GpuEvent(EventKind.XID, GPU, code, gpu_instance=gi)


def remembered(event: GpuEvent) -> str:
    found = latched(event, boot_id="boot", driver_load="1")
    return found.fault.name if found else ""


@pytest.mark.parametrize("code", [46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158])
def test_an_xid_for_which_nvidia_asks_for_a_reset_or_a_reboot_ends_the_gpu(code: int) -> None:
    assert remembered(an_xid(code)) == f"Xid{code}"


@pytest.mark.parametrize("code", [8, 13, 31, 32, 43, 44, 45, 63, 68, 69, 92, 94, 137, 154, 161, 9999])
def test_the_fault_of_an_application_and_what_is_to_be_ignored_ends_none(code: int) -> None:
    assert remembered(an_xid(code)) == ""


def test_each_xid_stands_in_one_row_and_rows_in_order() -> None:
    codes = [code for row in TABLE for code in row.codes]
    assert len(codes) == len(set(codes)) > 70
    assert [row.codes[0] for row in TABLE] == sorted(row.codes[0] for row in TABLE)
    assert all(row.codes == sorted(row.codes) for row in TABLE)
    assert not any(row.spreads for row in TABLE if row.codes[0] not in FATAL)


def test_only_what_reaches_beyond_an_instance_ends_the_gpu_when_it_is_told_of_one() -> None:
    beyond = {code for code in FATAL if remembered(an_xid(code, gi=3))}
    assert {79, 95, 119, 120} <= beyond
    assert not beyond & {46, 48, 109, 110}


def test_no_gpu_is_blamed_for_an_xid_of_which_nvml_could_not_say_whose_it_was() -> None:
    assert remembered(GpuEvent(EventKind.XID, None, 79)) == ""
    assert remembered(GpuEvent(EventKind.UNCORRECTED_ECC, GPU, 79)) == ""


def test_the_fault_that_takes_most_to_end_counts_and_of_equal_ones_the_first() -> None:
    def found(*codes: int, nvml: str = "") -> str:
        gpu = msgspec.structs.replace(a_gpu(0), uuid=GPU, fault=GpuFault(nvml, "") if nvml else None)
        events = [latched(an_xid(code), boot_id="boot", driver_load="") for code in codes]
        fault = judged(gpu, [one for one in events if one]).fault
        return fault.name if fault else ""

    assert found() == ""
    assert found(95, 79) == "Xid79"
    assert found(119, 95) == "Xid119"
    assert found(95, nvml="NeedsReset") == "Xid95"
    assert found(79, nvml="Lost") == "Xid79"
    assert found(79, nvml="Absent") == "Absent", "what is not there is not given for its fault"
    assert {found(95, nvml=name) for name in REBOOTS} == REBOOTS


class Node:
    """NVML of two GPUs and the record of their faults; another one in the same folder is the agent started again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.json"
        self.sys = folder / "sys"
        if not self.path.exists():
            create(self.path, gpus=2, node_name="node-0")
        sysfs.build(self.sys, load(self.path))
        self.nvml = Nvml(SimulatedNvml(self.path))
        self.record = FaultRecord(
            folder / "faults.json",
            LocalFiles(),
            boot_id=load(self.path).boot_id,
            driver_load=lambda: driver_load(self.sys),
        )
        self.nvml.open()
        self.look()
        list(self.nvml.wait_events(0))

    def look(self) -> list[Gpu]:
        return self.record.look(self.nvml.gpus())

    def told(self) -> None:
        for event in self.nvml.wait_events(30_000):
            self.record.happened(event)

    def faults(self) -> list[str]:
        return [gpu.fault.name if gpu.fault else "" for gpu in self.look()]


def test_a_gpu_with_a_fatal_xid_is_unhealthy_though_nvml_says_nothing_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 1, 119)
    node.told()
    well, ill = node.look()
    assert (well.fault, well.health.state) == (None, HealthState.HEALTHY)
    assert ill.fault is not None
    assert (ill.health.state, ill.health.message) == (HealthState.UNHEALTHY, ill.fault.message)
    assert ill.fault.message.startswith(
        "XID 119: the GPU's system processor (GSP) did not answer in time; drain it and reset"
    )


def test_a_fault_outlives_the_agent_and_ends_with_the_boot(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 95)
    node.told()
    assert Node(tmp_path).faults() == ["Xid79", "Xid95"]
    faults.reboot(node.path)
    assert Node(tmp_path).faults() == ["", ""]


def test_a_load_of_the_driver_ends_what_a_reset_ends_and_nothing_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 95)
    node.told()
    faults.reload_driver(node.path)
    assert Node(tmp_path).faults() == ["Xid79", ""]


def test_a_driver_that_was_loaded_under_the_session_counts_as_loaded_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 95)
    node.told()
    node.record.reloaded()
    assert node.faults() == ["Xid79", ""]


def test_a_reset_that_nvml_asked_for_ends_the_fault_once_it_asks_no_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    assert node.faults() == ["Xid95", ""], "that no action is asked for yet proves nothing"
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    assert node.faults() == ["Xid95", ""]
    again = Node(tmp_path)
    assert again.faults() == ["Xid95", ""]
    faults.reset(node.path, 0)
    assert again.faults() == ["", ""]


def test_an_xid_that_comes_twice_is_one_fault_and_one_reset_ends_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    node.look()
    faults.xid(node.path, 0, 95)
    node.told()
    faults.reset(node.path, 0)
    assert node.faults() == ["", ""]


def test_that_nvml_asks_for_nothing_proves_no_reset_where_it_says_nothing_at_all(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    node.look()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
    faults.make_unreadable(node.path, 0, pynvml.NVML_ERROR_UNKNOWN)
    assert node.faults() == ["Xid95", ""]
    faults.make_unreadable(node.path, 0, 0)
    assert node.faults() == ["", ""]


def test_another_fault_that_passes_takes_none_along(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    faults.make_unreadable(node.path, 0, pynvml.NVML_ERROR_GPU_IS_LOST)
    assert node.faults() == ["Lost", ""]
    faults.make_unreadable(node.path, 0, 0)
    assert node.faults() == ["Xid95", ""], "NVML never asked for a reset"


def test_a_gpu_that_is_not_listed_for_a_while_keeps_its_fault(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 1, 95)
    node.told()
    node.record.look(node.nvml.gpus()[:1])
    assert node.faults() == ["", "Xid95"]


def test_a_reset_does_not_end_what_only_a_reboot_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    node.told()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    assert node.faults() == ["Xid79", ""]
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
    assert node.faults() == ["Xid79", ""]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, "Lost"),
        (pynvml.NVML_ERROR_NOT_FOUND, "NotFound"),
        (pynvml.NVML_ERROR_GPU_NOT_FOUND, "NotFound"),
        (pynvml.NVML_ERROR_RESET_REQUIRED, "NeedsReset"),
        (pynvml.NVML_ERROR_UNKNOWN, ""),
    ],
)
def test_what_nvml_answers_about_a_gpu_is_a_fault_by_its_code(tmp_path: Path, code: int, name: str) -> None:
    node = Node(tmp_path)
    faults.make_unreadable(node.path, 0, code)
    assert node.faults() == [name, ""]
    ill = node.look()[0]
    assert ill.health.state is (HealthState.UNHEALTHY if name else HealthState.UNKNOWN)


def test_a_recovery_action_is_a_fault_while_it_is_asked_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.recovery_action(node.path, 1, pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET)
    assert node.faults() == ["", "NeedsDrainAndReset"]
    faults.recovery_action(node.path, 1, 77)
    assert node.faults() == ["", "NeedsRecovery"]
    faults.recovery_action(node.path, 1, 0)
    assert node.faults() == ["", ""]


def test_a_failed_remap_is_not_forgotten_while_the_gpu_is_divided_and_does_not_say(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.remapped_rows(node.path, 0, RemappedRows(failed=True))
    assert node.faults() == ["RemapFailed", ""]
    faults.fail(node.path, "nvmlDeviceGetRemappedRows", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=0)
    assert node.faults() == ["RemapFailed", ""]
    faults.stop_failing(node.path)
    faults.remapped_rows(node.path, 0, RemappedRows())
    assert node.faults() == ["", ""]


def test_a_record_that_cannot_be_read_or_written_costs_no_more_than_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text("{")
    node = Node(tmp_path)
    assert node.faults() == ["", ""]
    (tmp_path / "faults.json").unlink()
    (tmp_path / "faults.json.tmp").mkdir()  # nothing can be written there
    faults.xid(node.path, 0, 95)
    node.told()
    assert node.faults() == ["Xid95", ""]
    (tmp_path / "faults.json.tmp").rmdir()
    node.look()
    assert Node(tmp_path).faults() == ["Xid95", ""], "written as soon as that was possible"


def test_what_stays_as_it_is_is_not_written_and_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    class Counted(LocalFiles):
        writes = 0
        full = False

        def write(self, path: Path, content: bytes) -> None:
            self.writes += 1
            if self.full:
                raise OSError("No space left on device")
            super().write(path, content)

    files = Counted()
    record = FaultRecord(tmp_path / "faults.json", files, boot_id="boot", driver_load=str)
    gpus = [msgspec.structs.replace(a_gpu(0), uuid=GPU)]
    with capture_logs() as logs:
        record.look(gpus)
        assert files.writes == 0
        record.happened(an_xid(95))
        record.look(gpus)
        record.look(gpus)
        assert files.writes == 1
        files.full = True
        record.happened(an_xid(119))
        record.look(gpus)
        record.look(gpus)
        assert files.writes == 4, "tried again each time"
        record.reloaded()
    said = [(one["event"], one.get("fault", "")) for one in logs]
    assert said == [
        ("gpu.fault", "Xid95"),
        ("gpu.fault", "Xid119"),
        ("faults.not_kept", ""),
        ("gpu.fault_over", "Xid95"),
        ("gpu.fault_over", "Xid119"),
    ]


def test_a_record_in_a_later_form_is_not_guessed_at(tmp_path: Path) -> None:
    Node(tmp_path)
    gpus = load(tmp_path / "gpus.json")
    record = {"version": 2, "faults": [{"gpu": gpus.gpus[0].uuid, "xid": 95, "boot_id": gpus.boot_id}]}
    (tmp_path / "faults.json").write_bytes(msgspec.json.encode(record))
    assert Node(tmp_path).faults() == ["", ""]


def test_what_a_later_release_took_for_fatal_is_still_a_fault(tmp_path: Path) -> None:
    Node(tmp_path)
    boot = load(tmp_path / "gpus.json").boot_id
    uuid = load(tmp_path / "gpus.json").gpus[0].uuid
    record = {"version": 1, "faults": [{"gpu": uuid, "xid": 4711, "boot_id": boot}]}
    (tmp_path / "faults.json").write_bytes(msgspec.json.encode(record))
    assert Node(tmp_path).faults() == ["Xid4711", ""]


def test_every_fatal_xid_says_what_happened_and_what_to_do() -> None:
    for code, fatal in FATAL.items():
        sentence = fatal.sentence(code)
        assert sentence.startswith(f"XID {code}: ")
        assert ("reset it with" in sentence) is (fatal.ends is FaultEnd.RESET)
        assert "reboot" in sentence
