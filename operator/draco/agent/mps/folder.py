"""The folder in which the agent says which MPS control daemons its node's claims need, and where those have their files.

Agent and keeper (`draco.mps`) meet only here, on the node's disk: pods must start while the API server is away. The agent writes
`<daemon>/wanted.json` and removes it; the keeper makes the folders beside it and runs the daemon, and removes all of that when
nothing is wanted any more. Whether a daemon runs is asked of the daemon (`control`), never read here.

Owns the names and the format. A keeper of another version reads it too: optional fields may be added.
"""

import fcntl
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NewType

import msgspec

from draco.agent.files import TEMPORARY, Files, is_locked

DaemonName = NewType("DaemonName", str)
"""Short, since sockets below it may have 107 bytes in their paths."""
WANTED: Final = "wanted.json"
STATE: Final = "state.json"
_LOCK: Final = "keeper.lock"


class WantedDaemon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A control daemon that a claim needs. `devices` are UUIDs, in CUDA's order; `limits_mib` belong to them, None for none."""

    claim: str
    devices: list[str]
    percentage: int | None = None
    limits_mib: list[int | None] = []
    multi_user: bool = False
    place: str = ""
    """Of a MIG device: `place_name` of its instance, whose UUID is new whenever it is made."""

    def is_like(self, other: "WantedDaemon | None") -> bool:
        """Whether the other serves as well, for whichever claim."""
        return other is not None and msgspec.structs.replace(other, claim=self.claim) == self


class DaemonState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the keeper found: `problem` is the end of a sentence, "" while all is well.

    `starts` counts all starts of the daemon for its claim, `failures` the last ones in a row that failed.
    """

    problem: str = ""
    starts: int = 0
    failures: int = 0


def daemon_name(devices: Sequence[str]) -> DaemonName:
    """The name of the daemon of these devices: that of the first, since a device has one daemon at a time."""
    return DaemonName(hashlib.sha256(min(devices).encode()).hexdigest()[:12])


def place_name(gpu: str, profile_id: int, start: int) -> str:
    """The place of an instance, which has a daemon of its own."""
    return f"{gpu}/{profile_id}/{start}"


class MpsFolder:
    """The folder of one node."""

    def __init__(self, root: Path, files: Files) -> None:
        self.root = root
        self._files = files

    def want(self, name: DaemonName, daemon: WantedDaemon) -> None:
        """Ask for a daemon, or for another one in its place."""
        if not daemon.is_like(self.wanted(name)):
            self._files.write_volatile(self.root / name / WANTED, msgspec.json.encode(daemon))

    def forget(self, name: DaemonName) -> None:
        """Ask that the daemon be ended."""
        self._files.remove(self.root / name / WANTED)

    def wanted(self, name: DaemonName) -> WantedDaemon | None:
        """What is asked for under this name; None if nothing is."""
        with suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return msgspec.json.decode(self._files.read(self.root / name / WANTED), type=WantedDaemon)
        return None

    def has(self, name: DaemonName) -> bool:
        """Whether a daemon is wanted or has files."""
        return (self.root / name).exists()

    def names(self) -> list[DaemonName]:
        """Every daemon that is wanted or has files."""
        return [DaemonName(each) for each in self._files.names(self.root) if (self.root / each).is_dir()]

    def path(self, name: DaemonName) -> Path:
        """The folder of one daemon."""
        return self.root / name

    def pipe(self, name: DaemonName) -> Path:
        """Where it answers."""
        return self.root / name / "pipe"

    def log(self, name: DaemonName) -> Path:
        """Where it writes its log."""
        return self.root / name / "log"

    def shm(self, name: DaemonName) -> Path:
        """The memory that it shares with its clients."""
        return self.root / name / "shm"

    def state(self, name: DaemonName) -> DaemonState:
        """What the keeper says of it."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._files.read(self.root / name / STATE), type=DaemonState)
        return DaemonState()

    def say(self, name: DaemonName, state: DaemonState) -> None:
        """Write what the keeper says of it."""
        if self.state(name) != state:
            self._files.write_volatile(self.root / name / STATE, msgspec.json.encode(state))

    def sweep(self, name: DaemonName) -> None:
        """Remove the files of both, but not the daemon's own folders."""
        for each in (STATE, *(f"{one}{TEMPORARY}" for one in (WANTED, STATE))):
            self._files.remove(self.root / name / each)

    def keep(self) -> int | None:
        """Become the node's keeper until this process ends; None if another one is. The descriptor holds the lock."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_kept(self) -> bool:
        """Whether a keeper runs on this node."""
        return is_locked(self.root / _LOCK)
