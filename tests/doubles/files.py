"""Disks that go wrong."""

import errno
import os
from pathlib import Path

from draco.agent.files import LocalFiles


class FullDisk(LocalFiles):
    """Refuses to write files whose path contains one of the words in `refused`."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def write(self, path: Path, content: bytes) -> None:
        if any(word in str(path) for word in self.refused):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write(path, content)
