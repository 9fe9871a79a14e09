"""Files that are whole or absent, on disk before the call returns.

Owns durable writing: temporary file, fsync, rename, fsync of the folder. Knows nothing of what is written. The agent takes it as
an argument (`Files`), so that a full disk can be tried.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

TEMPORARY = ".tmp"
"""Suffix of a file that is being written. One left behind by a crash is overwritten by the next write, or swept."""


class Files(Protocol):
    """What the agent does with files. Every method raises OSError when the disk or the rights say no."""

    def read(self, path: Path) -> bytes:
        """The whole file; FileNotFoundError when there is none."""
        ...

    def write(self, path: Path, content: bytes) -> None:
        """Make `path` hold `content`, durably. On an error the file is as it was before."""
        ...

    def remove(self, path: Path) -> None:
        """Make sure, durably, that there is no such file."""
        ...

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name in its folder, durably."""
        ...

    def names(self, folder: Path) -> list[str]:
        """The sorted names in a folder; none when it does not exist."""
        ...


class LocalFiles:
    """The machine's files. One writer per file."""

    def read(self, path: Path) -> bytes:
        """The whole file; FileNotFoundError when there is none."""
        with _named(path):
            return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Make `path` hold `content`, durably. On an error the file is as it was before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + TEMPORARY)
        with _named(path):
            try:
                with fresh.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                fresh.replace(path)
            except OSError:
                fresh.unlink(missing_ok=True)
                raise
        _sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Make sure, durably, that there is no such file."""
        try:
            path.unlink()
        except FileNotFoundError:
            return
        _sync_folder(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name in its folder, durably."""
        path.rename(target)
        _sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        """The sorted names in a folder; none when it does not exist."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            return []


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Have errors name the file: a write to a full disk and a read from a broken one do not by themselves."""
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
