"""Recorded background processes: exactly these are found and stopped, and no others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from draco_local.cluster.errors import ProcessFailed
from draco_local.cluster.process import MARKER, Processes, boot_id, start_ticks

SLEEP = ["sleep", "600"]
IGNORES_TERM = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.stop_strays()


def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def test_a_process_is_found_and_stopped_by_another_run(processes: Processes, tmp_path: Path) -> None:
    started = processes.start("a", SLEEP)
    later = Processes(tmp_path)
    assert [(record.name, record.pid, later.alive(record)) for record in later.records()] == [("a", started.pid, True)]
    later.stop("a", grace_s=2)
    assert start_ticks(started.pid) is None
    assert later.records() == []


def test_a_reused_pid_is_neither_alive_nor_killed(processes: Processes, tmp_path: Path) -> None:
    bystander = subprocess.Popen(SLEEP)
    try:
        record = processes.start("a", SLEEP)
        processes.stop("a", grace_s=0)
        # The record after the process ended and its pid was reused.
        stale = msgspec.structs.replace(record, pid=bystander.pid, start_ticks=record.start_ticks - 100)
        (tmp_path / "processes" / "a.json").write_bytes(msgspec.json.encode(stale))
        later = Processes(tmp_path)
        assert not later.alive(stale)
        later.stop("a", grace_s=0)
        assert later.records() == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_record_of_an_earlier_boot_names_nobody(processes: Processes, tmp_path: Path) -> None:
    record = processes.start("a", SLEEP)
    before_reboot = msgspec.structs.replace(record, boot_id="an earlier boot")
    (tmp_path / "processes" / "a.json").write_bytes(msgspec.json.encode(before_reboot))
    later = Processes(tmp_path)
    assert not later.alive(before_reboot)
    later.stop("a", grace_s=0)
    assert start_ticks(record.pid) == record.start_ticks


def test_a_process_that_was_never_recorded_is_found_with_its_children(processes: Processes, tmp_path: Path) -> None:
    record = processes.start("parent", ["sh", "-c", "sleep 600 & sleep 600"])
    (tmp_path / "processes" / "parent.json").unlink()
    until(lambda: len(processes.strays()) == 3)
    later = Processes(tmp_path)
    later.stop_strays()
    assert later.strays() == []
    assert start_ticks(record.pid) is None


def test_processes_of_another_folder_are_left_alone(processes: Processes, tmp_path: Path) -> None:
    other = Processes(tmp_path.with_name(f"{tmp_path.name}-2"))
    other.folder.mkdir()
    record = other.start("a", SLEEP)
    try:
        assert processes.strays() == []
        processes.stop_strays()
        assert other.alive(record)
    finally:
        other.stop("a", grace_s=0)


def test_processes_of_a_folder_inside_are_found(processes: Processes, tmp_path: Path) -> None:
    inner = Processes(tmp_path / "inner")
    inner.folder.mkdir()
    record = inner.start("a", SLEEP)
    assert (record.pid, record.start_ticks) in processes.strays()


def test_one_that_ignores_being_asked_is_killed_after_the_grace_period(processes: Processes) -> None:
    record = processes.start("stubborn", IGNORES_TERM)
    until(lambda: processes.last_words("stubborn") == "ready")
    processes.stop("stubborn", grace_s=0.3)
    assert start_ticks(record.pid) is None


def test_one_that_can_end_by_itself_is_given_the_time(processes: Processes, tmp_path: Path) -> None:
    script = f"trap 'echo bye > {tmp_path}/bye; exit' TERM; echo ready; while :; do sleep 0.05; done"
    processes.start("polite", ["sh", "-c", script])
    until(lambda: processes.last_words("polite") == "ready")
    processes.stop("polite", grace_s=10)
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_a_process_outlives_the_run_that_started_it(tmp_path: Path) -> None:
    starter = (
        "import sys; from pathlib import Path; from draco_local.cluster.process import Processes; import os, signal\n"
        "Processes(Path(sys.argv[1])).start('a', ['sleep', '600'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", starter, tmp_path], check=False)
    assert died.returncode == -signal.SIGKILL
    later = Processes(tmp_path)
    assert [later.alive(record) for record in later.records()] == [True]
    later.stop("a", grace_s=0)
    assert later.strays() == []


def test_the_dead_are_not_alive_even_before_they_are_reaped(processes: Processes, tmp_path: Path) -> None:
    record = processes.start("a", ["true"])
    until(lambda: not Processes(tmp_path).alive(record))


def test_a_damaged_record_does_not_hide_the_process(processes: Processes, tmp_path: Path) -> None:
    record = processes.start("a", SLEEP)
    (tmp_path / "processes" / "a.json").write_text('{"name": "a", "pi')
    later = Processes(tmp_path)
    assert later.records() == []
    assert later.strays() == [(record.pid, record.start_ticks)]


def test_a_process_in_the_middle_of_its_start_is_found(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = processes.start("a", SLEEP)
    until(lambda: Path(f"/proc/{record.pid}/environ").read_bytes() != b"")
    environ, stat = Path(f"/proc/{record.pid}/environ"), Path(f"/proc/{record.pid}/stat")
    name, _, rest = stat.read_text().rpartition(")")
    unset = rest.split()
    unset[48] = "0"  # the address of the end of the environment: 0 until the kernel has set it
    left = [b"", b"", environ.read_bytes()]
    read_bytes, read_text = Path.read_bytes, Path.read_text
    monkeypatch.setattr(Path, "read_bytes", lambda path: left.pop(0) if path == environ else read_bytes(path))
    monkeypatch.setattr(
        Path, "read_text", lambda path, **kw: f"{name}) {' '.join(unset)}" if path == stat else read_text(path, **kw)
    )
    assert processes.strays() == [(record.pid, record.start_ticks)]
    assert left == []


def test_a_program_that_does_not_exist_is_one_sentence(processes: Processes) -> None:
    with pytest.raises(ProcessFailed, match=r"^etcd cannot be started: .*no-such-program"):
        processes.start("etcd", ["/no-such-program"])


def test_a_process_gets_the_marker_and_no_proxy_settings(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    processes.start("a", ["env"])
    until(lambda: MARKER in processes.log("a").read_text())
    told = processes.log("a").read_text()
    assert f"{MARKER}={tmp_path}" in told
    assert "PROXY" not in told


def test_a_run_that_was_started_by_the_cluster_does_not_stop_itself(tmp_path: Path) -> None:
    sweep = "import sys; from pathlib import Path; from draco_local.cluster.process import Processes\n"
    sweep += "Processes(Path(sys.argv[1])).stop_strays(); print('still here')"
    environ = {**os.environ, MARKER: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", sweep, tmp_path], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout == "still here\n"


def test_an_interrupt_at_the_terminal_does_not_reach_it(processes: Processes) -> None:
    record = processes.start("a", SLEEP)
    assert os.getsid(record.pid) == record.pid


def test_a_boot_has_an_identity() -> None:
    assert len(boot_id()) == 36
