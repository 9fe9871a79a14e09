"""Which faults take a GPU out of use, how long they last, and that a restart of the agent forgets none."""

from pathlib import Path

import msgspec
import pynvml
import pytest
from structlog.testing import capture_logs

from draco.agent.files import Files
from draco.agent.hardware.fault_record import FaultRecord, driver_load
from draco.agent.hardware.faults import health
from draco.agent.hardware.gpus import EventKind, Gpu, GpuEvent
from draco.agent.hardware.nvml import Nvml
from draco.health.ledger import InstancePlace
from draco.health.table import HealthState
from draco.kube.clock import SystemClock
from draco.resources.api.draco import RepairedGpu
from draco.resources.api.health import FaultOverride, HealthEffect
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import by_hand, faults, hotplug
from draco_local.simulator.gpus import sysfs
from draco_local.simulator.gpus.state import RemappedRows, create, load
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.builders import a_gpu

GPU = GpuUuid("GPU-0")
CLEAN = 3


def an_xid(code: int, *, gi: int | None = None) -> GpuEvent:
    return GpuEvent(EventKind.XID, GPU, code, gpu_instance=gi)


class Node:
    """NVML with two GPUs and the record of their faults; another one in the same folder is a restarted agent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.json"
        self.sys = folder / "sys"
        if not self.path.exists():
            create(self.path, gpus=2, node_name="node-0")
        sysfs.build(self.sys, load(self.path))
        self.nvml = Nvml(SimulatedNvml(self.path))
        self.record = FaultRecord(
            folder / "faults.json",
            Files(),
            boot_id=load(self.path).boot_id,
            driver_load=lambda: driver_load(self.sys),
            now=SystemClock().now,
        )
        self.nvml.open()
        self.gpus = self.record.judge(self.nvml.gpus())
        list(self.nvml.wait_events(0))

    def look(self) -> list[Gpu]:
        self.gpus = self.record.look(self.nvml.gpus())
        return self.gpus

    def told(self) -> None:
        for event in self.nvml.wait_events(30_000):
            place = None if event.gpu_instance is None else InstancePlace(event.gpu_instance, None, 0b1)
            self.record.happened(event, place)

    def faults(self, looks: int = 1) -> list[str]:
        for _ in range(looks):
            self.look()
        return [gpu.fault.status.name if gpu.fault else "" for gpu in self.gpus]

    def ledger(self, gpu: int = 0) -> dict[str, str]:
        self.look()
        return {one.status.name: one.status.effect.value for one in self.gpus[gpu].faults}

    def well(self) -> bool:
        """Whether the faults end after exactly the required number of clean readings."""
        before = [bool(self.gpus[0].fault or self.gpus[1].fault), any(self.faults(CLEAN - 1))]
        return before == [True, True] and self.faults() == ["", ""]


def test_a_gpu_with_a_fatal_xid_is_unhealthy_though_nvml_says_nothing_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 1, 119)
    node.told()
    well, ill = node.look()
    assert (well.fault, health(well)) == (None, (HealthState.HEALTHY, None))
    assert ill.fault is not None
    assert health(ill) == (HealthState.UNHEALTHY, ill.fault)
    assert ill.fault.status.message.startswith(
        "XID 119: the GPU's system processor (GSP) did not answer in time; drain it and reset"
    )


def test_an_xid_of_a_program_is_recorded_and_says_nothing_of_the_gpus_health(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for code in (13, 31, 43, 45):
        faults.xid(node.path, 0, code)
    node.told()
    assert node.ledger() == dict.fromkeys(("Xid13", "Xid31", "Xid43", "Xid45"), "Record")
    assert (node.gpus[0].fault, health(node.gpus[0])) == (None, (HealthState.HEALTHY, None))


def test_an_xid_that_nobody_knows_is_announced_and_keeps_nobody_away(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 9999)
    node.told()
    assert node.ledger() == {"Xid9999": "Announce"}
    assert node.gpus[0].fault is None


def test_no_gpu_is_blamed_for_an_xid_of_which_nvml_could_not_say_whose_it_was(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.record.happened(GpuEvent(EventKind.XID, None, 79))
    node.record.happened(GpuEvent(EventKind.UNCORRECTED_ECC, node.gpus[0].uuid, 79))
    assert node.faults() == ["", ""]


def test_a_fault_outlives_the_agent_and_ends_with_the_boot(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 95)
    node.told()
    assert Node(tmp_path).faults() == ["Xid79", "Xid95"]
    faults.reboot(node.path)
    again = Node(tmp_path)
    assert again.faults(CLEAN - 1) == ["Xid79", "Xid95"]
    assert again.faults() == ["", ""]


def test_a_restart_in_between_makes_no_fault_end_earlier(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 1, 95)
    node.told()
    faults.reboot(node.path)
    assert Node(tmp_path).faults(CLEAN - 1) == ["", "Xid95"]
    assert Node(tmp_path).faults() == ["", "Xid95"]
    again = Node(tmp_path)
    assert again.faults(CLEAN) == ["", ""]


def test_a_load_of_the_driver_ends_what_a_reset_ends_and_nothing_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 95)
    node.told()
    faults.reload_driver(node.path)
    assert Node(tmp_path).faults(CLEAN) == ["Xid79", ""]


def test_a_driver_that_was_loaded_under_the_session_counts_as_loaded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 95)
    node.told()
    node.record.reloaded()
    assert node.faults(CLEAN) == ["Xid79", ""]


def test_a_reset_that_nvml_asked_for_ends_the_fault_once_it_asks_no_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    assert node.faults(2 * CLEAN) == ["Xid95", ""], "that no action is asked for yet proves nothing"
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    assert node.faults() == ["Xid95", ""]
    again = Node(tmp_path)
    assert again.faults() == ["Xid95", ""]
    faults.reset(node.path, 0)
    assert again.well()


def test_an_xid_that_comes_twice_is_one_fault_and_one_reset_ends_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    node.look()
    faults.xid(node.path, 0, 95)
    node.told()
    assert [one.status.count for one in node.look()[0].faults if one.status.name == "Xid95"] == [2]
    faults.reset(node.path, 0)
    assert node.well()


def test_an_xid_that_comes_back_while_its_end_is_watched_begins_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    node.record.reloaded()
    assert node.faults(CLEAN - 1) == ["Xid95", ""]
    faults.xid(node.path, 0, 95)
    node.told()
    assert node.faults(2 * CLEAN) == ["Xid95", ""]


def test_that_nvml_asks_for_nothing_proves_no_reset_where_it_says_nothing_at_all(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    node.look()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
    faults.make_unreadable(node.path, 0, pynvml.NVML_ERROR_UNKNOWN)
    assert node.faults(2 * CLEAN) == ["Xid95", ""]
    faults.make_unreadable(node.path, 0, 0)
    assert node.well()


def test_another_fault_that_passes_takes_none_along(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    node.told()
    faults.make_unreadable(node.path, 0, pynvml.NVML_ERROR_GPU_IS_LOST)
    assert node.faults() == ["Lost", ""]
    faults.make_unreadable(node.path, 0, 0)
    assert node.faults(CLEAN) == ["Xid95", ""], "NVML never asked for a reset"


def test_a_gpu_that_is_not_listed_for_a_while_keeps_its_fault(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 1, 95)
    node.told()
    node.record.look(node.nvml.gpus()[:1])
    assert node.faults() == ["", "Xid95"]


def test_another_board_in_the_same_place_does_not_inherit_a_fault(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 1, 79)
    node.told()
    assert node.faults() == ["", "Xid79"]
    hotplug.replace(node.path, 1)
    assert Node(tmp_path).faults() == ["", ""]


def test_what_a_person_says_is_gone_for_good_is_forgotten_and_what_is_there_is_not(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    faults.xid(node.path, 1, 79)
    node.told()
    first, second = node.look()
    node.record.forgotten = frozenset({first.uuid, second.uuid})
    node.record.look([first])
    assert node.faults() == ["Xid79", ""]


def test_a_reset_does_not_end_what_only_a_reboot_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 79)
    node.told()
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    assert node.faults() == ["Xid79", ""]
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
    assert node.faults(2 * CLEAN) == ["Xid79", ""]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, "Lost"),
        (pynvml.NVML_ERROR_NOT_FOUND, "NotFound"),
        (pynvml.NVML_ERROR_GPU_NOT_FOUND, "NotFound"),
        (pynvml.NVML_ERROR_RESET_REQUIRED, "NeedsReset"),
    ],
)
def test_what_nvml_answers_about_a_gpu_is_a_fault_by_its_code(tmp_path: Path, code: int, name: str) -> None:
    node = Node(tmp_path)
    node.look()
    faults.make_unreadable(node.path, 0, code)
    assert node.faults() == [name, ""]
    assert health(node.gpus[0])[0] is HealthState.UNHEALTHY


def test_what_cannot_be_read_is_unknown_at_once_and_takes_no_new_work_after_three_readings(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.make_unreadable(node.path, 0, pynvml.NVML_ERROR_UNKNOWN)
    for expected in ("", "", "Unreadable", "Unreadable"):
        assert node.faults() == [expected, ""]
        assert health(node.gpus[0])[0] is HealthState.UNKNOWN
    again = Node(tmp_path)
    assert again.record.judge(again.gpus)[0].fault is None, "nothing is remembered of a GPU that this agent never saw"
    faults.make_unreadable(node.path, 0, 0)
    assert node.well()


def test_one_reading_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.make_unreadable(node.path, 0, pynvml.NVML_ERROR_UNKNOWN)
    assert node.faults(2) == ["", ""]
    faults.make_unreadable(node.path, 0, 0)
    assert node.ledger() == {}


def test_a_recovery_action_is_a_fault_while_it_is_asked_for(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.recovery_action(node.path, 1, pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET)
    assert node.faults() == ["", "NeedsDrainAndReset"]
    faults.recovery_action(node.path, 1, 77)
    assert node.faults(CLEAN) == ["", "NeedsRecovery"]
    faults.recovery_action(node.path, 1, 0)
    assert node.well()


def test_a_reset_that_was_asked_for_ends_with_the_load_of_a_driver_that_asks_for_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.recovery_action(node.path, 0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    faults.recovery_action(node.path, 1, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    assert node.faults() == ["NeedsReset", "NeedsReboot"]
    faults.reload_driver(node.path, version="450")
    assert Node(tmp_path).faults(CLEAN) == ["", "NeedsReboot"], "no driver before R565 asks for a recovery action"


def test_a_failed_remap_is_not_forgotten_while_the_gpu_is_divided_and_does_not_say(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.remapped_rows(node.path, 0, RemappedRows(failed=True))
    assert node.faults() == ["RowRemapFailed", ""]
    faults.fail(node.path, "nvmlDeviceGetRemappedRows", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=0)
    assert node.faults(2 * CLEAN) == ["RowRemapFailed", ""]
    assert Node(tmp_path).faults(2 * CLEAN) == ["RowRemapFailed", ""], "nor by an agent that was started since"
    faults.stop_failing(node.path)
    faults.remapped_rows(node.path, 0, RemappedRows())
    assert node.well()


def test_a_row_that_waits_to_be_remapped_keeps_nobody_away_and_is_over_with_the_reset(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.remapped_rows(node.path, 0, RemappedRows(uncorrectable=2, pending=True))
    assert node.ledger() == {"RowRemapPending": "Record"}
    assert node.gpus[0].faults[0].status.count == 2
    faults.reset(node.path, 0)
    node.faults(CLEAN)
    assert node.ledger() == {}


def test_memory_errors_are_announced_and_too_many_of_sram_end_the_gpu(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.ecc_errors(node.path, 0, corrected=5)
    assert node.ledger() == {}
    faults.ecc_errors(node.path, 0, uncorrected=2)
    assert node.ledger() == {"EccUncorrected": "Announce"}
    assert (node.gpus[0].faults[0].status.count, node.gpus[0].fault) == (2, None)
    faults.sram_threshold_exceeded(node.path, 0)
    assert node.faults() == ["EccThreshold", ""]


def test_counters_and_links_that_nvml_does_not_answer_for_a_while_end_no_fault(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    faults.ecc_errors(node.path, 0, uncorrected=2)
    faults.nvlink(node.path, 0, 3, down=True)
    open_faults = {"EccUncorrected": "Announce", "NvLinkDown": "NoSchedule"}
    assert node.ledger() == open_faults
    faults.fail(node.path, "nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_NO_PERMISSION)
    node.faults(2 * CLEAN)
    assert node.ledger() == open_faults
    faults.stop_failing(node.path)
    faults.reset(node.path, 0)
    faults.nvlink(node.path, 0, 3, down=False)
    node.faults(CLEAN)
    assert node.ledger() == {}


def test_memory_errors_of_a_gpu_that_is_divided_since_end_with_a_new_load_of_the_driver(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.ecc_errors(node.path, 0, uncorrected=2)
    assert node.ledger() == {"EccUncorrected": "Announce"}
    by_hand.set_mode(node.path, 0, pynvml.NVML_DEVICE_MIG_ENABLE)
    node.faults(2 * CLEAN)
    assert node.ledger() == {"EccUncorrected": "Announce"}, "its counters are not reported"
    faults.reboot(node.path)
    node = Node(tmp_path)
    node.faults(CLEAN)
    assert node.ledger() == {}


def test_heat_is_a_fault_until_the_gpu_is_some_degrees_cooler_than_where_it_begins(tmp_path: Path) -> None:
    node = Node(tmp_path)
    limit = SimulatedNvml(node.path)
    limit.nvmlInit()
    slowdown = limit.nvmlDeviceGetTemperatureThreshold(
        limit.nvmlDeviceGetHandleByIndex(0), pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    faults.temperature(node.path, 0, slowdown)
    assert node.ledger() == {"ThermalSlowdown": "Announce"}
    for _ in range(20):  # the temperature swings around the limit
        faults.temperature(node.path, 0, slowdown - 1)
        assert node.ledger() == {"ThermalSlowdown": "Announce"}
        faults.temperature(node.path, 0, slowdown)
        assert node.ledger() == {"ThermalSlowdown": "Announce"}
    assert node.gpus[0].faults[0].status.count == 1, "one fault that lasts"
    faults.temperature(node.path, 0, slowdown - 5)
    node.faults(5)
    assert node.gpus[0].faults
    assert node.ledger() == {}


def test_a_link_that_was_up_and_is_down_is_a_fault_also_for_an_agent_that_never_saw_it_up(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.ledger() == {}
    faults.nvlink(node.path, 0, 3, down=True)
    assert node.ledger()["NvLinkDown"] == "NoSchedule"
    assert "NVLink 3 was up and is down" in node.gpus[0].faults[0].status.message
    assert "NvLinkDown" in Node(tmp_path).ledger()
    faults.nvlink(node.path, 0, 3, down=False)
    node.faults(CLEAN)
    assert "NvLinkDown" not in node.ledger()


def test_a_link_that_never_was_up_is_none_of_our_business(tmp_path: Path) -> None:
    create(tmp_path / "gpus.json", gpus=2, node_name="node-0")
    faults.nvlink(tmp_path / "gpus.json", 0, 3, down=True)
    node = Node(tmp_path)
    node.look()
    assert "NvLinkDown" not in node.ledger()


def test_errors_of_links_are_recorded_as_long_as_they_grow(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    faults.nvlink(node.path, 0, 1, crc=7)
    assert node.ledger() == {"NvLinkErrors": "Record"}
    node.faults(30)
    assert node.ledger() == {}


def test_the_links_of_a_divided_gpu_say_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    by_hand.set_mode(node.path, 0, 1)
    faults.nvlink(node.path, 0, 3, down=True)
    assert "NvLinkDown" not in node.ledger()


def test_what_a_policy_says_counts_before_the_table_and_only_for_that_fault(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    faults.xid(node.path, 1, 95)
    node.told()
    uuid = node.look()[0].uuid

    def said(effect: HealthEffect, clean_probes: int | None = None) -> None:
        one = FaultOverride(uuid=uuid, fault="Xid95", effect=effect, policy="lenient", clean_probes=clean_probes)
        node.record.overrides = (one,)

    said(HealthEffect.RECORD)
    assert node.faults() == ["", "Xid95"]
    assert [(one.status.effect, one.status.policy) for one in node.gpus[0].faults] == [(HealthEffect.RECORD, "lenient")]
    said(HealthEffect.NO_EXECUTE, 5)
    assert node.faults() == ["Xid95", "Xid95"]
    node.record.reloaded()
    assert node.faults(4) == ["Xid95", ""], "as many readings as the policy says"
    assert node.faults() == ["", ""]


def test_a_gpu_that_a_policys_job_has_repaired_is_well_after_clean_readings_also_after_a_restart(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 95)
    faults.xid(node.path, 1, 95)
    node.told()
    [reported] = node.look()[0].faults
    assert reported.status.last_seen is not None
    node.record.repaired.append(RepairedGpu(uuid=node.gpus[0].uuid, request="repair", until=reported.status.last_seen))
    assert node.faults() == ["Xid95", "Xid95"]
    node = Node(tmp_path)
    assert node.faults(CLEAN - 1) == ["", "Xid95"], "the record knows that it was repaired"


def test_a_fault_of_one_instance_leaves_the_rest_of_the_gpu_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    faults.xid(node.path, 0, 46, gi=1)
    faults.xid(node.path, 1, 95, gi=1)
    node.told()
    assert node.faults() == ["", "Xid95"], "XID 95 spreads"
    [part] = node.gpus[0].faults
    assert (part.blocking, part.concerns(0b1), part.concerns(0b10), part.concerns(None)) == (True, True, False, True)
    assert health(node.gpus[0])[0] is HealthState.HEALTHY


def test_a_record_that_cannot_be_read_or_written_costs_no_more_than_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text("{")
    node = Node(tmp_path)
    assert node.faults() == ["", ""]
    assert (tmp_path / "faults.aside.json").read_text() == "{"
    (tmp_path / "faults.json").unlink()
    (tmp_path / "faults.json.tmp").mkdir()  # makes writing fail
    faults.xid(node.path, 0, 95)
    node.told()
    assert node.faults() == ["Xid95", ""]
    (tmp_path / "faults.json.tmp").rmdir()
    node.look()
    assert Node(tmp_path).faults() == ["Xid95", ""], "written as soon as that was possible"


class Counted(Files):
    def __init__(self) -> None:
        self.writes = 0
        self.full = False

    def write(self, path: Path, content: bytes) -> None:
        self.writes += 1
        if self.full:
            raise OSError("No space left on device")
        super().write(path, content)


def test_what_stays_as_it_is_is_not_written_and_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    files = Counted()
    record = FaultRecord(tmp_path / "faults.json", files, boot_id="boot", driver_load=str, now=SystemClock().now)
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
        for _ in range(CLEAN):
            record.look(gpus)
    said = [(one["event"], one.get("fault", "")) for one in logs]
    assert said == [
        ("gpu.fault", "Xid95"),
        ("gpu.fault", "Xid119"),
        ("faults.not_kept", ""),
        ("gpu.fault_over", "Xid95"),
        ("gpu.fault_over", "Xid119"),
    ]
    assert [(one.name, one.over, one.grave) for one in record.news] == [
        ("Xid95", False, True),
        ("Xid119", False, True),
        ("Xid95", True, True),
        ("Xid119", True, True),
    ]


def test_a_program_that_causes_faults_all_the_time_does_not_make_the_agent_write_all_the_time(tmp_path: Path) -> None:
    files = Counted()
    record = FaultRecord(tmp_path / "faults.json", files, boot_id="boot", driver_load=str, now=SystemClock().now)
    gpus = [msgspec.structs.replace(a_gpu(0), uuid=GPU)]
    for _ in range(100):
        record.happened(an_xid(13))
        record.look(gpus)
    assert files.writes == 1
    assert record.judge(gpus)[0].faults[0].status.count == 100


def test_a_record_in_a_later_form_is_not_guessed_at_and_is_kept(tmp_path: Path) -> None:
    Node(tmp_path)
    gpus = load(tmp_path / "gpus.json")
    record = msgspec.json.encode({"version": 3, "faults": [{"gpu": gpus.gpus[0].uuid, "xid": 95}]})
    (tmp_path / "faults.json").write_bytes(record)
    assert Node(tmp_path).faults() == ["", ""]
    assert (tmp_path / "faults.aside.json").read_bytes() == record


def test_a_fault_that_another_release_has_a_name_for_is_announced(tmp_path: Path) -> None:
    node = Node(tmp_path)
    entry = {"gpu": node.gpus[0].uuid, "name": "LaserDim", "message": "The laser is dim.", "boot_id": "x"}
    record = {"version": 2, "ledger": {"entries": [entry]}, "more": 1}
    (tmp_path / "faults.json").write_bytes(msgspec.json.encode(record))
    again = Node(tmp_path)
    assert {one.status.name for one in again.gpus[0].faults} == {"LaserDim"}
    assert again.gpus[0].fault is None
