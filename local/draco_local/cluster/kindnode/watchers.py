"""How many inotify instances root may have: raised while any private engine runs, set back when the last one has ended.

Engines of several users of one machine know of each other by a file whose shared lock each of them holds as long as any of its
processes lives; the file says what the number was before. A killed engine loses the lock with its processes, and whichever engine
starts or stops next sets the number back. All this happens within `network.changing`, so one by one.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SETTING: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH: Final = 1024
"""A cluster of three nodes takes 110 of root's 128 by default; a kubelet that gets none registers no driver, and says so once."""
_FILE: Final = Path("/run/draco-inotify-instances")


@contextlib.contextmanager
def raised(*, setting: Path = _SETTING, file: Path = _FILE) -> Iterator[int]:
    """Raise the number, and give the engine's first process the descriptor that holds the lock, to inherit."""
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
    """Set the number back, unless an engine still runs or somebody else has set another one since."""
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
