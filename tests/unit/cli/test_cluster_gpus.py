"""`draco cluster gpu`: what each command does to a node's GPUs, and what it prints."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pynvml
import pytest

from draco import cli
from draco_local.cluster.state import ClusterSpec, ClusterState, Record
from draco_local.simulator.gpus.state import Failure, SimulatedNodeState, create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml

Run = Callable[..., str]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state file of the only node of a cluster called draco, which has two H100."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = Record("draco")
    record.write(
        ClusterState(
            name="draco", phase="ready", wanted=ClusterSpec(nodes=1, gpus=2), created=datetime(2026, 1, 1, tzinfo=UTC)
        )
    )
    file = record.folder / "sockets" / "gpu-node-0" / "gpus.json"
    create(file, board="H100-80GB", gpus=2, node_name="gpu-node-0")
    return file


@pytest.fixture
def run(path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `draco cluster gpu ...` and returns what it printed; `status` is the exit status to expect."""

    def call(line: str, status: int = 0) -> str:
        assert cli.run(["cluster", "gpu", *line.split()]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return call


def test_a_day_of_an_instance_made_by_hand(run: Run, path: Path) -> None:
    assert run("mig gpu-node-0 0 on") == "MIG mode is on.\n"
    assert run("create gpu-node-0 0 3g.40gb --start 4").startswith("Created GPU instance 2 at unit 4: MIG-")
    assert (
        run("create gpu-node-0 0 1g.10gb --start 0 --only-gi")
        == "Created GPU instance 7 at unit 0: no compute instance.\n"
    )
    assert "holds compute instance 0 of GPU instance 2 of GPU 0" in run(
        "hold gpu-node-0 0 --gi 2 --pid 77 --program python3"
    )
    assert run("hold gpu-node-0 0 --gi 7 --handle") == "Process 100000 holds GPU instance 7 of GPU 0.\n"
    shown = run("show gpu-node-0")
    uuid = load(path).gpus[0].instances[0].compute[0].uuid
    assert (
        f"GPU 0  {load(path).gpus[0].uuid}  H100-80GB  MIG on\n  GI 7  1g.10gb  unit 0  no compute instance\n" in shown
    )
    assert f"  GI 2  3g.40gb  units 4-7  CI 0 {uuid}\n" in shown
    assert "  process 77 (python3) holds compute instance 0 of GPU instance 2 of GPU 0\n" in shown
    assert "  process 100000 holds GPU instance 7 of GPU 0, not listed by NVML\n" in shown
    assert run("destroy gpu-node-0 0 2", 1) == (
        "Error: NVML refuses that for GPU 0: "
        "In use by another client (processes that hold something of this GPU: 77, 100000).\n"
    )
    run("release gpu-node-0 77")
    run("destroy gpu-node-0 0 2")
    assert [instance.id for instance in load(path).gpus[0].instances] == [7]
    assert "MIG mode of GPU" in run("mig gpu-node-0 0 off", 1)
    run("release gpu-node-0 100000")
    run("reset gpu-node-0 0")
    assert load(path).gpus[0].instances == []


def test_a_dead_gpu_is_not_there_after_a_reboot_until_somebody_comes(run: Run, path: Path) -> None:
    uuid = load(path).gpus[0].uuid
    run("lose gpu-node-0 0")
    run("reboot gpu-node-0")
    assert f"Missing: {uuid}  H100-80GB  at {load(path).missing[0].bus_id}, fallen off the bus\n" in run(
        "show gpu-node-0"
    )
    run(f"reseat gpu-node-0 {uuid}")
    run("remove gpu-node-0 0")
    assert ", taken out\n" in run("show gpu-node-0")
    assert run(f"replace gpu-node-0 {uuid}") == f"The new GPU is {load(path).gpus[0].uuid}.\n"
    assert load(path).gpus[0].uuid != uuid


def test_what_hangs_is_shown_and_let_go(run: Run, path: Path) -> None:
    run("hang gpu-node-0 nvmlDeviceGetName --gpu 1")
    assert f"nvmlDeviceGetName hangs on {load(path).gpus[1].uuid}\n" in run("show gpu-node-0")
    run("stop-failing gpu-node-0")
    assert load(path).failures == []


def test_what_is_in_the_way_is_named(run: Run) -> None:
    run("mig gpu-node-0 0 on")
    run("create gpu-node-0 0 3g.40gb --start 4")
    beside = "on GPU 0 beside 3g.40gb at 4.\n"
    assert run("create gpu-node-0 0 7g.80gb", 1) == f"Error: There is no room for 7g.80gb {beside}"
    assert run("create gpu-node-0 0 2g.20gb --start 4", 1) == f"Error: There is no room for 2g.20gb at unit 4 {beside}"
    assert run("destroy gpu-node-0 0 7", 1) == "Error: GPU 0 has no GPU instance 7; it has 2.\n"
    assert run("mig gpu-node-0 0 off", 1).endswith("in use by another client; destroy its GPU instances first (2).\n")
    said = "Error: NVML has no function nvmlGpuInstanceDestory; did you mean nvmlGpuInstanceDestroy?\n"
    assert run("fail gpu-node-0 nvmlGpuInstanceDestory UNKNOWN", 1) == said


def test_an_ampere_gpu_says_that_it_waits_for_a_reset(run: Run, path: Path) -> None:
    create(path, board="A100-40GB", gpus=1, node_name="gpu-node-0")
    assert run("mig gpu-node-0 0 on") == "MIG mode is on after a reset of the GPU.\n"
    assert "A100-40GB  MIG off, changes with a reset\n" in run("show gpu-node-0")
    run("reset gpu-node-0 0")
    assert "A100-40GB  MIG on\n" in run("show gpu-node-0")
    create(path, board="L40S", gpus=1, node_name="gpu-node-0")
    assert "L40S  no MIG\n" in run("show gpu-node-0")
    assert "does not support MIG." in run("create gpu-node-0 0 1g.5gb", 1)
    assert "NVML refuses that for GPU 0: Not Supported." in run("mig gpu-node-0 0 on", 1)


def test_faults_are_set_shown_and_healed(run: Run, path: Path) -> None:
    uuid = load(path).gpus[1].uuid
    run(f"unreadable gpu-node-0 {uuid}")
    run("recovery gpu-node-0 0 drain-and-reset")
    run("temperature gpu-node-0 0 90")
    run("ecc gpu-node-0 0 --uncorrected 2")
    run("xid gpu-node-0 0 48 --gi 2")
    shown = run("show gpu-node-0")
    assert "  every call answers UNKNOWN\n" in shown
    assert "  needs drain-and-reset\n" in shown
    state = load(path)
    assert (state.gpus[0].temperature_c, state.gpus[0].ecc.uncorrected_volatile) == (90, 2)
    assert (state.events[-1].data, state.events[-1].gpu_instance) == (48, 2)
    run("lose gpu-node-0 1")
    run("heal gpu-node-0 0")
    run("heal gpu-node-0 1")
    run("reboot gpu-node-0 --minors 1,0")
    state = load(path)
    assert ([gpu.error for gpu in state.gpus], [gpu.minor for gpu in state.gpus]) == ([0, 0], [1, 0])
    assert state.gpus[0].recovery_action == 0
    run("break-driver gpu-node-0")
    assert "  the driver answers DRIVER_NOT_LOADED\n" in run("show gpu-node-0")
    run("break-driver gpu-node-0 lib_rm_version_mismatch")
    assert load(path).driver.error == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    run("reload-driver gpu-node-0 --version 590.48.01")
    assert load(path).driver.error == 0
    assert load(path).driver.version == "590.48.01"


def test_nvidia_smi_fails_or_is_missing_and_what_it_set_is_shown(run: Run, path: Path) -> None:
    run("fail gpu-node-0 nvidia-smi NOT_SUPPORTED --gpu 0")
    run("nvidia-smi gpu-node-0 missing")
    with mutate(path) as state:
        state.gpus[1].compute_mode, state.gpus[1].time_slice = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, 3
    shown = run("show gpu-node-0")
    assert f"nvidia-smi fails with NOT_SUPPORTED on {state.gpus[0].uuid}, always\n" in shown
    assert "  nvidia-smi is missing\n" in shown
    assert "MIG off\n  compute mode EXCLUSIVE_PROCESS\n  time slice Long\n" in shown
    run("nvidia-smi gpu-node-0 installed")
    run("stop-failing gpu-node-0 nvidia-smi")
    assert "nvidia-smi" not in run("show gpu-node-0")


def test_programs_that_are_given_no_number_get_different_ones(run: Run, path: Path) -> None:
    for gpu in (0, 0, 1):
        run(f"hold gpu-node-0 {gpu} --handle")
    assert [process.pid for gpu in load(path).gpus for process in gpu.processes] == [100_000, 100_001, 100_002]


def test_failures_and_latency_are_set_shown_and_ended(run: Run, path: Path) -> None:
    run("fail gpu-node-0 nvmlGpuInstanceDestroy in_use --gpu 0 --gi 2 --times 3")
    run("fail gpu-node-0 nvmlInit UNKNOWN --afterwards")
    run("latency gpu-node-0 1.5 --function nvmlGpuInstanceDestroy")
    state = load(path)
    assert state.failures == [
        Failure(
            pynvml.NVML_ERROR_IN_USE,
            function="nvmlGpuInstanceDestroy",
            gpu_uuid=state.gpus[0].uuid,
            gpu_instance=2,
            times=3,
        ),
        Failure(pynvml.NVML_ERROR_UNKNOWN, function="nvmlInit", effect="done"),
    ]
    shown = run("show gpu-node-0")
    assert f"nvmlGpuInstanceDestroy fails with IN_USE on {state.gpus[0].uuid}, GPU instance 2, 3 times\n" in shown
    assert "nvmlInit does its work and fails with UNKNOWN, always\n" in shown
    assert "nvmlGpuInstanceDestroy takes 1.5 s longer\n" in shown
    run("stop-failing gpu-node-0")
    run("latency gpu-node-0 0 --function nvmlGpuInstanceDestroy")
    assert (load(path).failures, load(path).latency_s) == ([], {})


def test_what_is_shown_as_json_is_the_whole_state(run: Run, path: Path) -> None:
    assert msgspec.json.decode(run("show gpu-node-0 -o json"), type=SimulatedNodeState) == load(path)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("show gpu-node-1", 1, "Cluster draco has no node gpu-node-1; it has: gpu-node-0. Did you mean gpu-node-0?"),
        ("lose gpu-node-0 5", 1, "Node gpu-node-0 has no GPU 5; it has 0 to 1."),
        ("mig gpu-node-0 7 on", 1, "Node gpu-node-0 has no GPU 7; it has 0 to 1."),
        ("create gpu-node-0 1 3g.41gb", 1, "Board H100-80GB has no MIG profile '3g.41gb'; it has: 1g.10gb, "),
        (
            "create gpu-node-0 1 3g.40gb --start 2",
            1,
            "3g.40gb does not start at unit 2 on board H100-80GB; it starts at 0, 4.",
        ),
        ("create gpu-node-0 0 3g.40gb", 1, "is off: switch it on first."),
        ("destroy gpu-node-0 0 1", 1, "is off: switch it on first."),
        ("destroy gpu-node-0 1 1", 1, "GPU 1 has no GPU instance 1; it has none."),
        ("hold gpu-node-0 0 --ci 1", 2, "--ci names a compute instance of a GPU instance: say which with --gi."),
        ("hold gpu-node-0 0 --gi 1", 1, "has no GPU instance 1; there are: none."),
        ("release gpu-node-0 5", 1, "No process 5 holds a GPU of node gpu-node-0."),
        ("fail gpu-node-0 nvmlFly UNKNOWN", 1, "NVML has no function nvmlFly."),
        ("fail gpu-node-0 nvmlInit BAD", 2, "'BAD' is not one of"),
        ("ecc gpu-node-0 0", 2, "Say how many"),
        ("reboot gpu-node-0 --minors a,b", 2, "'a,b' is not a list like 1,0,2."),
        ("show gpu-node-0 --name other", 1, "There is no cluster called other"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_and_changes_nothing(
    run: Run, path: Path, line: str, status: int, said: str
) -> None:
    with mutate(path) as state:
        state.gpus[1].mig_current = state.gpus[1].mig_pending = 1
    before = path.read_bytes()
    assert said in run(line, status)
    assert path.read_bytes() == before


def test_an_agent_sees_it_at_once(run: Run, path: Path) -> None:
    nvml = SimulatedNvml(path)
    nvml.nvmlInit()
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlEventTypeAll, events)
    run("xid gpu-node-0 0 79")
    assert nvml.nvmlEventSetWait_v2(events, 0).eventData == 79


def test_broken_memory_and_links_are_shown(run: Run, path: Path) -> None:
    run("remap gpu-node-0 0 --correctable 1 --uncorrectable 2 --failed")
    run("nvlink gpu-node-0 0 3 --down --replay 2 --crc 1")
    shown = run("show gpu-node-0")
    assert "  3 memory rows remapped, in use after a reset\n  a memory row could not be remapped\n" in shown
    assert "  NVLink 3: down, 2 replays, 1 CRC errors\n" in shown
    run("nvlink gpu-node-0 0 3 --up")
    run("reset gpu-node-0 0")
    shown = run("show gpu-node-0")
    assert "  3 memory rows remapped\n" in shown
    assert "NVLink" not in shown
    assert "has no NVLink 18; its links are 0 to 17." in run("nvlink gpu-node-0 0 18 --down", 1)
    assert "Say what: --down, --up" in run("nvlink gpu-node-0 0 1", 2)
    assert "Say which: --correctable N" in run("remap gpu-node-0 0", 2)


def test_a_bridge_joins_two_cards_that_take_one_by_a_reboot(run: Run, path: Path) -> None:
    boot = load(path).boot
    assert run("bridge gpu-node-0", 1) == "Error: No NVLink bridge fits on board H100-80GB.\n"
    assert load(path).boot == boot
    path.unlink()
    create(path, board="A30", gpus=3, node_name="gpu-node-0")
    run("bridge gpu-node-0")
    one, other, alone = load(path).gpus
    assert (one.bridged_to, other.bridged_to, alone.bridged_to) == (other.uuid, one.uuid, "")
    assert load(path).boot == boot + 1
