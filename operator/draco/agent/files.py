"""Writes files so that each is whole or absent.

Owns the ways to write. Durable: the content survives a power loss when the call returns (temporary file, fsync, rename, fsync
of the folder). Durable in place: into room that the file already has. Volatile: without waiting for the disk, for content that is
rebuilt after a reboot. `keep` is for files that containers use. The agent takes `Files` as an argument, so that tests can fill
the disk.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".tmp"
"""Suffix of a file being written. One left by a crash is overwritten by the next write, or swept."""


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file. Asking holds it for an instant, too."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def keep(path: Path, content: bytes, *, mode: int) -> None:
    """Make a file that containers use hold this content, with this mode. One that does already is left alone."""
    if path.exists() and path.read_bytes() == content:
        return
    fresh = path.with_name(f".{path.name}{TEMPORARY}")
    fresh.write_bytes(content)
    fresh.chmod(mode)
    fresh.replace(path)


class Files:
    """The machine's files, one writer per file. Every method raises OSError when the disk or permissions refuse."""

    def read(self, path: Path) -> bytes:
        """The whole file. Raises FileNotFoundError if there is none."""
        with _named(path):
            return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Make `path` hold `content`, durably. On an error the file is as it was before."""
        _replace(path, content, sync=os.fsync)
        _sync_folder(path.parent)

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        """Replace bytes of a file, durably. The file never grows, so a full disk does not refuse it.

        Raises FileNotFoundError if the file is missing or shorter. After any other error its content is unknown.
        """
        _overwrite(path, offset, content, sync=os.fdatasync)

    def overwrite_volatile(self, path: Path, offset: int, content: bytes) -> None:
        """Replace bytes of a file like `overwrite`. Every process sees it immediately; a power loss may undo it."""
        _overwrite(path, offset, content, sync=lambda _: None)

    def write_volatile(self, path: Path, content: bytes) -> None:
        """Make `path` hold `content`. Every process sees it immediately; a power loss may undo it."""
        _replace(path, content, sync=lambda _: None)

    def remove(self, path: Path) -> None:
        """Remove the file if it exists; a power loss may bring it back."""
        path.unlink(missing_ok=True)

    def keep_as(self, path: Path, target: Path) -> None:
        """Hard-link a file to a second name in its folder, durably. That name keeps this content when the first is rewritten."""
        target.hardlink_to(path)
        _sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        """The sorted names in a folder; empty if it does not exist."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            return []

    def hindrance(self, folder: Path) -> OSError | None:
        """The error that a write there would raise, None if none is expected. Checks permissions only: that wakes no watchers."""
        there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # noqa: PTH110 - Path's raises
        if os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            return None
        code = errno.EROFS if _read_only(there) else errno.EACCES
        return OSError(code, os.strerror(code), str(folder))


def advice(error: OSError) -> str:
    """What the disk refused, and the remedy."""
    match error.errno:
        case errno.EROFS:
            remedy = "mount it writable on the node"
        case errno.EACCES | errno.EPERM:
            remedy = (
                "the agent is root, so SELinux, AppArmor or an immutable flag refuses it: permit what the node's audit log names "
                "(ausearch -m AVC, or dmesg), or take the flag off (lsattr)"
            )
            if os.geteuid() != 0:
                remedy = "run the agent as root"
        case _:
            remedy = "make room or fix the folder"
    return f"{error.strerror} ({error.filename}); {remedy}"


def _read_only(folder: Path) -> bool:
    with suppress(OSError):
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    return False


def _replace(path: Path, content: bytes, *, sync: Callable[[int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + TEMPORARY)
    with _named(path):
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                sync(file.fileno())
            fresh.replace(path)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise


def _overwrite(path: Path, offset: int, content: bytes, *, sync: Callable[[int], None]) -> None:
    with _named(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < offset + len(content):
                raise FileNotFoundError(errno.ENOENT, "The file is shorter than before", str(path))
            written = 0
            while written < len(content):
                written += os.pwrite(descriptor, content[written:], offset + written)
            sync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's name to errors: errors of a full or broken disk lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _sync_folder(folder: Path) -> None:
    with _named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
