"""Socket files that several programs may want: made, found alive, and taken away without ever touching somebody else's.

Owns the file operations. Between a look at a file and an act on it somebody may put another in its place, so a file is never
removed by its name: it is moved aside, looked at there, and put back if it is not the one that was meant. Nothing here unlinks a
socket on which somebody listens.
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
    """Somebody else listens on a socket path that we want."""

    def __init__(self, path: Path, pid: int) -> None:
        who = f"process {pid}" if pid else "a process that is not visible from here"
        super().__init__(f"The socket {path} is served by {who}.")


class SocketFile(NamedTuple):
    """One socket file, whatever its name: numbers of files are used again, but not at the same moment."""

    device: int
    inode: int
    bound_ns: int


def identity(path: Path) -> SocketFile | None:
    """Which file it is; None when there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return SocketFile(found.st_dev, found.st_ino, found.st_mtime_ns)


def listener(path: Path) -> int | None:
    """The process that listens there (0: not visible to us); None when nobody does."""
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
    """A name in the same folder that nobody else uses and that kubelet does not look at. No longer than "x.sock"."""
    return path.with_name(f".{secrets.token_hex(3)}")


def show(hidden: Path, path: Path) -> SocketFile:
    """Give a socket that was bound under a hidden name the name under which others look for it.

    What an earlier run left there goes. SocketTaken when somebody listens there; then the hidden name is removed.
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
    """Remove that file, unless the path is another one's by now."""
    aside = _move_aside(path, one)
    if aside is not None:
        aside.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove what nobody listens on."""
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
    """Give the file a hidden name; None, and nothing changed, when the path is not that file's."""
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
    """Give a file its name again. When that name is a third one's by now, the file keeps its hidden one."""
    with suppress(FileExistsError):
        os.link(aside, path, follow_symlinks=False)
        aside.unlink()
