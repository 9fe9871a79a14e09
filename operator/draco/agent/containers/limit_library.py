"""HAMi-core in containers: a library that holds the programs which load it to a memory limit.

An administrator puts it on the node and names its path; Draco has no copy. A container gets it by mounts of its claim's device:
the library, and an /etc/ld.so.preload that names it, so that every program linked with glibc loads it first. Its limit is the
variable CUDA_DEVICE_MEMORY_LIMIT, for each GPU of the container. It also takes one per GPU, by number, but numbers count the GPUs
that a container sees, and kubelet gives a container any requests of any of its claims.

Owns what a file must be to be mounted, and these edits. Does not know which claims have a limit. Source: README of HAMi-core.
"""

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from draco.agent import files
from draco.agent.containers.edits import READ_ONLY, ContainerEdits, Mount
from draco.agent.hardware.driver_root import DriverRoot, resolved

IN_CONTAINER: Final = "/usr/local/vgpu/libvgpu.so"
PRELOAD: Final = "ld.so.preload"
_HEADER: Final = 20
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_SHARED: Final = 3


class LimitLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """The library of one node. `path` is on the node, "" for none; it is looked for below the driver's `root`, if it is there."""

    path: str = ""
    root: DriverRoot | None = None

    def problem(self) -> str:
        """Why containers cannot have it, as the end of a sentence; "" if they can. Blocks on the disk."""
        if not self.path:
            return "the agents are given no such library (chart value agent.limitLibrary)"
        try:
            file = self._seen()
            if file is None or not file.is_file():  # opening a pipe would block
                return f"there is no file {self.path} on the node"
            with file.open("rb") as opened:
                header, mode = opened.read(_HEADER), os.fstat(opened.fileno()).st_mode
        except OSError as error:
            return f"{self.path} cannot be read ({error.strerror})"
        if not _is_library(header):
            return f"{self.path} is not a shared library for {os.uname().machine}"
        if not mode & stat.S_IROTH:
            return f"{self.path} is not readable for the users of containers (chmod o+r)"
        return ""

    def _seen(self) -> Path | None:
        """The file as the agent sees it."""
        path, root = Path(self.path), self.root
        if root is None or not path.is_relative_to(root.host):
            return path
        return resolved(root.view / path.relative_to(root.host), root.view)


def _is_library(header: bytes) -> bool:
    """Whether a file begins like a 64-bit ELF library of this machine: the linker ignores any other, and so the limit."""
    machine = _MACHINES.get(os.uname().machine)
    kind, built_for = int.from_bytes(header[16:18], "little"), int.from_bytes(header[18:20], "little")
    return header.startswith(b"\x7fELF\x02\x01") and kind == _SHARED and machine in (None, built_for)


def edits(library: str, limit_mib: int, *, keep_in: Path) -> ContainerEdits:
    """What holds a container to a limit. `keep_in` gets the list of what to preload; node and agent see it. Raises OSError."""
    preload = keep_in / PRELOAD
    files.keep(preload, f"{IN_CONTAINER}\n".encode(), mode=0o644)
    return ContainerEdits(
        env=[f"CUDA_DEVICE_MEMORY_LIMIT={limit_mib}m"],
        mounts=[Mount(library, IN_CONTAINER, READ_ONLY), Mount(str(preload), "/etc/ld.so.preload", READ_ONLY)],
    )
