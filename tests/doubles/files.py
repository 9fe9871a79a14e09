"""Disks that fail."""

import errno
import os
from pathlib import Path

from draco.agent.files import Files


class FullDisk(Files):
    """Has no space for new content in files whose path contains one of the words in `refused`."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def write(self, path: Path, content: bytes) -> None:
        self._refuse(path)
        super().write(path, content)

    def write_volatile(self, path: Path, content: bytes) -> None:
        self._refuse(path)
        super().write_volatile(path, content)

    def _refuse(self, path: Path) -> None:
        if any(word in str(path) for word in self.refused):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class FullCopyOnWriteDisk(FullDisk):
    """Needs space also to change existing content, as Btrfs and ZFS do."""

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        self._refuse(path)
        super().overwrite(path, offset, content)

    def overwrite_volatile(self, path: Path, offset: int, content: bytes) -> None:
        self._refuse(path)
        super().overwrite_volatile(path, offset, content)


class Writes(Files):
    """Records writes in order: the file's name and the bytes."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []

    def write(self, path: Path, content: bytes) -> None:
        super().write(path, content)
        self.written.append((path.name, content))

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        super().overwrite(path, offset, content)
        self.written.append((path.name, content))

    def overwrite_volatile(self, path: Path, offset: int, content: bytes) -> None:
        super().overwrite_volatile(path, offset, content)
        self.written.append((path.name, content))

    def write_volatile(self, path: Path, content: bytes) -> None:
        super().write_volatile(path, content)
        self.written.append((path.name, content))
