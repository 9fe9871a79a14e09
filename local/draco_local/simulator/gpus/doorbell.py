"""Doorbell: wakes threads of other processes that wait for a file to change.

Owns named pipes in a folder beside the file, one per waiter. A waiter costs nothing while nothing happens, so that
hundreds of simulated GPU nodes can wait for events on a small machine. Knows nothing of what is in the file.
"""

import errno
import os
import select
import uuid
from contextlib import suppress
from pathlib import Path


def _folder(path: Path) -> Path:
    return path.with_name(path.name + ".waiters")


def ring(path: Path) -> None:
    """Wake everyone who waits for `path`. Pipes that dead waiters left behind are removed."""
    try:
        names = os.listdir(_folder(path))  # noqa: PTH208 - names only: this runs on every write
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith("."):
            continue  # a waiter that is still being set up
        pipe = _folder(path) / name
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nobody has it open for reading any more
                pipe.unlink(missing_ok=True)
            continue
        try:
            with suppress(BlockingIOError, BrokenPipeError):  # full: the waiter has been rung already
                os.write(descriptor, b"!")
        finally:
            os.close(descriptor)


class Doorbell:
    """One waiter for changes of `path`. Open it before looking at the file, so that no change is missed."""

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        folder = _folder(path)
        folder.mkdir(exist_ok=True)
        name = f"{os.getpid()}-{uuid.uuid4().hex}"
        # Made under a hidden name and opened first: a pipe that nobody reads yet would be taken for a dead one.
        hidden = folder / f".{name}"
        os.mkfifo(hidden, 0o600)
        self._descriptor = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._pipe = hidden.rename(folder / name)

    def wait(self, timeout_s: float) -> bool:
        """Return after the next ring (True), or when the time is over (False); a ring since the last wait counts."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        if not poller.poll(max(0, round(timeout_s * 1000))):
            return False
        with suppress(BlockingIOError):
            os.read(self._descriptor, 65536)
        return True

    def ring_own(self) -> None:
        """Wake the thread that waits on this bell."""
        with suppress(BlockingIOError):
            os.write(self._descriptor, b"!")

    def __del__(self) -> None:
        """Remove the pipe once nobody can wait on it any more, not even another thread."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                self._pipe.unlink(missing_ok=True)
            os.close(descriptor)
