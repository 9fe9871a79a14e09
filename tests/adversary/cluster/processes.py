"""The processes below a program of ours, as /proc shows them: their memory, and one of them to kill.

Owns no process. One that ends meanwhile is none.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

RUNNING = "R"


def memory_mib(pid: int) -> float:
    """The memory of a process and of all below it, each page that several share counted once; 0 when it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    own = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    return own + sum(memory_mib(child) for child in children(pid))


def children(pid: int) -> Iterator[int]:
    """Those of a process, in no order."""
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            said = thread.read_text(encoding="ascii")
        except OSError:
            continue
        yield from map(int, said.split())


def is_running(pid: int) -> bool:
    """Whether it has or wants a processor at this moment, and does not wait for something."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return said.rpartition(")")[2].split()[0] == RUNNING


def is_fleet(pid: int) -> bool:
    """Whether it is an operator's process that holds the fleet, or a child of that."""
    try:
        return b"draco.controller.workers.fleet_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill(pid: int) -> bool:
    """SIGKILL. Whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
