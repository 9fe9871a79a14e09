"""Locks between processes."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draco_local.cluster import locks

HOLDER = (
    "import sys, time; from pathlib import Path; from draco_local.cluster import locks\n"
    "with locks.held(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(600)"
)


def hold_elsewhere(path: Path) -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_holder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_elsewhere(path) as holder:
        with pytest.raises(locks.LockHeld) as refused, locks.held(path):
            pass
        assert refused.value.holder == str(holder.pid)
        holder.kill()


def test_a_killed_holder_leaves_nothing_to_clean_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_elsewhere(path) as holder:
        holder.kill()
    with locks.held(path):
        assert path.read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_one_may_wait_for_the_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waited_for = []
    with hold_elsewhere(path) as holder:

        def waiting(pid: str) -> None:
            waited_for.append(pid)
            holder.kill()

        with locks.waited_for(path, waiting):
            assert path.read_text() == str(os.getpid())
        assert set(waited_for) == {str(holder.pid)}


def test_who_waits_is_told_once_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told, looks = tmp_path / "lock", list[str](), list[float]()
    with hold_elsewhere(path) as holder:

        def look_again(pause_s: float) -> None:
            looks.append(pause_s)
            if len(looks) == 3:
                holder.kill()
                holder.wait()

        monkeypatch.setattr("draco_local.cluster.locks.time.sleep", look_again)
        with locks.waited_for(path, told.append):
            assert told == [str(holder.pid)]
    assert len(looks) >= 3


def test_a_lock_whose_file_was_removed_meanwhile_is_not_taken_for_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    lock = fcntl.flock
    turns: list[int] = []

    def removed_first(descriptor: int, operation: int) -> None:
        if not turns:
            path.unlink()  # the holder removed the file between opening and locking it
        turns.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with locks.held(path):
        assert len(turns) == 2
        with pytest.raises(locks.LockHeld), locks.held(path):
            pass


def test_only_who_leaves_a_shared_lock_as_the_last_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    cleaned: list[str] = []
    with locks.shared(path, last=lambda: cleaned.append("outer")):
        with locks.shared(path, last=lambda: cleaned.append("inner")), pytest.raises(locks.LockHeld), locks.held(path):
            pass
        assert cleaned == []
    assert cleaned == ["outer"]
    assert list(tmp_path.iterdir()) == []


def test_who_fails_under_a_shared_lock_cleans_nothing_up(tmp_path: Path) -> None:
    cleaned: list[str] = []
    with pytest.raises(KeyboardInterrupt), locks.shared(tmp_path / "lock", last=lambda: cleaned.append("failed")):
        raise KeyboardInterrupt
    assert cleaned == []
    assert list(tmp_path.iterdir()) == []
    with locks.shared(tmp_path / "lock", last=lambda: cleaned.append("next")):
        pass
    assert cleaned == ["next"]
