"""One program at a time: locks that end with the process that holds them.

Owns the lock files. A lock is the kernel's (flock), so a killed holder leaves nothing to clean up.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.2


class LockHeld(Exception):
    """Another process holds the lock; `holder` is its pid, or "" if it is not known."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock at `path` during the block and remove its file afterwards; raises LockHeld if another process has it."""
    descriptor = _acquire(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: waiters notice that the file is gone
        os.close(descriptor)


@contextlib.contextmanager
def waited_for(path: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Like `held`, but wait for the other process; `waiting` is called with its pid, once, if there is one to wait for."""
    descriptor = _wait(path, waiting)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def shared(path: Path, *, last: Callable[[], object]) -> Iterator[None]:
    """Share the lock at `path` with others. The last one to leave calls `last`, alone, unless its block failed."""
    descriptor = _wait(path, lambda _holder: None, how=fcntl.LOCK_SH)
    done = False
    try:
        yield
        done = True
    finally:
        with contextlib.suppress(BlockingIOError):  # others still share it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if done:
                last()
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _wait(path: Path, waiting: Callable[[str], None], *, how: int = fcntl.LOCK_EX) -> int:
    is_told = False
    while True:
        try:
            return _acquire(path, how=how)
        except LockHeld as other:
            if not is_told:
                waiting(other.holder)
            is_told = True
        time.sleep(_POLL_S)


def _acquire(path: Path, *, how: int = fcntl.LOCK_EX) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                os.truncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace")
            os.close(descriptor)
            raise LockHeld(holder) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its file was removed between opening and locking: it locks nothing


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
