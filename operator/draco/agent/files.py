"""Files that are whole or absent.

Owns the ways of writing: durably, where the call returns when the content survives a loss of power (temporary file, fsync,
rename, fsync of the folder); durably in place, in room that the file has already; and without waiting for the disk, for what is
made again after a reboot. Knows nothing of what is written. The agent takes it as an argument (`Files`), so that a full disk can
be tried.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".tmp"
"""Suffix of a file that is being written. One left behind by a crash is overwritten by the next write, or swept."""


class Files:
    """The machine's files, one writer per file. Every method raises OSError when the disk or the rights say no."""

    def read(self, path: Path) -> bytes:
        """The whole file; FileNotFoundError when there is none."""
        with _named(path):
            return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Make `path` hold `content`, durably. On an error the file is as it was before."""
        _replace(path, content, sync=os.fsync)
        _sync_folder(path.parent)

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        """Replace bytes of a file, durably. The file never grows, so a full disk does not refuse it.

        FileNotFoundError when there is no such file, or none that long. After any other error nobody knows what is there.
        """
        _overwrite(path, offset, content, sync=os.fdatasync)

    def overwrite_volatile(self, path: Path, offset: int, content: bytes) -> None:
        """Replace bytes of a file as `overwrite` does, for every process at once; a loss of power may undo it."""
        _overwrite(path, offset, content, sync=lambda _: None)

    def write_volatile(self, path: Path, content: bytes) -> None:
        """Make `path` hold `content`, for every process at once; a loss of power may undo it."""
        _replace(path, content, sync=lambda _: None)

    def remove(self, path: Path) -> None:
        """Make sure that there is no such file; a loss of power may bring it back."""
        path.unlink(missing_ok=True)

    def keep_as(self, path: Path, target: Path) -> None:
        """Give a file a second name in its folder, durably. It keeps that content when the first name gets another."""
        target.hardlink_to(path)
        _sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        """The sorted names in a folder; none when it does not exist."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            return []

    def hindrance(self, folder: Path) -> OSError | None:
        """What writing there would end with, as far as can be told without; None where nothing speaks against it.

        Asks for rights, so that who watches the folder is not woken.
        """
        there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # noqa: PTH110 - Path's raises
        if os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            return None
        code = errno.EROFS if _read_only(there) else errno.EACCES
        return OSError(code, os.strerror(code), str(folder))


def advice(error: OSError) -> str:
    """What refused, and what to do about it."""
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
    """Have errors name the file: a write to a full disk and a read from a broken one do not on their own."""
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
