"""The limit of root's inotify instances: raised while any private engine runs, restored when the last one has ended.

Several users of one machine may run an engine each. While any process of an engine lives, it holds a shared lock on a file that
stores the limit from before. A killed engine loses the lock with its processes; the next engine that starts or stops restores the
limit. All this happens within `network.changing`, so one engine at a time.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SETTING: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH: Final = 1024
"""A cluster of three nodes takes 110 of the default 128; a kubelet that gets none registers no driver, and says so only once."""
_FILE: Final = Path("/run/draco-inotify-instances")


@contextlib.contextmanager
def raised(*, setting: Path = _SETTING, file: Path = _FILE) -> Iterator[int]:
    """Raise the limit, and yield the descriptor that holds the lock, for the engine's first process to inherit."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        before = int(setting.read_text())
        if before < _ENOUGH:
            os.pwrite(descriptor, f"{before}\n".encode(), 0)
            setting.write_text(str(_ENOUGH))
        yield descriptor
    finally:
        os.close(descriptor)


def set_back(*, setting: Path = _SETTING, file: Path = _FILE) -> None:
    """Restore the limit, unless an engine still runs or somebody else has changed it since."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = os.pread(descriptor, 20, 0).partition(b"\n")[0]
        if before and int(setting.read_text()) == _ENOUGH:
            setting.write_text(before.decode())
        file.unlink()
    except BlockingIOError:
        pass  # some engine runs
    finally:
        os.close(descriptor)
