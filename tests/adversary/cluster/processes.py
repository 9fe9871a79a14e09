"""A program's descendant processes in /proc: their memory, and killing one.

Owns no process. Ignores processes that end meanwhile.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

RUNNING = "R"


def memory_mib(pid: int) -> float:
    """Memory of a process and its descendants, with shared pages counted once; 0 if it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    return own + sum(memory_mib(child) for child in children(pid))


def children(pid: int) -> Iterator[int]:
    """PIDs of a process' children, in no order."""
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            said = thread.read_text(encoding="ascii")
        except OSError:
            continue
        yield from map(int, said.split())


def is_running(pid: int) -> bool:
    """Whether it is running or runnable, not sleeping."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return said.rpartition(")")[2].split()[0] == RUNNING


def is_fleet(pid: int) -> bool:
    """Whether it is an operator's fleet process or a child of it."""
    try:
        return b"draco.controller.workers.fleet_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill(pid: int) -> bool:
    """Send SIGKILL. Returns whether the process existed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
