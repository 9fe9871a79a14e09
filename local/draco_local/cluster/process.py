"""Background processes that are recorded on disk, so that another run can find and stop exactly these.

Owns starting, recording, recognising and stopping. Every process carries the state folder's path in its environment and
its start time in its record: a process that merely got the same pid later is never touched, and one that was started by a
run that died before it could write the record is still found.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from draco_local.cluster.errors import ProcessFailed
from draco_local.cluster.files import write_atomically

MARKER = "DRACO_CLUSTER_FOLDER"
"""Environment variable that every process of a cluster, and each of their children, carries: the cluster's state folder."""

_PASSED_ON = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME", "VIRTUAL_ENV"),
    "GOMAXPROCS",  # how many processors each of Kubernetes' programs may use at once
    "GOGC",  # how much more memory they may use before they collect garbage
)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_EXECVE_S = 2.0  # far longer than the kernel needs to load a program, also on a busy machine


class ProcessRecord(msgspec.Struct, frozen=True):
    """One started process. `start_ticks` is its start in clock ticks since boot `boot_id`: with the pid, its identity."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    argv: list[str]


class Processes:
    """The background processes of one state folder.

    Records are `<folder>/processes/<name>.json`, output goes to `<folder>/logs/<name>.log`. Not for use by two programs at
    once: a program that changes a cluster holds its lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = folder / "processes"
        self._logs = folder / "logs"
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        inherited: Sequence[int] = (),
    ) -> ProcessRecord:
        """Start `argv` in a session of its own, its output appended to its log; raises ProcessFailed if it cannot start.

        It and its children keep the `inherited` file descriptors until they end.
        """
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        arguments = [str(argument) for argument in argv]
        passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        try:
            with self.log(name).open("ab") as output:
                child = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=directory or self.folder,
                    env={**passed_on, **(environment or {}), MARKER: str(self.folder)},
                    start_new_session=True,
                    pass_fds=inherited,
                )
        except OSError as error:
            raise ProcessFailed(f"{name} cannot be started: {error}.") from error
        self._children[child.pid] = child
        record = ProcessRecord(
            name=name,
            pid=child.pid,
            start_ticks=start_ticks(child.pid) or 0,
            boot_id=boot_id(),
            argv=arguments,
        )
        write_atomically(self._records / f"{name}.json", msgspec.json.encode(record))
        return record

    def log(self, name: str) -> Path:
        """Return where the output of the process called `name` goes."""
        return self._logs / f"{name}.log"

    def records(self) -> list[ProcessRecord]:
        """Return every readable record, by name. One that cannot be read is left out: its process is found by its marker."""
        found = []
        for path in sorted(self._records.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=ProcessRecord))
        return found

    def alive(self, record: ProcessRecord) -> bool:
        """Whether that very process still runs."""
        child = self._children.get(record.pid)
        if child is not None:
            child.poll()  # reaps it, so that no zombie is left
        return record.boot_id == boot_id() and start_ticks(record.pid) == record.start_ticks

    def last_words(self, name: str) -> str:
        """Return the last line that the process called `name` wrote, or "" if it wrote nothing."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def stop(self, name: str, *, grace_s: float = 5.0) -> None:
        """Ask the process called `name` to end, kill it after `grace_s` seconds, and forget it. With 0 it is killed at once."""
        self.stop_each([name], grace_s=grace_s)

    def stop_each(self, names: Iterable[str], *, grace_s: float = 5.0) -> None:
        """Stop several processes side by side, within one grace period."""
        wanted = set(names)
        records = [record for record in self.records() if record.name in wanted]
        _end([(record.pid, record.start_ticks) for record in records if self.alive(record)], grace_s=grace_s)
        for record in records:
            if child := self._children.pop(record.pid, None):
                child.wait()
            (self._records / f"{record.name}.json").unlink(missing_ok=True)

    def strays(self) -> list[tuple[int, int]]:
        """Pid and start of every process on this machine that carries this folder's marker, recorded or not."""
        return list(marked_with(self.folder))

    def stop_strays(self, *, grace_s: float = 0.0) -> None:
        """Stop every process that carries this folder's marker, until none is left."""
        deadline = time.monotonic() + 30.0
        while strays := self.strays():
            _end(strays, grace_s=grace_s)
            for pid, _ in strays:
                if child := self._children.pop(pid, None):
                    child.wait()
            if time.monotonic() > deadline:
                pids = ", ".join(str(pid) for pid, _ in strays)
                raise ProcessFailed(f"Processes {pids} of {self.folder} do not end: end them by hand and try again.")


def boot_id() -> str:
    """Identifies this boot of the machine: start times of processes count from it."""
    return _BOOT_ID.read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None when there is none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = _after_name(text)
    state, ticks = fields[0], int(fields[19])
    return None if state in "ZX" else ticks


def marked_with(folder: Path) -> Iterator[tuple[int, int]]:
    """Pid and start of every process whose environment names `folder`, or a folder in it, as its state folder."""
    wanted = f"{MARKER}={folder}".encode()
    beneath = wanted + b"/"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        ticks = start_ticks(pid)
        if ticks is None or pid == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            if any(variable == wanted or variable.startswith(beneath) for variable in _environment(entry)):
                yield pid, ticks


def _environment(entry: Path) -> list[bytes]:
    """The variables of the process whose folder in /proc is `entry`; OSError if they cannot be read.

    Waits out an execve, during which the process has new memory but no variables yet.
    """
    deadline = time.monotonic() + _EXECVE_S
    while not (text := (entry / "environ").read_bytes()) and _within_execve(entry) and time.monotonic() < deadline:
        time.sleep(0.001)
    return text.split(b"\0")


def _within_execve(entry: Path) -> bool:
    """Whether it has memory (a kernel thread has none), but no address yet where its variables end (proc(5), stat)."""
    fields = _after_name((entry / "stat").read_text())
    return int(fields[20]) > 0 and int(fields[48]) == 0


def _after_name(stat: str) -> list[str]:
    """The fields of /proc/PID/stat from the third, the state, on: the name in parentheses before it may hold anything."""
    return stat.rpartition(")")[2].split()


def _end(processes: Iterable[tuple[int, int]], *, grace_s: float) -> None:
    """SIGTERM, then SIGKILL after `grace_s`, to exactly these (pid, start) pairs; returns when they are gone."""
    with contextlib.ExitStack() as stack:
        handles: list[int] = []
        for pid, ticks in processes:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, handle)
            if start_ticks(pid) == ticks:  # checked while the handle pins the process: a reused pid cannot slip in
                handles.append(handle)
        if grace_s > 0:
            _signal(handles, signal.SIGTERM)
            handles = _still_running(handles, wait_s=grace_s)
        _signal(handles, signal.SIGKILL)
        _still_running(handles, wait_s=10.0)


def _signal(handles: Iterable[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _still_running(handles: Iterable[int], *, wait_s: float) -> list[int]:
    """Those that have not ended after `wait_s` seconds; a handle becomes readable when its process ends."""
    left = set(handles)
    deadline = time.monotonic() + wait_s
    poll = select.poll()
    for handle in left:
        poll.register(handle, select.POLLIN)
    while left and (remaining := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(remaining * 1000):
            poll.unregister(handle)
            left.discard(handle)
    return sorted(left)
