"""Socket files that several programs may want: creates, probes and removes them without touching another program's.

Owns the file operations. Another program may replace a file between a look at it and an action on it, so a file is never removed
by name: it is moved aside, checked there, and put back if it is the wrong one. A socket with a listener is never unlinked.
"""

import os
import secrets
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from draco.agent.errors import AgentError

DIAL_TIMEOUT_S = 2.0


class SocketTaken(AgentError):
    """Another process listens on a socket path that we want."""

    def __init__(self, path: Path, pid: int) -> None:
        who = f"process {pid}" if pid else "a process that is not visible from here"
        super().__init__(f"The socket {path} is served by {who}.")


class SocketFile(NamedTuple):
    """Identity of a socket file, whatever its name: inode numbers are reused, but not at the same time."""

    device: int
    inode: int
    bound_ns: int


def identity(path: Path) -> SocketFile | None:
    """The file's identity; None if it does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return SocketFile(found.st_dev, found.st_ino, found.st_mtime_ns)


def listener(path: Path) -> int | None:
    """The process that listens there (0: not visible to us); None without a listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(DIAL_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return 0  # of another type, or too busy to answer
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def hidden_beside(path: Path) -> Path:
    """An unused name in the same folder that kubelet ignores. No longer than "x.sock"."""
    return path.with_name(f".{secrets.token_hex(3)}")


def show(hidden: Path, path: Path) -> SocketFile:
    """Give a socket that was bound under a hidden name its public name, replacing an earlier run's leftover.

    Raises SocketTaken if a process listens there; the hidden name is removed then.
    """
    while True:
        try:
            path.hardlink_to(hidden)
        except FileExistsError:
            try:
                _clear(path)
            except SocketTaken:
                hidden.unlink(missing_ok=True)
                raise
            continue
        hidden.unlink(missing_ok=True)
        found = path.lstat()
        return SocketFile(found.st_dev, found.st_ino, found.st_mtime_ns)


def withdraw(path: Path, one: SocketFile) -> None:
    """Remove that file, unless the path is another file by now."""
    aside = _move_aside(path, one)
    if aside is not None:
        aside.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    found = identity(path)
    if found is None:
        return
    _refuse_live(path)
    aside = _move_aside(path, found)
    if aside is None:
        return
    try:
        _refuse_live(aside)  # its owner may have begun to listen meanwhile
    except SocketTaken:
        _put_back(aside, path)
        raise
    aside.unlink(missing_ok=True)


def _refuse_live(path: Path) -> None:
    if path.is_symlink() or not stat.S_ISSOCK(path.lstat().st_mode):
        return
    pid = listener(path)
    if pid is not None:
        raise SocketTaken(path, pid)


def _move_aside(path: Path, one: SocketFile) -> Path | None:
    """Give the file a hidden name; None, with nothing changed, if the path is another file."""
    if identity(path) != one:
        return None
    aside = hidden_beside(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return None
    if identity(aside) == one:
        return aside
    _put_back(aside, path)
    return None


def _put_back(aside: Path, path: Path) -> None:
    """Give a file its name again, or keep the hidden one if the name is taken by now."""
    with suppress(FileExistsError):
        os.link(aside, path, follow_symlinks=False)
        aside.unlink()
