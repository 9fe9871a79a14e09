"""The device nodes by which containers open GPUs: /dev/nvidia<N>, and those that all GPUs share.

Owns that a node exists before a container refers to it. NVIDIA's driver leaves creating them to programs such as nvidia-smi and
nvidia-modprobe, which may not have run since boot; so missing nodes are created here, with the numbers that the kernel lists. If
the kernel lists no NVIDIA device and the node has no such nodes, its GPUs are opened differently, as under WSL2, and nothing is
required.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from draco.agent.errors import PrepareError

REQUIRED: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""Shared by all GPUs; no container can compute without them."""
OPTIONAL: Final = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Shared too, for profilers and displays: given if they exist or can be created."""
_MODE: Final = 0o666
_FRONTENDS: Final = ("nvidia", "nvidia-frontend")
"""The kernel's names for GPUs and shared devices; drivers before 550 use the second."""
_SHARED: Final[Mapping[str, tuple[tuple[str, ...], int]]] = {
    "/dev/nvidiactl": (("nvidiactl", *_FRONTENDS), 255),
    "/dev/nvidia-modeset": (("nvidia-modeset", *_FRONTENDS), 254),
    "/dev/nvidia-uvm": (("nvidia-uvm",), 0),
    "/dev/nvidia-uvm-tools": (("nvidia-uvm",), 1),
}
"""The kernel's possible names of the major number, and the minor number."""


class DeviceNodeMissing(PrepareError):
    """A device node that containers need is missing and cannot be created."""


class DeviceNodes:
    """Reads the kernel's list below `proc`; creates missing nodes below `device_root`."""

    def __init__(self, proc: Path, device_root: Path) -> None:
        self._proc = proc
        self._device_root = device_root

    def on_host(self, path: str) -> Path:
        """The node's path of what containers see as `path`."""
        return self._device_root / path.removeprefix("/")

    def gpu(self, minor: int) -> str:
        """The node of a GPU, as containers see it, created if missing. Raises DeviceNodeMissing."""
        path = f"/dev/nvidia{minor}"
        self.ensure(path, names=_FRONTENDS, minor=minor, remedy=f"nvidia-modprobe -c {minor}")
        return path

    def shared(self) -> list[str]:
        """The existing nodes that all GPUs share. Raises DeviceNodeMissing for a required one."""
        for path in REQUIRED:
            names, minor = _SHARED[path]
            remedy = "nvidia-modprobe -u -c 0" if "uvm" in path else "nvidia-modprobe"
            self.ensure(path, names=names, minor=minor, remedy=remedy)
        for path in OPTIONAL:
            names, minor = _SHARED[path]
            self._make(path, names, minor, _MODE)
        return [path for path in (*REQUIRED, *OPTIONAL) if self.on_host(path).exists()]

    def ensure(self, path: str, *, names: tuple[str, ...], minor: int, remedy: str, mode: int = _MODE) -> None:
        """Ensure that a node exists, with the major number that the kernel lists under one of these names.

        Raises DeviceNodeMissing, with the command that creates it, if it cannot be created. Does nothing on a machine without
        NVIDIA device nodes.
        """
        why = self._make(path, names, minor, mode)
        if why and self._has_any():
            raise DeviceNodeMissing(
                f"The device node {self.on_host(path)} is missing and cannot be made: {why}; give the agent the right to make "
                f"device nodes there, or run `{remedy}` on the node."
            )

    def _make(self, path: str, names: tuple[str, ...], minor: int, mode: int) -> str:
        """Create a missing node; returns why it cannot be, "" if it exists."""
        on_host = self.on_host(path)
        if on_host.exists():
            return ""
        majors = self._majors()
        major = next((majors[name] for name in names if name in majors), None)
        if major is None:
            return f"the kernel lists no device {names[0]}, so its module is not loaded"
        try:
            on_host.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(on_host, mode | stat.S_IFCHR, os.makedev(major, minor))
            if mode & 0o022:  # the umask removes these bits
                on_host.chmod(mode)
        except FileExistsError:
            return ""
        except OSError as error:
            return str(error.strerror)
        return ""

    def _has_any(self) -> bool:
        """Whether this node's GPUs are opened by nodes of NVIDIA's driver."""
        return any(name.startswith("nvidia") for name in self._majors()) or any(
            (self._device_root / "dev").glob("nvidia*")
        )

    def _majors(self) -> dict[str, int]:
        try:
            text = (self._proc / "devices").read_text(errors="replace")
        except OSError:
            return {}
        return {name: int(number) for number, name in re.findall(r"^ *([0-9]{1,9}) (\S+)$", text, re.MULTILINE)}
