"""Finds the processes of MPS daemons, and those of the containers that have a daemon's pipe.

Every daemon is started with a mark in its environment, which its servers inherit: the kernel tells it of a running process,
whoever started that. Owns the mark. Kills by process, never by name.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from draco.agent.mps.folder import DaemonName

MARK: Final = "DRACO_MPS_DAEMON"


class MarkedProcess(NamedTuple):
    """A process of a daemon, and what the daemon was started for."""

    pid: int
    purpose: str


def mark(name: DaemonName, purpose: str) -> dict[str, str]:
    """The environment that marks a daemon."""
    return {MARK: f"{name}/{purpose}"}


class NodeProcesses:
    """The node's processes."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def of(self, name: DaemonName) -> list[MarkedProcess]:
        """The processes of a daemon."""
        start = f"{MARK}={name}/".encode()
        found = []
        for pid in self._pids():
            with suppress(OSError):
                variables = (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
                found += [
                    MarkedProcess(pid, each[len(start) :].decode()) for each in variables if each.startswith(start)
                ]
        return [each for each in found if not self._ended(each.pid)]

    def with_mount(self, folder: Path, *, besides: set[int]) -> list[int]:
        """The processes, but for some, that have this folder of the node mounted: those of a claim's containers."""
        ending = f"/{folder.parent.name}/{folder.name} ".encode()
        found = []
        for pid in set(self._pids()) - besides:
            with suppress(OSError):
                if ending in (self._proc / str(pid) / "mountinfo").read_bytes():
                    found.append(pid)
        return found

    def kill(self, name: DaemonName) -> None:
        """End the processes of a daemon now."""
        for each in self.of(name):
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)

    def _ended(self, pid: int) -> bool:
        """Whether only its parent has to hear of its end."""
        try:
            return (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (OSError, IndexError):
            return True

    def _pids(self) -> Iterator[int]:
        yield from (int(each.name) for each in self._proc.iterdir() if each.name.isdecimal())
