"""A process that ends at a chosen point: between two writes, or between two calls of the driver."""

from collections.abc import Callable
from pathlib import Path

from draco.agent.files import Files


class Killed(BaseException):
    """The process ends here."""


class KilledFiles(Files):
    """Ends the process before or after a write."""

    def __init__(self, point: Callable[[str], None]) -> None:
        self._point = point

    def write(self, path: Path, content: bytes) -> None:
        self._point("before write")
        super().write(path, content)
        self._point("after write")

    def write_volatile(self, path: Path, content: bytes) -> None:
        self._point("before write")
        super().write_volatile(path, content)
        self._point("after write")

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        self._point("before write")
        super().overwrite(path, offset, content)
        self._point("after write")

    def overwrite_volatile(self, path: Path, offset: int, content: bytes) -> None:
        self._point("before write")
        super().overwrite_volatile(path, offset, content)
        self._point("after write")


class Fuse:
    """Ends the process at the point of this number."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, _point: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed
